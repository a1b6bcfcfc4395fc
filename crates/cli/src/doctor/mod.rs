//! `uncopy doctor`: tries everything that `uncopy run` needs, really, and says for each thing what
//! was found and which command mends it.
//!
//! `active = no check is missing`. A warning never keeps `run` from being active.

mod allocators;
mod calibration;
mod contents;
mod kernel;
mod lanes;
mod limits;
mod logs;
mod net;
mod permission;
mod preload;
mod report;
mod stored;
mod target;
mod worth;

use crate::costs;
use crate::environment::Environment;
use crate::line;
use crate::output::{self, EXIT_FAILURE, EXIT_OK};
use crate::settings;
use clap::ArgMatches;
use std::ffi::OsString;
use std::os::fd::RawFd;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Ok,
    /// `run` will be active, with less to gain or with something to know.
    Warning,
    /// `run` will be inactive.
    Missing,
}

impl State {
    /// The word in the table and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Missing => "missing",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it came out.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to type to mend it, if that is known.
    pub mend: Option<String>,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), mend: None }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Ok, found)
    }

    fn warning(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Warning, found)
    }

    fn missing(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Missing, found)
    }

    fn mended_by(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

/// Prints the report and returns 0 only if `run` will be active.
pub fn main(matches: &ArgMatches) -> u8 {
    if matches.get_flag(line::CALIBRATE_HERE) {
        return if costs::receive_something().is_ok() { EXIT_OK } else { EXIT_FAILURE };
    }
    if matches.get_flag(line::CALIBRATE) {
        return calibration::main(matches.get_flag(line::JSON));
    }
    let command = line::command(matches);
    let environment = Environment::inherited();
    let mut checks = checks(matches, &environment);
    let mut worth = None;
    if let Some(name) = command.first() {
        let (of_command, answer) = target::checks(name, &command, environment.get(b"PATH"));
        checks.extend(of_command);
        worth = answer;
    }
    let report = report::Report { checks, worth, command };
    let text = if matches.get_flag(line::JSON) {
        format!("{:#}\n", report.to_json())
    } else {
        report.to_table(report::wants_colour())
    };
    output::print(text.as_bytes(), if report.is_active() { EXIT_OK } else { EXIT_FAILURE })
}

fn checks(matches: &ArgMatches, environment: &Environment) -> Vec<Check> {
    let access = permission::Access::find(inherited_device(environment));
    let features = kernel::features(&access);
    let mut checks = kernel::checks();
    checks.extend(permission::checks(&access));
    checks.push(features.check());
    checks.extend(limits::checks());
    checks.push(options(environment));
    checks.push(lanes::check(environment));
    checks.extend(net::checks());
    let log = matches.get_one::<OsString>(line::LOG).map(OsString::as_os_str);
    checks.extend(logs::check(log, environment));
    checks.push(calibration::check(environment));
    checks.push(preload::check());
    checks.extend(allocators::preloads(environment));
    checks
}

/// The descriptor that an outer `uncopy run` left, as `run` would read it.
fn inherited_device(environment: &Environment) -> Option<RawFd> {
    std::str::from_utf8(environment.get(settings::UFFD_FD.as_bytes())?).ok()?.parse().ok()
}

/// The `UNCOPY_` variables, judged as `run` judges them.
fn options(environment: &Environment) -> Check {
    const NAME: &str = "UNCOPY_ variables";
    let mut copy = Environment::from_entries(environment.entries());
    match settings::settle(&mut copy, &[], std::process::id()) {
        Err(illegal) => {
            Check::missing(NAME, illegal.to_string()).mended_by(format!("unset {}", illegal.name))
        }
        Ok(settings) => match settings.warning {
            Some(warning) => Check::warning(NAME, warning),
            None if settings.off => {
                Check::missing(NAME, "UNCOPY_OFF is set: run will load uncopy and elide nothing")
                    .mended_by("unset UNCOPY_OFF")
            }
            None => Check::ok(NAME, "legal"),
        },
    }
}
