//! Entry point of the `uncopy` command, and dispatch to its subcommands.
//!
//! `run` starts a program with `libuncopy.so` preloaded; `doctor` checks whether that can work.
//! `ps`, `top`, `stats` and `metrics` show running programs and their counters, and `release` turns
//! their views back into plain memory. `profile` and `report` show where a program copies. `log`
//! shows and recovers logs, `net` serves a user-level TCP, `service` configures systemd services.
//! `completions` and `man` describe the command itself.
//!
//! The entry point is C's instead of Rust's, which would ignore `SIGPIPE` before its disposition
//! could be saved: CMD must inherit exactly the signals that `uncopy run` was given.
#![cfg_attr(not(test), no_main)]
#![deny(unsafe_code)]

mod args;
mod atomic_write;
mod costs;
mod doctor;
mod elf;
mod environment;
mod explain;
mod library;
mod live;
mod log;
mod manpages;
mod metrics;
mod net;
mod os;
mod output;
mod probe;
mod processes;
mod profile;
mod program;
mod ps;
mod release;
mod report;
mod run;
mod service;
mod settings;
mod stats;
mod sweep;
mod table;
mod top;

use std::ffi::OsString;

/// Entry point that the C library calls. On glibc the standard library gets the arguments without
/// it (`.init_array`).
#[cfg_attr(not(test), allow(unsafe_code), unsafe(export_name = "main"))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn entry(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    let sigpipe = os::ignore_sigpipe();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    std::process::exit(i32::from(dispatch(&arguments, &sigpipe)))
}

/// Runs the subcommand and returns the exit status.
fn dispatch(arguments: &[OsString], sigpipe: &os::Disposition) -> u8 {
    match arguments.get(1).and_then(|name| name.to_str()) {
        // Skips the whole definition, which keeps `run` fast.
        Some("run") => return run::main(&arguments[1..], sigpipe),
        Some("bench") => {
            output::print_message("the experiments are in uncopy-bench; build it with: make bench");
            return output::EXIT_USAGE;
        }
        _ => {}
    }
    let matches = match args::for_arguments(arguments).try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return args::print_clap_error(&error),
    };
    match matches.subcommand() {
        Some(("doctor", matches)) => doctor::main(matches),
        Some(("profile", matches)) => profile::main(matches, sigpipe),
        Some(("report", matches)) => report::main(matches),
        Some(("ps", matches)) => ps::main(matches),
        Some(("top", matches)) => top::main(matches),
        Some(("metrics", matches)) => metrics::main(matches),
        Some(("stats", matches)) => stats::main(matches),
        Some(("release", matches)) => release::main(matches),
        Some(("log", matches)) => log::main(matches),
        Some(("net", matches)) => net::main(matches),
        Some(("service", matches)) => service::main(matches),
        Some(("completions", matches)) => manpages::completions(matches),
        Some(("man", matches)) => manpages::man(matches),
        _ => output::EXIT_USAGE,
    }
}
