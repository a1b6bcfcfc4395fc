//! The experiment of zIO §5.1.2 (Figure 6): an echo server that copies messages of several lengths a
//! number of times.

use crate::experiments::echo::copies;
use crate::experiments::echo::point::Point;
use crate::kit::comparison::Comparison;
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, of_limit};
use crate::kit::plot::{Plot, Scale};

/// One point for each length of messages, each copied `copies` times.
#[must_use]
pub fn points(sizes_bytes: &[usize], copies: usize) -> Vec<Point> {
    sizes_bytes.iter().flat_map(|size_bytes| copies::points(*size_bytes, &[copies], 0)).collect()
}

/// The figures.
#[must_use]
pub fn render(comparisons: &[Comparison]) -> String {
    format!("{}\n{LEGEND}{LIMIT_LEGEND}", figures::table(comparisons, &[of_limit()]))
}

/// Throughput over the length of the messages.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "sizes of messages")]
pub fn plot(comparisons: &[Comparison]) -> Plot {
    let x = ("length of a message", Scale::Doubling);
    Plot::by_side(
        "Echo server: length of messages",
        x,
        "MiB per second",
        comparisons,
        "size_bytes",
        |comparison, side| {
            let mib = comparison.operation_bytes() as f64 / f64::from(1 << 20);
            comparison.spread(side, |sample| sample.operations_per_s).map(|spread| spread.scaled(mib))
        },
    )
}
