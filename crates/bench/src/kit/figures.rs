//! The table that most experiments print: a line for each comparison and side, with throughput,
//! latency and processor time, and columns of the experiment's own.

use crate::kit::comparison::Comparison;
use crate::kit::sample::Metric;
use crate::kit::side::Side;
use crate::kit::table::{Align, Table, amount, figure};

/// Operations per second.
pub const RATE: Metric = |sample| sample.operations_per_s;
/// Processor time per operation, µs.
pub const CPU: Metric = |sample| sample.cpu_us;

/// Below this length of all operations, processor time per MiB would say nothing.
const SMALL_BYTES: u64 = 4096;

/// A column of an experiment's own: its heading, and its cell for a comparison and a side.
pub type Extra<'a> = (&'static str, Box<dyn Fn(&Comparison, Side) -> String + 'a>);

/// The median of a figure under a side.
#[must_use]
pub fn median(comparison: &Comparison, side: Side, metric: Metric) -> Option<f64> {
    Some(comparison.figure(side, metric)?.median)
}

/// The median with two decimals, or nothing.
#[must_use]
pub fn two_decimals(spread: Option<crate::kit::statistics::Interval>) -> String {
    spread.map_or_else(String::new, |spread| format!("{:.2}", spread.median))
}

/// The table of `comparisons` with the columns of `extras` behind the ratios.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
pub fn table(comparisons: &[Comparison], extras: &[Extra<'_>]) -> String {
    use Align::{Left, Right};
    let small = comparisons.iter().all(|comparison| comparison.operation_bytes() < SMALL_BYTES);
    let mut columns = vec![
        ("experiment", Left),
        ("side", Left),
        ("op/s", Right),
        ("MiB/s", Right),
        ("ratio", Right),
        ("spread", Right),
        ("CPU ratio", Right),
    ];
    columns.extend(extras.iter().map(|(heading, _)| (*heading, Right)));
    columns.extend([
        ("p50 µs", Right),
        ("p99 µs", Right),
        ("p99.9 µs", Right),
        (if small { "CPU µs/op" } else { "CPU µs/MiB" }, Right),
        ("verified", Right),
    ]);
    let mut table = Table::new(&columns);
    for comparison in comparisons {
        let mib = comparison.operation_bytes() as f64 / f64::from(1 << 20);
        for side in comparison.sides() {
            let median = |metric: Metric| median(comparison, *side, metric);
            let ratio = |metric| comparison.ratio(*side, metric).filter(|_| *side != Side::Plain);
            let mut cells = vec![
                comparison.title().to_owned(),
                side.name().to_owned(),
                figure(median(RATE)),
                figure(median(RATE).map(|rate| rate * mib)),
                two_decimals(ratio(RATE)),
                ratio(RATE).map_or_else(String::new, |ratio| format!("{:.2}–{:.2}", ratio.low, ratio.high)),
                two_decimals(ratio(CPU)),
            ];
            cells.extend(extras.iter().map(|(_, cell)| cell(comparison, *side)));
            cells.extend([
                figure(median(|sample| sample.latency_p50_us)),
                figure(median(|sample| sample.latency_p99_us)),
                figure(median(|sample| sample.latency_p999_us)),
                figure(median(CPU).map(|us| if small { us } else { comparison.cpu_us_per_mib(us) })),
                amount(comparison.verified_bytes(*side)),
            ]);
            table.row(cells);
        }
    }
    table.render()
}

/// The column that compares with the zero-copy limit.
#[must_use]
pub fn of_limit<'a>() -> Extra<'a> {
    ("of limit", Box::new(|comparison, side| two_decimals(comparison.ratio_to_limit(side, RATE))))
}

/// What the columns mean, for the lines below a table.
pub const LEGEND: &str = "ratio, CPU ratio: over plain, median over paired, alternating rounds; spread: smallest to largest, of 20 and more \
     rounds the quartiles\n";
/// What the limit is.
pub const LIMIT_LEGEND: &str =
    "of limit: over the same server with 0 copies and without uncopy, in the same round\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::sample::Sample;

    #[test]
    fn each_side_has_a_line_with_its_ratios_and_the_columns_of_the_experiment() {
        let sides = [Side::Plain, Side::Uncopy, Side::Limit];
        let mut comparison = Comparison::new("work", 1 << 20, &sides);
        comparison.round(|side| {
            let operations_per_s = match side {
                Side::Plain => 100.0,
                Side::Uncopy => 190.0,
                _ => 200.0,
            };
            let sample =
                Sample { operations_per_s: Some(operations_per_s), cpu_us: Some(4.0), ..Sample::default() };
            Ok(Sample { verified_bytes: Some(1 << 30), latency_p50_us: Some(7.0), ..sample })
        });
        let extra: Extra<'_> = ("own", Box::new(|_, side| format!("<{}>", side.name())));
        let text = table(&[comparison], &[of_limit(), extra]);
        let line = |side: &str| {
            let line =
                text.lines().find(|line| line.contains(&format!("work        {side}"))).expect("a line");
            line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(line("plain")[..3], ["100", "100", "0.50"], "{text}");
        let uncopy =
            ["190", "190", "1.90", "1.90–1.90", "1.00", "0.95", "<uncopy>", "7.00", "-", "-", "4.00"];
        assert_eq!(line("uncopy")[..11], uncopy, "{text}");
    }
}
