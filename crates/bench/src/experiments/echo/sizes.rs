//! The experiment of zIO §5.1.2 (Figure 6): an echo server that copies messages of several lengths a
//! number of times.

use clap::Args;

use crate::experiments::echo::copies;
use crate::experiments::echo::point::{self, Point};
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, of_limit};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Outcome, Plot, Repeat, Report, Result, Scale, claim, copies_parser,
    entry, size_parser,
};

/// Echo server with messages of several lengths (zIO, Figure 6)
#[derive(Debug, Args)]
pub struct Sizes {
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "8192,16384,32768,65536,131072,262144,524288,1048576",
        default_value_if("quick", "true", "8192,65536,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "5", value_parser = copies_parser())]
    pub copies: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Sizes {
    const ENTRIES: &'static [Entry] = &[entry(
        "sizes",
        "Echo server, length of messages",
        &[claim(
            "zIO, Figure 6 (§5.1.2)",
            "5 copies: up to 2.9 times Linux, and the rate without copies from 512 KiB on. Below 16 KiB up to 30 % slower (size threshold switched off).",
        )],
        "sizes --sides uncopy,limit",
        "sizes --quick --sides uncopy,limit",
    )];
    const PLACE: u8 = 20;

    fn run(&self) -> Result<Outcome> {
        point::run(&self.form, &points(&self.sizes, self.copies), &self.repeat.slices(), |comparisons| {
            Report::of(comparisons, render, plot)
        })
    }
}

/// One point for each length of messages, each copied `copies` times.
fn points(sizes_bytes: &[usize], copies: usize) -> Vec<Point> {
    sizes_bytes.iter().flat_map(|size_bytes| copies::points(*size_bytes, &[copies], 0)).collect()
}

/// The figures.
fn render(comparisons: &[Comparison]) -> String {
    format!("{}\n{LEGEND}{LIMIT_LEGEND}", figures::table(comparisons, &[of_limit()]))
}

/// Throughput over the length of the messages.
#[expect(clippy::cast_precision_loss, reason = "sizes of messages")]
fn plot(comparisons: &[Comparison]) -> Plot {
    let x = ("length of a message", Scale::Doubling);
    Plot::by_side(
        "Echo server: length of messages",
        x,
        "MiB per second",
        comparisons,
        "size_bytes",
        |comparison, side| {
            let mib = comparison.operation_bytes() as f64 / f64::from(1 << 20);
            comparison.figure(side, |sample| sample.operations_per_s).map(|spread| spread.scaled(mib))
        },
    )
}
