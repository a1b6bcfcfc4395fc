//! `uncopy-bench load`: files sent by each way at a fixed rate, and the share of the machine that this takes,
//! as measured by the mail of 2001 (sendfile-zerocopy-cpu-load): 63 files of 350 KB on average, in chunks of 64
//! KiB, at its network's 92 Mbit/s, and at 10 Gbit/s or the machine's maximum.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};

use crate::experiments::load::command;
use crate::experiments::load::soaker::{Calibration, SoakerWork, Soakers, load_fraction};
use crate::kit::figures::{self, two_decimals};
use crate::kit::network::{self, Network};
use crate::kit::{
    Align, CommonOptions, Comparison, Experiment, Failure, Interval, Launcher, Machine, Metric, Outcome,
    Plot, Progress, Report, ReportEntry, Result, Rounds, Sample, Scale, Series, Side, Table,
    TemporaryDirectory, bytes_parser, claim, count_parser, entry, format_amount, format_figure,
    prepare_experiment, processors, run_without_noise_reduction, seconds,
};
use crate::servers::sending::corpus::Corpus;
use crate::servers::sending::receiver::Receiver;
use crate::servers::sending::sender::{Sender, SenderOptions};
use crate::servers::sending::server::CHUNK_BYTES;
use crate::servers::sending::ways::Way;

/// Ways compared with read and send, by their names on the command line.
const WAYS: [(&str, Side, Way); 8] = [
    ("send", Side::Plain, Way::Send),
    ("write", Side::Way("write"), Way::Write),
    ("sendfile", Side::Way("sendfile"), Way::Sendfile),
    ("mmap-send", Side::Way("mmap-send"), Way::MmapSend),
    ("splice", Side::Way("splice"), Way::Splice),
    ("zerocopy", Side::Way("zerocopy"), Way::Zerocopy),
    ("twin", Side::Twin, Way::Twin),
    ("uncopy", Side::Uncopy, Way::Send),
];
/// Requested rate from which the machine's maximum is determined first, Mbit/s.
const MIN_TRIED_MBIT_PER_S: f64 = 1000.0;
/// Time for which each way's maximum rate is determined.
const TRIAL: Duration = Duration::from_millis(200);
/// Fraction of the slowest way's maximum rate that all ways can sustain.
const SUSTAINED_FRACTION: f64 = 0.7;
/// Length of a calibration as a fraction of a measurement's, and its minimum.
const CALIBRATION_DIVISOR: u32 = 4;
const MIN_CALIBRATION: Duration = Duration::from_millis(100);
/// Time of traffic before a measurement.
const WARM_UP: Duration = Duration::from_millis(150);

/// Processor load of sending files in each way at a fixed rate, or of any command (the mail of 2001)
#[derive(Debug, Args)]
pub struct Load {
    /// Rates, in Mbit/s, lowered to what the machine can sustain
    #[arg(long, value_name = "MBIT,...", default_value = "92,10000", value_delimiter = ',',
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000))]
    pub rates: Vec<u64>,
    /// Ways to compare with read and send; uncopy is read and send under uncopy run
    #[arg(long, value_name = "WAY,...", default_value = "write,sendfile,mmap-send,splice,zerocopy,twin,uncopy",
        value_delimiter = ',',
        value_parser = ["send", "write", "sendfile", "mmap-send", "splice", "zerocopy", "twin", "uncopy"])]
    pub ways: Vec<String>,
    /// Bytes sent per call
    #[arg(long, value_name = "SIZE", default_value_t = CHUNK_BYTES, value_parser = bytes_parser(1 << 30))]
    pub chunk: usize,
    /// Cache lines that each soaker writes per second; 0: no limit, and no other work
    #[arg(long, value_name = "LINES", default_value = "10000", value_parser = RangedU64ValueParser::<u64>::new().range(0..=10_000_000))]
    pub lines: u64,
    /// Number of rounds; each runs every way once
    #[arg(long, value_name = "N", default_value = "7", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub rounds: usize,
    /// Duration of each measurement; with a command, of the calibrations before and after it
    #[arg(long, value_name = "SECONDS", default_value = "1", default_value_if("quick", "true", "0.3"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub common: CommonOptions,
    /// Command to measure instead, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Experiment for Load {
    const ENTRIES: &'static [ReportEntry] = &[entry(
        "load",
        "Processor load of sending files",
        &[claim(
            "sendfile+zerocopy, 2001",
            "11.5 MB/s, two processors of 500 MHz: sendfile 17.1 %, send 21.1 %, write 21.1 % of the machine. \
             With the zerocopy patch and a network card that supports it: 9.6 %, 24.1 % and 24.2 %.",
        )],
        "load --rounds 5 --seconds 0.8",
        "load --quick",
    )];
    const REPORT_POSITION: u8 = 150;

    fn run(&self) -> Result<Outcome> {
        if !self.command.is_empty() {
            return self.run_command().map(Outcome::Status);
        }
        // Idle loops would use the processor time that the soakers count.
        run_without_noise_reduction(&self.common, |launcher, progress| {
            let measured = measure(launcher, self, progress)?;
            let (text, plot) = (render(&measured), plot(&measured));
            let findings = findings(&measured);
            Ok(Report { findings, ..Report::new(measured.comparisons, text, plot) })
        })
    }
}

impl Load {
    fn sides(&self) -> Vec<Side> {
        let chosen = |(name, side, _): &(&str, Side, Way)| {
            *side == Side::Plain || self.ways.iter().any(|way| way == name)
        };
        WAYS.iter().filter(|way| chosen(way)).map(|(_, side, _)| *side).collect()
    }

    /// Measures the command. The result goes to standard error, because standard output is the command's.
    fn run_command(&self) -> Result<u8> {
        if network::current() != Network::Loopback || self.common.svg.is_some() {
            return Err(Failure::new("--network and --svg cannot be used with a command"));
        }
        let launcher = prepare_experiment()?;
        let cost = command::measure(&launcher, &self.command, self.lines, self.seconds)?;
        let machine = Machine::describe();
        if self.common.json {
            eprintln!("{:#}", cost.to_json(&machine));
        } else {
            eprint!("{}", cost.render(&machine));
        }
        Ok(cost.exit_status())
    }
}

/// Results of the experiment, for all rates.
#[derive(Debug)]
struct RateResults {
    /// Comparisons, one for each rate.
    pub comparisons: Vec<Comparison>,
    /// Calibration of the machine without traffic.
    pub calibration: Calibration,
    /// Number of processors, each with a soaker.
    pub processors: usize,
}

/// Environment of a measurement.
struct TrafficBench<'a> {
    launcher: &'a Launcher,
    options: &'a Load,
    corpus: Arc<Corpus>,
    directory: TemporaryDirectory,
    processors: usize,
}

/// Runs the experiment.
///
/// # Errors
/// [`Failure`] when soakers cannot be started, or the disk is too full for the files.
#[expect(clippy::cast_precision_loss, reason = "rates of a few digits")]
fn measure(launcher: &Launcher, options: &Load, progress: &mut Progress) -> Result<RateResults> {
    let bench = TrafficBench {
        launcher,
        options,
        corpus: Arc::new(Corpus::mail()),
        directory: TemporaryDirectory::make()?,
        processors: processors::available().len(),
    };
    bench.corpus.write(bench.directory.path())?;
    let sides = options.sides();
    let mut sustained = Vec::new();
    for requested in &options.rates {
        sustained.push(bench.sustained_rate(*requested as f64, &sides, progress));
    }
    let mut soakers = Soakers::start(launcher, options.lines)?;
    let calibration = (options.seconds / CALIBRATION_DIVISOR).max(MIN_CALIBRATION);
    // The soakers' first moments are not representative.
    std::thread::sleep(MIN_CALIBRATION);
    let mut before = soakers.calibrate(calibration)?;
    let mut comparisons = Vec::new();
    for (requested, sustained) in options.rates.iter().zip(&sustained) {
        let mut comparison =
            Comparison::new(title(*requested as f64, sustained.as_ref().ok()), options.chunk as u64, &sides)
                .with_parameter("asked_mbit_per_s", *requested as f64);
        match sustained {
            Ok(rate) => comparison = comparison.with_parameter("rate_mbit_per_s", *rate),
            Err(failure) => comparison.fail(failure),
        }
        comparisons.push(comparison);
    }
    let rates: Vec<f64> = sustained.into_iter().map(|rate| rate.unwrap_or(f64::NAN)).collect();
    Rounds::exactly(options.rounds).run(&mut comparisons, &rates, progress, |rate, side, _| {
        let (sample, soaked) = bench.sample(side, *rate, &mut soakers)?;
        let after = soakers.calibrate(calibration)?;
        let load = load_fraction(soaked.work_per_s, f64::midpoint(before, after));
        before = after;
        let (load_percent, others_percent) = (Some(load * 100.0), Some(soaked.others * 100.0));
        Ok(Sample { load_percent, others_percent, ..sample })
    });
    let calibration = soakers.calibration().ok_or_else(|| Failure::new("the soakers did no work"))?;
    Ok(RateResults { comparisons, calibration, processors: soakers.count() })
}

fn title(requested: f64, sustained: Option<&f64>) -> String {
    let rate = |mbit: f64| {
        if mbit < 1000.0 {
            format!("{mbit:.0} Mbit/s")
        } else {
            format!("{} Gbit/s", one_decimal(mbit / 1000.0))
        }
    };
    match sustained {
        Some(sustained) if *sustained < requested => {
            format!("{} ({} asked)", rate(*sustained), rate(requested))
        }
        _ => rate(requested),
    }
}

/// Formats a number with at most one decimal.
fn one_decimal(value: f64) -> String {
    format!("{value:.1}").trim_end_matches(".0").to_owned()
}

/// Returns the name of a side in this experiment.
fn way_name(side: Side) -> &'static str {
    WAYS.iter().find(|(_, known, _)| *known == side).map_or_else(|| side.name(), |(name, _, _)| name)
}

impl TrafficBench<'_> {
    fn sender_options(&self, side: Side, mbit_per_s: f64) -> SenderOptions<'_> {
        let way = WAYS.iter().find(|(_, known, _)| *known == side).map_or(Way::Send, |(_, _, way)| *way);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is not negative")]
        let bits_per_s = (mbit_per_s * 1e6) as u64;
        let (directory, chunk_bytes): (&Path, usize) = (self.directory.path(), self.options.chunk);
        SenderOptions { directory, way, bits_per_s, chunk_bytes, once: false }
    }

    /// Returns the rate that all sides can sustain, at most `requested`, Mbit/s.
    fn sustained_rate(&self, requested: f64, sides: &[Side], progress: &mut Progress) -> Result<f64> {
        let mut sustained = requested;
        if requested >= MIN_TRIED_MBIT_PER_S {
            for side in sides {
                progress.report_round(
                    &format!("highest rate up to {}", title(requested, None)),
                    0,
                    1,
                    way_name(*side),
                );
                let (sample, ()) = self.traffic(*side, 0.0, || std::thread::sleep(TRIAL))?;
                let rate = sample.megabits_per_s.unwrap_or(requested);
                // Two significant digits, so that runs on one machine use the same rate.
                let unit = 10f64.powf((rate * SUSTAINED_FRACTION).log10().floor() - 1.0);
                sustained = sustained.min((rate * SUSTAINED_FRACTION / unit).floor() * unit);
            }
        }
        Ok(sustained)
    }

    /// Sends traffic by `side`. Returns the sample without the soakers' part, and the result of `during`.
    fn traffic<T>(&self, side: Side, mbit_per_s: f64, during: impl FnOnce() -> T) -> Result<(Sample, T)> {
        let mut sender = Sender::start(self.launcher, side, &self.sender_options(side, mbit_per_s))?;
        let receiver = Receiver::start(sender.address, &self.corpus)
            .map_err(|failure| sender.server.process().explain(&failure))?;
        std::thread::sleep(WARM_UP);
        let begin = std::time::Instant::now();
        let (bytes_before, received_before) = receiver.progress();
        let sent_before = sender.server.process().cpu_ns()?;
        let result = during();
        let elapsed = begin.elapsed();
        let (bytes, receiver_ns) = receiver.progress();
        let receiver_ns = receiver_ns.saturating_sub(received_before);
        let bytes = bytes.saturating_sub(bytes_before);
        if receiver.has_ended() {
            let early = Failure::new("the connection ended too early");
            let failure = receiver.finish().err().unwrap_or(early);
            return Err(sender.server.process().explain(&failure));
        }
        let sender_ns = sender.server.process().cpu_ns()?.saturating_sub(sent_before);
        let pid = sender.server.process().pid();
        let mut notes = self.launcher.notes(side, pid, &sender.server.stderr_text(), false);
        let defect = sender.server.process().stop().err().map(|failure| failure.to_string());
        let received = receiver.finish()?;
        let totals = sender.read_totals()?;
        if totals.bytes != received.bytes {
            let (sent, received) = (totals.bytes, received.bytes);
            return Err(Failure::new(format!("sent {sent} bytes, but received {received}")));
        }
        if totals.copied > 0 {
            notes.push(copied_note(totals.copied, totals.completions));
        }
        let sample =
            sample_figures(bytes, elapsed, self.processors, [sender_ns, receiver_ns], self.options.chunk);
        let sample = Sample { verified_bytes: Some(received.bytes), notes, defect, ..sample };
        Ok((sample, result))
    }

    /// Sends traffic by `side`. Returns the sample and the soakers' work meanwhile.
    fn sample(&self, side: Side, mbit_per_s: f64, soakers: &mut Soakers) -> Result<(Sample, SoakerWork)> {
        let (sample, soaked) = self.traffic(side, mbit_per_s, || {
            let begin = soakers.snapshot()?;
            std::thread::sleep(self.options.seconds);
            soakers.since(&begin)
        })?;
        Ok((sample, soaked?))
    }
}

fn copied_note(copied: u64, completions: u64) -> String {
    let part = if copied == completions { "all".to_owned() } else { format!("{copied} of {completions}") };
    format!(
        "the kernel copied the data of {part} MSG_ZEROCOPY calls, as it does without a network card that can \
         gather data"
    )
}

#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn sample_figures(
    bytes: u64,
    elapsed: Duration,
    processors: usize,
    [sender_ns, receiver_ns]: [u64; 2],
    chunk_bytes: usize,
) -> Sample {
    let percent = |ns: u64| ns as f64 / 1e7 / elapsed.as_secs_f64() / processors as f64;
    let chunks = bytes as f64 / chunk_bytes as f64;
    Sample {
        operations_per_s: Some(chunks / elapsed.as_secs_f64()),
        cpu_us: (chunks > 0.0).then_some(sender_ns as f64 / 1e3 / chunks),
        megabits_per_s: Some(bytes as f64 * 8e-6 / elapsed.as_secs_f64()),
        server_percent: Some(percent(sender_ns)),
        client_percent: Some(percent(receiver_ns)),
        ..Sample::default()
    }
}

/// Share of the machine that the traffic took, percent.
const LOAD: Metric = |sample| sample.load_percent;
/// Share of the machine without the receiver's processor time, percent.
const SENDING: Metric = Sample::sending_percent;

fn render(measured: &RateResults) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("rate", Left),
        ("way", Left),
        ("Mbit/s", Right),
        ("load %", Right),
        ("spread", Right),
        ("sending %", Right),
        ("spread", Right),
        ("of send", Right),
        ("spread", Right),
        ("sender %", Right),
        ("receiver %", Right),
        ("others %", Right),
        ("interrupts %", Right),
        ("µs/MiB", Right),
        ("verified", Right),
    ]);
    let range = |spread: Option<Interval>, digits: usize| {
        spread.map_or_else(String::new, |spread| format!("{:.digits$}–{:.digits$}", spread.low, spread.high))
    };
    for comparison in &measured.comparisons {
        for side in comparison.sides() {
            let is_shown = comparison.is_verified() && !measured.calibration.is_invalid();
            let spread = |metric| comparison.figure(*side, metric).filter(|_| is_shown);
            let percent = |metric| {
                spread(metric).map_or_else(|| "-".to_owned(), |spread| format!("{:.2}", spread.median))
            };
            let ratio = comparison.ratio(*side, SENDING).filter(|_| is_shown && *side != Side::Plain);
            let per_mib = spread(SENDING).and_then(|spread| us_per_mib(comparison, *side, spread, measured));
            table.row(vec![
                comparison.title().to_owned(),
                way_name(*side).to_owned(),
                format_figure(figures::median(comparison, *side, |sample| sample.megabits_per_s)),
                percent(LOAD),
                range(spread(LOAD), 2),
                percent(SENDING),
                range(spread(SENDING), 2),
                two_decimals(ratio),
                range(ratio, 2),
                format_figure(figures::median(comparison, *side, |sample| sample.server_percent)),
                format_figure(figures::median(comparison, *side, |sample| sample.client_percent)),
                percent(Sample::background_percent),
                percent(Sample::interrupts_percent),
                format_figure(per_mib),
                format_amount(comparison.verified_bytes(*side)),
            ]);
        }
    }
    format!("{}\n{}{}", table.render(), measured.calibration.render(measured.processors), LEGEND)
}

/// Returns the machine's time per MiB without the receiver's, µs.
fn us_per_mib(comparison: &Comparison, side: Side, sending: Interval, measured: &RateResults) -> Option<f64> {
    let megabits_per_s = figures::median(comparison, side, |sample| sample.megabits_per_s)?;
    let mib_per_s = megabits_per_s / 8.0 * 1e6 / f64::from(1 << 20);
    #[expect(clippy::cast_precision_loss, reason = "a few processors")]
    let processors = measured.processors as f64;
    Some(sending.median / 100.0 * processors * 1e6 / mib_per_s)
}

/// Explanation of the columns.
const LEGEND: &str = "\
load: processor time, of all processors, that sending and receiving took from soakers at idle priority, with interrupts\n\
sending: load without the receiver's own processor time; the receiver compares every byte, the same work in each row\n\
of send: sending over that of read and send, median over paired, alternating rounds; spread: smallest to largest\n\
sender, receiver: processor time of these processes by getrusage\n\
others: time of kernel threads and other programs\n\
interrupts: the rest of the load, which is work that soakers lost while they ran\n\
µs/MiB: sending, as time of one processor per MiB sent\n\
send, write: after read; mmap-send: from a mapping; twin: from files in twin memory; uncopy: read and send under uncopy\n";

/// Titles of the plot.
const TITLE: &str = "Processor load of sending files";
const BUSY_TITLE: &str = "Processor time of the sender alone";

/// Returns the loads by way and the calibration as JSON.
fn findings(measured: &RateResults) -> Vec<(&'static str, Value)> {
    let entry = |comparison: &Comparison, side: Side| {
        let is_shown = comparison.is_verified() && !measured.calibration.is_invalid();
        let sending = comparison.figure(side, SENDING).filter(|_| is_shown)?;
        Some(json!({
            "experiment": comparison.title(),
            "way": way_name(side),
            "load_percent": json!(comparison.figure(side, LOAD)?),
            "sending_percent": json!(sending),
            "sending_us_per_mib": us_per_mib(comparison, side, sending, measured),
            "sending_ratio": comparison.ratio(side, SENDING).map(|interval| json!(interval)),
        }))
    };
    let entries = measured
        .comparisons
        .iter()
        .flat_map(|comparison| comparison.sides().iter().filter_map(move |side| entry(comparison, *side)));
    vec![("load", entries.collect()), ("calibration", measured.calibration.to_json(measured.processors))]
}

/// Plots the cost of sending by way, a line for each rate. If the machine was too busy, plots the sender's own
/// processor time, with a title that says so.
fn plot(measured: &RateResults) -> Plot {
    let is_invalid = measured.calibration.is_invalid();
    let sides = measured.comparisons.first().map_or(&[][..], Comparison::sides);
    let words = sides.iter().map(|side| way_name(*side).to_owned()).collect();
    let series = measured.comparisons.iter().map(|comparison| {
        let figure = |side| {
            if is_invalid {
                return Some(comparison.figure(side, figures::CPU)?.scaled(comparison.cpu_us_per_mib(1.0)));
            }
            let Interval { median, low, high } = comparison.figure(side, SENDING)?;
            // Values below 0 are noise, and would not fit into the plot.
            let shown = Interval { median: median.max(0.0), low: low.max(0.0), high: high.max(0.0) };
            let unit = Interval { median: 1.0, low: 1.0, high: 1.0 };
            Some(shown.scaled(us_per_mib(comparison, side, unit, measured)?))
        };
        #[expect(clippy::cast_precision_loss, reason = "a few ways")]
        let point = |(place, side): (usize, &Side)| {
            Some((place as f64, figure(*side).filter(|_| comparison.is_verified())?))
        };
        let points = comparison.sides().iter().enumerate().filter_map(point).collect();
        Series { name: comparison.title().to_owned(), points }
    });
    Plot {
        title: if is_invalid { BUSY_TITLE } else { TITLE }.to_owned(),
        x: ("way".to_owned(), Scale::Words(words)),
        y: "processor time, µs/MiB".to_owned(),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_called_by_what_was_held_and_what_was_asked() {
        assert_eq!(title(92.0, Some(&92.0)), "92 Mbit/s");
        assert_eq!(title(10_000.0, Some(&10_000.0)), "10 Gbit/s");
        assert_eq!(title(10_000.0, Some(&7300.0)), "7.3 Gbit/s (10 Gbit/s asked)");
        assert_eq!(title(1500.0, Some(&870.0)), "870 Mbit/s (1.5 Gbit/s asked)");
    }

    #[test]
    fn read_and_send_is_always_there_and_first() {
        let options = |ways: &[&str]| Load {
            rates: vec![92],
            ways: ways.iter().map(|way| (*way).to_owned()).collect(),
            chunk: CHUNK_BYTES,
            lines: 1,
            rounds: 1,
            seconds: Duration::ZERO,
            common: CommonOptions::default(),
            command: Vec::new(),
        };
        assert_eq!(options(&[]).sides(), [Side::Plain]);
        assert_eq!(
            options(&["uncopy", "sendfile", "send"]).sides(),
            [Side::Plain, Side::Way("sendfile"), Side::Uncopy]
        );
        assert_eq!([Side::Plain, Side::Twin, Side::Uncopy].map(way_name), ["send", "twin", "uncopy"]);
    }

    #[test]
    fn the_load_outside_of_getrusage_is_the_rest() {
        let elapsed = Duration::from_secs(2);
        let sample = sample_figures(1 << 20, elapsed, 4, [800_000_000, 400_000_000], 1 << 16);
        let sample = Sample { load_percent: Some(18.0), others_percent: Some(16.0), ..sample };
        let is = |figure: Option<f64>, wanted: f64| figure.is_some_and(|found| (found - wanted).abs() < 1e-9);
        assert!(is(sample.server_percent, 10.0) && is(sample.client_percent, 5.0));
        assert!(is(sample.sending_percent(), 13.0) && is(sample.background_percent(), 1.0));
        assert!(is(sample.interrupts_percent(), 2.0));
        assert!(is(sample.megabits_per_s, 4.194_304) && is(sample.operations_per_s, 8.0));
    }
}
