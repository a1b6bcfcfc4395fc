//! `uncopy-cached`, started for one measurement on free ports of the loopback address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::thread::CpuSet;

use crate::kit::network::server_address;
use crate::kit::{Failure, Launcher, Result, Server, Side, TemporaryDirectory, processors};
use crate::servers::redis::on_path;

/// Name of the program.
pub const NAME: &str = "uncopy-cached";
/// Memory besides the values themselves, MiB.
const SPARE_MIB: usize = 64;

/// A server that listens.
#[derive(Debug)]
pub struct CacheServer {
    /// The process.
    pub server: Server,
    /// Where it listens by TCP.
    pub tcp: SocketAddr,
    /// Where it listens by UDP.
    pub udp: SocketAddr,
    /// The processors that are the client's: all that the server does not run on, if it has not all.
    pub client_processors: Option<CpuSet>,
}

/// The program `name`: beside `uncopy`, or on `PATH`.
///
/// # Errors
/// [`Failure`] that says where it was looked for.
pub fn find(launcher: &Launcher, name: &str) -> Result<PathBuf> {
    let beside = launcher.beside(name);
    if beside.is_file() {
        return Ok(beside);
    }
    on_path(&std::env::var_os("PATH").unwrap_or_default(), name).ok_or_else(|| {
        let beside = beside.display();
        Failure::new(format!("there is neither {beside} nor an {name} on PATH; build it with: make build"))
    })
}

/// Starts it with `threads` threads, each with a processor of its own if there are more than that, and waits until it
/// listens.
///
/// # Errors
/// [`Failure`] when it cannot be started or does not listen.
pub fn start(
    launcher: &Launcher,
    program: &Path,
    transmit: &str,
    threads: usize,
    values_bytes: usize,
) -> Result<CacheServer> {
    let memory = (2 * values_bytes).div_ceil(1 << 20) + SPARE_MIB;
    let arguments = [
        format!("--listen={}", server_address()),
        "--port=-1".to_owned(),
        "--udp-port=-1".to_owned(),
        "--datagram-bytes=65507".to_owned(),
        "--item-limit=64m".to_owned(),
        format!("--memory-limit={memory}"),
        format!("--threads={threads}"),
        format!("--transmit={transmit}"),
    ];
    let mut command = launcher.command(Side::Plain, program.as_os_str(), &arguments);
    let processors = processors::apart(threads);
    processors::bind(&mut command, processors.map(|(servers, _)| servers));
    let mut server = Server::start(command, NAME, TemporaryDirectory::make()?)?;
    let line = server.first_line()?;
    let address = |kind: &str| {
        let mut words = line.split([' ', ';']).skip_while(|word| *word != kind);
        words.nth(1).and_then(|word| word.parse().ok())
    };
    let (Some(tcp), Some(udp)) = (address("tcp"), address("udp")) else {
        return Err(Failure::new(format!("{NAME} wrote {}", line.escape_debug())));
    };
    Ok(CacheServer { server, tcp, udp, client_processors: processors.map(|(_, others)| others) })
}
