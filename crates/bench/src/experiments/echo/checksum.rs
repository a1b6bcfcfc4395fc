//! A server that checksums all it stores (the MongoDB case of zIO §5.4): every message is copied,
//! read whole for its checksum, kept, and written to a file; only the checksum is sent back. There is
//! little to gain, and nothing must be lost.

use clap::Args;

use crate::experiments::echo::point::{self, Point};
use crate::kit::figures::{self, LEGEND};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Outcome, Plot, Repeat, Report, Result, Scale, claim, copies_parser,
    counted, entry, size, size_parser,
};
use crate::servers::echo::server::{Reply, Work};

/// Server that checksums all it stores (zIO, MongoDB)
#[derive(Debug, Args)]
pub struct Checksum {
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "16384,65536,262144,1048576",
        default_value_if("quick", "true", "65536,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "2", value_parser = copies_parser())]
    pub copies: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Checksum {
    const ENTRIES: &'static [Entry] = &[entry(
        "checksum",
        "A store that checksums all it keeps",
        &[claim(
            "zIO, §5.4 (MongoDB)",
            "MongoDB reads every value for its checksum: 191 requests/s with zIO, 194 without. With the checksum taken out: 222 against 209.",
        )],
        "checksum --sides uncopy",
        "checksum --quick --sides uncopy",
    )];
    const PLACE: u8 = 60;

    fn run(&self) -> Result<Outcome> {
        point::run(&self.form, &points(&self.sizes, self.copies), &self.repeat.slices(), |comparisons| {
            Report::of(comparisons, render, plot)
        })
    }
}

/// One point for each length of messages, each copied `copies` times.
#[expect(clippy::cast_precision_loss, reason = "sizes of messages")]
fn points(sizes_bytes: &[usize], copies: usize) -> Vec<Point> {
    let point = |size_bytes: &usize| {
        let title = format!("store {}, {}", size(*size_bytes as u64), counted(copies, "copy", "copies"));
        let work = Work { size_bytes: *size_bytes, copies, reply: Reply::Checksum, ..Work::default() };
        Point::new(title, work).with("size_bytes", *size_bytes as f64).with("copies", copies as f64)
    };
    sizes_bytes.iter().map(point).collect()
}

/// The figures.
fn render(comparisons: &[Comparison]) -> String {
    format!("{}\n{LEGEND}", figures::table(comparisons, &[]))
}

/// The ratio to plain over the length of messages.
fn plot(comparisons: &[Comparison]) -> Plot {
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
