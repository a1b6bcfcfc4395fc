//! The command line: help, man page and completions are made from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use uncopy_core::size;

use crate::command_line;

const EXAMPLES: &str = "  uncopy-cached -m 1024 -t 2
      A cache of 1 GiB on 127.0.0.1:11211, served by two threads.
  uncopy-cached -p 0 -s /run/cache.sock -a 0770
      Reached through a UNIX socket only.
  uncopy-cached -U 11211 --datagram-bytes 61448
      Also by UDP, with datagrams of up to 15 pages, for networks without a small MTU.
  uncopy-cached --transmit copy
      The same server, copying every value: to see what sending by reference gains.";

/// What help and the manual page say besides, by heading.
const SECTIONS: [(&str, &str); 4] = [
    (
        "Operation",
        "Once it listens, one line on standard output says where. Anyone who reaches it can read and
change everything in it, so it listens on the loopback interface unless -l says otherwise.
SIGTERM and SIGINT end it: answers under way are sent, for up to two seconds.",
    ),
    (
        "Protocol",
        "memcached 1.6, text and meta commands, by TCP, UDP and UNIX sockets. Not there: the binary
protocol, SASL, TLS, and commands that are about memcached's own insides (slabs, lru, watch).",
    ),
    (
        "Memory",
        "Values live in memory whose pages are handed to the kernel instead of being copied;
overwriting a value that is still on its way changes nothing of what its reader gets. What was
used least recently goes first when memory is short. A client that reads nothing for five seconds
meanwhile loses its connection.",
    ),
    (
        "Exit status",
        "0, or 1 if it cannot listen or runs out of resources, or 2 if the command line is wrong.",
    ),
];

fn notes() -> String {
    let sections = SECTIONS.map(|(title, text)| format!("\n\n{title}:\n{text}"));
    format!("Examples:\n{EXAMPLES}{}", sections.concat())
}

/// How values leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transmit {
    /// Every value is copied by the kernel.
    Copy,
    /// By reference where that pays on the connection.
    Auto,
    /// By reference through a pipe, whatever the size.
    Splice,
    /// By reference until the network card is done (MSG_ZEROCOPY).
    Zerocopy,
}

/// A cache that speaks memcached's protocol, its values sent without the kernel's copy
#[derive(Clone, Debug, Parser)]
#[command(name = "uncopy-cached", version, after_help = notes(), disable_help_subcommand = true, args_override_self = true)]
pub struct Settings {
    /// TCP port; 0 for none, -1 for any that is free
    #[arg(short, long, value_name = "PORT", default_value = "11211", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..=65535))]
    pub port: i32,
    /// UDP port; 0 for none, -1 for any that is free
    #[arg(short = 'U', long, value_name = "PORT", default_value = "0", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..=65535))]
    pub udp_port: i32,
    /// Address or name of the interface to listen on; several with commas
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// UNIX socket to listen on
    #[arg(short = 's', long, value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// Who may use the UNIX socket, octal
    #[arg(short = 'a', long, value_name = "MODE", default_value = "0700", value_parser = octal)]
    pub unix_mode: u32,
    /// Memory for items, in MiB; as much again may be arriving from clients
    #[arg(short, long, value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    pub memory_limit: u32,
    /// Largest item; k and m stand for KiB and MiB
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m", value_parser = item_limit)]
    pub item_limit: usize,
    /// Threads that serve clients
    #[arg(short, long, value_name = "COUNT", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub threads: u32,
    /// Connections at the same time; more are told so and closed
    #[arg(short, long, value_name = "COUNT", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,
    /// Close connections that are silent for so many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub idle_timeout: Duration,
    /// How values leave
    #[arg(long, value_name = "WAY", default_value = "auto")]
    pub transmit: Transmit,
    /// Longest datagram, bytes
    #[arg(long, value_name = "BYTES", default_value = "1400", value_parser = clap::value_parser!(u32).range(256..=65507))]
    pub datagram_bytes: u32,
    /// Tell on standard error why connections are closed
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print the manual page and exit
    #[arg(long)]
    pub man: bool,
}

/// The manual page.
///
/// # Errors
/// None: it is written into memory.
pub fn manual() -> std::io::Result<Vec<u8>> {
    let man = Man::new(Settings::command())
        .manual("uncopy manual")
        .source(concat!("uncopy ", env!("CARGO_PKG_VERSION")));
    let mut rest = Roff::new();
    for (title, text) in SECTIONS {
        rest.control("SH", [title.to_uppercase().as_str()]);
        rest.text([roman(text)]);
    }
    rest.control("SH", ["EXAMPLES"]).control("nf", []);
    rest.text([roman(EXAMPLES)]).control("fi", []);
    command_line::page(&man, [rest])
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "must be octal, from 0 to 0777".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: u32 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    Ok(Duration::from_secs(seconds.into()))
}

fn item_limit(text: &str) -> Result<usize, String> {
    size::parse_within(text, 1 << 10..=1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_option_and_section() {
        let page = String::from_utf8(manual().expect("in memory")).expect("text");
        assert!(page.is_ascii());
        for (title, _) in SECTIONS {
            assert!(
                page.contains(&format!(".SH \"{}\"", title.to_uppercase()))
                    || page.contains(&format!(".SH {}", title.to_uppercase())),
                "{title}: {page}"
            );
        }
        for option in Settings::command().get_arguments() {
            let long = option.get_long().expect("all have one").replace('-', "\\-");
            assert!(page.contains(&long), "{long}");
        }
    }

    #[test]
    fn sizes_modes_and_numbers_are_read_and_checked() {
        Settings::command().debug_assert();
        let parse = |line: &str| Settings::try_parse_from(line.split(' '));
        let settings =
            parse("uncopy-cached -p -1 -U 0 -I 2m -l 127.0.0.1,::1 -a 0660 -t 4 -m 8 -t 2").expect("right");
        assert_eq!(
            (settings.port, settings.item_limit, settings.unix_mode, settings.threads),
            (-1, 2 << 20, 0o660, 2)
        );
        assert_eq!(settings.listen, ["127.0.0.1", "::1"]);
        for wrong in
            ["-p -2", "-p 65536", "-I 1", "-I 2048m", "-I x", "-a 0888", "-t 0", "-m 0", "--transmit x", "y"]
        {
            assert!(parse(&format!("uncopy-cached {wrong}")).is_err(), "{wrong}");
        }
    }
}
