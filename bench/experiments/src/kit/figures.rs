//! Tables that most experiments print: the overall result; a line for each comparison and side with its ratios,
//! throughput, latency, processor time and columns of the experiment's own; and the counts.

use crate::kit::comparison::Comparison;
use crate::kit::sample::Metric;
use crate::kit::side::Side;
use crate::kit::statistics::Interval;
use crate::kit::table::{Align, Table, format_amount, format_figure};
use crate::kit::verdict::Verdict;

/// Number of operations per second.
pub const RATE: Metric = |sample| sample.operations_per_s;
/// Processor time per operation, µs.
pub const CPU: Metric = |sample| sample.cpu_us;
/// Median time of an operation, µs.
pub const P50: Metric = |sample| sample.latency_p50_us;
/// 99th percentile of the times, µs.
pub const P99: Metric = |sample| sample.latency_p99_us;
/// 99.9th percentile of the times, µs.
pub const P999: Metric = |sample| sample.latency_p999_us;

/// An extra column of an experiment: its heading, and its cell for a comparison and a side.
pub type ExtraColumn<'a> = (&'static str, Box<dyn Fn(&Comparison, Side) -> String + 'a>);

/// Returns the median of a figure under a side.
#[must_use]
pub fn median(comparison: &Comparison, side: Side, metric: Metric) -> Option<f64> {
    Some(comparison.figure(side, metric)?.median)
}

/// Returns a column of medians.
#[must_use]
pub fn median_column(heading: &'static str, metric: Metric) -> ExtraColumn<'static> {
    (heading, Box::new(move |comparison, side| format_figure(median(comparison, side, metric))))
}

/// Formats the median with two decimals; empty for `None`.
#[must_use]
pub fn two_decimals(interval: Option<Interval>) -> String {
    interval.map_or_else(String::new, |interval| format!("{:.2}", interval.median))
}

/// Formats a ratio with its interval; empty for `None`.
#[must_use]
pub fn ratio_cell(interval: Option<Interval>) -> String {
    interval.map_or_else(String::new, |interval| interval.to_string())
}

/// A column of ratios: its heading, the side, the side that it is compared with, and the figure.
pub type RatioColumn = (&'static str, Side, Side, Metric);

/// Returns a table with a line for each comparison, under `heading`, and these ratios.
#[must_use]
pub fn ratios_table<'a>(
    heading: &'static str,
    comparisons: impl IntoIterator<Item = &'a Comparison>,
    columns: &[RatioColumn],
) -> Table {
    let headings = columns.iter().map(|(heading, ..)| (*heading, Align::Right));
    let mut table = Table::new(&std::iter::once((heading, Align::Left)).chain(headings).collect::<Vec<_>>());
    for comparison in comparisons {
        let ratio =
            |(_, side, other, metric): &RatioColumn| ratio_cell(comparison.ratio_of(*side, *other, *metric));
        table.row(std::iter::once(comparison.title().to_owned()).chain(columns.iter().map(ratio)).collect());
    }
    table
}

/// Returns the result of uncopy in each comparison: processor time per operation over that of the best alternative,
/// and over plain's. Empty where only plain was measured.
#[must_use]
pub fn best_allocator_table(comparisons: &[Comparison]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CPU for each operation", Left),
        ("uncopy over the best", Right),
        ("the best", Left),
        ("verdict", Left),
        ("uncopy over plain", Right),
        ("heap only over plain", Right),
        ("plain again over plain", Right),
    ]);
    let mut is_empty = true;
    for comparison in comparisons {
        let Some(best) = comparison.best_rival() else { continue };
        is_empty = false;
        let over_best = comparison.ratio_to_best(Side::Uncopy, CPU).map(|(ratio, _)| ratio);
        let over = |side, other| ratio_cell(comparison.ratio_of(side, other, CPU));
        table.row(vec![
            comparison.title().to_owned(),
            ratio_cell(over_best),
            best.name().to_owned(),
            over_best
                .map_or_else(String::new, |ratio| Verdict::of(ratio, comparison.round_count()).to_string()),
            over(Side::Uncopy, Side::Plain),
            over(Side::HeapOnly, Side::Plain),
            over(Side::PlainAgain, Side::Plain),
        ]);
    }
    if is_empty { String::new() } else { table.render() + "\n" }
}

/// Returns the table of `comparisons`, with the columns of `extras` after the ratios.
#[must_use]
pub fn table(comparisons: &[Comparison], extras: &[ExtraColumn<'_>]) -> String {
    use Align::{Left, Right};
    let mut columns = vec![
        ("experiment", Left),
        ("side", Left),
        ("CPU ratio", Right),
        ("verdict", Left),
        ("rate ratio", Right),
    ];
    columns.extend(extras.iter().map(|(heading, _)| (*heading, Right)));
    columns.extend([
        ("op/s", Right),
        ("CPU µs/op", Right),
        ("p50 µs", Right),
        ("p99 µs", Right),
        ("verified", Right),
        ("rounds", Right),
    ]);
    let mut table = Table::new(&columns);
    for comparison in comparisons {
        for side in comparison.sides() {
            let over_plain =
                |metric| ratio_cell(comparison.ratio(*side, metric).filter(|_| *side != Side::Plain));
            let verdict = comparison.verdict(*side, Side::Plain).filter(|_| *side != Side::Plain);
            let mut cells = vec![
                comparison.title().to_owned(),
                side.name().to_owned(),
                over_plain(CPU),
                verdict.map_or_else(String::new, |verdict| verdict.to_string()),
                over_plain(RATE),
            ];
            cells.extend(extras.iter().map(|(_, cell)| cell(comparison, *side)));
            let median = |metric: Metric| format_figure(median(comparison, *side, metric));
            cells.extend([
                median(RATE),
                median(CPU),
                median(P50),
                median(P99),
                format_amount(comparison.verified_bytes(*side)),
                if *side == Side::Plain { rounds_cell(comparison) } else { String::new() },
            ]);
            table.row(cells);
        }
    }
    table.render()
}

/// Returns the number of rounds that count, of dropped rounds, and of processes.
fn rounds_cell(comparison: &Comparison) -> String {
    let (rounds, processes) = (comparison.round_count(), comparison.process_count());
    let of_all = match comparison.dropped_count() {
        0 => rounds.to_string(),
        dropped => format!("{rounds} of {}", rounds + dropped),
    };
    if processes == rounds { of_all } else { format!("{of_all} in {processes} processes") }
}

/// Returns the table of counts per operation; empty where nothing was counted.
#[must_use]
pub fn counts_table(comparisons: &[Comparison]) -> String {
    use Align::{Left, Right};
    const COLUMNS: [(&str, Metric); 6] = [
        ("copied", |sample| sample.counts.copied_bytes),
        ("elided", |sample| sample.counts.elided_bytes),
        ("lent", |sample| sample.counts.lent_bytes),
        ("minor faults", |sample| sample.counts.minor_faults),
        ("I/O calls", |sample| sample.counts.io_calls),
        ("context switches", |sample| sample.counts.context_switches),
    ];
    let mut columns = vec![("for each operation", Left), ("side", Left)];
    columns.extend(COLUMNS.map(|(heading, _)| (heading, Right)));
    let mut table = Table::new(&columns);
    let mut is_empty = true;
    for comparison in comparisons {
        for side in comparison.sides() {
            let figures = COLUMNS.map(|(_, metric)| median(comparison, *side, metric));
            if figures.iter().any(Option::is_some) {
                is_empty = false;
                let names = [comparison.title().to_owned(), side.name().to_owned()];
                table.row(names.into_iter().chain(figures.map(format_figure)).collect());
            }
        }
    }
    if is_empty { String::new() } else { format!("\n{}", table.render()) }
}

/// Explanation of the columns, for the lines below a table.
pub const LEGEND: &str = "\
    ratios: over plain in the same round, with 95 % intervals. CPU: processor time of the server per operation.\n\
    verdict: helps if the whole interval is below 0.97, costs if above 1.03, harmless if between them\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::counts::Counts;
    use crate::kit::sample::Sample;

    #[test]
    fn each_side_has_a_line_with_its_ratios_and_the_columns_of_the_experiment() {
        let sides = [Side::Plain, Side::Uncopy, Side::Limit];
        let mut comparison = Comparison::new("work", 1 << 20, &sides);
        for _ in 0..7 {
            comparison.run_round(|side| {
                let operations_per_s = match side {
                    Side::Plain => 100.0,
                    Side::Uncopy => 190.0,
                    _ => 200.0,
                };
                let cpu_us = Some(if side == Side::Uncopy { 2.0 } else { 4.0 });
                let sample = Sample { operations_per_s: Some(operations_per_s), cpu_us, ..Sample::default() };
                Ok(Sample { verified_bytes: Some(1 << 30), latency_p50_us: Some(7.0), ..sample })
            });
        }
        let of_limit = |comparison: &Comparison, side| two_decimals(comparison.ratio_to_limit(side, RATE));
        let extra: ExtraColumn<'_> = ("own", Box::new(|_, side| format!("<{}>", side.name())));
        let comparisons = [comparison];
        let text = table(&comparisons, &[("of limit", Box::new(of_limit)), extra]);
        let line = |side: &str| {
            let line =
                text.lines().find(|line| line.contains(&format!("work        {side}"))).expect("a line");
            line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(line("plain")[..4], ["0.50", "<plain>", "100", "4.00"], "{text}");
        let uncopy = [
            "0.50",
            "[0.50–0.50]",
            "helps",
            "1.90",
            "[1.90–1.90]",
            "0.95",
            "<uncopy>",
            "190",
            "2.00",
            "7.00",
        ];
        assert_eq!(line("uncopy")[..10], uncopy, "{text}");
        assert_eq!(
            (best_allocator_table(&comparisons), counts_table(&comparisons)),
            (String::new(), String::new())
        );
    }

    #[test]
    fn uncopy_is_compared_with_the_best_rival_and_counts_are_shown() {
        let mut comparison = Comparison::new("work", 1, &[Side::Plain, Side::Uncopy, Side::HeapOnly]);
        for _ in 0..7 {
            comparison.run_round(|side| {
                let cpu_us = Some(match side {
                    Side::Plain => 1.0,
                    Side::Uncopy => 0.7,
                    _ => 0.8,
                });
                let counts = Counts { elided_bytes: Some(4096.0), ..Counts::default() };
                Ok(Sample { cpu_us, counts, verified_bytes: Some(1), ..Sample::default() })
            });
        }
        let text = best_allocator_table(std::slice::from_ref(&comparison));
        let cells: Vec<&str> = text.lines().nth(2).expect("a row").split_whitespace().collect();
        assert_eq!(cells[..6], ["work", "0.87", "[0.87–0.87]", "heap", "only", "helps"], "{text}");
        assert!(counts_table(&[comparison]).contains("4,096"));
    }
}
