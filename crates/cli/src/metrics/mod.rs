//! `uncopy metrics`: the counters for who collects them: over HTTP, or in a file that a collector of text files reads.

mod http;
pub mod line;
pub mod text;
mod textfile;

use crate::live::shared_memory;
use crate::output::{self, EXIT_FAILURE, EXIT_USAGE, Illegal};
use crate::processes;
use crate::sweep::sweep;
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use text::Format;

/// Writes them once, or serves them until a signal ends it.
pub fn main(matches: &ArgMatches) -> u8 {
    if let Some(file) = matches.get_one::<OsString>(line::TEXTFILE) {
        return textfile::write(file, &now(Format::Prometheus));
    }
    let Some(word) = matches.get_one::<OsString>(line::LISTEN) else { return EXIT_USAGE };
    match address(word) {
        Ok(address) => http::serve(address),
        Err(message) => {
            output::complain(message);
            EXIT_USAGE
        }
    }
}

/// The counters of all processes that this user may look at.
fn now(format: Format) -> String {
    sweep(shared_memory());
    text::of(&processes::look_at_all(), format)
}

/// A port alone is one of the loopback device.
fn address(word: &OsStr) -> Result<SocketAddr, Illegal> {
    let text = word.to_str().unwrap_or_default();
    let port = text.parse().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    port.or_else(|_| text.parse()).map_err(|_| {
        Illegal::new("--listen", word, "PORT, of the loopback device, or ADDRESS:PORT, such as 10.0.0.1:9745")
    })
}

/// Says why nothing is served or written.
fn fail(message: impl std::fmt::Display) -> u8 {
    output::complain(message);
    EXIT_FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_the_loopback_devices() {
        let read = |word: &str| address(OsStr::new(word)).map(|address| address.to_string());
        assert_eq!(read("9745"), Ok("127.0.0.1:9745".to_owned()));
        assert_eq!(read("[::1]:9745"), Ok("[::1]:9745".to_owned()));
        assert_eq!(read("0.0.0.0:0"), Ok("0.0.0.0:0".to_owned()));
        for wrong in ["", "65536", "localhost:9745", "10.0.0.1", "-1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
