//! The experiments behind `uncopy bench`.
//!
//! ```text
//!   results       all experiments beside what the papers say, as pages
//!   experiments   what is measured, a folder or file each, and the one list of them
//!   apps          packaged applications, each a case of one harness
//!   servers       what experiments and applications start: the echo server, Redis, uncopy-cached, senders of files
//!   clients       protocols of stores and brokers, every byte compared
//!   kit           sides, rounds, statistics, processes, networks, tables: what every experiment uses
//! ```
//!
//! Each uses those below it only. Invariants: sides are compared only within one run, in alternating order; no ratio is
//! given unless both sides' bytes were verified; nothing that was started outlives this program.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

mod apps;
mod clients;
mod experiments;
mod kit;
mod results;
mod servers;

use kit::experiment::{Outcome, STATUS_FAILED, STATUS_USAGE};
use kit::failure::Result;
use kit::network::{self, Network};
use kit::quiet;

/// Measure what uncopy does, side by side with plain Linux
#[derive(Debug, Parser)]
#[command(name = "uncopy bench", bin_name = "uncopy bench", disable_version_flag = true)]
struct Arguments {
    /// What to run.
    #[command(subcommand)]
    command: Command,
    /// What lies between clients and servers [default: loopback, for net veth-9000]
    #[arg(long, global = true, value_name = "NETWORK", value_enum)]
    network: Option<Network>,
    /// Do not keep idle processors awake by loops of the lowest class while something is measured
    #[arg(long, global = true)]
    no_idle_loops: bool,
}

/// Every command.
#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Experiment(Box<experiments::Command>),
    // Shown behind `apps`, which has this place in the list.
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

/// Runs `uncopy bench` with the arguments that follow the word `bench`; returns the exit status:
/// 0, 1 when something failed or bytes were wrong, 2 for a wrong command line.
#[must_use]
pub fn main(args: &[OsString]) -> u8 {
    let words = std::iter::once(OsString::from("uncopy bench")).chain(args.iter().cloned());
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
        eprintln!("uncopy: --network is for experiments, which start servers; this is a server itself");
        return STATUS_USAGE;
    }
    quiet::want_idle_loops(!no_idle_loops);
    let done = network::set_up(network).and_then(|()| command.run()).and_then(Outcome::print);
    done.unwrap_or_else(|failure| {
        eprintln!("uncopy: {failure}");
        STATUS_FAILED
    })
}

/// The definition of the command line, for the manual and completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn main_of(words: &[&str]) -> u8 {
        main(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn wrong_command_lines_end_with_status_2() {
        assert_eq!(main_of(&[]), STATUS_USAGE);
        assert_eq!(main_of(&["nonsense"]), STATUS_USAGE);
        assert_eq!(main_of(&["copies", "--size", "-1"]), STATUS_USAGE);
        let remote = ["echo-server", "--size=1", "--copies=0", "--listen=0.0.0.0:0"];
        assert_eq!(main_of(&remote), STATUS_USAGE);
    }

    #[test]
    fn arguments_need_not_be_utf_8() {
        use std::os::unix::ffi::OsStringExt;
        assert_eq!(main(&[OsString::from_vec(vec![b'c', 0xff])]), STATUS_USAGE);
    }

    #[test]
    fn help_ends_with_status_0() {
        assert_eq!(main_of(&["--help"]), 0);
        assert_eq!(main_of(&["copies", "--help"]), 0);
    }
}
