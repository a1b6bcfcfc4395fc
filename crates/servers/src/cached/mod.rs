//! `uncopy-cached`: a cache that speaks memcached's protocol, its values in twin memory.
//!
//! ```text
//!   server      threads, accepting, ending        listening   sockets; signals
//!   worker      one thread's epoll ─┬─ connection one client by TCP or a UNIX socket
//!                                   └─ datagrams  requests and answers by UDP
//!   session     the protocol, bytes in, answers out: tokens, text, meta (command, arithmetic, number)
//!   response    what waits to be sent             outlet      how it leaves: copied or by reference
//!   store       items by key, in stripes          budget      how much memory they may use
//!   value       the bytes of items in twin memory blocks      where that comes from
//!   cache       what all of these share           statistics, clock
//! ```
//!
//! Invariants: a value is never written once it is complete; twin memory holds values with their line ends, and nothing
//! else; what a client can make the server hold is bounded (a line, one value to come, one full response).
#![deny(unsafe_code)]

pub mod arguments;
mod arithmetic;
mod blocks;
mod budget;
mod cache;
mod clock;
mod command;
mod connection;
mod datagrams;
mod listening;
mod meta;
mod number;
mod outlet;
mod response;
mod server;
mod session;
mod signals;
mod statistics;
mod store;
mod stripe;
mod text;
mod tokens;
mod value;
mod worker;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

/// The program: reads the command line and serves.
#[must_use]
pub fn main() -> ExitCode {
    let settings = match arguments::Settings::try_parse() {
        Ok(settings) => settings,
        Err(error) if error.use_stderr() => {
            let message = error.to_string();
            eprint!("uncopy-cached: {}", message.strip_prefix("error: ").unwrap_or(&message));
            return ExitCode::from(2);
        }
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    if settings.man {
        // A reader that has seen enough is no error.
        let _ = arguments::manual().and_then(|page| std::io::stdout().write_all(&page));
        return ExitCode::SUCCESS;
    }
    match server::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("uncopy-cached: {why}");
            ExitCode::FAILURE
        }
    }
}
