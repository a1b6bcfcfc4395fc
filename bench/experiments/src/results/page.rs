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
use crate::results::model::{Quantity, Results};
use crate::results::pool::PooledCase;
use crate::results::register::{HEADLINES, find_entry};

/// Maximum number of cases besides the headlines that are named where uncopy costs.
const MAX_NAMED: usize = 8;
const PLAIN: &str = Side::Plain.name();

/// Renders the page. `chart` and `details` are paths of files beside it; details are linked if they were made.
#[must_use]
pub fn render(results: &Results, chart: &str, details: &str) -> String {
    let rows = rows(results);
    let mut page =
        String::from("# Results\n\n<!-- Made by uncopy-bench report; not to be edited by hand. -->\n\n");
    let mut line = |text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    line(&summary(results));
    if results.runs.iter().any(|run| run.quick) {
        line("\n**Measured with `--quick`: too short and too little for conclusions.**");
    }
    if results.runs.len() < 2 {
        line("\n**A single run: whether another one, hours later, says the same is not known.**");
    }
    line(&format!("\n![Processor time for each operation, by case]({chart})\n"));
    line(
        "| case | CPU over the best allocator | CPU over plain | heap only over plain | plain again over plain | rate over plain | uncopy | runs differ by | ns apart |",
    );
    line("|---|---|---|---|---|---|---|---:|---:|");
    for row in &rows {
        if let Ok((case, judgement)) = &row.result {
            line(&case_row(row, case, judgement));
        }
    }
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
    line(&format!("\nHow to read it:\n\n{HOW_TO_READ}\n{}", noise_controls(results, &rows)));
    line("\n## Where it does not help\n");
    line(&losing_cases(results, &rows));
    line(&format!("\n## What the papers reached\n\n{}", goals::table(PAPER_GOALS, results)));
    let [met, missed, open] = goals::count(PROJECT_GOALS, results);
    let all = PROJECT_GOALS.len();
    line(&format!(
        "\nOf this project's own {all} aims {met} are hit, {missed} are missed, and {open} are open or not measured \
         (`{details}`)."
    ));
    line(&format!("\n## Where it was measured\n\n{}", machine_text(results)));
    line(&format!(
        "\nEvery sample: `results/results.json`. `uncopy-bench report --from results/results.json` makes this page again, and `{details}`: every experiment with its command, what the papers say of it, and its table."
    ));
    page
}

const HOW_TO_READ: &str = "\
- CPU: the server's processor time for each operation, over that of the same packaged program without uncopy, in the same round; less than 1 is less. The client compares every byte.
- The best allocator is the one of glibc, tuned glibc (`GLIBC_TUNABLES`), mimalloc, jemalloc and uncopy's heap by itself (*heap only*) that takes the least. It is named; uncopy is judged beside it. Each process is compared with the one that is best in all the *other* processes: the luckiest of several equal ones would otherwise look better than any is. memcached with twin memory is judged beside memcached as it is, uncopy-files beside itself copying.
- `1.23 [1.19–1.27]`: the median with its 95 % interval over fresh processes. Helps: all of it below 0.97. Harmless: all of it within 0.97 and 1.03. Costs: all of it above 1.03. Undecided: anything else.
- Runs differ by: how far the medians of whole runs, made hours apart, lie apart.
- ns apart: what a cache line takes from the server's processor to the clients' and back, in each run; rounds at another distance are dropped. A virtual machine's host moves its processors about. Where they share a core, the copies at the socket cost least, and those inside the program, which uncopy elides, are most of the work; where they share no cache, it is the other way round.";

/// Returns the case's line of the table.
fn case_row(row: &Row<'_>, case: &PooledCase<'_>, judgement: &Judgement) -> String {
    let own = row.headline.side;
    let best = row.over_best().map_or_else(String::new, |(ratio, over)| stacked(ratio, &format!(" {over}")));
    let ratio = |side, of| row.ratio(side, of).map_or_else(String::new, |ratio| stacked(ratio, ""));
    let verdict = match judgement.verdict {
        // The interval already shows between which ratios.
        Verdict::Undecided(..) => "undecided".to_owned(),
        verdict => verdict.to_string(),
    };
    let difference = case.run_difference(own, judgement.of, judgement.over);
    table_row(&[
        row.headline.name,
        &best,
        &ratio(own, Quantity::Cpu),
        &ratio(Side::HeapOnly.name(), Quantity::Cpu),
        &ratio(Side::PlainAgain.name(), Quantity::Cpu),
        &ratio(own, Quantity::Rate),
        &verdict,
        &difference.map_or_else(String::new, quantity::percent),
        &case.distances().join(", "),
    ])
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
        "Beside the best other choice of allocator, uncopy takes less processor time in {} of {} cases, and more in {}. \
         It makes no difference in {}, cannot be told in {}, and {} were not measured well enough.",
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
    let beside: Vec<(Interval, Verdict)> = all_cases(results)
        .iter()
        .filter_map(|(id, title)| again(&PooledCase::find(results, id, title)?))
        .collect();
    let differing: Vec<String> = beside
        .iter()
        .filter(|(_, verdict)| verdict.is_difference())
        .map(|(ratio, _)| ratio.to_string())
        .collect();
    let MinMeasurements { rounds, processes } = MinMeasurements::of(results);
    let mut words = format!(
        "- {} rounds of {} fresh processes of each side; at least {rounds} and {processes} for each case. {} rounds more, \
         which others disturbed, were dropped.\n\
         - Chance: of {judged} verdicts in the table up to {:.1} would say that there is a difference where there is none.",
        known.iter().map(|case| case.round_count()).sum::<usize>(),
        known.iter().map(|case| case.process_count()).sum::<usize>(),
        known.iter().map(|case| case.dropped_count()).sum::<usize>(),
        expected_false_differences(judged)
    );
    if !beside.is_empty() {
        let medians: Vec<f64> = beside.iter().map(|(ratio, _)| ratio.median).collect();
        let all = Interval::of(&medians).map_or_else(String::new, |all| format!(", in the middle {all}"));
        let _ = write!(
            words,
            " Plain beside another plain, over all experiments: {} cases{all}; a difference is found in {}{}.",
            beside.len(),
            differing.len(),
            if differing.is_empty() { String::new() } else { format!(" ({})", differing.join(", ")) }
        );
    }
    words
}

/// Returns every case once, as experiment and title.
fn all_cases(results: &Results) -> BTreeSet<(&str, &str)> {
    let experiments = results.runs.iter().flat_map(|run| &run.experiments);
    experiments
        .flat_map(|measured| measured.cases.iter().map(|case| (measured.id.as_str(), case.title.as_str())))
        .collect()
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
    let all = all_cases(results).into_iter().filter(|(id, title)| !is_listed_elsewhere(id, title));
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
            lines.push(format!("- **{name}**: {ratio} of the processor time that {over} takes."));
            continue;
        }
        // A case that is fine in the median may cost in single processes.
        let processes = case.by_process(row.headline.side, *of, over);
        let costly: Vec<Interval> = processes.filter(|ratio| ratio.low > 1.0 + MIN_DIFFERENCE).collect();
        if let Some(worst) = costly.iter().max_by(|one, other| one.median.total_cmp(&other.median)) {
            let (some, all) = (costly.len(), case.process_count());
            lines.push(format!(
                "- **{name}** in {some} of {all} processes: {worst} of {over}'s in the worst."
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
            "- {} ({}): {} over {over} {ratio}.",
            escape(other.title),
            other.experiment,
            quantity_name(of)
        ));
    }
    if costly.len() > MAX_NAMED {
        lines.push(format!("- … and {} more.", costly.len() - MAX_NAMED));
    }
    if lines.is_empty() {
        lines.push("Nothing was found to cost.".to_owned());
    }
    let (costs, helps) = (costly.len(), count(|verdict| *verdict == Verdict::Helps));
    let harmless = count(|verdict| *verdict == Verdict::Harmless);
    lines.push(format!(
        "\nOf the {} other cases of all experiments it costs in {costs}, helps in {helps}, is harmless in {harmless}, \
         and cannot be told in {}.",
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
    let (id, title) = all_cases(results).into_iter().find(|(id, _)| is_memory_entry(id))?;
    let case = PooledCase::find(results, id, title)?;
    let judgement = judge::judge(&case, Side::Uncopy.name(), Criterion::Memory)?;
    let ratio = |side: &str, of| ratio_text(case.ratio(side, of, PLAIN));
    let (uncopy, heap) = (Side::Uncopy.name(), Side::HeapOnly.name());
    Some(format!(
        "\nMemory ({}): uncopy {} of plain's, at {} of its processor time; heap only {}, at {}. Taken together: {}.",
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
    let mut lines = Vec::new();
    let trees: BTreeSet<&str> = results.runs.iter().filter_map(|run| run.tree.as_deref()).collect();
    let trees: Vec<&str> = trees.into_iter().collect();
    match trees[..] {
        [] => lines.push("The sources are not known: it was measured outside of a working tree.".to_owned()),
        [tree] => lines.push(format!("Sources: tree {tree} (`git rev-parse HEAD:crates`).")),
        _ => lines.push(format!("The runs are of different sources: trees {}.", trees.join(", "))),
    }
    let is_shared = |fact: &(String, String)| results.runs.iter().all(|run| run.machine.contains(fact));
    for (at, run) in results.runs.iter().enumerate() {
        let date = run.machine.iter().find(|(key, _)| key == "date").map_or("", |(_, date)| date);
        let own = run.machine.iter().filter(|fact| fact.0 != "date" && !is_shared(fact));
        let own: String = own.map(|(key, value)| format!(", {key} {value}")).collect();
        lines.push(escape(&format!("Run {}: {date}, {:.0} minutes{own}.", at + 1, run.seconds / 60.0)));
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
        "{}\n\n{}.{}",
        lines.join(" "),
        escape(&facts.join(" · ")),
        warnings.first().map_or_else(String::new, |warning| format!(
            "\n\nIn {} experiments the machine was not this program's alone, as in: {}.",
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
        render(results, "results/chart.svg", "results/details.md")
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
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} in {page}"));
        assert!(place("| Redis GET 256 KiB |") < place("| Redis GET 64 KiB |"));
        assert!(place("| Redis GET 64 KiB |") < place("- Redis GET 1 MiB: 20 rounds, "));
        assert!(page.contains("1.38 mimalloc<br>[") && page.contains("| 10 % | 300, 300 |"), "{page}");
        assert!(page.contains("**Redis GET 256 KiB**: 1.38 [") && page.contains("tree abc123 "), "{page}");
        assert!(page.contains("6.18 &lt;x>") && page.contains("](results/chart.svg)"), "{page}");
        assert!(page.contains("| zIO, Figure 4 |") && page.contains("not measured |"), "{page}");
    }

    #[test]
    fn facts_that_differ_between_machines_are_listed_by_run() {
        let mut results = results("redis-get", &[vec![], vec![]]);
        for (run, processor) in results.runs.iter_mut().zip(["one <x>", "two"]) {
            run.machine.push(("processor".into(), processor.into()));
            run.machine.push(("cpus".into(), "2".into()));
        }
        let page = page(&results);
        assert!(page.contains("0 minutes, processor one &lt;x>. Run 2: "), "{page}");
        assert!(page.contains("0 minutes, processor two.") && page.contains("> · cpus 2."), "{page}");
    }

    #[test]
    fn a_process_that_costs_is_listed_although_the_case_does_not() {
        let results = results(
            "redis-get",
            &[vec![case("redis GET 64 KiB, no append-only file", "uncopy", &[0.6, 0.6, 1.2, 0.6, 0.6])]],
        );
        let page = page(&results);
        assert!(
            page.contains("**Redis GET 64 KiB** in 1 of 5 processes: 1.50 [1.47–1.53] of mimalloc's"),
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
        assert!(page.contains("Nothing was found to cost."));
    }
}
