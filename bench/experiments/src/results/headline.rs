//! Results of the headline cases: lines of the page's table and of its chart, and the README's five.

use crate::kit::table::{Align, Table};
use crate::kit::{Criterion, Interval, Side};
use crate::results::chart::ChartRow;
use crate::results::judge::{self, Judgement, MinMeasurements, insufficient_reason};
use crate::results::model::{Quantity, Results};
use crate::results::pool::PooledCase;
use crate::results::register::{HEADLINES, Headline};

/// Number of programs in the README's table.
const README_CASES: usize = 5;

/// A headline case with its result.
pub struct Row<'a> {
    /// The case in the register.
    pub headline: &'static Headline,
    /// The judgement of the case, or the reason why there is none.
    pub result: Result<(PooledCase<'a>, Judgement), String>,
}

impl<'a> Row<'a> {
    fn of(headline: &'static Headline, results: &'a Results) -> Self {
        let missing = || {
            let mut experiments = results.runs.iter().flat_map(|run| &run.experiments);
            let failed =
                experiments.find(|measured| measured.id == headline.entry && measured.failure.is_some());
            failed
                .and_then(|measured| measured.failure.clone())
                .unwrap_or_else(|| "not measured in these runs".to_owned())
        };
        let result =
            PooledCase::find(results, headline.entry, headline.case).ok_or_else(missing).and_then(|case| {
                if let Some(why) = insufficient_reason(&case, MinMeasurements::of(results)) {
                    return Err(why);
                }
                let judgement = judge::judge(&case, headline.side, Criterion::Speed);
                judgement
                    .map(|judgement| (case, judgement))
                    .ok_or_else(|| "no processor time was measured".to_owned())
            });
        Self { headline, result }
    }

    /// Returns the judged ratio; 0 for cases without one, so that they sort last.
    fn cost(&self) -> f64 {
        self.result.as_ref().map_or(0.0, |(_, judgement)| judgement.ratio.median)
    }

    /// Returns the ratio of `of` under `side` over plain.
    #[must_use]
    pub fn ratio(&self, side: &str, of: Quantity) -> Option<Interval> {
        self.result.as_ref().ok()?.0.ratio(side, of, Side::Plain.name())
    }

    /// Returns the ratio of processor time over that of the best rival, with the rival; `None` without rivals.
    #[must_use]
    pub fn over_best(&self) -> Option<(Interval, &'static str)> {
        let (case, judgement) = self.result.as_ref().ok()?;
        case.best_rival().map(|_| (judgement.ratio, judgement.over))
    }
}

/// Returns the headline cases, the costliest first and those that were not measured well enough last.
#[must_use]
pub fn rows(results: &Results) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = HEADLINES.iter().map(|headline| Row::of(headline, results)).collect();
    rows.sort_by(|one, other| other.cost().total_cmp(&one.cost()));
    rows
}

/// Returns the lines of the chart.
#[must_use]
pub fn chart_rows(results: &Results) -> Vec<ChartRow> {
    let line = |row: &Row<'_>| ChartRow {
        name: row.headline.name.to_owned(),
        judged_ratio: row.result.as_ref().ok().map(|(_, judgement)| (judgement.ratio, judgement.verdict)),
        over_plain: row.ratio(row.headline.side, Quantity::Cpu),
    };
    rows(results).iter().map(line).collect()
}

/// Returns the table of the README: among different packaged programs, the two cases that gain most, the two that cost
/// most and the one that is nearest to no difference. The largest gain comes first.
#[must_use]
pub fn readme_table(results: &Results) -> Option<String> {
    let rows = rows(results);
    let mut left: Vec<&Row<'_>> =
        rows.iter().filter(|row| row.headline.program.is_some() && row.result.is_ok()).collect();
    let mut chosen: Vec<&Row<'_>> = Vec::new();
    while chosen.len() < README_CASES && !left.is_empty() {
        // Alternate between the worst and the best; the last pick is the one in the middle.
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
    chosen.sort_by(|one, other| one.cost().total_cmp(&other.cost()));
    let mut table = Table::new(&[
        ("program", Align::Left),
        ("CPU over the best allocator", Align::Left),
        ("CPU over plain", Align::Left),
        ("verdict", Align::Left),
    ]);
    for row in &chosen {
        let verdict = row
            .result
            .as_ref()
            .map_or_else(|_| String::new(), |(_, judgement)| judgement.verdict.to_string());
        table.row(vec![
            row.headline.name.to_owned(),
            row.over_best().map_or_else(String::new, |(ratio, over)| format!("{ratio} {over}")),
            ratio_text(row.ratio(row.headline.side, Quantity::Cpu)),
            verdict,
        ]);
    }
    (!chosen.is_empty()).then(|| table.render())
}

/// Formats a ratio; empty for `None`.
#[must_use]
pub fn ratio_text(ratio: Option<Interval>) -> String {
    ratio.map_or_else(String::new, |ratio| ratio.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::model::{Case, ExperimentResult};
    use crate::results::pool::tests::{case, results};

    #[test]
    fn the_five_are_of_different_programs_with_losses_and_gains() {
        let of = |id: &str, cases: &[(&str, f64)]| ExperimentResult {
            id: id.to_owned(),
            cases: cases
                .iter()
                .map(|(title, cost)| case(title, "uncopy", &[*cost; 5]))
                .collect::<Vec<Case>>(),
            ..ExperimentResult::default()
        };
        let mut results = results("redis-get", &[vec![]]);
        results.runs[0].experiments = vec![
            of(
                "redis-get",
                &[
                    ("redis GET 64 KiB, no append-only file", 1.0),
                    ("redis GET 256 KiB, no append-only file", 1.5),
                    ("redis GET 1 MiB, no append-only file", 0.3),
                ],
            ),
            of("copies", &[("echo 512 KiB, 12 copies", 0.2)]),
            of("apps-web", &[("nginx proxied 64 KiB", 0.85), ("haproxy 1 MiB, buffers of 64 KiB", 0.5)]),
            of(
                "apps-others",
                &[("mosquitto 1 MiB, 4 subscribers", 0.4), ("python asyncio proxy 1 MiB", 0.78)],
            ),
            of("apps-stores", &[("postgresql COPY 1 MiB", 1.1)]),
        ];
        let table = readme_table(&results).expect("a table");
        let names: Vec<&str> = table.lines().skip(2).filter_map(|line| line.split("  ").next()).collect();
        let wanted = [
            "Redis GET 256 KiB",
            "PostgreSQL COPY 1 MiB",
            "asyncio proxy 1 MiB",
            "HAProxy 1 MiB",
            "mosquitto 1 MiB",
        ];
        // nginx and the asyncio proxy: one of them is nearer to 1 beside mimalloc's 0.8.
        assert_eq!(names.len(), 5, "{table}");
        for name in wanted.iter().filter(|name| !name.starts_with("asyncio")) {
            assert!(names.contains(name), "{name}: {table}");
        }
        assert!(!table.contains("echo"), "{table}");
        assert_eq!(readme_table(&Results::default()), None);
    }
}
