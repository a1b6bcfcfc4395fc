//! The demonstration: an echo server and the packaged Redis, plain and under uncopy, in one table and one sentence.
//!
//! Runs within three minutes, possibly on a busy machine: a case that others disturbed too much has no figure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::apps::programs::Programs;
use crate::apps::redis::{REDIS, Values};
use crate::apps::{self, Scheme};
use crate::clients::records::Workload;
use crate::experiments::apps::measure;
use crate::experiments::echo::{point, sweeps::Values as Messages};
use crate::experiments::redis;
use crate::kit::distance;
use crate::kit::experiment::{STATUS_FAILED, describe_machine};
use crate::kit::figures::{CPU, RATE};
use crate::kit::load::ProcessorTime;
use crate::kit::noise::NoiseReduction;
use crate::kit::report::notes;
use crate::kit::verdict::{MIN_ROUNDS, Verdict};
use crate::kit::{
    Align, Comparison, Experiment, Interval, Launcher, Machine, Outcome, Progress, Result, Side, Slices,
    SlicingOptions, Table, While, format_amount, format_number, prepare_experiment, print, progress,
};

/// Length of the echoed messages, bytes (zIO §5.1.1).
const ECHO_BYTES: usize = 512 * 1024;
/// Copies of each message in the echo server (zIO §5.1.1), and those of `--quick`.
const ECHO_COPIES: [usize; 4] = [0, 1, 5, 12];
const QUICK_ECHO_COPIES: [usize; 2] = [0, 12];
/// Workload of Redis, length of its values in bytes, and whether it keeps its append-only file.
type RedisWork = (Workload, usize, bool);
/// Cases with Redis; `--quick` uses the first ones only.
const REDIS_WORK: [RedisWork; 5] = [
    (Workload::Set, 1 << 20, true),
    (Workload::Get, 256 << 10, false),
    (Workload::Get, 1 << 20, false),
    (Workload::Get, 64 << 10, false),
    (Workload::Set, 256 << 10, true),
];
const QUICK_REDIS_WORK: usize = 3;
/// Number of connections to Redis.
const CLIENTS: usize = 4;

/// Time after which no further case begins.
const TIME_BUDGET: Duration = Duration::from_secs(160);
const QUICK_TIME_BUDGET: Duration = Duration::from_secs(50);
/// Number of processes of each side, and of `--quick`; initial estimate of the time to start and warm up one of
/// each.
const PROCESSES: u32 = 3;
const QUICK_PROCESSES: u32 = 2;
const START_ESTIMATE: Duration = Duration::from_secs(2);
/// Minimum time for which a case is measured.
const MIN_TIME: Duration = Duration::from_secs(5);
/// Minimum number of rounds that count, in all processes together.
const ROUNDS: usize = 15;
/// Length of a slice, in which one side is loaded.
const SLICE: Duration = Duration::from_millis(20);
/// Time for which a process under uncopy is loaded before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);
const SIDES: [Side; 4] = [Side::Plain, Side::PlainAgain, Side::Uncopy, Side::HeapOnly];

/// Maximum half-width of a usable interval, as a fraction of its median.
const MAX_HALF_WIDTH: f64 = 0.1;
/// Fraction of disturbed rounds above which a wide interval is attributed to the machine.
const MAX_DISTURBED: f64 = 0.25;

/// Echo server and Redis, plain and under uncopy, in one table
#[derive(Debug, Args)]
pub struct Demo {
    /// Take about one minute instead of three
    #[arg(long)]
    pub quick: bool,
    /// Also write the results to FILE, as JSON; with -, print JSON instead of the table
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

impl Experiment for Demo {
    fn run(&self) -> Result<Outcome> {
        let launcher = prepare_experiment()?;
        // Errors should come before the measurement, not after a minute of it.
        let programs = Programs::find(&[REDIS])?;
        redis::check_free_space()?;
        let before = ProcessorTime::read();
        let noise_reduction = NoiseReduction::begin(&launcher);
        let found = measure_all(&launcher, &programs, self.quick);
        let mut machine = describe_machine(before);
        machine.add("processors", noise_reduction.describe());
        if let Some(distance) = distance::describe() {
            machine.add("distance", distance);
        }
        for (name, version) in programs.versions {
            machine.add(name, version);
        }
        let json = || format!("{:#}\n", to_json(&machine, &found.comparisons));
        match self.json.as_deref() {
            Some(path) if path == Path::new("-") => print(&json())?,
            path => {
                if let Some(path) = path {
                    std::fs::write(path, json()).doing(format_args!("writing {}", path.display()))?;
                }
                print(&format!("{}\n{}{}", machine.render(), render(&found), notes(&found.comparisons)))?;
            }
        }
        let is_flawless = found.comparisons.iter().all(Comparison::is_flawless);
        Ok(Outcome::Status(if is_flawless { 0 } else { STATUS_FAILED }))
    }
}

/// Measures all cases, as far as the time allows.
fn measure_all(launcher: &Launcher, programs: &Programs, quick: bool) -> DemoResults {
    let (time, processes, copies, work) = if quick {
        (QUICK_TIME_BUDGET, QUICK_PROCESSES, &QUICK_ECHO_COPIES[..], &REDIS_WORK[..QUICK_REDIS_WORK])
    } else {
        (TIME_BUDGET, PROCESSES, &ECHO_COPIES[..], &REDIS_WORK[..])
    };
    let echo = Messages { sizes: vec![ECHO_BYTES], copies: copies.to_vec(), ..Messages::default() }.points();
    let values = |(workload, size_bytes, append_only): &RedisWork| {
        let (workload, size_bytes, append_only) = (*workload, *size_bytes, *append_only);
        Values { workload, size_bytes, clients: CLIENTS, append_only }.point()
    };
    let stores: Vec<apps::Point> = work.iter().map(values).collect();
    let mut progress = Progress::new();
    let mut found = DemoResults::default();
    let count = echo.len() + stores.len();
    let mut budget = TimeBudget { begin: Instant::now(), time, overhead: START_ESTIMATE * processes };
    let mut case = |title: &str, measure: &mut dyn FnMut(&Slices, &mut Progress) -> Vec<Comparison>| {
        let done = found.comparisons.len() + found.skipped.len();
        let Some(time) = budget.share(count - done) else { return found.skipped.push(short_title(title)) };
        progress::set_prefix(&format!("{} of {count}, {} s left: ", done + 1, budget.remaining().as_secs()));
        let slicing = SlicingOptions {
            rounds: ROUNDS,
            processes: processes as usize,
            seconds: time,
            slice: SLICE,
            warm_up: WARM_UP,
            keep_disturbed: false,
        };
        let slices = slicing.slices(&SIDES);
        let begin = Instant::now();
        found.comparisons.extend(measure(&slices, &mut progress));
        budget.overhead = budget.overhead.max(begin.elapsed().saturating_sub(time));
    };
    for point in &echo {
        let points = std::slice::from_ref(point);
        case(&point.title(), &mut |slices, progress| point::measure(launcher, points, slices, progress));
    }
    for point in &stores {
        let points = std::slice::from_ref(point);
        case(&point.title, &mut |slices, progress| {
            measure::measure_points(launcher, programs, points, Scheme::Slices, slices, progress)
        });
    }
    progress::set_prefix("");
    found
}

/// Time budget of all cases: time that one case does not use is left to the following ones.
struct TimeBudget {
    begin: Instant,
    time: Duration,
    /// Longest time that a case took besides measuring, to start and warm up its servers.
    overhead: Duration,
}

impl TimeBudget {
    fn remaining(&self) -> Duration {
        self.time.saturating_sub(self.begin.elapsed())
    }

    /// Returns the time for which the next of `cases` may be measured; `None` if the budget is exhausted.
    fn share(&self, cases: usize) -> Option<Duration> {
        let left = self.remaining();
        let share = left / u32::try_from(cases).unwrap_or(1).max(1);
        (left >= self.overhead).then(|| share.saturating_sub(self.overhead).max(MIN_TIME))
    }
}

/// Results of the demonstration.
#[derive(Default)]
struct DemoResults {
    comparisons: Vec<Comparison>,
    /// Titles of the cases for which there was no time.
    skipped: Vec<String>,
}

/// Returns a case's title in the table.
fn short_title(title: &str) -> String {
    title.trim_end_matches(", no append-only file").to_owned()
}

/// Result of one case.
enum CaseResult {
    /// Ratio of processor time per operation to plain's.
    Known(Interval, Verdict),
    /// Other programs disturbed the measurement too much.
    Busy,
    /// The case failed, or could not be measured.
    Failed,
}

impl CaseResult {
    #[expect(clippy::cast_precision_loss, reason = "few rounds")]
    fn of(comparison: &Comparison) -> Self {
        let Some(ratio) = comparison.ratio(Side::Uncopy, CPU) else {
            let is_verified = comparison.obstacle().is_none() && comparison.is_verified();
            return if is_verified { Self::Busy } else { Self::Failed };
        };
        let (rounds, dropped) = (comparison.round_count(), comparison.dropped_count());
        let is_disturbed = dropped as f64 > MAX_DISTURBED * (rounds + dropped) as f64;
        if rounds < MIN_ROUNDS || is_disturbed && ratio.half_width() > MAX_HALF_WIDTH {
            return Self::Busy;
        }
        Self::Known(ratio, Verdict::of(ratio, rounds))
    }
}

/// Renders the table, its explanation, and the sentence.
fn render(found: &DemoResults) -> String {
    use Align::{Left, Right};
    let DemoResults { comparisons, skipped } = found;
    let mut table = Table::new(&[
        ("work", Left),
        ("plain op/s", Right),
        ("uncopy op/s", Right),
        ("CPU, uncopy", Left),
        ("CPU, heap only", Left),
        ("uncopy", Left),
    ]);
    let mut known = Vec::new();
    for comparison in comparisons {
        let title = short_title(comparison.title());
        let mut cells = vec![title.clone()];
        match CaseResult::of(comparison) {
            CaseResult::Known(ratio, verdict) => {
                let rate =
                    |side| format_number(comparison.figure(side, RATE).map_or(f64::NAN, |rate| rate.median));
                let heap = comparison.ratio(Side::HeapOnly, CPU);
                let verdict_words = match verdict {
                    Verdict::Undecided(..) => "undecided".to_owned(),
                    verdict => verdict.to_string(),
                };
                cells.extend([rate(Side::Plain), rate(Side::Uncopy), ratio.to_string()]);
                cells.extend([heap.map_or_else(String::new, |heap| heap.to_string()), verdict_words]);
                known.push((title, ratio, verdict));
            }
            CaseResult::Busy => {
                let (rounds, dropped) = (comparison.round_count(), comparison.dropped_count());
                let why = format!("{rounds} rounds kept, {dropped} dropped");
                cells.extend([String::new(), String::new(), "machine too busy".to_owned(), why]);
            }
            CaseResult::Failed => cells.extend([String::new(), String::new(), "failed".to_owned()]),
        }
        table.row(cells);
    }
    for title in skipped {
        let cells = [title.as_str(), "", "", "machine too busy", "no time left", ""];
        table.row(cells.map(str::to_owned).to_vec());
    }
    let again: Vec<f64> = comparisons
        .iter()
        .filter(|comparison| matches!(CaseResult::of(comparison), CaseResult::Known(..)))
        .filter_map(|comparison| Some(comparison.ratio(Side::PlainAgain, CPU)?.median))
        .collect();
    if let Some(again) = Interval::of(&again) {
        let cells = ["plain again", "", "", &again.to_string(), "", "control"];
        table.row(cells.map(str::to_owned).to_vec());
    }
    let bytes = |side| comparisons.iter().map(|comparison| comparison.verified_bytes(side)).sum();
    format!(
        "{}\n\
         CPU: processor time of the server per operation, over plain's, with a 95 % interval. Below 1 is less \
         time.\n\
         heap only: uncopy's allocator without elision. plain again: a second plain server, as a control.\n\
         helps: the whole interval is below 0.97. costs: above 1.03. harmless: between them. undecided: none \
         of these.\n\
         Compared byte for byte: {} under uncopy, {} plain.\n\
         \n\
         {}{}\n",
        table.render(),
        format_amount(bytes(Side::Uncopy)),
        format_amount(bytes(Side::Plain)),
        busy_explanation(found).unwrap_or_default(),
        conclusion(&known, comparisons.len() + skipped.len())
    )
}

/// Describes how much others disturbed, if that was too much for a case.
fn busy_explanation(found: &DemoResults) -> Option<String> {
    let DemoResults { comparisons, skipped } = found;
    let busy: Vec<&Comparison> = comparisons
        .iter()
        .filter(|comparison| matches!(CaseResult::of(comparison), CaseResult::Busy))
        .collect();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for why in busy.iter().flat_map(|comparison| comparison.drop_reasons()) {
        // Drops the figure, as in `steal 5 %`.
        let reason = why.trim_end_matches(|c: char| !c.is_alphabetic());
        *reasons.entry(reason).or_default() += 1;
    }
    let reasons: Vec<String> =
        reasons.iter().map(|(reason, rounds)| format!("{reason} in {rounds} rounds")).collect();
    let why = if reasons.is_empty() {
        "there was no time for enough rounds".to_owned()
    } else {
        reasons.join(", ")
    };
    let cases = busy.len() + skipped.len();
    (cases > 0).then(|| {
        format!(
            "This machine is too busy for {cases} of {} cases: {why}.\n\
             Steal is processor time that the host took. Repeat the demonstration on an idle machine.\n\
             \n",
            comparisons.len() + skipped.len()
        )
    })
}

/// Returns a sentence that summarizes the cases with known figures.
fn conclusion(known: &[(String, Interval, Verdict)], cases: usize) -> String {
    let by_median = |one: &&(String, Interval, Verdict), other: &&(String, Interval, Verdict)| {
        one.1.median.total_cmp(&other.1.median)
    };
    let (Some(best), Some(worst)) = (known.iter().min_by(by_median), known.iter().max_by(by_median)) else {
        return "No conclusion: this machine is too busy.".to_owned();
    };
    let (title, ratio, verdict) = best;
    let (some, unchanged, nothing) = match known.len() < cases {
        true => ("In the cases that could be measured, ", "unmodified", "no case"),
        false => ("", "Unmodified", "No case"),
    };
    let begin = match verdict {
        Verdict::Helps => format!(
            "{some}{unchanged} programs under uncopy move the same bytes in as little as\n\
             {ratio} of the processor time ({title})"
        ),
        _ => format!("{some}{nothing} is certain to gain; the lowest processor time is\n{ratio} ({title})"),
    };
    if known.len() < 2 {
        return format!("{begin}.");
    }
    format!("{begin};\nthe worst case takes {} ({}).", worst.1, worst.0)
}

/// Returns all results as JSON.
fn to_json(machine: &Machine, comparisons: &[Comparison]) -> Value {
    json!({
        "schema": uncopy_core::schema::BENCH,
        "machine": machine.to_json(),
        "comparisons": comparisons.iter().map(Comparison::to_json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::Sample;
    use crate::kit::comparison::{Generation, Round};
    use crate::kit::sample::RawSlice;

    /// Makes a comparison of three processes with eight rounds each, in which uncopy takes `costs` in turn
    /// times plain's time. The first `disturbed` rounds of each process are dropped.
    fn compared(title: &str, costs: &[f64], disturbed: usize) -> Comparison {
        let mut comparison = Comparison::new(title, 1, &SIDES);
        for _ in 0..3 {
            let round = |at: usize| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small cost")]
                let sample = |side: &Side| {
                    let cost = if *side == Side::Uncopy { costs[at % costs.len()] } else { 1.0 };
                    Sample::from(RawSlice {
                        cpu_ns: (1e6 * cost) as u64,
                        operations: 10,
                        elapsed_ns: 1_000_000,
                    })
                };
                let drop_reason = (at < disturbed).then(|| "steal 41 %".to_owned());
                Round {
                    connection: at / 4,
                    samples: SIDES.iter().map(sample).collect(),
                    drop_reason,
                    ..Round::default()
                }
            };
            let end = Sample { verified_bytes: Some(1 << 20), ..Sample::default() };
            comparison.add(Generation {
                rounds: (0..8).map(round).collect(),
                process_samples: vec![end; SIDES.len()],
            });
        }
        comparison
    }

    fn rendered(comparisons: Vec<Comparison>) -> String {
        render(&DemoResults { comparisons, skipped: Vec::new() })
    }

    #[test]
    fn a_quiet_machine_gives_figures_and_the_sentence_names_best_and_worst() {
        let text =
            rendered(vec![compared("echo, 12 copies", &[0.5], 0), compared("echo, 0 copies", &[1.0], 0)]);
        assert!(text.contains("0.50 [0.50–0.50]") && text.contains("helps"), "{text}");
        assert!(text.contains("harmless") && text.contains("plain again"), "{text}");
        assert!(
            text.contains("as little as\n0.50 [0.50–0.50] of the processor time (echo, 12 copies)"),
            "{text}"
        );
        assert!(
            text.contains("takes 1.00 [1.00–1.00] (echo, 0 copies).") && !text.contains("busy"),
            "{text}"
        );
    }

    #[test]
    fn a_busy_machine_gives_no_figure_and_says_why() {
        let text = rendered(vec![compared("echo", &[0.5], 7)]);
        assert!(text.contains("machine too busy") && text.contains("3 rounds kept, 21 dropped"), "{text}");
        assert!(text.contains("too busy for 1 of 1 cases: steal in 21 rounds"), "{text}");
        assert!(
            text.contains("No conclusion: this machine is too busy.") && !text.contains("0.50"),
            "{text}"
        );
        // The interval is wide because of rounds that were not dropped, too.
        let noisy = [0.3, 2.0, 0.5, 0.2, 3.0, 0.4, 1.0, 2.5];
        assert!(rendered(vec![compared("echo", &noisy, 3)]).contains("No conclusion"));
    }

    #[test]
    fn noise_on_a_quiet_machine_is_undecided_and_not_the_machines_fault() {
        let text = rendered(vec![compared("echo", &[0.3, 2.0, 0.5, 0.2, 3.0, 0.4, 1.0, 2.5], 0)]);
        assert!(text.contains("undecided") && text.contains("No case is certain to gain"), "{text}");
    }

    #[test]
    fn cases_without_time_left_are_listed() {
        let comparisons = vec![compared("echo", &[0.5], 0)];
        let text = render(&DemoResults { comparisons, skipped: vec!["redis".to_owned()] });
        assert!(text.contains("no time left") && text.contains("too busy for 1 of 2 cases"), "{text}");
        assert!(text.contains("In the cases that could be measured, unmodified programs"), "{text}");
    }

    #[test]
    fn a_case_gets_its_share_of_what_is_left() {
        let budget = |time, overhead| TimeBudget {
            begin: Instant::now(),
            time: Duration::from_secs(time),
            overhead: Duration::from_secs(overhead),
        };
        let expected = Duration::from_secs(14)..=Duration::from_secs(15);
        assert!(budget(100, 5).share(5).is_some_and(|time| expected.contains(&time)));
        assert_eq!(budget(100, 50).share(5), Some(MIN_TIME));
        assert_eq!(budget(4, 5).share(5), None);
    }

    #[test]
    fn failed_cases_have_no_figures() {
        let mut failed = compared("echo", &[0.5], 0);
        failed.fail(&crate::kit::Failure::new("wrong bytes"));
        let text = rendered(vec![failed]);
        assert!(text.contains("failed") && !text.contains("0.50"), "{text}");
    }
}
