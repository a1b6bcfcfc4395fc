//! What a command of `uncopy bench` is: its options, what it does, and its place in the report.

use std::io::{ErrorKind, Write};
use std::sync::Once;

use clap::Args;

use crate::kit::arguments::Form;
use crate::kit::distance;
use crate::kit::failure::{Failure, Result};
use crate::kit::host::Machine;
use crate::kit::load::{self, Load};
use crate::kit::network::Network;
use crate::kit::processes::cleanup;
use crate::kit::progress::Progress;
use crate::kit::quiet::Quiet;
use crate::kit::report::Report;
use crate::kit::side::Launcher;

/// Exit status of an experiment that failed, in whole or in part.
pub const STATUS_FAILED: u8 = 1;
/// Exit status of a wrong command line.
pub const STATUS_USAGE: u8 = 2;

/// A command of `uncopy bench`. The type holds its options.
pub trait Experiment: Args {
    /// Whether it starts no server itself, so that no network can lie in between.
    const IS_SERVER: bool = false;
    /// What lies between clients and servers where nothing else is asked for.
    const NETWORK: Network = Network::Loopback;
    /// What the report runs and shows of it.
    const ENTRIES: &'static [Entry] = &[];
    /// Place of these in the report, ascending.
    const PLACE: u8 = 0;

    /// Does what the options ask for.
    ///
    /// # Errors
    /// [`Failure`] when nothing could be measured at all.
    fn run(&self) -> Result<Outcome>;
}

/// What came of a command.
pub enum Outcome {
    /// It has printed what it has to say; its exit status.
    Status(u8),
    /// Figures.
    Measured(Box<Measured>),
}

/// The figures of an experiment, not yet shown.
pub struct Measured {
    /// The figures.
    pub report: Report,
    /// What they were measured on.
    pub machine: Machine,
    /// How they are shown.
    pub form: Form,
}

impl Outcome {
    /// Prints figures as the command line asks for them; the exit status.
    ///
    /// # Errors
    /// [`Failure`] when they cannot be written.
    pub fn print(self) -> Result<u8> {
        match self {
            Self::Status(status) => Ok(status),
            Self::Measured(measured) => {
                print(&measured.report.present(measured.machine, &measured.form)?)?;
                Ok(if measured.report.is_flawless() { 0 } else { STATUS_FAILED })
            }
        }
    }
}

/// Does what every experiment needs before and after `experiment`.
///
/// # Errors
/// As `experiment`, and when uncopy is not to be found.
pub fn measured(
    form: &Form,
    experiment: impl FnOnce(&Launcher, &mut Progress) -> Result<Report>,
) -> Result<Outcome> {
    let launcher = begin()?;
    let quiet = Quiet::begin(&launcher);
    let mut outcome = measured_as_it_is(form, experiment)?;
    if let Outcome::Measured(measured) = &mut outcome {
        measured.machine.add("processors", quiet.describe());
        if let Some(distance) = distance::describe() {
            measured.machine.add("distance", distance);
        }
    }
    Ok(outcome)
}

/// The same on a machine that is left as it is.
///
/// # Errors
/// As [`measured`].
pub fn measured_as_it_is(
    form: &Form,
    experiment: impl FnOnce(&Launcher, &mut Progress) -> Result<Report>,
) -> Result<Outcome> {
    let launcher = begin()?;
    let before = Load::read();
    let mut progress = Progress::new();
    let report = experiment(&launcher, &mut progress)?;
    let machine = machine_after(before);
    let measured = Measured { report, machine, form: form.clone() };
    Ok(Outcome::Measured(Box::new(measured)))
}

/// What every experiment does before it starts anything.
///
/// # Errors
/// [`Failure`] when uncopy is not to be found, or signals cannot be handled.
pub fn begin() -> Result<Launcher> {
    static WATCHED: Once = Once::new();
    let launcher = Launcher::from_environment()?;
    let mut watched = Ok(());
    WATCHED.call_once(|| watched = cleanup::end_all_on_signals());
    watched.map(|()| launcher)
}

/// The machine, once everything was measured, with how busy it was since `before`.
#[must_use]
pub fn machine_after(before: Option<Load>) -> Machine {
    let mut machine = Machine::describe();
    if let Some(warning) = load::warning(before) {
        machine.warn(warning);
    }
    machine
}

/// Prints to stdout; a reader that went away is not an error.
///
/// # Errors
/// [`Failure`] when it cannot be written.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::while_doing("writing to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// What a paper says.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The paper, and its figure, table or section.
    pub figure: &'static str,
    /// What was found there.
    pub says: &'static str,
}

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// Throughput and processor time of what uncopy does.
    Speed,
    /// Resident memory.
    Memory,
    /// Nothing: the experiment shows what something costs.
    Cost,
}

/// A part of the report: one run of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name here, in files and anchors.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What the papers say about it.
    pub claims: &'static [Claim],
    /// The words behind `uncopy bench`, separated by spaces.
    pub full: &'static str,
    /// The same for `--quick`.
    pub quick: &'static str,
    /// How it is judged.
    pub judge: Judge,
    /// What lies between clients and servers, if not the loopback device.
    pub network: Option<&'static str>,
}

/// A claim of a paper.
pub const fn claim(figure: &'static str, says: &'static str) -> Claim {
    Claim { figure, says }
}

/// An entry judged by speed, measured once, over the loopback device.
pub const fn entry(
    id: &'static str,
    title: &'static str,
    claims: &'static [Claim],
    full: &'static str,
    quick: &'static str,
) -> Entry {
    Entry { id, title, claims, full, quick, judge: Judge::Speed, network: None }
}
