//! A service of user-level TCP (`uncopy net`) for one server, whose clients are at the kernel's side of its device.
//!
//! ```text
//!   clients (kernel) ── TUN device ── uncopy net ── lane ── server under uncopy run --net
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::process::Pid;

use crate::kit::side::ApiCopies;
use crate::kit::traffic::Load;
use crate::kit::{Launcher, Result, Running, Sample, Server, Side, TemporaryDirectory, network, processors};

/// Where its directory is: the path of a listener of its has to fit a socket's name.
const PARENT: &str = "/dev/shm";
/// Where a server listens whose address is its service's alone.
const PORT: u16 = 6379;
/// What it says when programs can be started.
const READY: &str = "run programs by";

/// Services so far: each has a device and a network of its own.
static MADE: AtomicU8 = AtomicU8::new(0);

/// A service that is ready.
#[derive(Debug)]
pub struct Service {
    server: Server,
    host: Ipv4Addr,
}

impl Service {
    /// Starts one on the processors of a server of one thread.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] with its last words when it does not begin in time.
    pub fn start(launcher: &Launcher, copies: ApiCopies) -> Result<Self> {
        Self::start_by(launcher, copies, |command, _| Ok(command))
    }

    /// The same by what `by` makes of the command for its directory.
    fn start_by(
        launcher: &Launcher,
        copies: ApiCopies,
        by: impl FnOnce(Command, &TemporaryDirectory) -> Result<Command>,
    ) -> Result<Self> {
        // Of 198.18.0.0/15, behind what a pair of virtual devices has; a device is gone long before its number comes again.
        let number = MADE.fetch_add(1, Ordering::Relaxed) % 250 + 1;
        let host = Ipv4Addr::new(198, 18, number, 2);
        let directory = TemporaryDirectory::make_in(Path::new(PARENT))?;
        let mut command = launcher.net();
        command.args(["--tun", &format!("uncopy{number}"), "--address", &format!("{host}/30")]);
        let copies = if copies == ApiCopies::Make { "make" } else { "elide" };
        command.args(["--api-copies", copies, "--socket"]).arg(control(&directory));
        let mut command = by(command, &directory)?;
        processors::bind(&mut command, processors::of_server(processors::ONE_THREAD));
        let mut server = Server::start_among_clients(command, "uncopy net", directory)?;
        server.wait_until("begin", |server| server.stderr_text().contains(READY))?;
        Ok(Self { server, host })
    }

    /// Its address.
    #[must_use]
    pub const fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.server.pid()
    }

    /// Its control socket.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        control(self.server.directory())
    }
}

fn control(directory: &TemporaryDirectory) -> PathBuf {
    directory.join("net/control")
}

/// A server with its clients, and the service that it talks through.
struct Served<'a> {
    // Dropped in this order.
    running: Box<dyn Running + 'a>,
    service: Service,
}

/// Starts by `start` what runs under `side`: with a service where its connections are one's, by what `by` makes of its command.
///
/// # Errors
/// As `start`, and [`Service::start`].
pub fn served<'a>(
    launcher: &Launcher,
    side: Side,
    by: impl FnOnce(Command, &TemporaryDirectory) -> Result<Command>,
    start: impl FnOnce(&Launcher, Place) -> Result<Box<dyn Running + 'a>>,
) -> Result<Box<dyn Running + 'a>> {
    let Some(copies) = side.service() else { return start(launcher, Place::Kernel) };
    let service = Service::start_by(launcher, copies, by)?;
    let running = start(&launcher.served_by(&service.control()), Place::Service(service.host))?;
    Ok(Box::new(Served { running, service }))
}

/// Where a server is.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In the servers' network namespace.
    Kernel,
    /// Behind the service of this address.
    Service(Ipv4Addr),
}

impl Place {
    /// Where it listens.
    #[must_use]
    pub fn host(self) -> Ipv4Addr {
        match self {
            Self::Kernel => network::server_address(),
            Self::Service(host) => host,
        }
    }

    /// Where nobody listens.
    ///
    /// # Errors
    /// As [`network::free_address`].
    pub fn free_address(self) -> Result<SocketAddr> {
        match self {
            Self::Kernel => network::free_address(),
            Self::Service(host) => Ok(SocketAddr::from((host, PORT))),
        }
    }

    /// Starts a server.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start(self, command: Command, title: &str, directory: TemporaryDirectory) -> Result<Server> {
        match self {
            Self::Kernel => Server::start(command, title, directory),
            Self::Service(_) => Server::start_among_clients(command, title, directory),
        }
    }
}

impl Running for Served<'_> {
    fn server(&mut self) -> &mut Server {
        self.running.server()
    }

    fn beside(&self) -> Vec<Pid> {
        vec![self.service.pid()]
    }

    fn clients_cpu_ns(&self) -> Option<u64> {
        self.running.clients_cpu_ns()
    }

    fn prepare(&mut self, duration: Duration) -> Result<u64> {
        self.running.prepare(duration)
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        self.running.load(duration)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.running.reconnect()
    }

    fn verify(&mut self) -> Result<u64> {
        self.running.verify()
    }

    fn notes(&mut self) -> Vec<String> {
        self.running.notes()
    }

    fn complete(&mut self, end: &mut Sample) {
        self.running.complete(end);
    }

    fn stop(&mut self) -> Result<()> {
        let stopped = self.running.stop();
        self.service.server.process().stop()?;
        stopped
    }
}
