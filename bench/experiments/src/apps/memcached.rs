//! memcached by TCP and UDP (ZCopy section 4.1), with clients that compare every byte.

use std::net::SocketAddr;

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Memcached, Service};

use super::environment::Stage;
use super::loaded_server::Serving;
use super::{By, Case, Effort, Point, Work};
use crate::clients::cache::{Clients, Content, Peer, Work as Exchanges};
use crate::kit::{Result, Running, Server, size};

const MEMCACHED: Package = Memcached::PROGRAM;
const SERVICE: Memcached = Memcached { threads: 1, memory_mib: 256, value_mib: 8, by_udp: true };
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

/// Returns a point for the second of `sizes`, or for all of them.
fn points(effort: Effort, sizes: &[usize], values: impl Fn(usize) -> Values) -> Vec<Point> {
    effort.points(&sizes[1..2], sizes, |size_bytes| {
        let values = values(size_bytes);
        Point::sized(values.title(), size_bytes, values)
    })
}

/// Length of the values, and the load on them.
#[derive(Debug)]
pub struct Values {
    content: Content,
    size_bytes: usize,
    protocol: Protocol,
    operations_per_set: u64,
}

impl Values {
    fn new(size_bytes: usize, protocol: Protocol, operations_per_set: u64) -> Self {
        Self { content: Content::new(size_bytes, KEYS), size_bytes, protocol, operations_per_set }
    }

    /// Values of this length over TCP; one of `operations_per_set` operations is a SET, the others are GET.
    #[must_use]
    pub fn by_tcp(size_bytes: usize, operations_per_set: u64) -> Self {
        Self::new(size_bytes, Protocol::Tcp, operations_per_set)
    }

    /// Length of a value, bytes.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns the point's name in tables.
    #[must_use]
    pub fn title(&self) -> String {
        let size = size(self.size_bytes as u64);
        match (self.protocol, self.operations_per_set) {
            (Protocol::Tcp, u64::MAX) => format!("memcached GET {size}"),
            (Protocol::Udp, _) => format!("memcached UDP GET {size}"),
            (Protocol::Tcp, _) => format!("memcached {size}, 10 % SET"),
        }
    }

    /// Starts the program `name`, a memcached next to `uncopy`, with its clients.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server cannot be started, or returns wrong values.
    pub fn start_own<'a>(&'a self, stage: &Stage<'_>, name: &str) -> Result<Box<dyn Running + 'a>> {
        let (server, address) =
            stage.own_server(name, |address, directory| SERVICE.arguments(address, directory))?;
        self.serve(stage, server, address)
    }

    /// Stores the values in `server` and connects its clients.
    fn serve<'a>(
        &'a self,
        stage: &Stage<'_>,
        server: Server,
        address: SocketAddr,
    ) -> Result<Box<dyn Running + 'a>> {
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
        Ok(Box::new(Serving::of(server, clients)))
    }
}

impl Work for Values {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) =
            stage.server(MEMCACHED.program, |address, directory| SERVICE.arguments(address, directory))?;
        self.serve(stage, server, address)
    }
}
