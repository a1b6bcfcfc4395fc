//! `uncopy-bench lab`: the lab on zero-copy (zero-copy-lab). One server sends a file by read and send, another
//! by sendfile, a third by read and send under `uncopy run`. The command prints the time that a client waited
//! for each, as the lab's client does, and explains the difference from the figures.

use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use crate::kit::{
    Align, CommonOptions, Comparison, Experiment, Failure, Interval, Launcher, Metric, Outcome, Plot,
    Progress, Report, ReportEntry, Result, Rounds, Sample, Scale, Side, Table, TemporaryDirectory,
    bytes_parser, claim, count_parser, disk, entry, format_amount, format_number, format_size,
    run_with_noise_reduction,
};
use crate::servers::sending::corpus::Corpus;
use crate::servers::sending::receiver::Receiver;
use crate::servers::sending::sender::{Sender, SenderOptions};
use crate::servers::sending::server::CHUNK_BYTES;
use crate::servers::sending::ways::Way;

/// Sides, with the lab's names of its servers.
const SIDES: [(&str, Side, Way); 3] = [
    ("read-send", Side::Plain, Way::Send),
    ("sendfile", Side::Way("sendfile"), Way::Sendfile),
    ("uncopy", Side::Uncopy, Way::Send),
];
const SENDFILE: Side = Side::Way("sendfile");
/// Space that must stay free on the disk, bytes.
const RESERVED_BYTES: u64 = 256 << 20;
/// Fraction of the elapsed time below which a server's processor time means that the server waits for its client.
const MIN_BUSY_FRACTION: f64 = 0.8;

const TIME: Metric = |sample| sample.elapsed_s;
const USER: Metric = |sample| sample.user_s;
const SYSTEM: Metric = |sample| sample.system_s;
const CPU: Metric = |sample| Some(sample.user_s? + sample.system_s?);

/// A file sent by read and send, by sendfile and under uncopy, with an explanation of the times (Zero-Copy lab)
#[derive(Debug, Args)]
pub struct Lab {
    /// File size, in bytes
    #[arg(long, value_name = "SIZE", default_value = "1073741824", default_value_if("quick", "true", "67108864"),
        value_parser = bytes_parser(1 << 36))]
    pub size: usize,
    /// Bytes read or sent per call
    #[arg(long, value_name = "SIZE", default_value_t = CHUNK_BYTES, value_parser = bytes_parser(1 << 30))]
    pub chunk: usize,
    /// Number of rounds; each fetches the file from every server once
    #[arg(long, value_name = "N", default_value = "7", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub rounds: usize,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Lab {
    const ENTRIES: &'static [ReportEntry] = &[entry(
        "lab",
        "Zero-Copy lab: read and send against sendfile",
        &[claim("Zero-Copy lab", "A file by read and send: 7.18 s; by sendfile: 3.71 s.")],
        "lab --rounds 7",
        "lab --quick",
    )];
    const REPORT_POSITION: u8 = 140;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| {
            let comparison = self.measure(launcher, progress)?;
            let (text, plot) = (render(&comparison), plot(&comparison));
            let findings = findings(&comparison);
            Ok(Report { findings, ..Report::new(vec![comparison], text, plot) })
        })
    }
}

impl Lab {
    /// Fetches the file from each server in every round.
    #[expect(clippy::cast_precision_loss, reason = "a length")]
    fn measure(&self, launcher: &Launcher, progress: &mut Progress) -> Result<Comparison> {
        let directory = TemporaryDirectory::make()?;
        check_free_space(&directory, self.size as u64)?;
        let title = format!("file of {}", format_size(self.size as u64));
        progress.report_round(&format!("writing a {title}"), 0, 1, "once");
        let corpus = Arc::new(Corpus::single(self.size));
        corpus.write(directory.path())?;
        let sides = SIDES.map(|(_, side, _)| side);
        let mut comparison =
            Comparison::new(&title, self.size as u64, &sides).with_parameter("size", self.size as f64);
        Rounds::exactly(self.rounds).run_one(&mut comparison, progress, |side, _| {
            let (_, _, way) = SIDES.iter().find(|(_, known, _)| *known == side).unwrap_or(&SIDES[0]);
            let (directory, chunk_bytes) = (directory.path(), self.chunk);
            let options = SenderOptions { directory, way: *way, bits_per_s: 0, chunk_bytes, once: true };
            sample(launcher, side, &options, &corpus)
        });
        Ok(comparison)
    }
}

fn check_free_space(directory: &TemporaryDirectory, len_bytes: u64) -> Result<()> {
    let path = directory.path().display();
    let free_bytes = disk::free_bytes(directory.path())?;
    if free_bytes >= len_bytes.saturating_add(RESERVED_BYTES) {
        return Ok(());
    }
    let (free, wanted) = (format_amount(free_bytes), format_amount(len_bytes));
    Err(Failure::new(format!(
        "{path} has {free} free, and the file needs {wanted}; choose a smaller file with --size, or another \
         directory with TMPDIR"
    )))
}

/// Fetches the file twice from a server: first to bring it into memory, then for the figures.
#[expect(clippy::cast_precision_loss, reason = "times of a few digits")]
fn sample(
    launcher: &Launcher,
    side: Side,
    options: &SenderOptions<'_>,
    corpus: &Arc<Corpus>,
) -> Result<Sample> {
    let mut sender = Sender::start(launcher, side, options)?;
    let mut get = || {
        let received = Receiver::start(sender.address, corpus)?.finish()?;
        let totals = sender.read_totals()?;
        if received.bytes != corpus.len_bytes() || totals.bytes != received.bytes {
            let (wanted, got) = (corpus.len_bytes(), received.bytes);
            return Err(Failure::new(format!("received {got} bytes of a file of {wanted} bytes")));
        }
        Ok((received, totals))
    };
    let got = get().and_then(|first| Ok((first, get()?)));
    let ((first, _), (second, totals)) = got.map_err(|failure| sender.server.process().explain(&failure))?;
    let pid = sender.server.process().pid();
    let (notes, activity) = launcher.inspect(side, pid, &sender.server.stderr_text(), false);
    let defect = sender.server.process().stop().err().map(|failure| failure.to_string());
    let elapsed_s = second.elapsed.as_secs_f64();
    Ok(Sample {
        operations_per_s: Some(1.0 / elapsed_s),
        elapsed_s: Some(elapsed_s),
        user_s: Some(totals.user_ns as f64 / 1e9),
        system_s: Some(totals.system_ns as f64 / 1e9),
        cpu_us: Some((totals.user_ns + totals.system_ns) as f64 / 1e3),
        elided_bytes: activity.map(|activity| activity.elided_bytes as f64),
        verified_bytes: Some(first.bytes + second.bytes),
        notes,
        defect,
        ..Sample::default()
    })
}

/// Renders the times as the lab prints them, the table, and the explanation.
fn render(comparison: &Comparison) -> String {
    let mut text = String::new();
    for (name, side, _) in SIDES {
        let time = comparison.figure(side, TIME).map_or(f64::NAN, |spread| spread.median);
        // Wording of the lab's client.
        let _ = writeln!(text, "$ {name}\nTime taken: {time:.6} seconds\n");
    }
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("server", Left),
        ("time s", Right),
        ("spread", Right),
        ("of read-send", Right),
        ("spread", Right),
        ("MiB/s", Right),
        ("user s", Right),
        ("system s", Right),
        ("CPU of read-send", Right),
        ("verified", Right),
    ]);
    for (name, side, _) in SIDES {
        let range = |spread: Interval| format!("{:.2}–{:.2}", spread.low, spread.high);
        let median = |metric| comparison.figure(side, metric).map_or(f64::NAN, |spread| spread.median);
        let ratio = |metric| comparison.ratio(side, metric).filter(|_| side != Side::Plain);
        let of = |metric| ratio(metric).map_or_else(String::new, |ratio| format!("{:.2}", ratio.median));
        table.row(vec![
            name.to_owned(),
            format!("{:.3}", median(TIME)),
            comparison.figure(side, TIME).map_or_else(String::new, range),
            of(TIME),
            ratio(TIME).map_or_else(String::new, range),
            format_number(mib(comparison) / median(TIME)),
            format!("{:.3}", median(USER)),
            format!("{:.3}", median(SYSTEM)),
            of(CPU),
            format_amount(comparison.verified_bytes(side)),
        ]);
    }
    text + &table.render() + "\n" + &explain(comparison).join("\n") + "\n"
}

#[expect(clippy::cast_precision_loss, reason = "a length")]
fn mib(comparison: &Comparison) -> f64 {
    comparison.operation_bytes() as f64 / f64::from(1 << 20)
}

/// Explains the figures, one paragraph each; empty unless all are verified.
fn explain(comparison: &Comparison) -> Vec<String> {
    let ratios_with_way =
        |side, way| Some((comparison.ratio(side, TIME)?, comparison.ratio(side, CPU)?, way));
    let median = |side, metric| comparison.figure(side, metric).map(|spread| spread.median);
    let Some((time, user, system)) =
        (|| Some((median(Side::Plain, TIME)?, median(Side::Plain, USER)?, median(Side::Plain, SYSTEM)?)))()
    else {
        return vec!["Nothing was measured.".to_owned()];
    };
    let mib = mib(comparison);
    let mut lines = ranking(comparison);
    lines.push(format!(
        "read and send copies every byte twice, from the page cache to a buffer and from the buffer to the \
         socket. It sent {} in {time:.3} s and used {:.3} s of processor time, {:.0} % of it in the kernel \
         ({:.0} us per MiB).",
        format_size(comparison.operation_bytes()),
        user + system,
        system / (user + system) * 100.0,
        (user + system) * 1e6 / mib
    ));
    for (side, way) in [(SENDFILE, "sendfile"), (Side::Uncopy, "read and send under uncopy")] {
        let Some((time_ratio, cpu_ratio, way)) = ratios_with_way(side, way) else {
            lines.push(format!("{way} has no ratio: not all bytes were verified."));
            continue;
        };
        let saved_us = (user + system - median(side, CPU).unwrap_or(f64::NAN)) * 1e6 / mib;
        lines.push(format!(
            "{way}: {}, and {} ({:.0} us {} per MiB).",
            describe_ratio(time_ratio, "time"),
            describe_ratio(cpu_ratio, "processor time of the server"),
            saved_us.abs(),
            if saved_us >= 0.0 { "less" } else { "more" }
        ));
        lines.extend(explain_difference(comparison, side));
    }
    lines.extend(explain_waiting(comparison));
    lines
}

/// Names the fastest server and its lead, by the medians.
fn ranking(comparison: &Comparison) -> Vec<String> {
    let time = |(name, side, _): &(&'static str, Side, Way)| {
        Some((*name, comparison.figure(*side, TIME).filter(|_| comparison.is_verified())?.median))
    };
    let mut times: Vec<_> = SIDES.iter().filter_map(time).collect();
    times.sort_by(|left, right| left.1.total_cmp(&right.1));
    let [(first, least), rest @ ..] = &times[..] else { return Vec::new() };
    let rest: Vec<String> =
        rest.iter().map(|(name, time)| format!("{name} took {:.2} times as long", time / least)).collect();
    vec![format!("By the medians, {first} was the fastest; {}.", rest.join(", "))]
}

/// Returns a ratio in words, such as `0.52 of the time`, with its uncertainty.
fn describe_ratio(ratio: Interval, what: &str) -> String {
    let Interval { median, low, high } = ratio;
    if low <= 1.0 && high >= 1.0 {
        format!("no difference in {what} above the noise ({median:.2}, from {low:.2} to {high:.2})")
    } else if median < 1.0 {
        format!("{median:.2} of the {what} ({low:.2} to {high:.2}), {:.2} times less", 1.0 / median)
    } else {
        format!("{median:.2} times the {what} ({low:.2} to {high:.2})")
    }
}

/// Describes the part of a side's processor time that differs from that of read and send, and its cause.
fn explain_difference(comparison: &Comparison, side: Side) -> Option<String> {
    let change = |metric| {
        let median = |side| comparison.figure(side, metric).map(|spread| spread.median);
        Some(median(side)? - median(Side::Plain)?)
    };
    let (user, system) = (change(USER)?, change(SYSTEM)?);
    let signed = |seconds: f64| format!("{seconds:+.3} s");
    let ratio = comparison.ratio(side, CPU)?;
    let reason = match (side, ratio.high < 1.0, ratio.low > 1.0) {
        (SENDFILE, true, _) => {
            "The kernel passes the pages of the file to the socket, so neither copy is made. The rest is the \
             cost of the network itself"
        }
        (SENDFILE, _, true) => {
            "Neither copy is made, and yet it took longer: passing pages costs more than copying through a \
             buffer that stays in the processor's cache"
        }
        (SENDFILE, ..) => "Neither copy is made, but the saving is not above the noise",
        _ => {
            return Some(format!(
                "  user {}, system {}. {}",
                signed(user),
                signed(system),
                explain_elision(comparison, ratio.high < 1.0)
            ));
        }
    };
    Some(format!("  user {}, system {}. {reason}.", signed(user), signed(system)))
}

/// Describes uncopy's share in its side's figures.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of bytes")]
fn explain_elision(comparison: &Comparison, saves: bool) -> String {
    let bytes =
        comparison.figure(Side::Uncopy, |sample| sample.elided_bytes).map_or(0.0, |spread| spread.median);
    if bytes > 0.0 {
        return format!("uncopy elided copies of {}.", format_amount(bytes as u64));
    }
    format!(
        "uncopy elided no copies, because this program makes none. The kernel makes both. A program avoids \
         them by sendfile, or by keeping the file in memory that is sent by reference.{}",
        if saves { " The saving comes from the allocator, or is noise." } else { "" }
    )
}

/// Describes whether the servers were busy, or waited for the client, which compares every byte.
fn explain_waiting(comparison: &Comparison) -> Vec<String> {
    let busy = |side| {
        let median = |metric| comparison.figure(side, metric).map(|spread| spread.median);
        Some(median(CPU)? / median(TIME)?)
    };
    let idle: Vec<String> = SIDES
        .iter()
        .filter_map(|(name, side, _)| Some((name, busy(*side)?)))
        .filter(|(_, busy)| *busy < MIN_BUSY_FRACTION)
        .map(|(name, busy)| format!("{name} ({:.0} % busy)", busy * 100.0))
        .collect();
    if idle.is_empty() {
        return vec!["The servers were busy all the time, so the times are those of the servers.".to_owned()];
    }
    vec![format!(
        "Not busy all the time: {}. These servers waited for the client, which compares every byte, or for a \
         processor; compare their processor time.",
        idle.join(", ")
    )]
}

/// Returns the figures and the explanation as JSON.
fn findings(comparison: &Comparison) -> Vec<(&'static str, Value)> {
    let entry = |(name, side, _): &(&str, Side, Way)| {
        Some(json!({
            "server": name,
            "time_s": json!(comparison.figure(*side, TIME)?),
            "user_s": json!(comparison.figure(*side, USER)?),
            "system_s": json!(comparison.figure(*side, SYSTEM)?),
            "time_ratio": comparison.ratio(*side, TIME).filter(|_| *side != Side::Plain).map(|interval| json!(interval)),
            "cpu_ratio": comparison.ratio(*side, CPU).filter(|_| *side != Side::Plain).map(|interval| json!(interval)),
        }))
    };
    vec![("lab", SIDES.iter().filter_map(entry).collect()), ("explanation", json!(explain(comparison)))]
}

/// Plots the times by server.
fn plot(comparison: &Comparison) -> Plot {
    let point = |(name, metric, position, side): (&str, Metric, f64, Side)| {
        Some((name.to_owned(), position, comparison.figure(side, metric)?))
    };
    let positions = SIDES.iter().zip([0.0, 1.0, 2.0]);
    let points = positions.flat_map(|((_, side, _), position)| {
        [("time", TIME), ("server CPU", CPU)].map(|(name, metric)| (name, metric, position, *side))
    });
    let x = ("server", Scale::Words(SIDES.map(|(name, ..)| name.to_owned()).to_vec()));
    Plot::of(&format!("Fetching a {}", comparison.title()), x, "seconds", points.filter_map(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a comparison with a round for each factor on read and send's time and processor time.
    fn compared(sendfile: &[f64], uncopy: &[f64]) -> Comparison {
        let mut comparison = Comparison::new("file of 1 MiB", 1 << 20, &SIDES.map(|(_, side, _)| side));
        for (sendfile, uncopy) in sendfile.iter().zip(uncopy) {
            comparison.run_round(|side| {
                let factor = match side {
                    SENDFILE => *sendfile,
                    Side::Uncopy => *uncopy,
                    _ => 1.0,
                };
                let (elapsed_s, system_s) = (2.0 * factor, 1.8 * factor);
                let sample = Sample { user_s: Some(0.1), ..Sample::default() };
                Ok(Sample {
                    elapsed_s: Some(elapsed_s),
                    system_s: Some(system_s),
                    verified_bytes: Some(1 << 20),
                    ..sample
                })
            });
        }
        comparison
    }

    #[test]
    fn times_are_shown_in_the_labs_words_and_explained_from_the_figures() {
        let text = render(&compared(&[0.5, 0.5, 0.5], &[1.0, 1.1, 0.9]));
        assert!(text.contains("$ read-send\nTime taken: 2.000000 seconds"), "{text}");
        assert!(text.contains("$ sendfile\nTime taken: 1.000000 seconds"), "{text}");
        assert!(text.contains("sendfile: 0.50 of the time (0.50 to 0.50), 2.00 times less"), "{text}");
        assert!(text.contains("so neither copy is made") && text.contains("system -0.900 s"), "{text}");
        assert!(text.contains("under uncopy: no difference in time above the noise (1.00"), "{text}");
        assert!(text.contains("The servers were busy all the time"), "{text}");
    }

    #[test]
    fn a_slower_sendfile_is_not_explained_as_a_faster_one() {
        let lines = explain(&compared(&[1.5, 1.6, 1.5], &[0.5, 0.6, 0.5])).join("\n");
        assert!(lines.contains("sendfile: 1.50 times the time (1.50 to 1.60)"), "{lines}");
        assert!(lines.contains("and yet it took longer"), "{lines}");
        assert!(lines.contains("under uncopy: 0.50 of the time"), "{lines}");
        let lines = explain(&compared(&[0.9, 1.1], &[1.0, 1.0])).join("\n");
        assert!(lines.contains("the saving is not above the noise"), "{lines}");
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused_with_what_helps() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        check_free_space(&directory, 1).expect("room for a byte");
        let failure = check_free_space(&directory, u64::MAX / 2).expect_err("no disk has that").to_string();
        assert!(failure.contains("--size") && failure.contains("TMPDIR"), "{failure}");
    }

    #[test]
    fn unverified_times_are_not_explained() {
        let mut comparison = compared(&[0.5], &[1.0]);
        comparison.run_round(|_| {
            Ok(Sample { elapsed_s: Some(1.0), user_s: Some(0.0), system_s: Some(0.0), ..Sample::default() })
        });
        let lines = explain(&comparison).join("\n");
        assert!(lines.contains("sendfile has no ratio: not all bytes were verified"), "{lines}");
        let none = Comparison::new("file", 1, &SIDES.map(|(_, side, _)| side));
        assert_eq!(explain(&none), ["Nothing was measured."]);
    }
}
