//! Tables and plot of the experiment.

use super::PREALLOCATED;
use crate::kit::figures::{self, CPU, LEGEND, P50, P99, P999, RATE, RatioColumn, median_column};
use crate::kit::{Comparison, Metric, Plot, Sample, Side};

/// Sides with a log that has the only copy: each elides more copies than the one before.
const ONLY_BARS: [Side; 4] = [Side::OnlyCopying, Side::OnlyHeapOnly, Side::OnlyApiCopying, Side::Only];

/// Renders the figures as text.
pub fn render(comparisons: &[Comparison]) -> String {
    let has_bars = |comparison: &Comparison| comparison.sides().contains(&ONLY_BARS[0]);
    let bars =
        if comparisons.iter().any(has_bars) { bars_table(comparisons, &ONLY_BARS) } else { String::new() };
    let extras = [
        median_column("keeper µs", |sample| sample.keeper_cpu_us),
        median_column("p99.9 µs", P999),
        median_column("written/op", |sample| sample.counts.written_bytes),
        median_column("device/op", |sample| sample.counts.device_bytes),
    ];
    format!(
        "{bars}{}{}{}\n\
         {LEGEND}CPU is the sum over the program and its log's keeper, without kernel threads.\n\
         p50, p99, p99.9: of one sync of the loop (of a write if it does not sync), of a SET, of a \
         transaction\n\
         written/op: bytes that these processes wrote to the device or the page cache (the kernel counts more \
         for overwritten files)\n\
         device/op: bytes that the device received from all programs, with the file system's journal\n",
        gains_table(comparisons),
        figures::table(comparisons, &extras),
        figures::counts_table(comparisons)
    )
}

/// Renders what each kind of elided copies gives with a log that has the only copy: the bars of Figure 13. `bars` are the
/// sides, at most five, of which each elides more than the one before; the first copies everything.
pub fn bars_table(comparisons: &[Comparison], bars: &[Side]) -> String {
    const FIGURES: [([&str; 4], Metric); 3] = [
        (["rate: heap only", "program elides", "and API", "received there"], RATE),
        (["CPU: heap only", "program elides", "and API", "received there"], CPU),
        (["own CPU: heap only", "program elides", "and API", "received there"], Sample::own_cpu_us),
    ];
    let [base, others @ ..] = bars else { return String::new() };
    let of_sides = |(headings, metric): ([&'static str; 4], Metric)| {
        std::iter::zip(headings, others).map(move |(heading, side)| (heading, *side, *base, metric))
    };
    let columns: Vec<RatioColumn> = FIGURES.into_iter().flat_map(of_sides).collect();
    let measured = comparisons.iter().filter(|comparison| comparison.sides().contains(base));
    figures::ratios_table("over all copied", measured, &columns).render()
        + "own CPU: without the service and the log's keeper, which have processors of their own elsewhere\n\n"
}

/// Renders the gains by a log; empty if none was measured.
fn gains_table(comparisons: &[Comparison]) -> String {
    const COLUMNS: [RatioColumn; 6] = [
        ("rate over plain", Side::Log, Side::Plain, RATE),
        ("CPU over plain", Side::Log, Side::Plain, CPU),
        ("p50 over plain", Side::Log, Side::Plain, P50),
        ("p99 over plain", Side::Log, Side::Plain, P99),
        ("rate over preallocated", Side::Log, PREALLOCATED, RATE),
        ("CPU over preallocated", Side::Log, PREALLOCATED, CPU),
    ];
    let logging: Vec<_> =
        comparisons.iter().filter(|comparison| comparison.sides().contains(&Side::Log)).collect();
    if logging.is_empty() {
        return String::new();
    }
    figures::ratios_table("uncopy, log", logging, &COLUMNS).render() + "\n"
}

/// Plots rates relative to plain.
pub fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::over_plain("Programs that append and sync", "rate over plain", comparisons, RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_compared_with_plain_and_with_preallocated_files() {
        let measured = |sides: &[Side]| {
            let mut comparison = Comparison::new("work", 1, sides);
            for _ in 0..7 {
                comparison.run_round(|side| {
                    let operations_per_s = match side {
                        Side::Log => 180.0,
                        PREALLOCATED => 120.0,
                        _ => 100.0,
                    };
                    let operations_per_s = Some(operations_per_s);
                    Ok(Sample { operations_per_s, verified_bytes: Some(1), ..Sample::default() })
                });
            }
            comparison
        };
        let text = render(&[measured(&[Side::Plain, PREALLOCATED, Side::Log])]);
        let row = text.lines().nth(2).expect("a row");
        assert!(row.contains("1.80 [1.80–1.80]") && row.contains("1.50 [1.50–1.50]"), "{text}");
        assert!(!render(&[measured(&[Side::Plain, PREALLOCATED])]).contains("over preallocated"));
    }
}
