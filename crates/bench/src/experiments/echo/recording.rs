//! What a recording costs: the echo server under `uncopy run`, recorded as `uncopy profile` has it recorded, while this
//! program drains what comes.

use std::time::Duration;

use clap::Args;

use crate::experiments::echo::{copies, point};
use crate::kit::figures::{self, CPU, LEGEND, median};
use crate::kit::{
    Comparison, Experiment, Form, Outcome, Report, Result, Rounds, Schedule, Side, copies_parser,
    count_parser, seconds, size_parser,
};

/// What a recording by `uncopy profile` costs an echo server
#[derive(Debug, Args)]
pub struct Recording {
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", default_value = "65536", value_parser = size_parser())]
    pub size: usize,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,...", default_value = "0,5", value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Rounds; each runs every side once
    #[arg(long, value_name = "N", default_value = "7", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub rounds: usize,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.6", default_value_if("quick", "true", "0.1"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub form: Form,
}

/// What is compared.
pub const SIDES: [Side; 3] = [Side::Plain, Side::HeapOnly, Side::Recording];

impl Experiment for Recording {
    fn run(&self) -> Result<Outcome> {
        let (rounds, sides) = (Rounds::exactly(self.rounds), SIDES.to_vec());
        let schedule = Schedule { rounds, duration: self.seconds, sides };
        let points = copies::points(self.size, &self.copies, 0);
        point::run(&self.form, &points, &schedule, |comparisons| {
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
