//! A service of user-level TCP (`uncopy net`) for one server, whose clients are at the kernel's side of its device.
//!
//! ```text
//!   clients (kernel) ── TUN device ── uncopy net ── lane ── server under uncopy run --net
//! ```

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::process::Pid;

use crate::kit::side::ApiCopies;
use crate::kit::traffic::Load;
use crate::kit::{Launcher, Result, Running, Sample, Server, TemporaryDirectory, processors};

/// Where its directory is: the path of a listener of its has to fit a socket's name.
const PARENT: &str = "/dev/shm";
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
        // Of 198.18.0.0/15, behind what a pair of virtual devices has; a device is gone long before its number comes again.
        let number = MADE.fetch_add(1, Ordering::Relaxed) % 250 + 1;
        let host = Ipv4Addr::new(198, 18, number, 2);
        let directory = TemporaryDirectory::make_in(Path::new(PARENT))?;
        let mut command = launcher.net();
        command.args(["--tun", &format!("uncopy{number}"), "--address", &format!("{host}/30")]);
        let copies = if copies == ApiCopies::Make { "make" } else { "elide" };
        command.args(["--api-copies", copies, "--socket"]).arg(control(&directory));
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
pub struct Served {
    // Dropped in this order.
    running: Box<dyn Running>,
    service: Service,
}

impl Served {
    /// `running` talks through `service`.
    #[must_use]
    pub fn new(running: Box<dyn Running>, service: Service) -> Self {
        Self { running, service }
    }
}

impl Running for Served {
    fn server(&mut self) -> &mut Server {
        self.running.server()
    }

    fn beside(&self) -> Vec<Pid> {
        vec![self.service.pid()]
    }

    fn clients_cpu_ns(&self) -> Option<u64> {
        self.running.clients_cpu_ns()
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
