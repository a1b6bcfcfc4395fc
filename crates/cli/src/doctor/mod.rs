//! `uncopy doctor`: tries everything that `uncopy run` needs, and reports for each check the
//! finding and the command that fixes it.
//!
//! `active = no check is missing`. A warning never keeps `run` from being active.

mod allocators;
mod binary;
mod calibration;
mod kernel;
mod lanes;
mod limits;
mod logs;
mod net;
mod permission;
mod preload;
mod profile;
mod report;
mod sampling;
mod target;
mod verdict;

use crate::args;
use crate::costs;
use crate::environment::Environment;
use crate::output::{self, EXIT_FAILURE, EXIT_OK};
use crate::settings;
use clap::ArgMatches;
use std::ffi::OsString;
use std::os::fd::RawFd;

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Ok,
    /// `run` will be active, with less gain or with a limitation.
    Warning,
    /// `run` will be inactive.
    Missing,
}

impl State {
    /// Returns the word in the table and in JSON.
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
    pub name: &'static str,
    pub state: State,
    /// Finding, as the table shows it.
    pub found: String,
    /// Command that fixes the problem, if known.
    pub fix: Option<String>,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), fix: None }
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

    fn with_fix(mut self, command: impl Into<String>) -> Self {
        self.fix = Some(command.into());
        self
    }
}

/// Prints the report. Returns 0 only if `run` will be active.
pub fn main(matches: &ArgMatches) -> u8 {
    if matches.get_flag(args::CALIBRATE_HERE) {
        return if costs::receive_input().is_ok() { EXIT_OK } else { EXIT_FAILURE };
    }
    if matches.get_flag(args::CALIBRATE) {
        return calibration::main(matches.get_flag(args::JSON));
    }
    let command = args::command(matches);
    let environment = Environment::inherited();
    let mut checks = checks(matches, &environment);
    let mut verdict = None;
    if let Some(name) = command.first() {
        let (command_checks, command_verdict) = target::checks(name, &command, environment.get(b"PATH"));
        checks.extend(command_checks);
        verdict = command_verdict;
    }
    let report = report::Report { checks, verdict, command };
    let text = if matches.get_flag(args::JSON) {
        format!("{:#}\n", report.to_json())
    } else {
        report.to_table(report::wants_colour())
    };
    output::print(text.as_bytes(), if report.is_active() { EXIT_OK } else { EXIT_FAILURE })
}

fn checks(matches: &ArgMatches, environment: &Environment) -> Vec<Check> {
    let access = permission::Access::try_both(inherited_device(environment));
    let features = kernel::features(&access);
    let mut checks = kernel::checks();
    checks.extend(permission::checks(&access));
    checks.push(features.check());
    checks.extend(limits::checks());
    checks.push(options(environment));
    checks.push(lanes::check(environment));
    checks.extend(net::checks());
    let log = matches.get_one::<OsString>(args::LOG).map(OsString::as_os_str);
    checks.extend(logs::check(log, environment));
    checks.push(calibration::check(environment));
    checks.push(preload::check());
    checks.push(sampling::check());
    checks.extend(allocators::check_preloads(environment));
    checks
}

/// Returns the descriptor that an outer `uncopy run` left, as `run` would parse it.
fn inherited_device(environment: &Environment) -> Option<RawFd> {
    std::str::from_utf8(environment.get(settings::UFFD_FD.as_bytes())?).ok()?.parse().ok()
}

/// Checks the `UNCOPY_` variables as `run` does.
fn options(environment: &Environment) -> Check {
    const NAME: &str = "UNCOPY_ variables";
    let mut copy = Environment::from_entries(environment.entries());
    match settings::resolve(&mut copy, &[], std::process::id()) {
        Err(illegal) => Check::missing(NAME, illegal.to_string()).with_fix(format!("unset {}", illegal.name)),
        Ok(settings) => match settings.warning {
            Some(warning) => Check::warning(NAME, warning),
            None if settings.off => {
                Check::missing(NAME, "UNCOPY_OFF is set: uncopy run will load the library and elide nothing")
                    .with_fix("unset UNCOPY_OFF")
            }
            None => Check::ok(NAME, "legal"),
        },
    }
}
