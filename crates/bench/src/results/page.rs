//! The one page of results, in Markdown.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use uncopy_html::quantity;

use crate::kit::table::{Align, Table};
use crate::kit::verdict::{Verdict, by_chance};
use crate::kit::{Interval, Judge, Side};
use crate::results::aims::AIMS;
use crate::results::chart::Line;
use crate::results::judge::{self, Judgement, insufficiency};
use crate::results::markdown::{cells, text};
use crate::results::model::{Quantity, Results};
use crate::results::pool::Pooled;
use crate::results::register::{HEADLINES, Headline, find};

/// Cases besides the headlines that are named where uncopy costs.
const MAX_NAMED: usize = 8;
/// Programs of the README's table.
const TELLING: usize = 5;

const PLAIN: &str = Side::Plain.name();

/// A headline case, and what is known of it.
struct Row<'a> {
    headline: &'static Headline,
    /// What is said of it, or why nothing is.
    judged: Result<(Pooled<'a>, Judgement), String>,
}

impl<'a> Row<'a> {
    fn of(headline: &'static Headline, results: &'a Results) -> Self {
        let missing = || {
            let mut experiments = results.runs.iter().flat_map(|run| &run.experiments);
            let failed =
                experiments.find(|measured| measured.id == headline.entry && measured.failure.is_some());
            failed
                .and_then(|measured| measured.failure.clone())
                .unwrap_or_else(|| "not among what was run".to_owned())
        };
        let judged =
            Pooled::find(results, headline.entry, headline.case).ok_or_else(missing).and_then(|case| {
                if let Some(why) = insufficiency(&case) {
                    return Err(why);
                }
                let judgement = judge::judge(&case, headline.side, Judge::Speed);
                judgement
                    .map(|judgement| (case, judgement))
                    .ok_or_else(|| "no processor time was measured".to_owned())
            });
        Self { headline, judged }
    }

    /// What is judged; what is not known comes last.
    fn cost(&self) -> f64 {
        self.judged.as_ref().map_or(0.0, |(_, judgement)| judgement.ratio.median)
    }

    fn ratio(&self, side: &str, of: Quantity) -> Option<Interval> {
        self.judged.as_ref().ok()?.0.ratio(side, of, PLAIN)
    }

    /// `0.83 [0.80–0.86] mimalloc`.
    fn over_best(&self) -> String {
        match &self.judged {
            Ok((case, judgement)) if case.best_rival().is_some() => {
                format!("{} {}", judgement.ratio, judgement.over)
            }
            _ => String::new(),
        }
    }

    fn cells(&self) -> String {
        let own = self.headline.side;
        let Ok((case, judgement)) = &self.judged else {
            let why = self.judged.as_ref().err().map_or("", String::as_str);
            return cells(&[
                self.headline.name,
                "",
                "",
                "",
                "",
                "",
                &format!("not measured well enough: {why}"),
                "",
                "",
            ]);
        };
        let difference = case.difference(own, judgement.of, judgement.over);
        cells(&[
            self.headline.name,
            &self.over_best(),
            &shown(self.ratio(own, Quantity::Cpu)),
            &shown(self.ratio(Side::HeapOnly.name(), Quantity::Cpu)),
            &shown(self.ratio(Side::PlainAgain.name(), Quantity::Cpu)),
            &shown(self.ratio(own, Quantity::Rate)),
            &judgement.verdict.to_string(),
            &format!("{} ({})", case.rounds(), case.processes()),
            &difference.map_or_else(String::new, quantity::percent),
        ])
    }
}

/// The headline cases, what costs most first, what was not measured well enough last.
fn rows(results: &Results) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = HEADLINES.iter().map(|headline| Row::of(headline, results)).collect();
    rows.sort_by(|one, other| other.cost().total_cmp(&one.cost()));
    rows
}

/// The lines of the chart.
#[must_use]
pub fn chart(results: &Results) -> Vec<Line> {
    let line = |row: &Row<'_>| Line {
        name: row.headline.name.to_owned(),
        judged: row.judged.as_ref().ok().map(|(_, judgement)| (judgement.ratio, judgement.verdict)),
        over_plain: row.ratio(row.headline.side, Quantity::Cpu),
    };
    rows(results).iter().map(line).collect()
}

/// The page. `chart` and `details` are the paths of what lies beside it.
#[must_use]
pub fn render(results: &Results, chart: &str, details: &str) -> String {
    let rows = rows(results);
    let mut page =
        String::from("# Results\n\n<!-- Made by uncopy bench report; not to be edited by hand. -->\n\n");
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
        "| case | CPU over the best allocator | CPU over plain | heap only over plain | plain again over plain | rate over plain | uncopy | rounds (processes) | runs differ by |",
    );
    line("|---|---|---|---|---|---|---|---:|---:|");
    for row in &rows {
        line(&row.cells());
    }
    line(&format!("\n{HOW_TO_READ}\n{}", controls(results, &rows)));
    line("\n## Where it does not help\n");
    line(&losses(results, &rows));
    line(
        "\n## What the papers reached\n\n| source | what, over plain | aim | measured | |\n|---|---|---|---|---|",
    );
    for aim in AIMS {
        let (ratio, outcome) = aim.outcome(results);
        // The words are ours.
        line(&format!(
            "| {} | {} | {} | {} | {} |",
            aim.source,
            aim.what,
            aim.bound.words(),
            shown(ratio),
            outcome.words()
        ));
    }
    line(&format!("\n## Where it was measured\n\n{}", machine(results)));
    line(&format!(
        "\nEvery experiment, with its command and what the papers say: [{details}]({details}). Every sample: `results.json` beside it, from which `uncopy bench report --from` makes these pages again."
    ));
    page
}

const HOW_TO_READ: &str = "\
- CPU: the server's processor time for each operation, over that of the same packaged program without uncopy, in the same round; less than 1 is less. The client compares every byte.
- The best allocator is the one of glibc, tuned glibc (`GLIBC_TUNABLES`), mimalloc, jemalloc and uncopy's heap by itself (*heap only*) that takes the least, chosen by the same rounds. What is named is what it was; uncopy is judged beside it. uncopy-cached and uncopy-files are judged beside themselves copying.
- `1.23 [1.19–1.27]`: the median with its 95 % interval over fresh processes. Helps: all of it below 0.97. Harmless: all of it within 0.97 and 1.03. Costs: all of it above 1.03.
- Runs differ by: how far the medians of whole runs, made hours apart, lie apart.";

/// What came out, in one sentence.
#[must_use]
pub fn summary(results: &Results) -> String {
    let verdicts: Vec<Option<Verdict>> = rows(results)
        .iter()
        .map(|row| row.judged.as_ref().ok().map(|(_, judgement)| judgement.verdict))
        .collect();
    let count = |is: fn(&Verdict) -> bool| verdicts.iter().flatten().filter(|verdict| is(verdict)).count();
    format!(
        "Beside the best other choice of allocator, uncopy takes less processor time in {} of {} cases, and more in {}. \
         It makes no difference in {}, cannot be told in {}, and {} were not measured well enough.",
        count(|verdict| matches!(verdict, Verdict::Helps)),
        verdicts.len(),
        count(|verdict| matches!(verdict, Verdict::Costs)),
        count(|verdict| matches!(verdict, Verdict::Harmless)),
        count(|verdict| matches!(verdict, Verdict::Between(..) | Verdict::TooFewRounds)),
        verdicts.iter().filter(|verdict| verdict.is_none()).count(),
    )
}

/// How far chance goes: what would be said without any difference, and what was said of plain beside itself.
fn controls(results: &Results, rows: &[Row<'_>]) -> String {
    let judged = rows.iter().filter(|row| row.judged.is_ok()).count();
    let again = |case: &Pooled<'_>| {
        let ratio = case.ratio(Side::PlainAgain.name(), Quantity::Cpu, PLAIN)?;
        Some((ratio, Verdict::of(ratio, case.rounds())))
    };
    let beside: Vec<(Interval, Verdict)> =
        cases(results).iter().filter_map(|(id, title)| again(&Pooled::find(results, id, title)?)).collect();
    let differing: Vec<String> = beside
        .iter()
        .filter(|(_, verdict)| verdict.is_difference())
        .map(|(ratio, _)| ratio.to_string())
        .collect();
    let mut words = format!(
        "- Chance: of {judged} verdicts in the table up to {:.1} would say that there is a difference where there is none.",
        by_chance(judged)
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

/// Every case once: experiment and title.
fn cases(results: &Results) -> BTreeSet<(&str, &str)> {
    let experiments = results.runs.iter().flat_map(|run| &run.experiments);
    experiments
        .flat_map(|measured| measured.cases.iter().map(|case| (measured.id.as_str(), case.title.as_str())))
        .collect()
}

/// A case of uncopy that is no headline, and not of memory.
struct Other<'a> {
    title: &'a str,
    experiment: &'static str,
    judgement: Judgement,
}

fn others(results: &Results) -> Vec<Other<'_>> {
    let is_told = |id: &str, title: &str| {
        HEADLINES.iter().any(|known| (known.entry, known.case) == (id, title)) || is_of_memory(id)
    };
    let judged = |(id, title): (&str, &'_ str)| {
        let entry = find(id)?;
        let case = Pooled::find(results, id, title)?;
        let sides = [Side::Uncopy.name(), Side::Twin.name()];
        sides
            .iter()
            .find_map(|side| judge::judge(&case, side, entry.judge))
            .map(|judgement| (entry.title, judgement))
    };
    let all = cases(results).into_iter().filter(|(id, title)| !is_told(id, title));
    all.filter_map(|(id, title)| {
        let (experiment, judgement) = judged((id, title))?;
        Some(Other { title, experiment, judgement })
    })
    .collect()
}

/// The cases that cost, the worst first, and how many there are of the others.
fn losses(results: &Results, rows: &[Row<'_>]) -> String {
    let mut lines = Vec::new();
    for row in rows {
        if let Ok((_, Judgement { ratio, over, verdict: Verdict::Costs, .. })) = &row.judged {
            lines.push(format!(
                "- **{}** takes {ratio} of the processor time that it takes beside {over}.",
                row.headline.name
            ));
        }
    }
    let others = others(results);
    let count = |is: fn(&Verdict) -> bool| others.iter().filter(|other| is(&other.judgement.verdict)).count();
    let mut costly: Vec<&Other<'_>> =
        others.iter().filter(|other| other.judgement.verdict == Verdict::Costs).collect();
    costly.sort_by(|one, other| other.judgement.ratio.median.total_cmp(&one.judgement.ratio.median));
    for other in costly.iter().take(MAX_NAMED) {
        let Judgement { ratio, of, over, .. } = other.judgement;
        lines.push(format!(
            "- {} ({}): {} over {over} {ratio}.",
            text(other.title),
            other.experiment,
            name(of)
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
    lines.extend(memory(results));
    lines.join("\n")
}

fn is_of_memory(id: &str) -> bool {
    find(id).is_some_and(|entry| entry.judge == Judge::Memory)
}

/// Memory, with the processor time that it takes.
fn memory(results: &Results) -> Option<String> {
    let (id, title) = cases(results).into_iter().find(|(id, _)| is_of_memory(id))?;
    let case = Pooled::find(results, id, title)?;
    let judgement = judge::judge(&case, Side::Uncopy.name(), Judge::Memory)?;
    let ratio = |side: &str, of| shown(case.ratio(side, of, PLAIN));
    let (uncopy, heap) = (Side::Uncopy.name(), Side::HeapOnly.name());
    Some(format!(
        "\nMemory ({}): uncopy {} of plain's, at {} of its processor time; heap only {}, at {}. Taken together: {}.",
        text(title),
        ratio(uncopy, Quantity::Memory),
        ratio(uncopy, Quantity::Cpu),
        ratio(heap, Quantity::Memory),
        ratio(heap, Quantity::Cpu),
        judgement.verdict
    ))
}

const fn name(of: Quantity) -> &'static str {
    match of {
        Quantity::Cpu => "processor time",
        Quantity::Rate => "rate",
        Quantity::Memory => "memory",
        Quantity::Time => "time",
        Quantity::Load => "load",
    }
}

/// The sources, the runs and the machine.
fn machine(results: &Results) -> String {
    let mut lines = Vec::new();
    let trees: BTreeSet<&str> = results.runs.iter().filter_map(|run| run.tree.as_deref()).collect();
    let trees: Vec<&str> = trees.into_iter().collect();
    match trees[..] {
        [] => lines.push("The sources are not known: it was measured outside of a working tree.".to_owned()),
        [tree] => lines.push(format!("Sources: tree {tree} (`git rev-parse HEAD:crates`).")),
        _ => lines.push(format!("The runs are of different sources: trees {}.", trees.join(", "))),
    }
    for (at, run) in results.runs.iter().enumerate() {
        let date = run.machine.iter().find(|(key, _)| key == "date").map_or("", |(_, date)| date);
        lines.push(format!("Run {}: {date}, {:.0} minutes.", at + 1, run.seconds / 60.0));
    }
    let facts = results.runs.last().into_iter().flat_map(|run| &run.machine).filter(|(key, _)| key != "date");
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
        text(&facts.join(" · ")),
        warnings.first().map_or_else(String::new, |warning| format!(
            "\n\nIn {} experiments the machine was not this program's alone, as in: {}.",
            warnings.len(),
            text(warning)
        ))
    )
}

/// The table of the README: of different packaged programs the two cases that cost most, the two that gain most and
/// the one that is nearest to no difference.
#[must_use]
pub fn telling(results: &Results) -> Option<String> {
    let rows = rows(results);
    let mut left: Vec<&Row<'_>> =
        rows.iter().filter(|row| row.headline.program.is_some() && row.judged.is_ok()).collect();
    let mut chosen: Vec<&Row<'_>> = Vec::new();
    while chosen.len() < TELLING && !left.is_empty() {
        // The worst first, then the best, and so on; the last is the one in the middle.
        let at = match chosen.len() {
            0 | 2 => 0,
            1 | 3 => left.len() - 1,
            _ => {
                let distance = |row: &Row<'_>| row.cost().ln().abs();
                let nearest = (0..left.len())
                    .min_by(|one, other| distance(left[*one]).total_cmp(&distance(left[*other])));
                nearest.unwrap_or(0)
            }
        };
        let row = left.remove(at);
        left.retain(|other| other.headline.program != row.headline.program);
        chosen.push(row);
    }
    chosen.sort_by(|one, other| other.cost().total_cmp(&one.cost()));
    let mut table = Table::new(&[
        ("CPU of uncopy", Align::Left),
        ("over the best allocator", Align::Left),
        ("over plain", Align::Left),
        ("rate over plain", Align::Left),
        ("uncopy", Align::Left),
    ]);
    for row in &chosen {
        let verdict = row
            .judged
            .as_ref()
            .map_or_else(|_| String::new(), |(_, judgement)| judgement.verdict.to_string());
        table.row(vec![
            row.headline.name.to_owned(),
            row.over_best(),
            shown(row.ratio(row.headline.side, Quantity::Cpu)),
            shown(row.ratio(row.headline.side, Quantity::Rate)),
            verdict,
        ]);
    }
    (!chosen.is_empty()).then(|| table.render())
}

fn shown(ratio: Option<Interval>) -> String {
    ratio.map_or_else(String::new, |ratio| ratio.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::model::{Case, Measured};
    use crate::results::pool::tests::{case, results};

    fn page(results: &Results) -> String {
        render(results, "results/chart.svg", "results/details.md")
    }

    #[test]
    fn the_page_has_every_headline_and_those_that_cost_first() {
        let get = |cost: f64| {
            vec![
                case("redis GET 64 KiB", "uncopy", &[cost; 5]),
                case("redis GET 256 KiB", "uncopy", &[cost * 1.5; 5]),
                case("redis GET 1 MiB", "uncopy", &[0.7; 4]),
            ]
        };
        let results = results("redis-get", &[get(0.7), get(0.77)]);
        let page = page(&results);
        for headline in HEADLINES {
            assert!(page.contains(&format!("| {} |", headline.name)), "{page}");
        }
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} in {page}"));
        assert!(place("| Redis GET 256 KiB |") < place("| Redis GET 64 KiB |"));
        assert!(place("| Redis GET 64 KiB |") < place("| not measured well enough"));
        assert!(page.contains("mimalloc | ") && page.contains("| 10 % |"), "{page}");
        assert!(page.contains("**Redis GET 256 KiB** takes 1.3") && page.contains("tree abc123 "), "{page}");
        assert!(page.contains("6.18 &lt;x>") && page.contains("](results/chart.svg)"), "{page}");
        assert!(page.contains("| zIO, Figure 4 |") && page.contains("not measured |"), "{page}");
    }

    #[test]
    fn what_failed_says_why() {
        let mut results = results("redis-get", &[vec![]]);
        results.runs[0].experiments.push(Measured {
            id: "copies".into(),
            failure: Some("no <room>".into()),
            ..Measured::default()
        });
        let page = page(&results);
        assert!(
            page.contains("| echo 512 KiB, 5 copies |  |  |  |  |  | not measured well enough: no &lt;room>"),
            "{page}"
        );
        assert!(page.contains("Nothing was found to cost."));
    }

    #[test]
    fn the_five_are_of_different_programs_with_losses_and_gains() {
        let of = |id: &str, cases: &[(&str, f64)]| Measured {
            id: id.to_owned(),
            cases: cases
                .iter()
                .map(|(title, cost)| case(title, "uncopy", &[*cost; 5]))
                .collect::<Vec<Case>>(),
            ..Measured::default()
        };
        let mut results = results("redis-get", &[vec![]]);
        results.runs[0].experiments = vec![
            of(
                "redis-get",
                &[("redis GET 64 KiB", 1.0), ("redis GET 256 KiB", 1.5), ("redis GET 1 MiB", 0.3)],
            ),
            of("copies", &[("echo 512 KiB, 12 copies", 0.2)]),
            of("apps-web", &[("nginx proxied 64 KiB", 0.85), ("haproxy 1 MiB, buffers of 64 KiB", 0.5)]),
            of(
                "apps-others",
                &[("mosquitto 1 MiB, 4 subscribers", 0.4), ("python asyncio proxy 1 MiB", 0.78)],
            ),
            of("apps-stores", &[("postgresql COPY 1 MiB", 1.1)]),
        ];
        let table = telling(&results).expect("a table");
        let names: Vec<&str> = table.lines().skip(2).filter_map(|line| line.split("  ").next()).collect();
        let wanted = [
            "Redis GET 256 KiB",
            "PostgreSQL COPY 1 MiB",
            "asyncio proxy 1 MiB",
            "HAProxy 1 MiB",
            "mosquitto 1 MiB",
        ];
        // Of nginx and the proxy of asyncio, one is nearer to 1 beside mimalloc's 0.8.
        assert_eq!(names.len(), 5, "{table}");
        for name in wanted.iter().filter(|name| !name.starts_with("asyncio")) {
            assert!(names.contains(name), "{name}: {table}");
        }
        assert!(!table.contains("echo"), "{table}");
        assert_eq!(telling(&Results::default()), None);
    }
}
