//! The experiment on the echo server of zIO §5.1: one server, one grid of parameters, and named sweeps over it.
//!
//! ```text
//!   sweeps       the table of sweeps: values of the parameters, what the papers say, axes of the plot
//!   point        one point of the grid: the server under each side, loaded, every answer compared
//!   report       table, findings and plot of any sweep; groups: comparisons that differ in one parameter;
//!                break_even: share of a message from which reading costs more than eliding gains
//! ```

mod break_even;
mod groups;
pub mod point;
mod report;
pub mod sweeps;

use clap::Args;

use crate::kit::{
    CommonOptions, Experiment, Outcome, Report, ReportEntry, Result, Side, Slices, SlicingOptions,
    run_with_noise_reduction,
};
use sweeps::{ENTRIES, Sweep, Values};

/// Echo server that copies each message before sending it back, over ranges of parameters (zIO §5.1)
#[derive(Debug, Args)]
pub struct Echo {
    /// Sweep, which sets the options below that are not given
    #[arg(value_name = "SWEEP", default_value = "copies", value_parser = sweeps::sweep_parser())]
    pub sweep: &'static Sweep,
    #[command(flatten)]
    pub values: Values,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Echo {
    const ENTRIES: &'static [ReportEntry] = &ENTRIES;
    const REPORT_POSITION: u8 = 10;

    fn run(&self) -> Result<Outcome> {
        let (points, slices) = (self.values().points(), self.slices());
        run_with_noise_reduction(&self.common, |launcher, progress| {
            let comparisons = point::measure(launcher, &points, &slices, progress);
            let plot = |comparisons: &_| report::plot(comparisons, self.sweep);
            Ok(Report::of(comparisons, report::render, plot).with_findings(report::findings))
        })
    }
}

impl Echo {
    /// Returns the values of all parameters.
    #[must_use]
    pub fn values(&self) -> Values {
        self.sweep.values(&self.values, self.common.quick)
    }

    /// Returns the sides of each point, and its rounds and times.
    #[must_use]
    pub fn slices(&self) -> Slices {
        let Values { mut sides, record, phase, .. } = self.values();
        sides.extend(record.then_some(Side::Recording));
        Slices { cycle: phase.map(|phase| 2 * phase), ..self.slicing.slices(&sides) }
    }
}
