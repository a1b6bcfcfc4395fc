//! Both ends of an echo, each a process of its own under the same side: see [`remote`].

use std::process::Command;

use clap::{Args, ValueEnum};

use super::command;
use super::loaded_echo::LoadedEcho;
use super::server::EchoWork;
use crate::kit::network::server_address;
use crate::kit::processors::{self, bind_thread};
use crate::kit::{Experiment, Outcome, Result, TemporaryDirectory, While, cli_name, remote, start_server};

/// Path of the server's UNIX socket in its directory.
const SERVER: &str = "./server";

/// Transport between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// TCP over the loopback device
    Tcp,
    /// A UNIX stream socket
    Unix,
}

impl Transport {
    /// Returns the name in titles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "UNIX",
        }
    }
}

/// Both ends of an echo
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct EchoPair {
    /// Transport of the echo
    #[arg(long, value_enum)]
    pub transport: Transport,
    #[command(flatten)]
    pub work: EchoWork,
}

impl Experiment for EchoPair {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        remote::serve_requests(|| Ok(Box::new(self.start()?)))?;
        Ok(Outcome::Status(0))
    }
}

/// Returns the arguments of `uncopy-bench` that start the pair.
#[must_use]
pub fn arguments(transport: Transport, size_bytes: usize, copies: usize) -> Vec<String> {
    let first = ["echo-pair".to_owned(), format!("--transport={}", cli_name(&transport))];
    let work = EchoWork { size_bytes, copies, ..EchoWork::default() };
    first.into_iter().chain(work.arguments()).collect()
}

impl EchoPair {
    /// Starts the server and connects to it.
    fn start(&self) -> Result<LoadedEcho> {
        let exe = std::env::current_exe().doing("finding the path of uncopy-bench")?;
        let mut command = Command::new(exe);
        command.args(command::arguments(server_address(), &self.work, 1));
        if self.transport == Transport::Unix {
            // Overrides the `--listen` before it.
            command.arg(format!("--listen={SERVER}"));
        }
        processors::bind_command(&mut command, processors::of_server(1));
        let server = start_server(command, "the echo server", TemporaryDirectory::make()?)?;
        bind_thread(processors::of_clients(1))?;
        // The client runs in this thread, so that no other thread's time counts.
        LoadedEcho::new(server, server_address(), self.work, 1, None)
    }
}
