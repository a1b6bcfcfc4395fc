//! The echo server's command line: its parser, and its arguments for programs that start it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use clap::Args;
use uncopy_testbed::clients::Place;

use crate::kit::experiment::STATUS_USAGE;
use crate::kit::network::server_address;
use crate::kit::{Experiment, Failure, Outcome, Result, count_parser};
use crate::servers::echo::server::{self, EchoWork};

/// The echo server alone
#[derive(Debug, Args)]
pub struct EchoServer {
    /// Port on 127.0.0.1 (0: any free port), address and port, or path of a UNIX socket to listen on
    #[arg(long, overrides_with = "listen", value_name = "[ADDRESS:]PORT|PATH", default_value = "0", value_parser = listen_address)]
    pub listen: Place,
    /// Allow an address that other machines may reach
    #[arg(long)]
    pub allow_remote: bool,
    #[command(flatten)]
    pub work: EchoWork,
    /// Maximum number of connections served at the same time
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub threads: usize,
}

impl Experiment for EchoServer {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        if let Place::Tcp(address) = self.listen
            && !address.ip().is_loopback()
            && !self.allow_remote
        {
            eprintln!(
                "uncopy: {address} may be reachable from other machines; add --allow-remote to listen there"
            );
            return Ok(Outcome::Status(STATUS_USAGE));
        }
        server::run(&self.listen, self.work, self.threads).map(|()| Outcome::Status(0))
    }
}

/// Parses `PORT` on the loopback address, `ADDRESS:PORT`, or a path, which contains a slash.
fn listen_address(text: &str) -> std::result::Result<Place, String> {
    if text.contains('/') {
        return Ok(Place::Unix(text.into()));
    }
    match text.parse::<u16>() {
        Ok(port) => Ok(Place::Tcp(SocketAddr::from((server_address(), port)))),
        Err(_) => text.parse().map(Place::Tcp).map_err(|_| {
            "it must be a port from 0 to 65535, an address and port such as 127.0.0.1:7000, or a path such as \
             ./socket".to_owned()
        }),
    }
}

/// Returns the arguments of `uncopy-bench` that start the server at `host`.
#[must_use]
pub fn arguments(host: Ipv4Addr, work: &EchoWork, threads: usize) -> Vec<String> {
    let first = ["echo-server".to_owned(), format!("--listen={host}:0"), format!("--threads={threads}")];
    let remote = (!host.is_loopback()).then(|| "--allow-remote".to_owned());
    first.into_iter().chain(work.arguments()).chain(remote).collect()
}

/// Returns the address in the line `listening PORT` of a server at `host`, or `listening PATH` of one in `directory`.
///
/// # Errors
/// [`Failure`] for any other line.
pub fn parse_address(host: Ipv4Addr, directory: &Path, line: &str) -> Result<Place> {
    let listened = line.strip_prefix("listening ").map(str::trim);
    let address = listened.and_then(|listened| match listened.parse() {
        Ok(port) => Some(Place::Tcp(SocketAddr::from((host, port)))),
        Err(_) => listened.contains('/').then(|| Place::Unix(directory.join(listened))),
    });
    address.ok_or_else(|| {
        Failure::new(format!("unexpected output of the echo server: \"{}\"", line.escape_debug()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_line_gives_an_address() {
        let address = |line| parse_address(server_address(), Path::new("/room"), line);
        assert_eq!(address("listening 7000"), Ok(Place::Tcp(SocketAddr::from((server_address(), 7000)))));
        assert_eq!(address("listening ./server"), Ok(Place::Unix("/room/server".into())));
        for line in ["", "listening", "listening 70000", "listening -1", "hello", "listening 1 2"] {
            assert!(address(line).is_err(), "{line}");
        }
    }
}
