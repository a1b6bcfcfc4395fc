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

use crate::kit::keeper;
use crate::kit::side::ApiCopies;
use crate::kit::traffic::LoadResult;
use crate::kit::{
    Failure, Launcher, Result, RunningServer, Sample, Server, Side, TemporaryDirectory, network, processors,
    start_server,
};

/// Parent of the service's directory, short enough for the paths of its listeners to fit a socket address.
const PARENT: &str = "/dev/shm";
/// Port of a server that has its service's address for itself.
const PORT: u16 = 6379;
/// Output of a service that is ready for programs.
const READY: &str = "run programs by";

/// Attempts at a port that another program may take in between.
const PORT_ATTEMPTS: usize = 3;

/// Number of services so far: each gets a device and a network of its own.
static SERVICES_STARTED: AtomicU8 = AtomicU8::new(0);

/// A service that is ready for programs.
#[derive(Debug)]
pub struct Service {
    server: Server,
    host: Ipv4Addr,
}

impl Service {
    /// Starts a service on the processors of a server of one thread.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] with the service's last output when it is not ready in time.
    pub fn start(launcher: &Launcher, copies: ApiCopies) -> Result<Self> {
        Self::start_with(launcher, copies, |command, _| Ok(command))
    }

    /// Starts a service by the command that `by` makes of the plain one and its directory.
    fn start_with(
        launcher: &Launcher,
        copies: ApiCopies,
        by: impl FnOnce(Command, &TemporaryDirectory) -> Result<Command>,
    ) -> Result<Self> {
        // Networks of 198.18.0.0/15 after that of the veth pair; a device is gone long before its number is reused.
        let number = SERVICES_STARTED.fetch_add(1, Ordering::Relaxed) % 250 + 1;
        let host = Ipv4Addr::new(198, 18, number, 2);
        let directory = TemporaryDirectory::make_in(Path::new(PARENT))?;
        let mut command = launcher.net_command();
        command.args(["--tun", &format!("uncopy{number}"), "--address", &format!("{host}/30")]);
        let copies = if copies == ApiCopies::Make { "make" } else { "elide" };
        command.args(["--api-copies", copies, "--socket"]).arg(control_path(&directory));
        let mut command = by(command, &directory)?;
        processors::bind_command(&mut command, processors::of_server(processors::ONE_THREAD));
        let mut server = Server::start(command, "uncopy net", directory)?;
        server.wait_until("begin", |server| server.stderr_text().contains(READY))?;
        Ok(Self { server, host })
    }

    /// Returns the address of the service.
    #[must_use]
    pub const fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Returns the process of the service.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.server.pid()
    }

    /// Returns the path of the service's control socket.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        control_path(self.server.directory())
    }
}

fn control_path(directory: &TemporaryDirectory) -> PathBuf {
    directory.join("net/control")
}

/// A server with its clients, and the service of its connections.
struct ServiceServer<'a> {
    // Dropped in this order, so that the server ends before its service.
    running: Box<dyn RunningServer + 'a>,
    service: Service,
}

/// Starts a server by `start` under `side`, after a service if the side has one, whose command `by` may change.
///
/// # Errors
/// The errors of `start` and of starting the service.
pub fn start_behind_service<'a>(
    launcher: &Launcher,
    side: Side,
    by: impl FnOnce(Command, &TemporaryDirectory) -> Result<Command>,
    start: impl FnOnce(&Launcher, TcpStack) -> Result<Box<dyn RunningServer + 'a>>,
) -> Result<Box<dyn RunningServer + 'a>> {
    let Some(copies) = side.service() else { return start(launcher, TcpStack::Kernel) };
    let by = |mut command: Command, directory: &TemporaryDirectory| {
        if side.receives_into_log() {
            command.arg("--memory-dir").arg(directory.join(keeper::LOG_DIRECTORY));
        }
        by(command, directory)
    };
    let service = Service::start_with(launcher, copies, by)?;
    let running = start(&launcher.with_service(&service.control()), TcpStack::Service(service.host))?;
    Ok(Box::new(ServiceServer { running, service }))
}

/// The network location of a server.
#[derive(Clone, Copy, Debug)]
pub enum TcpStack {
    /// The servers' network namespace, with the kernel's TCP.
    Kernel,
    /// User-level TCP of the service at this address.
    Service(Ipv4Addr),
}

impl TcpStack {
    /// Returns the address that the server listens on.
    #[must_use]
    pub fn host(self) -> Ipv4Addr {
        match self {
            Self::Kernel => network::server_address(),
            Self::Service(host) => host,
        }
    }

    /// Returns an address and port that nothing listens on.
    ///
    /// # Errors
    /// The errors of [`network::free_address`].
    pub fn free_address(self) -> Result<SocketAddr> {
        match self {
            Self::Kernel => network::free_address(),
            Self::Service(host) => Ok(SocketAddr::from((host, PORT))),
        }
    }

    /// Starts a server in this location.
    ///
    /// # Errors
    /// The errors of [`Server::start`].
    pub fn start(self, command: Command, title: &str, directory: TemporaryDirectory) -> Result<Server> {
        match self {
            Self::Kernel => start_server(command, title, directory),
            Self::Service(_) => Server::start(command, title, directory),
        }
    }
}

/// Runs `start` with a free address of `stack`, and again if another program took the port in between.
///
/// # Errors
/// The errors of the last `start`.
pub fn on_free_port<T>(
    stack: TcpStack,
    mut start: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<(T, SocketAddr)> {
    let mut outcome = Err(Failure::new("it was not started"));
    for _ in 0..PORT_ATTEMPTS {
        let address = stack.free_address()?;
        outcome = start(address).map(|started| (started, address));
        match &outcome {
            Err(failure) if failure.to_string().to_lowercase().contains("address already in use") => {}
            _ => break,
        }
    }
    outcome
}

impl RunningServer for ServiceServer<'_> {
    fn server(&mut self) -> &mut Server {
        self.running.server()
    }

    fn service_pids(&self) -> Vec<Pid> {
        vec![self.service.pid()]
    }

    fn clients_cpu_ns(&self) -> Option<u64> {
        self.running.clients_cpu_ns()
    }

    fn warm_up(&mut self, duration: Duration) -> Result<u64> {
        self.running.warm_up(duration)
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
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

    fn add_final_figures(&mut self, end: &mut Sample) {
        self.running.add_final_figures(end);
    }

    fn stop(&mut self) -> Result<()> {
        let stopped = self.running.stop();
        self.service.server.process().stop()?;
        stopped
    }
}
