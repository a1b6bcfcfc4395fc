//! `uncopy metrics`: exports the counters, over HTTP or in a file for a textfile collector.

mod http;

pub mod args;
pub mod text;
mod textfile;

use crate::live::shared_memory;
use crate::output::{self, EXIT_FAILURE, EXIT_USAGE, InvalidValue};
use crate::processes;
use crate::sweep::sweep;
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use text::Format;

/// Writes the counters once, or serves them until a signal ends the process.
pub fn main(matches: &ArgMatches) -> u8 {
    if let Some(file) = matches.get_one::<OsString>(args::TEXTFILE) {
        return textfile::write(file, &render(Format::Prometheus));
    }
    let Some(word) = matches.get_one::<OsString>(args::LISTEN) else { return EXIT_USAGE };
    match address(word) {
        Ok(address) => http::serve(address),
        Err(message) => {
            output::print_message(message);
            EXIT_USAGE
        }
    }
}

/// Returns the counters of all processes that this user may inspect.
fn render(format: Format) -> String {
    sweep(shared_memory());
    text::render(&processes::read_all(), format)
}

/// Parses `[ADDRESS:]PORT`. A port alone is on the loopback device.
fn address(word: &OsStr) -> Result<SocketAddr, InvalidValue> {
    let text = word.to_str().unwrap_or_default();
    let port = text.parse().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    port.or_else(|_| text.parse()).map_err(|_| {
        InvalidValue::new(
            "--listen",
            word,
            "PORT (on 127.0.0.1) or ADDRESS:PORT, such as 9745 or 10.0.0.1:9745",
        )
    })
}

/// Prints why nothing is served or written. Returns the exit status.
fn fail(message: impl std::fmt::Display) -> u8 {
    output::print_message(message);
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
