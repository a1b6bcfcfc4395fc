//! The `uncopy` command: `run` starts a program with `libuncopy.so` preloaded, `doctor` says
//! whether that can work, `ps` lists the programs that run so, `top` shows them live, `stats` reads their counters, `metrics` gives those to collectors, `release` turns its views back
//! into plain memory, `log` shows and recovers logs, `net` serves a user-level TCP, `service` lets services of systemd run so, `profile` shows where a program copies and `report` shows it again, `bench` measures,
//! and `completions` and `man` describe the command itself.
//!
//! The C entry point is used instead of Rust's, which would ignore `SIGPIPE` before anything could
//! see what it was: CMD must inherit exactly the signals that `uncopy run` was given.
#![cfg_attr(not(test), no_main)]
#![deny(unsafe_code)]

mod atomic_write;
mod costs;
mod doctor;
mod elf;
mod environment;
mod explain;
mod library;
mod line;
mod live;
mod log;
mod metrics;
mod net;
mod os;
mod output;
mod pages;
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

/// The entry point that the C library calls. The standard library of a glibc target knows the
/// arguments without it (`.init_array`).
#[cfg_attr(not(test), allow(unsafe_code), unsafe(export_name = "main"))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn entry(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    let sigpipe = os::ignore_sigpipe();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    std::process::exit(i32::from(dispatch(&arguments, &sigpipe)))
}

/// Runs the subcommand and returns the exit status.
fn dispatch(arguments: &[OsString], sigpipe: &os::Disposition) -> u8 {
    // The two that take foreign arguments do without the whole definition, which keeps `run` fast.
    match arguments.get(1).and_then(|name| name.to_str()) {
        Some("run") => return run::main(&arguments[1..], sigpipe),
        Some("bench") => return uncopy_bench::main(&arguments[2..]),
        _ => {}
    }
    let matches = match line::for_arguments(arguments).try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return line::answer(&error),
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
        Some(("completions", matches)) => pages::completions(matches),
        Some(("man", matches)) => pages::man(matches),
        _ => output::EXIT_USAGE,
    }
}
