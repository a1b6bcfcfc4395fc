//! The experiment of zIO §5.1.1 (Figure 4): an echo server that copies every message a number of
//! times before it sends it back.

use clap::Args;

use crate::experiments::echo::point::{self, Point};
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, RATE, of_limit, two_decimals};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Outcome, Plot, Repeat, Report, Result, Scale, claim, copies_parser,
    counted, entry, size, size_parser,
};
use crate::servers::echo::server::Work;

/// Echo server that copies each message a number of times (zIO, Figure 4)
#[derive(Debug, Args)]
pub struct Copies {
    /// Length of a message, in bytes
    #[arg(long, value_name = "SIZE", default_value = "524288", value_parser = size_parser())]
    pub size: usize,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,...", default_value = "0,1,5,12", value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Pages of the last copy of which the server reads one byte each
    #[arg(long, value_name = "PAGES", default_value = "0")]
    pub touch: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Copies {
    const ENTRIES: &'static [Entry] = &[entry(
        "copies",
        "Echo server, number of copies",
        &[claim(
            "zIO, Figure 4 (§5.1.1)",
            "512 KiB, one thread: with 12 copies zIO has 3.8 times the throughput of Linux, and stays close to the rate without copies.",
        )],
        "copies",
        "copies --quick",
    )];
    const PLACE: u8 = 10;

    fn run(&self) -> Result<Outcome> {
        point::run(
            &self.form,
            &points(self.size, &self.copies, self.touch),
            &self.repeat.slices(),
            |comparisons| Report::of(comparisons, render, plot),
        )
    }
}

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
fn render(comparisons: &[Comparison]) -> String {
    let none = comparisons.iter().find(|comparison| comparison.parameter("copies") == Some(0.0));
    let own: figures::Extra<'_> = (
        "of own 0",
        Box::new(move |comparison, side| {
            two_decimals(none.and_then(|none| comparison.ratio_to(none, side, RATE)))
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
        |comparison, side| comparison.figure(side, RATE),
    )
}
