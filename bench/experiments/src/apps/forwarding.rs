//! Programs that forward a connection's bytes: socat, and stunnel, which encrypts them.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use uncopy_testbed::Package;

use super::environment::Environment;
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::clients::pipe::{Backend, Echoes, ShortEchoes};
use crate::kit::network::client_address;
use crate::kit::{Random, Result, RunningServer, While, format_size};

const SOCAT: Package = Package::new("socat", "socat", &["-V"]);
const STUNNEL: Package = Package::new("stunnel", "stunnel4", &["-version"]);
/// Connections with a message in flight.
const CONNECTIONS: u32 = 4;
/// Length of the message for which a connection is made, bytes.
const SHORT_BYTES: usize = 64 << 10;

/// Connections forwarded by socat.
pub const PLAIN: Case = Case {
    name: "socat",
    description: "socat -b 1048576, one process per connection, messages of 64 KiB and 1 MiB to a server \
                  behind it and back, 4 connections",
    paper: "not in the papers",
    packages: &[SOCAT],
    points: |effort| points(effort, "socat", |size_bytes| Socat { size_bytes, is_short: false }),
    remark: "socat writes from the buffer that it read into, so the program makes no copy",
    scheme: Scheme::Slices,
};

/// socat, whose processes live for one message.
pub const SHORT: Case = Case {
    name: "socat-short",
    description: "socat -b 1048576, one process per message of 64 KiB to a server behind it and back, 4 in \
                  flight",
    paper: "not in the papers",
    packages: &[SOCAT],
    points: |_| {
        let work = Socat { size_bytes: SHORT_BYTES, is_short: true };
        vec![Point::sized(
            format!("socat {}, a process each", format_size(SHORT_BYTES as u64)),
            SHORT_BYTES,
            work,
        )]
    },
    remark: "a process exits before elision can save time",
    // The processor time of ended processes has a resolution of 10 ms.
    scheme: Scheme::Runs,
};

/// Connections encrypted and decrypted by stunnel.
pub const ENCRYPTED: Case = Case {
    name: "stunnel",
    description: "stunnel as the client's end of a TLS connection to another stunnel, messages of 64 KiB and 1 MiB to a server \
            behind both and back, 4 connections",
    paper: "not in the papers",
    packages: &[STUNNEL],
    points: |effort| points(effort, "stunnel", |size_bytes| Stunnel { size_bytes }),
    remark: "stunnel encrypts or decrypts every byte, in records of at most 16 KiB, so no copy can be elided",
    scheme: Scheme::Slices,
};

fn points<W: AppServer + 'static>(effort: Effort, name: &str, work: impl Fn(usize) -> W) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        Point::sized(format!("{name} {}", format_size(size_bytes as u64)), size_bytes, work(size_bytes))
    })
}

#[derive(Debug)]
struct Socat {
    size_bytes: usize,
    /// Whether each message has a connection of its own.
    is_short: bool,
}

impl AppServer for Socat {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let size_bytes = self.size_bytes;
        let backend = Backend::start(client_address().into(), size_bytes, environment.client_processors())?;
        let (mut server, address) = environment.start_server(SOCAT.program, |address, _| {
            let (ip, port) = (address.ip(), address.port());
            let here = format!("TCP4-LISTEN:{port},bind={ip},reuseaddr,fork,nodelay");
            let there = format!("TCP4:{},nodelay", backend.address());
            Ok(["-b", "1048576", &here, &there].map(OsString::from).into())
        })?;
        server.process().tells_its_signal();
        if self.is_short {
            let open = move |number| Ok(ShortEchoes::new(address, size_bytes, u64::from(number)));
            return Ok(Box::new(
                LoadedServer::with_clients(environment, server, CONNECTIONS, open)?.with_backends(backend),
            ));
        }
        let open = move |number| Echoes::open(address, size_bytes, u64::from(number));
        Ok(Box::new(
            LoadedServer::with_clients(environment, server, CONNECTIONS, open)?.with_backends(backend),
        ))
    }
}

#[derive(Debug)]
struct Stunnel {
    size_bytes: usize,
}

impl AppServer for Stunnel {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let size_bytes = self.size_bytes;
        let backend = Backend::start(client_address().into(), size_bytes, environment.client_processors())?;
        let key = Random::new(size_bytes as u64).next();
        let (far, between) = environment
            .start_helper(environment.program(STUNNEL.program)?, |address, directory| {
                configure(address, backend.address(), directory, key, "")
            })?;
        let (server, address) = environment.start_server(STUNNEL.program, |address, directory| {
            configure(address, between, directory, key, "client = yes\nPSKidentity = bench\n")
        })?;
        let open = move |number| Echoes::open(address, size_bytes, u64::from(number));
        Ok(Box::new(
            LoadedServer::with_clients(environment, server, CONNECTIONS, open)?.with_backends((far, backend)),
        ))
    }
}

/// Writes the configuration of one end, which shares `key` with the other; returns the arguments.
fn configure(
    here: SocketAddr,
    there: SocketAddr,
    directory: &Path,
    key: u64,
    end: &str,
) -> Result<Vec<OsString>> {
    let (file, keys) = (directory.join("stunnel.conf"), directory.join("keys"));
    let writing = "writing stunnel's configuration";
    let mut options = std::fs::OpenOptions::new();
    let secret = options.write(true).create_new(true).mode(0o600).open(&keys).doing(writing)?;
    std::io::Write::write_all(&mut &secret, format!("bench:{key:032x}\n").as_bytes()).doing(writing)?;
    let configuration = format!(
        "foreground = yes\npid =\nsyslog = no\ndebug = err\n[bench]\naccept = {here}\nconnect = {there}\n\
         ciphers = PSK\nPSKsecrets = {}\n{end}",
        keys.display()
    );
    std::fs::write(&file, configuration).doing(writing)?;
    Ok(vec![file.into()])
}
