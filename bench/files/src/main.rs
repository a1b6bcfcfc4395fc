//! `uncopy-files`: a plain HTTP/1.1 server of the files below a directory, for the experiments: `uncopy-bench files`
//! compares its ways to send a file, other experiments have the server behind a proxy. Nothing installs the program.
//! There are no ranges, conditions, content types or indexes.
//!
//! ```text
//!   server                 threads, each with an epoll and connections of its own
//!   connection, request    one connection: requests in, answers out
//!   root                   the requested file, found by the kernel below the directory
//!   ways, mapping, cache   the ways to send a file; mapped files, and files in twin memory; socket: sends of memory
//! ```

mod cache;
mod connection;
mod mapping;
mod request;
mod root;
mod server;
mod socket;
mod ways;

use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Parser;
use uncopy_core::size;

use crate::cache::Cache;
use crate::connection::ServeConfig;
use crate::root::Root;
use crate::server::{Server, listen_at};
use crate::ways::Way;

/// Serve the files of a directory over HTTP/1.1
#[derive(Debug, Parser)]
#[command(name = "uncopy-files", version)]
struct Arguments {
    /// Directory to serve; links that lead out of it are not followed
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Address to listen on; port 0 is any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Way to send the files
    #[arg(long, value_enum, default_value = "sendfile")]
    way: Way,
    /// Number of threads, each with its own connections [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// With --way twin: minimum size to send by reference [default: found by measuring]
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| size::parse_within::<usize>(text, 1..=1 << 40))]
    reference_from: Option<usize>,
    /// Time limit of a request, and of each 64 KiB of a response
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_limit: u64,
}

fn main() -> ExitCode {
    match serve(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("uncopy-files: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until SIGTERM or SIGINT comes.
fn serve(arguments: &Arguments) -> Result<(), String> {
    let Arguments { directory, listen, way, threads, .. } = arguments;
    if *way == Way::Twin {
        uncopy_transmit::trust_descriptors();
        if arguments.reference_from.is_some() {
            uncopy_transmit::set_break_even(arguments.reference_from);
        }
        uncopy_twin::probe();
    }
    let root =
        Root::open(directory).map_err(|error| format!("cannot serve {}: {error}", directory.display()))?;
    let (listener, address) =
        listen_at(*listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let (cache, idle_limit) = (Cache::default(), Duration::from_secs(arguments.idle_limit));
    let config = ServeConfig { root, way: *way, cache, idle_limit };
    let server = Server { config, listener, open_connections: AtomicUsize::new(0) };
    let ending = block_ending_signals();
    let threads = threads.map_or_else(|| available_parallelism().map_or(1, NonZero::get), usize::from);
    server.start(threads).map_err(|error| format!("cannot start a thread: {error}"))?;
    // The server works without a reader of this line.
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "uncopy-files: listening on http://{address}/").and_then(|()| stdout.flush());
    wait_for_signal(&ending);
    Ok(())
}

/// Blocks the signals that end the server, in this thread and in those that it starts from here on.
fn block_ending_signals() -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid, empty sigset_t (glibc); the local outlives the calls, which write to it or
    // read it. Both numbers are signals. The null pointer says that the old mask is not wanted.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    }
}

/// Waits for one of `signals`, which all threads block.
fn wait_for_signal(signals: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: both pointers come from references that outlive the call, which reads the set and writes the number.
    while unsafe { libc::sigwait(signals, &raw mut signal) } != 0 {}
}
