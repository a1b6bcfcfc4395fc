//! Commands of `uncopy-bench`: their options, their work, and their place in the report.

use std::io::{ErrorKind, Write};
use std::sync::Once;

use clap::Args;

use crate::kit::arguments::CommonOptions;
use crate::kit::distance;
use crate::kit::failure::{Failure, Result};
use crate::kit::host::Machine;
use crate::kit::load::{self, ProcessorTime};
use crate::kit::network::Network;
use crate::kit::noise::NoiseReduction;
use crate::kit::processes::cleanup;
use crate::kit::progress::Progress;
use crate::kit::report::Report;
use crate::kit::side::Launcher;

/// Exit status of an experiment that failed, in whole or in part.
pub const STATUS_FAILED: u8 = 1;
/// Exit status of a wrong command line.
pub const STATUS_USAGE: u8 = 2;

/// A command of `uncopy-bench`. The type holds its options.
pub trait Experiment: Args {
    /// True for a helper that starts no server itself, so that no network can lie in between.
    const IS_SERVER: bool = false;
    /// The network between clients and servers unless the command line names another.
    const NETWORK: Network = Network::Loopback;
    /// The entries of the report that run this command.
    const ENTRIES: &'static [ReportEntry] = &[];
    /// Position of [`Experiment::ENTRIES`] in the report, ascending.
    const REPORT_POSITION: u8 = 0;

    /// Runs the command with its options.
    ///
    /// # Errors
    /// [`Failure`] when nothing could be measured at all.
    fn run(&self) -> Result<Outcome>;
}

/// The result of a command.
pub enum Outcome {
    /// Exit status of a command that printed its output itself.
    Status(u8),
    /// Figures that are not yet printed.
    Report(Box<MeasuredReport>),
}

/// The unprinted figures of an experiment.
pub struct MeasuredReport {
    /// The measured figures and their table.
    pub report: Report,
    /// The machine that the figures were measured on.
    pub machine: Machine,
    /// The output options of the command line.
    pub common: CommonOptions,
}

impl Outcome {
    /// Prints the figures as the command line asks for them, and returns the exit status.
    ///
    /// # Errors
    /// [`Failure`] when stdout or the plot cannot be written.
    pub fn print(self) -> Result<u8> {
        match self {
            Self::Status(status) => Ok(status),
            Self::Report(measured) => {
                print(&measured.report.render(measured.machine, &measured.common)?)?;
                Ok(if measured.report.is_flawless() { 0 } else { STATUS_FAILED })
            }
        }
    }
}

/// Runs `experiment` on a quieted machine and attaches the description of the machine.
///
/// # Errors
/// The errors of `experiment`, and [`Failure`] when the uncopy command is not found.
pub fn run_with_noise_reduction(
    common: &CommonOptions,
    experiment: impl FnOnce(&Launcher, &mut Progress) -> Result<Report>,
) -> Result<Outcome> {
    let launcher = prepare_experiment()?;
    let noise_reduction = NoiseReduction::begin(&launcher);
    let mut outcome = run_without_noise_reduction(common, experiment)?;
    if let Outcome::Report(measured) = &mut outcome {
        measured.machine.add("processors", noise_reduction.describe());
        if let Some(distance) = distance::describe() {
            measured.machine.add("distance", distance);
        }
    }
    Ok(outcome)
}

/// As [`run_with_noise_reduction`], without noise reduction.
///
/// # Errors
/// The errors of [`run_with_noise_reduction`].
pub fn run_without_noise_reduction(
    common: &CommonOptions,
    experiment: impl FnOnce(&Launcher, &mut Progress) -> Result<Report>,
) -> Result<Outcome> {
    let launcher = prepare_experiment()?;
    let before = ProcessorTime::read();
    let mut progress = Progress::new();
    let report = experiment(&launcher, &mut progress)?;
    let machine = describe_machine(before);
    let measured = MeasuredReport { report, machine, common: common.clone() };
    Ok(Outcome::Report(Box::new(measured)))
}

/// Prepares an experiment: finds the uncopy command and handles signals.
///
/// # Errors
/// [`Failure`] when the uncopy command is not found, or signals cannot be handled.
pub fn prepare_experiment() -> Result<Launcher> {
    static WATCHED: Once = Once::new();
    let launcher = Launcher::from_environment()?;
    let mut watched = Ok(());
    WATCHED.call_once(|| watched = cleanup::end_all_on_signals());
    watched.map(|()| launcher)
}

/// Returns the machine's description after the measurement, with a warning if others kept it busy since `before`.
#[must_use]
pub fn describe_machine(before: Option<ProcessorTime>) -> Machine {
    let mut machine = Machine::describe();
    if let Some(warning) = load::noise_warning(before) {
        machine.set_warning(warning);
    }
    machine
}

/// Prints to stdout; a broken pipe is not an error.
///
/// # Errors
/// [`Failure`] when stdout cannot be written.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::while_doing("writing to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// A published result that an entry is compared with.
#[derive(Clone, Copy, Debug)]
pub struct PaperResult {
    /// The paper, and its figure, table or section.
    pub source: &'static str,
    /// The result as the paper states it.
    pub result: &'static str,
}

/// The quantity that an entry of the report is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// Throughput and processor time of what uncopy does.
    Speed,
    /// Resident memory of the server.
    Memory,
    /// None: the experiment shows the cost of something.
    NotJudged,
}

/// A part of the report: one run of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct ReportEntry {
    /// Name of the entry in files and anchors.
    pub id: &'static str,
    /// Heading of the entry.
    pub title: &'static str,
    /// Related results of the papers.
    pub claims: &'static [PaperResult],
    /// Arguments of `uncopy-bench`, separated by spaces.
    pub full_arguments: &'static str,
    /// Arguments of `uncopy-bench` for `report --quick`.
    pub quick_arguments: &'static str,
    /// Quantity that the entry is judged by.
    pub criterion: Criterion,
    /// Network between clients and servers, if not the loopback device.
    pub network: Option<&'static str>,
    /// Time that a full measurement takes at most on a machine that nothing disturbs, minutes.
    pub minutes: u16,
}

impl ReportEntry {
    /// Time of an entry that does not say otherwise, minutes.
    const MINUTES: u16 = 10;

    /// Returns the entry with another time for a full measurement.
    pub const fn taking(self, minutes: u16) -> Self {
        Self { minutes, ..self }
    }

    /// Returns the entry, of which no verdict is given.
    pub const fn not_judged(self) -> Self {
        Self { criterion: Criterion::NotJudged, ..self }
    }

    /// Returns the entry over another network than the loopback device.
    pub const fn over(self, network: &'static str) -> Self {
        Self { network: Some(network), ..self }
    }
}

/// Returns a claim of a paper.
pub const fn claim(source: &'static str, result: &'static str) -> PaperResult {
    PaperResult { source, result }
}

/// Returns an entry that is judged by speed and measured once, over the loopback device.
pub const fn entry(
    id: &'static str,
    title: &'static str,
    claims: &'static [PaperResult],
    full_arguments: &'static str,
    quick_arguments: &'static str,
) -> ReportEntry {
    ReportEntry {
        id,
        title,
        claims,
        full_arguments,
        quick_arguments,
        criterion: Criterion::Speed,
        network: None,
        minutes: ReportEntry::MINUTES,
    }
}
