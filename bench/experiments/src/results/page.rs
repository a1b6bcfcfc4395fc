//! The one page of results, in Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use uncopy_html::quantity;

use crate::kit::verdict::{MIN_DIFFERENCE, Verdict, expected_false_differences};
use crate::kit::{Criterion, Interval, Side};
use crate::results::goals::{self, PAPER_GOALS, PROJECT_GOALS};
use crate::results::headline::{Row, ratio_text, rows};
use crate::results::judge::{self, Judgement, MinMeasurements};
use crate::results::markdown::{escape, table_row};
use crate::results::model::{Quantity, Results, Systems};
use crate::results::pool::PooledCase;
use crate::results::register::{HEADLINES, find_entry};
use crate::results::workloads;

/// Maximum number of cases besides the headlines that are named where uncopy costs.
const MAX_NAMED: usize = 8;
const PLAIN: &str = Side::Plain.name();

/// Renders the page of the `stored` results, split into `systems`. `chart` and `details` are paths of files beside it; details are linked if they were made.
#[must_use]
pub fn render(stored: &Results, systems: &Systems, chart: &str, details: &str) -> String {
    let results = &systems.first;
    let others: Vec<OtherSystem<'_>> =
        systems.others.iter().map(|(name, results)| OtherSystem { name, rows: rows(results) }).collect();
    let rows = rows(results);
    let mut page =
        String::from("# Results\n\n<!-- Made by uncopy-bench report; not to be edited by hand. -->\n\n");
    let mut line = |text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    line(&summary(results));
    if results.runs.iter().any(|run| run.quick) {
        line("\n**Measured with `--quick`, which is too rough for conclusions.**");
    }
    if results.runs.len() < 2 {
        line("\n**This is a single run. Another run, hours later, may differ.**");
    }
    line(&format!("\n![Processor time per operation, by case]({chart})\n"));
    let headings: String = others.iter().map(|other| format!(" {} |", escape(other.name))).collect();
    line(&case_table(
        &format!("| case | CPU over the best allocator | CPU over plain | verdict |{headings}"),
        &rows,
        |row, _, judgement| {
            let of_others = others.iter().map(|other| other.cell(row));
            verdict_cells(row, judgement).into_iter().chain(of_others).collect()
        },
    ));
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in &rows {
        if let Err(why) = &row.result {
            missing.entry(why).or_default().push(row.headline.name);
        }
    }
    if !missing.is_empty() {
        line("\nNot measured well enough:\n");
    }
    for (why, names) in missing {
        line(&format!("- {}: {}.", names.join("; "), escape(why)));
    }
    line(&format!("\nHow to read the table:\n\n{HOW_TO_READ}"));
    if !others.is_empty() {
        line(OTHER_SYSTEMS);
    }
    line(&noise_controls(results, &rows));
    line("\n## Where it does not help\n");
    line(&losing_cases(results, &rows));
    if let Some(section) = workloads::section(results) {
        line(&format!("\n{section}"));
    }
    line(&format!("\n## What the papers reached\n\n{}", goals::table(PAPER_GOALS, results)));
    let [met, missed, undecided] = goals::count(PROJECT_GOALS, results);
    let all = PROJECT_GOALS.len();
    line(&format!(
        "\nOf this project's own {all} goals, {met} are met, {missed} are missed, and {undecided} are undecided or not \
         measured (`{details}`)."
    ));
    line(&format!("\n## Rates and controls\n\n{RATES_TEXT}\n"));
    let head = "| case | rate over plain | heap only, CPU over plain | plain again, CPU over plain |";
    line(&case_table(head, &rows, rate_cells));
    line(&format!("\n## Differences between runs\n\n{RUNS_TEXT}\n"));
    line(&case_table("| case | runs differ by | distance, ns |", &rows, run_cells));
    line(&format!("\n## Where it was measured\n\n{}", machine_text(stored)));
    line(&format!(
        "\n`results/results.json` has every sample. `uncopy-bench report --from results/results.json` renders this page \
         again, and `{details}` with the command, the papers' results and the table of every experiment."
    ));
    page
}

const HOW_TO_READ: &str = "\
- CPU is the server's processor time per operation. Each ratio compares it with that of the same program without uncopy, in the same round. Below 1 is less time. The client compares every byte.
- The best allocator is the one with the least CPU of glibc, tuned glibc (`GLIBC_TUNABLES`), mimalloc, jemalloc, and uncopy's heap without elision (*heap only*). The table names it. For each process it is chosen by the *other* processes, because the luckiest of several equal allocators would look better than any of them is. memcached with twin memory is compared with unmodified memcached, and uncopy-files with its way `read-send`.
- `1.23 [1.19–1.27]` is the median and its 95 % interval over fresh processes.
- The verdict is *helps* if the whole interval is below 0.97, *costs* if it is above 1.03, *harmless* if it is between these bounds, and *undecided* otherwise.";

const OTHER_SYSTEMS: &str = "\
- The last columns have processor time over the best allocator with the programs of other systems, whose versions are below; empty where it was not measured well enough.";

const RATES_TEXT: &str = "\
The rate is the number of operations per second. *heap only* is uncopy's heap without elision. *plain again* is a second plain server; its ratio shows the noise.";

const RUNS_TEXT: &str = "\
- Runs differ by: the largest median of a run over the smallest. The runs were made hours apart.
- Distance: the time that a cache line takes from the server's processor to the clients' and back, in each run. Rounds at another distance are dropped, because the host of a virtual machine moves its processors. If both share a core, the copies at the socket are cheap, and most of the work is the copies inside the program, which uncopy elides. If they share no cache, it is the opposite.";

/// Returns the table of the measured cases below the heading `head`, with the cells of `cells` after the case's name.
fn case_table(
    head: &str,
    rows: &[Row<'_>],
    cells: impl Fn(&Row<'_>, &PooledCase<'_>, &Judgement) -> Vec<String>,
) -> String {
    let rule = "|---".repeat(head.matches('|').count() - 1) + "|";
    let measured = rows.iter().filter_map(|row| Some((row, row.result.as_ref().ok()?)));
    let lines = measured.map(|(row, (case, judgement))| {
        let name = row.headline.name.to_owned();
        table_row(&std::iter::once(name).chain(cells(row, case, judgement)).collect::<Vec<_>>())
    });
    [head.to_owned(), rule].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

/// Returns the case's ratios of processor time, and its verdict.
fn verdict_cells(row: &Row<'_>, judgement: &Judgement) -> Vec<String> {
    let best = over_best(row);
    let verdict = match judgement.verdict {
        // The interval already shows between which ratios.
        Verdict::Undecided(..) => "undecided".to_owned(),
        verdict => verdict.to_string(),
    };
    vec![best, over_plain(row, row.headline.side, Quantity::Cpu), verdict]
}

/// Formats the ratio of processor time over that of the best rival; empty without rivals.
fn over_best(row: &Row<'_>) -> String {
    row.over_best().map_or_else(String::new, |(ratio, over)| stacked(ratio, &format!(" {over}")))
}

/// The cases measured with the programs of a further system.
struct OtherSystem<'a> {
    name: &'a str,
    rows: Vec<Row<'a>>,
}

impl OtherSystem<'_> {
    /// Returns the cell for the same case as `row`.
    fn cell(&self, row: &Row<'_>) -> String {
        let same = self.rows.iter().find(|other| other.headline.name == row.headline.name);
        same.map_or_else(String::new, over_best)
    }
}

/// Returns the case's rate, and the processor time of the sides that are its controls.
fn rate_cells(row: &Row<'_>, _: &PooledCase<'_>, _: &Judgement) -> Vec<String> {
    vec![
        over_plain(row, row.headline.side, Quantity::Rate),
        over_plain(row, Side::HeapOnly.name(), Quantity::Cpu),
        over_plain(row, Side::PlainAgain.name(), Quantity::Cpu),
    ]
}

/// Returns the difference between the case's runs, and the distance between server and clients in each of them.
fn run_cells(row: &Row<'_>, case: &PooledCase<'_>, judgement: &Judgement) -> Vec<String> {
    let difference = case.run_difference(row.headline.side, judgement.of, judgement.over);
    vec![difference.map_or_else(String::new, quantity::percent), case.distances().join(", ")]
}

/// Formats the ratio of `of` under `side` over plain; empty if it was not measured.
fn over_plain(row: &Row<'_>, side: &str, of: Quantity) -> String {
    row.ratio(side, of).map_or_else(String::new, |ratio| stacked(ratio, ""))
}

/// Formats a ratio on two lines, so that the table is narrow.
fn stacked(ratio: Interval, of: &str) -> String {
    let Interval { median, low, high } = ratio;
    // Word joiners prevent a line break at the dash.
    format!("{median:.2}{of}\n[{low:.2}\u{2060}–\u{2060}{high:.2}]")
}

/// Returns the overall result in a few sentences.
#[must_use]
pub fn summary(results: &Results) -> String {
    let verdicts: Vec<Option<Verdict>> = rows(results)
        .iter()
        .map(|row| row.result.as_ref().ok().map(|(_, judgement)| judgement.verdict))
        .collect();
    let count = |is: fn(&Verdict) -> bool| verdicts.iter().flatten().filter(|verdict| is(verdict)).count();
    format!(
        "Compared with the best other allocator, uncopy takes less processor time in {} of {} cases, and more in {}. \
         It makes no difference in {}. {} cases are undecided, and {} were not measured well enough.",
        count(|verdict| matches!(verdict, Verdict::Helps)),
        verdicts.len(),
        count(|verdict| matches!(verdict, Verdict::Costs)),
        count(|verdict| matches!(verdict, Verdict::Harmless)),
        count(|verdict| matches!(verdict, Verdict::Undecided(..) | Verdict::TooFewRounds)),
        verdicts.iter().filter(|verdict| verdict.is_none()).count(),
    )
}

/// Describes the effect of chance: the expected number of false differences, and the verdicts on plain beside itself.
fn noise_controls(results: &Results, rows: &[Row<'_>]) -> String {
    let known: Vec<&PooledCase<'_>> =
        rows.iter().filter_map(|row| Some(&row.result.as_ref().ok()?.0)).collect();
    let judged = known.len();
    let again = |case: &PooledCase<'_>| {
        let ratio = case.ratio(Side::PlainAgain.name(), Quantity::Cpu, PLAIN)?;
        Some((ratio, Verdict::of(ratio, case.round_count())))
    };
    let plain_pairs: Vec<(Interval, Verdict)> = results
        .cases()
        .iter()
        .filter_map(|(id, title)| again(&PooledCase::find(results, id, title)?))
        .collect();
    let differing: Vec<String> = plain_pairs
        .iter()
        .filter(|(_, verdict)| verdict.is_difference())
        .map(|(ratio, _)| ratio.to_string())
        .collect();
    let MinMeasurements { rounds, processes } = MinMeasurements::of(results);
    let mut words = format!(
        "- The table has {} rounds in {} fresh processes of each side, at least {rounds} rounds in {processes} processes \
         for each case. {} more rounds were dropped because other programs or the host disturbed them.\n\
         - By chance, up to {:.1} of the {judged} verdicts show a difference that does not exist.",
        known.iter().map(|case| case.round_count()).sum::<usize>(),
        known.iter().map(|case| case.process_count()).sum::<usize>(),
        known.iter().map(|case| case.dropped_count()).sum::<usize>(),
        expected_false_differences(judged)
    );
    if !plain_pairs.is_empty() {
        let medians: Vec<f64> = plain_pairs.iter().map(|(ratio, _)| ratio.median).collect();
        let all = Interval::of(&medians)
            .map_or_else(String::new, |all| format!(", and the median of their ratios is {all}"));
        let _ = write!(
            words,
            " All experiments compare plain with itself in {} cases{all}. {} of these cases show a difference{}.",
            plain_pairs.len(),
            differing.len(),
            if differing.is_empty() { String::new() } else { format!(" ({})", differing.join(", ")) }
        );
    }
    words
}

/// A case of uncopy that is neither a headline nor about memory.
struct OtherCase<'a> {
    title: &'a str,
    experiment: &'static str,
    judgement: Judgement,
}

fn other_cases(results: &Results) -> Vec<OtherCase<'_>> {
    let is_listed_elsewhere = |id: &str, title: &str| {
        HEADLINES.iter().any(|known| (known.entry, known.case) == (id, title)) || is_memory_entry(id)
    };
    let judged = |(id, title): (&str, &'_ str)| {
        let entry = find_entry(id)?;
        let case = PooledCase::find(results, id, title)?;
        let sides = [Side::Uncopy.name(), Side::Twin.name()];
        sides
            .iter()
            .find_map(|side| judge::judge(&case, side, entry.criterion))
            .map(|judgement| (entry.title, judgement))
    };
    let all = results.cases().into_iter().filter(|(id, title)| !is_listed_elsewhere(id, title));
    all.filter_map(|(id, title)| {
        let (experiment, judgement) = judged((id, title))?;
        Some(OtherCase { title, experiment, judgement })
    })
    .collect()
}

/// Lists the cases that cost, the worst first, with the numbers of the other cases.
fn losing_cases(results: &Results, rows: &[Row<'_>]) -> String {
    let mut lines = Vec::new();
    for row in rows {
        let Ok((case, Judgement { ratio, of, over, verdict })) = &row.result else { continue };
        let name = row.headline.name;
        if *verdict == Verdict::Costs {
            lines.push(format!("- **{name}**: {ratio} times the processor time of {over}."));
            continue;
        }
        // A case that is fine in the median may cost in single processes.
        let processes = case.by_process(row.headline.side, *of, over);
        let costly: Vec<Interval> = processes.filter(|ratio| ratio.low > 1.0 + MIN_DIFFERENCE).collect();
        if let Some(worst) = costly.iter().max_by(|one, other| one.median.total_cmp(&other.median)) {
            let (some, all) = (costly.len(), case.process_count());
            lines.push(format!(
                "- **{name}** in {some} of {all} processes: at worst {worst} times the processor time of {over}."
            ));
        }
    }
    let others = other_cases(results);
    let count = |is: fn(&Verdict) -> bool| others.iter().filter(|other| is(&other.judgement.verdict)).count();
    let mut costly: Vec<&OtherCase<'_>> =
        others.iter().filter(|other| other.judgement.verdict == Verdict::Costs).collect();
    costly.sort_by(|one, other| other.judgement.ratio.median.total_cmp(&one.judgement.ratio.median));
    for other in costly.iter().take(MAX_NAMED) {
        let Judgement { ratio, of, over, .. } = other.judgement;
        lines.push(format!(
            "- {} ({}): {} over {over} is {ratio}.",
            escape(other.title),
            other.experiment,
            quantity_name(of)
        ));
    }
    if costly.len() > MAX_NAMED {
        lines.push(format!("- … and {} more.", costly.len() - MAX_NAMED));
    }
    if lines.is_empty() {
        lines.push("No case was found to cost.".to_owned());
    }
    let (costs, helps) = (costly.len(), count(|verdict| *verdict == Verdict::Helps));
    let harmless = count(|verdict| *verdict == Verdict::Harmless);
    lines.push(format!(
        "\nAmong the {} other cases of all experiments, uncopy costs in {costs}, helps in {helps}, is harmless in {harmless}, \
         and {} are undecided.",
        others.len(),
        others.len() - costs - helps - harmless
    ));
    lines.extend(memory_text(results));
    lines.join("\n")
}

fn is_memory_entry(id: &str) -> bool {
    find_entry(id).is_some_and(|entry| entry.criterion == Criterion::Memory)
}

/// Describes the memory cases, with the processor time that the saving takes.
fn memory_text(results: &Results) -> Option<String> {
    let (id, title) = results.cases().into_iter().find(|(id, _)| is_memory_entry(id))?;
    let case = PooledCase::find(results, id, title)?;
    let judgement = judge::judge(&case, Side::Uncopy.name(), Criterion::Memory)?;
    let ratio = |side: &str, of| ratio_text(case.ratio(side, of, PLAIN));
    let (uncopy, heap) = (Side::Uncopy.name(), Side::HeapOnly.name());
    Some(format!(
        "\nMemory ({}): uncopy takes {} times the memory of plain and {} times its processor time; heap only takes {} \
         and {}. The verdict, by the worse ratio of uncopy: {}.",
        escape(title),
        ratio(uncopy, Quantity::Memory),
        ratio(uncopy, Quantity::Cpu),
        ratio(heap, Quantity::Memory),
        ratio(heap, Quantity::Cpu),
        judgement.verdict
    ))
}

const fn quantity_name(of: Quantity) -> &'static str {
    match of {
        Quantity::Cpu => "processor time",
        Quantity::Rate => "rate",
        Quantity::Memory => "memory",
        Quantity::Time => "time",
        Quantity::Load => "load",
    }
}

/// Describes the sources, the runs and the machine.
fn machine_text(results: &Results) -> String {
    let trees: BTreeSet<&str> = results.runs.iter().filter_map(|run| run.tree.as_deref()).collect();
    let trees: Vec<&str> = trees.into_iter().collect();
    let sources = match trees[..] {
        [] => "The sources are unknown, because the program was not in a git working tree.".to_owned(),
        [tree] => format!("Sources: tree {tree} (`git rev-parse HEAD:crates`)."),
        _ => format!("The runs measured different sources: trees {}.", trees.join(", ")),
    };
    let mut runs = Vec::new();
    let is_shared = |fact: &(String, String)| results.runs.iter().all(|run| run.machine.contains(fact));
    for (at, run) in results.runs.iter().enumerate() {
        let date = run.machine.iter().find(|(key, _)| key == "date").map_or("", |(_, date)| date);
        let own = run.machine.iter().filter(|fact| fact.0 != "date" && !is_shared(fact));
        let own: String = own.map(|(key, value)| format!(", {key} {value}")).collect();
        let (number, minutes) = (at + 1, run.seconds / 60.0);
        runs.push(escape(&format!("- Run {number}: {date}, {minutes:.0} minutes{own}.")));
    }
    let facts = results.runs.last().into_iter().flat_map(|run| &run.machine);
    let facts = facts.filter(|fact| fact.0 != "date" && is_shared(fact));
    let facts: Vec<String> = facts.map(|(key, value)| format!("{key} {value}")).collect();
    let warnings: BTreeSet<&str> = results
        .runs
        .iter()
        .flat_map(|run| &run.experiments)
        .filter_map(|measured| measured.warning.as_deref())
        .collect();
    format!(
        "{sources}\n\n{}\n- All runs: {}.{}",
        runs.join("\n"),
        escape(&facts.join(" · ")),
        warnings.first().map_or_else(String::new, |warning| format!(
            "\n\nOther programs used the machine during {} experiments. The first warning: {}.",
            warnings.len(),
            escape(warning)
        ))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::model::ExperimentResult;
    use crate::results::pool::tests::{case, results};

    fn page(results: &Results) -> String {
        render(results, &results.by_system(), "results/chart.svg", "results/details.md")
    }

    #[test]
    fn the_page_has_every_headline_and_those_that_cost_first() {
        let get = |cost: f64| {
            vec![
                case("redis GET 64 KiB, no append-only file", "uncopy", &[cost; 5]),
                case("redis GET 256 KiB, no append-only file", "uncopy", &[cost * 1.5; 5]),
                case("redis GET 1 MiB, no append-only file", "uncopy", &[0.7; 2]),
            ]
        };
        let results = results("redis-get", &[get(0.7), get(0.77)]);
        let page = page(&results);
        for headline in HEADLINES {
            assert!(page.contains(headline.name), "{page}");
        }
        let position = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} in {page}"));
        assert!(position("| Redis GET 256 KiB |") < position("| Redis GET 64 KiB |"));
        assert!(position("| Redis GET 64 KiB |") < position("- Redis GET 1 MiB: 20 rounds, "));
        assert!(page.contains("1.38 mimalloc<br>[") && page.contains("| 10 % | 300, 300 |"), "{page}");
        assert!(page.contains("**Redis GET 256 KiB**: 1.38 [") && page.contains("tree abc123 "), "{page}");
        assert!(page.contains("6.18 &lt;x>") && page.contains("](results/chart.svg)"), "{page}");
        assert!(page.contains("(zIO, Figure 4) |") && page.contains("not measured |"), "{page}");
    }

    #[test]
    fn facts_that_differ_between_machines_are_listed_by_run() {
        let mut results = results("redis-get", &[vec![], vec![]]);
        for (run, processor) in results.runs.iter_mut().zip(["one <x>", "two"]) {
            run.machine.push(("processor".into(), processor.into()));
            run.machine.push(("cpus".into(), "2".into()));
        }
        let page = page(&results);
        assert!(page.contains("0 minutes, processor one &lt;x>.\n- Run 2: "), "{page}");
        assert!(page.contains("0 minutes, processor two.") && page.contains("> · cpus 2."), "{page}");
    }

    #[test]
    fn programs_of_another_system_have_a_column_and_are_not_pooled() {
        let get = |cost: f64| vec![case("redis GET 64 KiB, no append-only file", "uncopy", &[cost; 5])];
        let mut results = results("redis-get", &[get(0.7), get(0.56)]);
        for (run, system) in results.runs.iter_mut().zip(["Debian 12", "Debian 13"]) {
            run.machine.retain(|(key, _)| key != "system");
            run.machine.push(("system".into(), system.into()));
        }
        let page = page(&results);
        assert!(page.contains("| verdict | Debian 13 |"), "{page}");
        let line = page.lines().find(|line| line.starts_with("| Redis GET 64 KiB | 0.88")).expect("a line");
        assert!(line.contains("| helps | 0.70 mimalloc<br>["), "{line}");
        assert!(page.contains("single run"), "{page}");
    }

    #[test]
    fn a_process_that_costs_is_listed_although_the_case_does_not() {
        let results = results(
            "redis-get",
            &[vec![case("redis GET 64 KiB, no append-only file", "uncopy", &[0.6, 0.6, 1.2, 0.6, 0.6])]],
        );
        let page = page(&results);
        assert!(
            page.contains(
                "**Redis GET 64 KiB** in 1 of 5 processes: at worst 1.50 [1.47–1.53] times the processor time of mimalloc"
            ),
            "{page}"
        );
    }

    #[test]
    fn failed_entries_have_a_reason() {
        let mut results = results("redis-get", &[vec![]]);
        results.runs[0].experiments.push(ExperimentResult {
            id: "copies".into(),
            failure: Some("no <room>".into()),
            ..ExperimentResult::default()
        });
        let page = page(&results);
        assert!(page.contains("echo 512 KiB, 12 copies: no &lt;room>."), "{page}");
        assert!(page.contains("No case was found to cost."));
    }
}
