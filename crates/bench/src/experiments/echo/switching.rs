//! A server that switches its behaviour: for some seconds it passes messages on, then it reads all of each. What was
//! learned in one phase is wrong in the next.

use std::time::Duration;

use clap::Args;

use crate::experiments::echo::point::{self, Point};
use crate::kit::figures::{self, LEGEND};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Outcome, Plot, Repeat, Report, Result, Scale, Slices, claim,
    copies_parser, counted, entry, seconds, size, size_parser,
};
use crate::servers::echo::server::Work;

/// Echo server that passes messages on, and then reads all of them, by turns
#[derive(Debug, Args)]
pub struct Switching {
    /// Length of a message, in bytes
    #[arg(long, value_name = "SIZE", default_value = "262144", value_parser = size_parser())]
    pub size: usize,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "3", value_parser = copies_parser())]
    pub copies: usize,
    /// How long it does the one and the other
    #[arg(long, value_name = "SECONDS", default_value = "5", default_value_if("quick", "true", "0.5"), value_parser = seconds)]
    pub phase: Duration,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Switching {
    const ENTRIES: &'static [Entry] = &[entry(
        "switching",
        "Echo server that switches between passing on and reading all",
        &[claim("not in the papers", "There a program does one thing.")],
        "switching --sides uncopy --seconds 150",
        "switching --quick --sides uncopy",
    )];
    const PLACE: u8 = 55;

    fn run(&self) -> Result<Outcome> {
        let slices = Slices { cycle: Some(2 * self.phase), ..self.repeat.slices() };
        point::run(&self.form, &[self.point()], &slices, |comparisons| Report::of(comparisons, render, plot))
    }
}

impl Switching {
    #[expect(clippy::cast_precision_loss, reason = "sizes of messages")]
    fn point(&self) -> Point {
        let (size_bytes, copies) = (self.size, self.copies);
        let phase_ms = u64::try_from(self.phase.as_millis()).unwrap_or(u64::MAX);
        let work = Work { size_bytes, copies, read_bytes: size_bytes, phase_ms, ..Work::default() };
        let what = format!("{}, {}", size(size_bytes as u64), counted(copies, "copy", "copies"));
        let title = format!("echo {what}, switching every {} s", self.phase.as_secs_f64());
        Point::new(title, work)
            .with("size_bytes", size_bytes as f64)
            .with("phase_s", self.phase.as_secs_f64())
    }
}

/// The figures.
fn render(comparisons: &[Comparison]) -> String {
    format!(
        "{}\n{LEGEND}each ratio is that of the means of a whole cycle: it passes on, then reads all\n",
        figures::table(comparisons, &[])
    )
}

/// Processor time over plain.
fn plot(comparisons: &[Comparison]) -> Plot {
    let x = ("seconds of a phase", Scale::Linear);
    Plot::by_side("Switching server", x, "CPU over plain", comparisons, "phase_s", |comparison, side| {
        comparison.ratio(side, figures::CPU)
    })
}
