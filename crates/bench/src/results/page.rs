//! The results as one page of HTML.

use uncopy_html::markup::Markup;
use uncopy_html::table::{Cell, Column, Table};
use uncopy_html::{quantity, shell};

use crate::kit::experiment::Claim;
use crate::kit::{Interval, Judge, number};
use crate::results::judge::{self, Verdict};
use crate::results::model::{Measured, Results, Row};
use crate::results::register::{self, ABSENT};

/// Rows of an experiment that are shown; the others are in its table as printed, and in the JSON.
const MAX_ROWS: usize = 300;

/// What was measured, and what the register knows of it.
pub(super) struct Shown<'a> {
    pub(super) measured: &'a Measured,
    pub(super) title: &'a str,
    pub(super) claims: &'static [Claim],
    pub(super) judge: Judge,
}

impl<'a> Shown<'a> {
    pub(super) fn of(measured: &'a Measured) -> Self {
        let entry = register::find(&measured.id);
        Self {
            measured,
            title: entry.map_or(measured.id.as_str(), |entry| entry.title),
            claims: entry.map_or(&[], |entry| entry.claims),
            judge: entry.map_or(Judge::Speed, |entry| entry.judge),
        }
    }

    /// The command that measures it by itself.
    pub(super) fn command(&self) -> String {
        let words = self.measured.words.join(" ");
        match self.measured.network.as_str() {
            "" | "loopback" => format!("uncopy bench {words}"),
            network => format!("uncopy bench --network {network} {words}"),
        }
    }

    pub(super) fn verdict(&self, row: &Row) -> Option<Verdict> {
        judge::verdict(row, self.judge)
    }

    /// The lines above its table: what the papers say.
    pub(super) fn facts(&self) -> Vec<String> {
        let measured = self.measured;
        let mut facts =
            vec![format!("Measured in {} over {}", quantity::seconds(measured.seconds), measured.network)];
        if measured.repeated {
            facts.push("measured twice".to_owned());
        }
        facts.extend(measured.versions.iter().map(|(key, version)| format!("{key} {version}")));
        facts
    }

    /// Number of ratios that would not come out again, and of all.
    pub(super) fn noise(&self) -> Option<String> {
        let ratios = self.measured.rows.iter().filter(|row| row.main_ratio().is_some());
        let all = ratios.clone().count();
        let noisy = ratios.filter(|row| judge::is_noisy(row)).count();
        (noisy > 0).then(|| {
            let how = if self.measured.repeated { "differed, or would differ," } else { "would differ" };
            format!(
                "Too noisy: the medians of {noisy} of {all} ratios {how} by more than {} between two runs. \
                 They are marked with ~; believe their spreads.",
                quantity::percent(judge::NOISE)
            )
        })
    }
}

pub(super) fn shown(results: &Results) -> impl Iterator<Item = Shown<'_>> {
    results.experiments.iter().map(Shown::of)
}

/// Every case of uncopy with its verdict.
pub(super) fn cases(results: &Results) -> Vec<(Shown<'_>, &Row, Verdict)> {
    fn of(measured: &Measured) -> Vec<(Shown<'_>, &Row, Verdict)> {
        let judged = |row| Some((Shown::of(measured), row, Shown::of(measured).verdict(row)?));
        measured.rows.iter().filter_map(judged).collect()
    }
    results.experiments.iter().flat_map(of).collect()
}

/// What came out, in one sentence.
pub(super) fn summary(results: &Results) -> String {
    let cases = cases(results);
    let count = |verdict| cases.iter().filter(|(_, _, known)| *known == verdict).count();
    let mut parts = vec![
        format!("it helps in {}", count(Verdict::Helps)),
        format!("makes no difference in {}", count(Verdict::Same)),
        format!("costs in {}", count(Verdict::Costs)),
    ];
    for (verdict, words) in [
        (Verdict::Mixed, "is faster for more CPU time, or slower for less, in"),
        (Verdict::Unclear, "was measured too noisily to tell in"),
        (Verdict::Unknown, "could not be measured in"),
    ] {
        if count(verdict) > 0 {
            parts.push(format!("{words} {}", count(verdict)));
        }
    }
    let last = parts.pop().unwrap_or_default();
    format!("Of {} cases of uncopy, {} and {last}.", cases.len(), parts.join(", "))
}

/// The cases in which it does not help, the worst first.
pub(super) fn not_helped(results: &Results) -> Vec<(Shown<'_>, &Row, Verdict)> {
    let mut cases: Vec<_> =
        cases(results).into_iter().filter(|(_, _, verdict)| *verdict != Verdict::Helps).collect();
    cases.sort_by_key(|(_, _, verdict)| *verdict);
    cases
}

/// `1.39 (1.34–1.78)`, with ~ where it is noisy.
pub(super) fn ratio_text(ratio: Option<Interval>, noisy: bool) -> String {
    ratio.map_or_else(String::new, |ratio| {
        let mark = if noisy { "~" } else { "" };
        format!("{mark}{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
    })
}

/// Whether the row's processor time would not come out again.
pub(super) fn is_cpu_noisy(row: &Row) -> bool {
    row.cpu_difference_of_runs.is_some_and(|part| part > judge::NOISE)
}

/// The ratio by which the row is judged.
pub(super) fn judged_ratio(shown: &Shown<'_>, row: &Row) -> String {
    match (shown.judge, &row.time_ratio) {
        (Judge::Memory, _) => ratio_text(row.resident_ratio, false),
        (_, Some(time)) if row.ratio.is_none() => {
            format!("{} {}", time.of, ratio_text(Some(time.ratio), judge::is_noisy(row)))
        }
        _ => ratio_text(row.ratio, judge::is_noisy(row)),
    }
}

fn ratio_cell(text: String, ratio: Option<Interval>) -> Cell {
    Cell { value: ratio.map(|ratio| ratio.median), ..text.into() }
}

/// The whole page.
#[must_use]
pub(super) fn render(results: &Results) -> String {
    let mut page = Markup::new();
    page.element("a", &[("class", "skip"), ("href", "#not-helped")], "Skip to the results");
    page.open("header", &[]).element("h1", &[], "uncopy, measured beside what the papers say");
    page.element("p", &[("class", "lead")], &summary(results));
    if results.quick {
        page.element(
            "p",
            &[("class", "noisy")],
            "Measured with --quick: too short and too little for conclusions.",
        );
    }
    page.open("nav", &[("aria-label", "Experiments")]).open("ul", &[]);
    let fixed = [("not-helped", "Where it does not help"), ("overview", "Overview")];
    let experiments = shown(results).map(|shown| (shown.measured.id.as_str(), shown.title));
    for (anchor, title) in
        fixed.into_iter().chain(experiments).chain([("machine", "Machine"), ("absent", "Not measured")])
    {
        page.open("li", &[]).element("a", &[("href", &format!("#{anchor}"))], title).close();
    }
    page.close().close().close().open("main", &[]);
    section(&mut page, "not-helped", "Where it does not help", worst(results));
    section(&mut page, "overview", "Overview", overview(results));
    for shown in shown(results) {
        section(&mut page, &shown.measured.id, shown.title, experiment(&shown));
    }
    section(&mut page, "machine", "Machine", machine(results));
    section(&mut page, "absent", "What the papers measured and this cannot", absent());
    shell::page("uncopy bench report", page)
}

fn section(page: &mut Markup, anchor: &str, heading: &str, content: Markup) {
    let id = format!("{anchor}-heading");
    page.open("section", &[("id", anchor), ("aria-labelledby", &id)]).element("h2", &[("id", &id)], heading);
    page.append(content).close();
}

fn worst(results: &Results) -> Markup {
    let mut markup = Markup::new();
    let columns = [
        ("case", Column::Words),
        ("side", Column::Words),
        ("verdict", Column::Words),
        ("ratio to plain (spread)", Column::Numbers),
        ("CPU ratio (spread)", Column::Numbers),
    ];
    let caption = "Every case in which uncopy costs, makes no difference, or could not be told to help";
    let mut table = Table::new(caption, &columns).sortable();
    for (shown, row, verdict) in not_helped(results) {
        table.row(vec![
            Cell::from(row.case.as_str()).with_detail(shown.title),
            row.side.as_str().into(),
            Cell::from(verdict.words())
                .with_class(verdict.class())
                .with_detail(row.obstacle.clone().unwrap_or_default()),
            ratio_cell(judged_ratio(&shown, row), row.main_ratio().map(|(ratio, _)| ratio)),
            ratio_cell(ratio_text(row.cpu_ratio, is_cpu_noisy(row)), row.cpu_ratio),
        ]);
    }
    if table.is_empty() {
        markup.element("p", &[], "There is no such case in these results.");
    } else {
        markup.append(table.markup());
    }
    for shown in shown(results) {
        if let Some(failure) = &shown.measured.failure {
            markup.element("p", &[("class", "noisy")], &format!("{}: no figures: {failure}", shown.title));
        }
    }
    markup
}

fn overview(results: &Results) -> Markup {
    let columns = [
        ("experiment", Column::Words),
        ("paper", Column::Words),
        ("helps", Column::Numbers),
        ("no difference", Column::Numbers),
        ("costs", Column::Numbers),
        ("cannot tell", Column::Numbers),
        ("best ratio", Column::Numbers),
        ("worst ratio", Column::Numbers),
    ];
    let mut table = Table::new("Cases of uncopy in each experiment", &columns).sortable();
    for shown in shown(results) {
        let verdicts: Vec<Verdict> =
            shown.measured.rows.iter().filter_map(|row| shown.verdict(row)).collect();
        let count = |wanted: &[Verdict]| {
            let count = verdicts.iter().filter(|verdict| wanted.contains(verdict)).count();
            quantity::count(count as u64).into()
        };
        let judged = shown.measured.rows.iter().filter(|row| shown.verdict(row).is_some());
        let ratios: Vec<f64> = judged.filter_map(|row| Some(row.ratio?.median)).collect();
        let extreme = |of: fn(f64, f64) -> f64| ratios.iter().copied().reduce(of);
        let cell = |ratio: Option<f64>| {
            ratio.map_or_else(Cell::default, |ratio| Cell::number(format!("{ratio:.2}"), ratio))
        };
        let papers: Vec<&str> = shown.claims.iter().map(|claim| claim.figure).collect();
        table.row(vec![
            shown.title.into(),
            papers.join("; ").into(),
            count(&[Verdict::Helps]),
            count(&[Verdict::Same]),
            count(&[Verdict::Costs, Verdict::Mixed]),
            count(&[Verdict::Unclear, Verdict::Unknown]),
            cell(extreme(f64::max)),
            cell(extreme(f64::min)),
        ]);
    }
    table.markup()
}

fn experiment(shown: &Shown<'_>) -> Markup {
    let mut markup = Markup::new();
    let measured = shown.measured;
    for claim in shown.claims {
        markup.open("p", &[]).element("b", &[], &format!("{}: ", claim.figure)).text(claim.says).close();
    }
    markup.element("p", &[("class", "quiet")], &(shown.facts().join(" · ") + "."));
    markup.element("pre", &[], &shown.command());
    if let Some(failure) = &measured.failure {
        markup.element("p", &[("class", "bad")], &format!("No figures: {failure}"));
        return markup;
    }
    for line in measured.warning.iter().cloned().chain(shown.noise()) {
        markup.element("p", &[("class", "noisy")], &line);
    }
    markup.append(rows(shown));
    if let Some(svg) = measured.plot.as_ref().and_then(|plot| plot.to_svg().ok()) {
        let described = format!("Plot: {}", shown.title);
        markup
            .open("div", &[("class", "plot"), ("role", "img"), ("aria-label", &described)])
            .drawn(&svg)
            .close();
    }
    if !measured.notes.is_empty() {
        markup.open("details", &[]).element("summary", &[], "Notes").open("ul", &[]);
        for note in &measured.notes {
            markup.element("li", &[], note);
        }
        markup.close().close();
    }
    markup.open("details", &[]).element("summary", &[], "The table as the command prints it");
    markup.element("pre", &[("tabindex", "0")], &measured.text).close();
    markup
}

fn rows(shown: &Shown<'_>) -> Markup {
    let repeated = shown.measured.repeated;
    let of = if shown.judge == Judge::Memory { "memory ratio" } else { "ratio to plain" };
    let of = format!("{of} (spread)");
    let mut columns = vec![
        ("case", Column::Words),
        ("side", Column::Words),
        ("op/s", Column::Numbers),
        (of.as_str(), Column::Numbers),
    ];
    columns.extend(repeated.then_some(("second run", Column::Numbers)));
    columns.extend([
        ("CPU ratio (spread)", Column::Numbers),
        ("of limit", Column::Numbers),
        ("two runs differ by", Column::Numbers),
        ("verified", Column::Numbers),
        ("uncopy", Column::Words),
    ]);
    let mut table = Table::new(format!("{}, over plain in the same round", shown.title), &columns).sortable();
    for row in shown.measured.rows.iter().take(MAX_ROWS) {
        let median = |spread: Option<Interval>, decimals: usize| {
            spread.map_or_else(Cell::default, |spread| {
                Cell::number(format!("{:.decimals$}", spread.median), spread.median)
            })
        };
        let rate = row.rate.map_or_else(Cell::default, |rate| Cell::number(number(rate.median), rate.median));
        let mut cells = vec![
            row.case.as_str().into(),
            row.side.as_str().into(),
            rate,
            ratio_cell(judged_ratio(shown, row), row.main_ratio().map(|(ratio, _)| ratio)),
        ];
        if repeated {
            let second = row.second_ratio;
            cells.push(second.map_or_else(Cell::default, |ratio| Cell::number(format!("{ratio:.2}"), ratio)));
        }
        let verdict = shown.verdict(row);
        cells.extend([
            ratio_cell(ratio_text(row.cpu_ratio, is_cpu_noisy(row)), row.cpu_ratio),
            median(row.of_limit, 2),
            row.main_ratio()
                .and_then(|(_, part)| part)
                .map_or_else(Cell::default, |part| Cell::number(quantity::percent(part), part)),
            Cell::from(if row.obstacle.is_some() {
                "no".to_owned()
            } else {
                quantity::bytes(row.verified_bytes)
            }),
            verdict.map_or_else(Cell::default, |verdict| {
                Cell::from(verdict.words())
                    .with_class(verdict.class())
                    .with_detail(row.obstacle.clone().unwrap_or_default())
            }),
        ]);
        table.row(cells);
    }
    table.markup()
}

/// The machine and the versions, in order.
pub(super) fn machine_facts(results: &Results) -> Vec<(String, String)> {
    let commit = results.commit.clone().unwrap_or_else(|| "not known".to_owned());
    let own = [
        ("commit".to_owned(), commit),
        ("took".to_owned(), format!("{:.0} minutes", results.seconds / 60.0)),
        ("length".to_owned(), if results.quick { "--quick" } else { "full" }.to_owned()),
    ];
    results.machine.iter().cloned().chain(own).collect()
}

fn machine(results: &Results) -> Markup {
    let mut markup = Markup::new();
    markup.open("dl", &[("class", "facts small")]);
    for (name, value) in machine_facts(results) {
        markup.open("div", &[]).element("dt", &[], &name).element("dd", &[], &value).close();
    }
    markup.close();
    for words in HOW_TO_READ {
        markup.element("p", &[], words);
    }
    markup
}

/// What the figures mean.
pub(super) const HOW_TO_READ: [&str; 5] = [
    "Ratios are taken within rounds that run every side once, alternating; the median over the rounds is shown, with the \
     smallest and the largest (of 20 and more: the quartiles). No ratio is given unless every byte of both sides was verified.",
    "CPU ratio: the server's processor time for the same work over plain's; less is better.",
    "A ratio that begins with time or load is of that, where there is no throughput to compare: less is better.",
    "Helps: 3 % more throughput or less CPU time, and not 3 % worse in the other. Costs: the reverse.",
    "Two runs differ by: what the medians of two runs like this one would differ by in nine of ten pairs, by resampling the \
     rounds; from 5 % on the ratio is marked with ~ as too noisy.",
];

fn absent() -> Markup {
    let mut table =
        Table::new("Figures without a counterpart", &[("figure", Column::Words), ("why", Column::Words)]);
    for (figure, why) in ABSENT {
        table.row(vec![(*figure).into(), (*why).into()]);
    }
    table.markup()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kit::plot::{Plot, Scale, Series};

    pub(in crate::results) fn sample() -> Results {
        let spread = |median: f64| Some(Interval { median, low: median - 0.1, high: median + 0.1 });
        let row = |side: &str, ratio: f64, noise: f64| Row {
            case: "echo <512 KiB>".into(),
            side: side.into(),
            ratio: if side == "plain" { None } else { spread(ratio) },
            cpu_ratio: spread(1.0).filter(|_| side != "plain"),
            rate: spread(1000.0 * ratio),
            verified_bytes: 1 << 30,
            difference_of_runs: Some(noise),
            cpu_difference_of_runs: Some(0.0),
            ..Row::default()
        };
        let spread = Interval { median: 1.4, low: 1.3, high: 1.5 };
        let plot = Plot {
            title: "echo <b>".into(),
            x: ("copies".into(), Scale::Linear),
            y: "ratio".into(),
            series: vec![Series { name: "<uncopy>".into(), points: vec![(1.0, spread), (2.0, spread)] }],
        };
        let measured = Measured {
            id: "copies".into(),
            words: vec!["copies".into(), "--quick".into()],
            network: "loopback".into(),
            rows: vec![row("plain", 1.0, 0.0), row("uncopy", 1.4, 0.02), row("uncopy", 0.8, 0.2)],
            text: "the <table>\n".into(),
            plot: Some(plot),
            ..Measured::default()
        };
        let failed = Measured {
            id: "redis-set".into(),
            failure: Some("redis-server is not installed".into()),
            ..Measured::default()
        };
        let machine = vec![("kernel".to_owned(), "6.18 <x>".to_owned())];
        Results {
            machine,
            experiments: vec![measured, failed],
            commit: Some("abc123".into()),
            ..Results::default()
        }
    }

    #[test]
    fn the_page_begins_with_what_does_not_help_and_tells_what_failed() {
        let page = render(&sample());
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} in {page}"));
        assert!(
            page.contains("Of 2 cases of uncopy, it helps in 1, makes no difference in 0 and costs in 1.")
        );
        assert!(place("Where it does not help") < place("3.8 times the throughput"));
        assert!(page.contains("~0.80 (0.70–0.90)") && page.contains("1.40 (1.30–1.50)"));
        assert!(page.contains("No figures: redis-server is not installed"));
        assert!(page.contains("uncopy bench copies --quick") && page.contains("abc123"));
        assert!(page.contains("the &lt;table&gt;") && !page.contains("<uncopy>") && !page.contains("<512"));
    }

    #[test]
    fn results_without_experiments_are_a_page_too() {
        assert!(render(&Results::default()).contains("There is no such case"));
    }
}
