//! memcached by TCP and UDP (ZCopy section 4.1), under clients of ours that compare every byte.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use super::programs::Need;
use super::stage::Stage;
use super::{By, Case, Effort, Point, Work};
use crate::clients::cache::{Clients, Content, Peer, Work as Exchanges};
use crate::kit::traffic::Load;
use crate::kit::{Result, Running, Server, size};

const MEMCACHED: Need = Need::new("memcached", "memcached", &["--version"]);
const KEYS: usize = 64;
const CONNECTIONS: usize = 8;
const PAPER: &str = "ZCopy section 4.1, values from its allocator, which is a change of the program's source: UDP GET \
                     +28.7 % at 512 bytes, +41.1 % at 768, equal at 1024 (limit of the network); TCP GET +40.8 % at \
                     512 bytes, +30.8 % at 1024; slower below 256 bytes";
const REMARK: &str =
    "a value is received where it is kept and sent from there: memcached itself copies nothing";

/// Values of any length by TCP.
pub const TCP: Case = Case {
    name: "memcached-tcp",
    about: "memcached, GET by TCP of 100 bytes to 512 KiB, 8 connections, every byte compared",
    paper: PAPER,
    needs: &[MEMCACHED],
    points: |effort| {
        let sizes = [100, 512, 1024, 4096, 16 << 10, 64 << 10, 512 << 10];
        points(effort, &sizes, |size_bytes| Values::new(size_bytes, Protocol::Tcp, u64::MAX))
    },
    remark: REMARK,
    by: By::Slices,
};

/// Values of less than a packet by UDP.
pub const UDP: Case = Case {
    name: "memcached-udp",
    about: "memcached, GET by UDP of 256 bytes to 1 KiB, 8 clients, every byte compared",
    paper: PAPER,
    needs: &[MEMCACHED],
    points: |effort| {
        points(effort, &[256, 512, 768, 1024], |size_bytes| Values::new(size_bytes, Protocol::Udp, u64::MAX))
    },
    remark: REMARK,
    by: By::Slices,
};

/// Larger values, of which some are set.
pub const LARGE: Case = Case {
    name: "memcached",
    about: "memcached by TCP, values of 16 KiB to 512 KiB, one SET in ten operations, 8 connections, every byte compared",
    paper: "not in the papers at these sizes",
    needs: &[MEMCACHED],
    points: |effort| {
        points(effort, &[16 << 10, 64 << 10, 512 << 10], |size_bytes| {
            Values::new(size_bytes, Protocol::Tcp, 10)
        })
    },
    remark: REMARK,
    by: By::Slices,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

/// The second of `sizes`, or all of them.
fn points(effort: Effort, sizes: &[usize], values: impl Fn(usize) -> Values) -> Vec<Point> {
    effort.points(&sizes[1..2], sizes, |size_bytes| {
        let values = values(size_bytes);
        let size = size(size_bytes as u64);
        let title = match (values.protocol, values.operations_per_set) {
            (Protocol::Tcp, u64::MAX) => format!("memcached GET {size}"),
            (Protocol::Udp, _) => format!("memcached UDP GET {size}"),
            (Protocol::Tcp, _) => format!("memcached {size}, 10 % SET"),
        };
        Point::sized(title, size_bytes, values)
    })
}

fn arguments(address: SocketAddr) -> Vec<OsString> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    // -u is for root, who may not run it otherwise; anybody else's is ignored.
    ["-l", &ip, "-p", &port, "-U", &port, "-t", "1", "-m", "256", "-I", "8m", "-u", "root"]
        .map(OsString::from)
        .to_vec()
}

#[derive(Debug)]
struct Values {
    content: Content,
    protocol: Protocol,
    operations_per_set: u64,
}

impl Values {
    fn new(size_bytes: usize, protocol: Protocol, operations_per_set: u64) -> Self {
        Self { content: Content::new(size_bytes, KEYS), protocol, operations_per_set }
    }
}

impl Work for Values {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) = stage.server(MEMCACHED.program, |address, _| Ok(arguments(address)))?;
        self.content.store(address)?;
        let work = Exchanges {
            peer: match self.protocol {
                Protocol::Tcp => Peer::Tcp(address),
                Protocol::Udp => Peer::Udp(address),
            },
            content: &self.content,
            operations_per_set: self.operations_per_set,
            connections: CONNECTIONS,
        };
        let clients = Clients::open(&work, 1, stage.client_processors())?;
        Ok(Box::new(Caching { clients, server }))
    }
}

/// A cache and its clients.
#[derive(Debug)]
pub struct Caching<'a> {
    // Dropped in this order: the connections end before the server.
    /// Its clients.
    pub clients: Clients<'a>,
    /// The server.
    pub server: Server,
}

impl Running for Caching<'_> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        self.clients.load(duration)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.clients.reconnect()
    }

    fn notes(&mut self) -> Vec<String> {
        self.clients.notes()
    }
}
