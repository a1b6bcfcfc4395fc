//! What a recording costs: the echo server under `uncopy run`, recorded as `uncopy profile` has it recorded, while this
//! program drains what comes.

use clap::Args;

use crate::experiments::echo::{copies, point};
use crate::kit::figures::{self, CPU, LEGEND, median};
use crate::kit::{
    Comparison, Experiment, Form, Outcome, Report, Result, Side, Slicing, copies_parser, size_parser,
};

/// What a recording by `uncopy profile` costs an echo server
#[derive(Debug, Args)]
pub struct Recording {
    /// Length of a message, in bytes
    #[arg(long, value_name = "SIZE", default_value = "65536", value_parser = size_parser())]
    pub size: usize,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,...", default_value = "0,5", value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    #[command(flatten)]
    pub slicing: Slicing,
    #[command(flatten)]
    pub form: Form,
}

/// What is compared with plain.
const SIDES: [Side; 2] = [Side::HeapOnly, Side::Recording];

impl Experiment for Recording {
    fn run(&self) -> Result<Outcome> {
        let points = copies::points(self.size, &self.copies, 0);
        point::run(&self.form, &points, &self.slicing.slices(&SIDES), |comparisons| {
            Report::of(comparisons, render, copies::plot)
        })
    }
}

/// The figures, with what an event costs: an input, an output and each copy are one.
fn render(comparisons: &[Comparison]) -> String {
    let event: figures::Extra<'_> = (
        "ns/event",
        Box::new(|comparison, side| {
            if side != Side::Recording {
                return String::new();
            }
            let events = comparison.parameter("copies").unwrap_or(0.0) + 2.0;
            let added_us = median(comparison, side, CPU)
                .zip(median(comparison, Side::HeapOnly, CPU))
                .map(|(with, without)| with - without);
            added_us.map_or_else(|| "-".to_owned(), |us| format!("{:.0}", us * 1e3 / events))
        }),
    );
    let table = figures::table(comparisons, &[event]);
    format!(
        "{table}\n{LEGEND}ns/event: processor time that recording adds to 'heap only', by inputs, copies and outputs\n"
    )
}
