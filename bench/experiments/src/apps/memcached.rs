//! memcached by TCP and UDP (ZCopy section 4.1), with clients that compare every byte.

use std::net::SocketAddr;

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Memcached, Service};

use super::environment::Environment;
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::clients::cache::{CacheAddress, CacheLoad, Clients, Content};
use crate::kit::{Result, RunningServer, Server, format_size};

const MEMCACHED: Package = Memcached::PROGRAM;
const CONFIGURATION: Memcached = Memcached { threads: 1, memory_mib: 256, value_mib: 8, by_udp: true };
const KEYS: usize = 64;
const CONNECTIONS: usize = 8;
const PAPER: &str = "ZCopy section 4.1, memcached modified to use ZCopy's allocator: UDP GET +28.7 % at 512 \
                     bytes, +41.1 % at 768, equal at 1024 (limit of the network); TCP GET +40.8 % at 512 \
                     bytes, +30.8 % at 1024; slower below 256 bytes";
const REMARK: &str =
    "memcached receives a value where it stores it, and sends it from there, so the program makes no copy";

/// Values of any length by TCP.
pub const TCP: Case = Case {
    name: "memcached-tcp",
    description: "memcached, GET over TCP of 100 bytes to 512 KiB, 8 connections, every byte compared",
    paper: PAPER,
    packages: &[MEMCACHED],
    points: |effort| {
        let sizes = [100, 512, 1024, 4096, 16 << 10, 64 << 10, 512 << 10];
        points(effort, &sizes, |size_bytes| Values::new(size_bytes, Protocol::Tcp, u64::MAX))
    },
    remark: REMARK,
    scheme: Scheme::Slices,
};

/// Values of less than a packet by UDP.
pub const UDP: Case = Case {
    name: "memcached-udp",
    description: "memcached, GET over UDP of 256 bytes to 1 KiB, 8 clients, every byte compared",
    paper: PAPER,
    packages: &[MEMCACHED],
    points: |effort| {
        points(effort, &[256, 512, 768, 1024], |size_bytes| Values::new(size_bytes, Protocol::Udp, u64::MAX))
    },
    remark: REMARK,
    scheme: Scheme::Slices,
};

/// Larger values, of which some are set.
pub const LARGE: Case = Case {
    name: "memcached",
    description: "memcached over TCP, values of 16 KiB to 512 KiB, one SET in ten operations, 8 connections, \
                  every byte compared",
    paper: "not in the papers at these sizes",
    packages: &[MEMCACHED],
    points: |effort| {
        points(effort, &[16 << 10, 64 << 10, 512 << 10], |size_bytes| {
            Values::new(size_bytes, Protocol::Tcp, 10)
        })
    },
    remark: REMARK,
    scheme: Scheme::Slices,
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
        let size = format_size(self.size_bytes as u64);
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
    pub fn start_own<'a>(
        &'a self,
        environment: &Environment<'_>,
        name: &str,
    ) -> Result<Box<dyn RunningServer + 'a>> {
        let (server, address) = environment
            .start_own_server(name, |address, directory| CONFIGURATION.arguments(address, directory))?;
        self.serve(environment, server, address)
    }

    /// Stores the values in `server` and connects its clients.
    fn serve<'a>(
        &'a self,
        environment: &Environment<'_>,
        server: Server,
        address: SocketAddr,
    ) -> Result<Box<dyn RunningServer + 'a>> {
        self.content.store(address)?;
        let work = CacheLoad {
            address: match self.protocol {
                Protocol::Tcp => CacheAddress::Tcp(address),
                Protocol::Udp => CacheAddress::Udp(address),
            },
            content: &self.content,
            operations_per_set: self.operations_per_set,
            connections: CONNECTIONS,
        };
        let clients = Clients::open(&work, 1, environment.client_processors())?;
        Ok(Box::new(LoadedServer::from_parts(server, clients)))
    }
}

impl AppServer for Values {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let (server, address) = environment.start_server(MEMCACHED.program, |address, directory| {
            CONFIGURATION.arguments(address, directory)
        })?;
        self.serve(environment, server, address)
    }
}
