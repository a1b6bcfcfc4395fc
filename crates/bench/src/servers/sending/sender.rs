//! `uncopy bench send-files`, started for one measurement.

use std::net::SocketAddr;
use std::path::Path;

use clap::ValueEnum;

use crate::kit::network::server_address;
use crate::kit::{Failure, Launcher, Result, Server, Side, TemporaryDirectory};
use crate::servers::sending::ways::Way;

/// What is sent, and how.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The files.
    pub directory: &'a Path,
    /// The way.
    pub way: Way,
    /// Bits in a second; 0: as fast as can be.
    pub bits_per_s: u64,
    /// Bytes that one call sends.
    pub chunk_bytes: usize,
    /// Whether each connection gets all files once, and not again and again.
    pub once: bool,
}

/// A sender that listens.
#[derive(Debug)]
pub struct Sender {
    /// The process.
    pub server: Server,
    /// Where it listens.
    pub address: SocketAddr,
}

/// What a connection took of the sender, by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Bytes that were sent.
    pub bytes: u64,
    /// Processor time in user mode, ns.
    pub user_ns: u64,
    /// Processor time in the kernel, ns.
    pub system_ns: u64,
    /// Sends with MSG_ZEROCOPY.
    pub completions: u64,
    /// Of these, those that the kernel copied all the same.
    pub copied: u64,
}

impl Sender {
    /// Starts one under `side`.
    ///
    /// # Errors
    /// [`Failure`] when it does not listen.
    pub fn start(launcher: &Launcher, side: Side, order: &Order<'_>) -> Result<Self> {
        let way = order.way.to_possible_value().map_or_else(String::new, |way| way.get_name().to_owned());
        let mut words = vec![
            "send-files".to_owned(),
            format!("--listen={}:0", server_address()),
            format!("--way={way}"),
            format!("--rate={}", order.bits_per_s),
            format!("--chunk={}", order.chunk_bytes),
        ];
        words.extend(order.once.then(|| "--once".to_owned()));
        words.push(order.directory.display().to_string());
        let command = launcher.bench(side, &words);
        let mut server = Server::start(command, "send-files", TemporaryDirectory::make()?)?;
        let line = server.first_line()?;
        let address = line.strip_prefix("listening ").and_then(|address| address.parse().ok());
        let strange = || Failure::new(format!("send-files wrote \"{}\"", line.escape_debug()));
        Ok(Self { server, address: address.ok_or_else(strange)? })
    }

    /// What the connection that ends took.
    ///
    /// # Errors
    /// [`Failure`] when the sender does not tell.
    pub fn account(&mut self) -> Result<Account> {
        let line = self.server.first_line()?;
        parse(&line).ok_or_else(|| Failure::new(format!("send-files wrote \"{}\"", line.escape_debug())))
    }
}

fn parse(line: &str) -> Option<Account> {
    let rest = line.strip_prefix("sent ")?;
    let mut numbers = rest.split([' ', ',']).filter_map(|word| word.parse().ok());
    let mut next = || numbers.next();
    let account = Account {
        bytes: next()?,
        user_ns: next()?,
        system_ns: next()?,
        completions: next()?,
        copied: next()?,
    };
    next().is_none().then_some(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_a_line_of_five_numbers() {
        let line = "sent 10 bytes, user 20 ns, system 30 ns, completions 4, copied 3";
        let account = Account { bytes: 10, user_ns: 20, system_ns: 30, completions: 4, copied: 3 };
        assert_eq!(parse(line), Some(account));
        for line in ["", "sent", "sent 1 2 3 4", "sent 1 2 3 4 5 6", "listening 1 2 3 4 5"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
