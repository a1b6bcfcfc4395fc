//! Bound sockets of programs, and the choice of a listener for each connection.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use uncopy_net::name::BoundSocket;
use uncopy_net::paths::ServicePaths;
use uncopy_sys::errno::Errno;
use uncopy_sys::unix::{self, Name};

const MAX_BOUND: usize = 16_384;
/// Range of ephemeral ports (RFC 6335, section 6).
const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// First of them that is assigned: a kernel assigns lower ones itself (`ip_local_port_range`, 32,768 to 60,999). A socket
/// that connects to an address of the kernel's needs its port there.
const FIRST_ASSIGNED_PORT: u16 = 61_000;

struct Socket {
    id: u32,
    path: Name,
    is_shared: bool,
    is_listening: bool,
}

impl Socket {
    /// True if a program still has the socket.
    fn lives(&self) -> bool {
        unix::is_bound(&self.path)
    }
}

/// The bound sockets by address.
pub struct Listeners {
    by_address: HashMap<SocketAddr, Vec<Socket>>,
    count: usize,
    next_port: u16,
    turn: usize,
}

/// Returns the addresses at which a socket bound to `address` receives connections, its own first.
fn listening_addresses(address: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
    let is_dual = address.is_ipv6() && address.ip().is_unspecified();
    std::iter::once(address).chain(is_dual.then_some(any))
}

/// True if a connection could match both addresses.
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4() && (one == other || one.is_unspecified() || other.is_unspecified())
}

impl Listeners {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            by_address: HashMap::new(),
            count: 0,
            next_port: FIRST_ASSIGNED_PORT - DYNAMIC_PORTS.start(),
            turn: 0,
        }
    }

    /// Removes sockets without a program at matching addresses. Returns addresses without any listener now.
    pub fn remove_gone(&mut self, matches: impl Fn(&SocketAddr) -> bool) -> Vec<SocketAddr> {
        let mut ended = Vec::new();
        for (address, sockets) in self.by_address.iter_mut().filter(|(address, _)| matches(address)) {
            let listened = sockets.iter().any(|socket| socket.is_listening);
            sockets.retain(|socket| {
                let lives = socket.lives();
                if !lives && let Ok(path) = std::str::from_utf8(socket.path.bytes()) {
                    self.count -= 1;
                    let _ = std::fs::remove_file(path);
                }
                lives
            });
            if listened && !sockets.iter().any(|socket| socket.is_listening) {
                ended.extend(listening_addresses(*address));
            }
        }
        self.by_address.retain(|_, sockets| !sockets.is_empty());
        // A socket of the other family may listen there too.
        ended.retain(|address| !self.has_listener(*address));
        ended
    }

    fn has_listener(&self, address: SocketAddr) -> bool {
        let listens = |(at, sockets): (&SocketAddr, &Vec<Socket>)| {
            listening_addresses(*at).any(|heard| heard == address)
                && sockets.iter().any(|socket| socket.is_listening)
        };
        self.by_address.iter().any(listens)
    }

    fn is_free(&self, address: SocketAddr, is_shared: bool) -> bool {
        let sockets = |(at, sockets): (&SocketAddr, &Vec<Socket>)| {
            let is_other = at.port() != address.port() || !overlap(at.ip(), address.ip());
            is_other || is_shared && sockets.iter().all(|socket| socket.is_shared)
        };
        self.by_address.iter().all(sockets)
    }

    /// Binds a new socket to `address`; port 0 selects a free port.
    ///
    /// # Errors
    /// EADDRINUSE; ENOBUFS; ENAMETOOLONG if the socket's path is too long; errors of socket(2) and bind(2).
    pub fn bind(
        &mut self,
        address: SocketAddr,
        id: u32,
        is_shared: bool,
        paths: &ServicePaths,
    ) -> Result<(SocketAddr, OwnedFd), Errno> {
        if self.count >= MAX_BOUND {
            return Err(Errno(libc::ENOBUFS));
        }
        let address = if address.port() == 0 {
            let ports = u32::from(*DYNAMIC_PORTS.end() - *DYNAMIC_PORTS.start()) + 1;
            let overlapping = self.by_address.keys().filter(|at| overlap(at.ip(), address.ip()));
            let taken: HashSet<u16> = overlapping.map(SocketAddr::port).collect();
            let found = (0..ports).find_map(|_| {
                let port = DYNAMIC_PORTS.start() + self.next_port;
                self.next_port = ((u32::from(self.next_port) + 1) % ports) as u16;
                (!taken.contains(&port)).then(|| SocketAddr::new(address.ip(), port))
            });
            found.ok_or(Errno(libc::EADDRINUSE))?
        } else {
            if !self.is_free(address, is_shared) {
                return Err(Errno(libc::EADDRINUSE));
            }
            address
        };
        let path = BoundSocket { address, id }.path(&paths.listeners).ok_or(Errno(libc::ENAMETOOLONG))?;
        let descriptor = unix::stream()?;
        unix::bind(&descriptor, &path)?;
        let socket = Socket { id, path, is_shared, is_listening: false };
        self.by_address.entry(address).or_default().push(socket);
        self.count += 1;
        Ok((address, descriptor.into()))
    }

    /// Marks a bound socket as listening. Returns the addresses at which it listens.
    ///
    /// # Errors
    /// EINVAL: no such socket.
    pub fn listen(&mut self, address: SocketAddr, id: u32) -> Result<Vec<SocketAddr>, Errno> {
        let sockets = self.by_address.get_mut(&address).ok_or(Errno::EINVAL)?;
        let socket = sockets.iter_mut().find(|socket| socket.id == id).ok_or(Errno::EINVAL)?;
        socket.is_listening = true;
        Ok(listening_addresses(address).collect())
    }

    /// Replaces a listening socket by one that is only bound. Returns that socket, and the
    /// addresses without any listener now.
    ///
    /// # Errors
    /// EINVAL: no such socket. Errors of socket(2) and bind(2).
    pub fn unlisten(&mut self, address: SocketAddr, id: u32) -> Result<(OwnedFd, Vec<SocketAddr>), Errno> {
        let sockets = self.by_address.get_mut(&address).ok_or(Errno::EINVAL)?;
        let socket = sockets.iter_mut().find(|socket| socket.id == id).ok_or(Errno::EINVAL)?;
        let descriptor = unix::stream()?;
        socket.is_listening = false;
        if let Ok(path) = std::str::from_utf8(socket.path.bytes()) {
            let _ = std::fs::remove_file(path);
        }
        unix::bind(&descriptor, &socket.path)?;
        let mut ended: Vec<SocketAddr> = listening_addresses(address).collect();
        ended.retain(|address| !self.has_listener(*address));
        Ok((descriptor.into(), ended))
    }

    /// Stops using a socket that refused a connection because its program shut it or exited.
    /// Returns the addresses without any listener now.
    pub fn on_refused(&mut self, path: &Name) -> Vec<SocketAddr> {
        let found = self.by_address.iter_mut().find_map(|(address, sockets)| {
            let socket = sockets.iter_mut().find(|socket| socket.path == *path)?;
            socket.is_listening = false;
            Some(*address)
        });
        let mut ended: Vec<SocketAddr> = found.into_iter().flat_map(listening_addresses).collect();
        ended.retain(|address| !self.has_listener(*address));
        ended
    }

    /// Returns the socket for the next connection at a listening address, round robin.
    pub fn next(&mut self, address: SocketAddr) -> Option<Name> {
        let dual = SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), address.port());
        let is_any_v4 = address.is_ipv4() && address.ip().is_unspecified();
        let listening = |at| {
            let sockets = self.by_address.get(&at).into_iter().flatten();
            sockets.filter(|socket| socket.is_listening).map(|socket| socket.path).collect::<Vec<_>>()
        };
        let mut found = listening(address);
        if found.is_empty() && is_any_v4 {
            found = listening(dual);
        }
        self.turn = self.turn.wrapping_add(1);
        let count = found.len().max(1);
        found.get(self.turn % count).copied()
    }

    /// Returns the listening addresses, and the number of sockets at each.
    pub fn all(&self) -> impl Iterator<Item = (SocketAddr, usize)> {
        self.by_address.iter().filter_map(|(address, sockets)| {
            let count = sockets.iter().filter(|socket| socket.is_listening).count();
            (count > 0).then_some((*address, count))
        })
    }
}

impl Default for Listeners {
    fn default() -> Self {
        Self::new()
    }
}
