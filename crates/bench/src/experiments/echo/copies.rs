//! The experiment of zIO §5.1.1 (Figure 4): an echo server that copies every message a number of
//! times before it sends it back.

use crate::experiments::echo::point::{Point, counted};
use crate::kit::comparison::Comparison;
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, RATE, of_limit, two_decimals};
use crate::kit::plot::{Plot, Scale};
use crate::kit::table::size;
use crate::servers::echo::Work;

/// One point for each number of copies of messages of `size_bytes`, of which the server reads a byte in
/// each of `touched_pages` pages.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "few copies")]
pub fn points(size_bytes: usize, copies: &[usize], touched_pages: usize) -> Vec<Point> {
    let point = |copies: &usize| {
        let title = format!("echo {}, {}", size(size_bytes as u64), counted(*copies, "copy", "copies"));
        let work = Work { size_bytes, copies: *copies, touched_pages, ..Work::default() };
        Point::new(title, work).with("size_bytes", size_bytes as f64).with("copies", *copies as f64)
    };
    copies.iter().map(point).collect()
}

/// The figures, with each side's part of its own rate without copies.
#[must_use]
pub fn render(comparisons: &[Comparison]) -> String {
    let none = comparisons.iter().find(|comparison| comparison.parameter("copies") == Some(0.0));
    let own: figures::Extra<'_> = (
        "of own 0",
        Box::new(move |comparison, side| {
            two_decimals(none.and_then(|none| comparison.ratio_to(none, side, side, RATE)))
        }),
    );
    let table = figures::table(comparisons, &[of_limit(), own]);
    format!("{table}\n{LEGEND}{LIMIT_LEGEND}of own 0: over the same side's own rate with 0 copies\n")
}

/// Throughput over the number of copies.
#[must_use]
pub fn plot(comparisons: &[Comparison]) -> Plot {
    let x = ("copies of each message", Scale::Linear);
    Plot::by_side(
        "Echo server: copies",
        x,
        "messages per second",
        comparisons,
        "copies",
        |comparison, side| comparison.spread(side, RATE),
    )
}
