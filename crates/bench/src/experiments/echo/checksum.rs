//! A server that checksums all it stores (the MongoDB case of zIO §5.4): every message is copied,
//! read whole for its checksum, kept, and written to a file; only the checksum is sent back. There is
//! little to gain, and nothing must be lost.

use crate::experiments::echo::point::{Point, counted};
use crate::kit::comparison::Comparison;
use crate::kit::figures::{self, LEGEND};
use crate::kit::plot::{Plot, Scale};
use crate::kit::table::size;
use crate::servers::echo::{Reply, Work};

/// One point for each length of messages, each copied `copies` times.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "sizes of messages")]
pub fn points(sizes_bytes: &[usize], copies: usize) -> Vec<Point> {
    let point = |size_bytes: &usize| {
        let title = format!("store {}, {}", size(*size_bytes as u64), counted(copies, "copy", "copies"));
        let work = Work { size_bytes: *size_bytes, copies, reply: Reply::Checksum, ..Work::default() };
        Point::new(title, work).with("size_bytes", *size_bytes as f64).with("copies", copies as f64)
    };
    sizes_bytes.iter().map(point).collect()
}

/// The figures.
#[must_use]
pub fn render(comparisons: &[Comparison]) -> String {
    format!("{}\n{LEGEND}", figures::table(comparisons, &[]))
}

/// The ratio to plain over the length of messages.
#[must_use]
pub fn plot(comparisons: &[Comparison]) -> Plot {
    let x = ("length of a message", Scale::Doubling);
    Plot::by_side(
        "Store with checksums",
        x,
        "throughput over plain",
        comparisons,
        "size_bytes",
        |comparison, side| comparison.ratio(side, figures::RATE),
    )
}
