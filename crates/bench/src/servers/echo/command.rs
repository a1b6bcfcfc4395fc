//! The echo server's command line: read here, and written for those who start it.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;

use crate::kit::experiment::STATUS_USAGE;
use crate::kit::network::server_address;
use crate::kit::{Experiment, Failure, Outcome, Result, copies_parser, count_parser, size_parser};
use crate::servers::echo::server::{self, Order, Reply, Work};

/// The echo server by itself
#[derive(Debug, Args)]
pub struct EchoServer {
    /// Where to listen: a port of 127.0.0.1 (0: any free one), or an address and a port
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "0", value_parser = listen_address)]
    pub listen: SocketAddr,
    /// Let --listen name an address that other machines may reach
    #[arg(long)]
    pub allow_remote: bool,
    /// Length of a message, in bytes
    #[arg(long, value_name = "SIZE", value_parser = size_parser())]
    pub size: usize,
    /// Copies made of each message before it is sent back
    #[arg(long, value_name = "N", value_parser = copies_parser())]
    pub copies: usize,
    /// Pages of the last copy of which one byte each is read before it is sent
    #[arg(long, value_name = "PAGES", default_value = "0")]
    pub touch: usize,
    /// Which pages these are
    #[arg(long, value_enum, default_value_t)]
    pub order: Order,
    /// Bytes from the last copy's start that are all read before it is sent
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub read: usize,
    /// Do not read them for so long, and then read them for so long, by turns; 0: always read them
    #[arg(long, value_name = "MS", default_value = "0")]
    pub phase: u64,
    /// Store each message in a file in memory and send back its checksum only
    #[arg(long)]
    pub checksum: bool,
    /// Send back the checksum of each message's last page only
    #[arg(long, conflicts_with = "checksum")]
    pub last_page: bool,
    /// Connections served at the same time; others wait
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub threads: usize,
}

impl Experiment for EchoServer {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        if !self.listen.ip().is_loopback() && !self.allow_remote {
            let address = self.listen;
            eprintln!(
                "uncopy: {address} may be reachable from other machines; add --allow-remote to listen there"
            );
            return Ok(Outcome::Status(STATUS_USAGE));
        }
        let reply = match (self.checksum, self.last_page) {
            (true, _) => Reply::Checksum,
            (false, true) => Reply::LastPage,
            (false, false) => Reply::Echo,
        };
        let work = Work {
            size_bytes: self.size,
            copies: self.copies,
            touched_pages: self.touch,
            order: self.order,
            read_bytes: self.read,
            phase_ms: self.phase,
            reply,
        };
        server::run(self.listen, work, self.threads).map(|()| Outcome::Status(0))
    }
}

/// `PORT` on the loopback address, or `ADDRESS:PORT`.
fn listen_address(text: &str) -> std::result::Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((server_address(), port))),
        Err(_) => text.parse().map_err(|_| {
            "it must be a port from 0 to 65535, or an address and a port, 127.0.0.1:7000".to_owned()
        }),
    }
}

/// The command line of the server at `host` after the word `bench`.
#[must_use]
pub fn arguments(host: Ipv4Addr, work: &Work, threads: usize) -> Vec<String> {
    let order = clap::ValueEnum::to_possible_value(&work.order);
    let order = order.map_or_else(String::new, |order| order.get_name().to_owned());
    let mut arguments = vec![
        "echo-server".to_owned(),
        format!("--listen={host}:0"),
        format!("--size={}", work.size_bytes),
        format!("--copies={}", work.copies),
        format!("--touch={}", work.touched_pages),
        format!("--order={order}"),
        format!("--read={}", work.read_bytes),
        format!("--phase={}", work.phase_ms),
        format!("--threads={threads}"),
    ];
    match work.reply {
        Reply::Echo => {}
        Reply::Checksum => arguments.push("--checksum".to_owned()),
        Reply::LastPage => arguments.push("--last-page".to_owned()),
    }
    if !host.is_loopback() {
        arguments.push("--allow-remote".to_owned());
    }
    arguments
}

/// The address at `host` that the line `listening PORT` stands for.
///
/// # Errors
/// [`Failure`] when it is another line.
pub fn address(host: Ipv4Addr, line: &str) -> Result<SocketAddr> {
    line.strip_prefix("listening ")
        .and_then(|port| port.trim().parse().ok())
        .map(|port| SocketAddr::from((host, port)))
        .ok_or_else(|| Failure::new(format!("the echo server wrote \"{}\"", line.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_line_gives_an_address() {
        assert_eq!(address(server_address(), "listening 7000").expect("an address").port(), 7000);
        for line in ["", "listening", "listening 70000", "listening -1", "hello", "listening 1 2"] {
            assert!(address(server_address(), line).is_err(), "{line}");
        }
    }
}
