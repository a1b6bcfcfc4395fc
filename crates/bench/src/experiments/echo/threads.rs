//! The experiment of zIO §5.1.3 (Figure 8): the echo server with several threads, each with a
//! connection and buffers of its own.

use clap::Args;
use serde_json::{Value, json};

use crate::experiments::echo::copies;
use crate::experiments::echo::point::{self, Point};
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, RATE, of_limit, two_decimals};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Interval, Outcome, Plot, Repeat, Report, Result, Scale, Side, claim,
    copies_parser, count_parser, counted, entry, size_parser,
};

/// Echo server with several threads (zIO, Figure 8)
#[derive(Debug, Args)]
pub struct Threads {
    /// Numbers of the server's threads; as many connections
    #[arg(long, value_name = "N,N,...", default_value = "1,2", value_delimiter = ',', value_parser = count_parser())]
    pub threads: Vec<usize>,
    /// Length of a message, in bytes
    #[arg(long, value_name = "SIZE", default_value = "524288", value_parser = size_parser())]
    pub size: usize,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "1", value_parser = copies_parser())]
    pub copies: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Threads {
    const ENTRIES: &'static [Entry] = &[entry(
        "threads",
        "Echo server, threads",
        &[claim(
            "zIO, Figure 8 (§5.1.3)",
            "One copy of 512 KiB: throughput scales up to 19 % better than that of Linux.",
        )],
        "threads --sides uncopy",
        "threads --quick --sides uncopy",
    )];
    const PLACE: u8 = 30;

    fn run(&self) -> Result<Outcome> {
        point::run(
            &self.form,
            &points(self.size, self.copies, &self.threads),
            &self.repeat.slices(),
            |comparisons| Report::of(comparisons, render, plot).finding(findings),
        )
    }
}

/// One point for each number of threads.
#[expect(clippy::cast_precision_loss, reason = "few threads")]
fn points(size_bytes: usize, copies: usize, threads: &[usize]) -> Vec<Point> {
    let with = |threads: usize| {
        move |point: Point| {
            let title = format!("{}, {}", point.title, counted(threads, "thread", "threads"));
            Point { title, threads, ..point }.with("threads", threads as f64)
        }
    };
    threads
        .iter()
        .flat_map(|threads| copies::points(size_bytes, &[copies], 0).into_iter().map(with(*threads)))
        .collect()
}

/// Throughput over that of one thread of the same side.
fn scaling(comparisons: &[Comparison], comparison: &Comparison, side: Side) -> Option<Interval> {
    let one = comparisons.iter().find(|comparison| comparison.parameter("threads") == Some(1.0))?;
    comparison.ratio_to(one, side, RATE)
}

/// The figures, with what each side gains by its threads.
fn render(comparisons: &[Comparison]) -> String {
    let scaling: figures::Extra<'_> =
        ("scaling", Box::new(move |comparison, side| two_decimals(scaling(comparisons, comparison, side))));
    let table = figures::table(comparisons, &[of_limit(), scaling]);
    format!(
        "{table}\n{LEGEND}{LIMIT_LEGEND}scaling: over the same side's rate with one thread, each process beside another\n"
    )
}

/// The scaling of each side, for programs.
fn findings(comparisons: &[Comparison]) -> Vec<(&'static str, Value)> {
    let entries = comparisons.iter().flat_map(|comparison| {
        comparison.sides().iter().filter_map(move |side| {
            let scaling = json!(scaling(comparisons, comparison, *side)?);
            Some(
                json!({ "threads": comparison.parameter("threads"), "side": side.key(), "scaling": scaling }),
            )
        })
    });
    vec![("scaling", entries.collect())]
}

/// Throughput over the number of threads.
fn plot(comparisons: &[Comparison]) -> Plot {
    let x = ("threads of the server", Scale::Linear);
    Plot::by_side(
        "Echo server: threads",
        x,
        "messages per second",
        comparisons,
        "threads",
        |comparison, side| comparison.figure(side, RATE),
    )
}
