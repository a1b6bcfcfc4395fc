//! `uncopy-bench` measures uncopy side by side with plain Linux. It needs the `uncopy` command beside it, and is not
//! installed.
//!
//! ```text
//!   results       all experiments beside the papers' results, as pages
//!   experiments   the measurements, a folder or file each, and the one list of them
//!   apps          packaged applications, each a case of one harness
//!   servers       servers that experiments and applications start: the echo server, Redis, senders of files
//!   clients       protocols of stores and brokers, every byte compared
//!   kit           sides, rounds, statistics, processes, networks, tables: shared by every experiment
//! ```
//!
//! Each module uses only those below it. Invariants: sides are compared only within one run, in alternating order; no
//! ratio is given unless both sides' bytes were verified; nothing that was started outlives this program.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod apps;
mod clients;
mod experiments;
mod kit;
mod results;
mod servers;

use kit::experiment::{Outcome, STATUS_FAILED, STATUS_USAGE};
use kit::failure::Result;
use kit::network::{self, Network};
use kit::noise;

/// Measure programs under uncopy and on plain Linux, side by side
#[derive(Debug, Parser)]
#[command(name = "uncopy-bench", version)]
struct Arguments {
    /// Experiment or helper to run.
    #[command(subcommand)]
    command: Command,
    /// Network between clients and servers [default: loopback; of the experiment net: veth-9000]
    #[arg(long, global = true, value_name = "NETWORK", value_enum)]
    network: Option<Network>,
    /// Do not run the idle-priority loops that keep processors awake during measurements
    #[arg(long, global = true)]
    no_idle_loops: bool,
}

/// Every command of the program.
#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Experiment(Box<experiments::Command>),
    // Listed after `apps`, which has this position.
    #[command(display_order = 15)]
    Report(results::Arguments),
}

impl Command {
    const fn is_server(&self) -> bool {
        matches!(self, Self::Experiment(command) if command.is_server())
    }

    const fn network(&self) -> Network {
        match self {
            Self::Experiment(command) => command.network(),
            Self::Report(_) => Network::Loopback,
        }
    }

    fn run(&self) -> Result<Outcome> {
        match self {
            Self::Experiment(command) => command.run(),
            Self::Report(arguments) => results::run(arguments).map(Outcome::Status),
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    ExitCode::from(run(&words))
}

/// Runs a command line, which begins with the program's name, and returns the exit status: 0, 1 when something failed
/// or bytes were wrong, 2 for a wrong command line.
fn run(words: &[OsString]) -> u8 {
    let Arguments { command, network, no_idle_loops } = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let message = error.to_string();
            eprint!("uncopy: {}", message.strip_prefix("error: ").unwrap_or(&message));
            return STATUS_USAGE;
        }
        Err(help) => {
            let _ = help.print();
            return 0;
        }
    };
    let network = network.unwrap_or_else(|| command.network());
    if command.is_server() && network != Network::Loopback {
        eprintln!("uncopy: --network applies to experiments only; this command is itself a server");
        return STATUS_USAGE;
    }
    noise::enable_idle_loops(!no_idle_loops);
    let done = network::set_up(network).and_then(|()| command.run()).and_then(Outcome::print);
    done.unwrap_or_else(|failure| {
        eprintln!("uncopy: {failure}");
        STATUS_FAILED
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(words: &[&str]) -> u8 {
        let words = std::iter::once("uncopy-bench").chain(words.iter().copied());
        run(&words.map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn wrong_command_lines_end_with_status_2() {
        assert_eq!(status_of(&[]), STATUS_USAGE);
        assert_eq!(status_of(&["nonsense"]), STATUS_USAGE);
        assert_eq!(status_of(&["echo", "--size", "-1"]), STATUS_USAGE);
        let remote = ["echo-server", "--size=1", "--copies=0", "--listen=0.0.0.0:0"];
        assert_eq!(status_of(&remote), STATUS_USAGE);
    }

    #[test]
    fn arguments_need_not_be_utf_8() {
        use std::os::unix::ffi::OsStringExt;
        let words = [OsString::from("uncopy-bench"), OsString::from_vec(vec![b'c', 0xff])];
        assert_eq!(run(&words), STATUS_USAGE);
    }

    #[test]
    fn help_and_version_end_with_status_0() {
        assert_eq!(status_of(&["--version"]), 0);
        assert_eq!(status_of(&["--help"]), 0);
        assert_eq!(status_of(&["echo", "--help"]), 0);
    }
}
