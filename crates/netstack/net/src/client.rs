//! The program's side: sends requests to the service, and makes the sockets that stand for connections.

use crate::address;
use crate::message::{Congestion, MAX_PREFIXES, Options, Prefix, Request, Response};
use crate::name::{BoundSocket, Connection};
use crate::paths::ServicePaths;
use crate::state_table::{ConnectionState, STATE_TABLE_BYTES, StateTable};
use std::net::{IpAddr, SocketAddr};
use uncopy_sys::descriptor::{Descriptor, OwnFd, OwnRef, OwnSlot, ProgramFd};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::SharedMemory;
use uncopy_sys::{fd, seqpacket, unix, wait};

const TIMEOUT_MS: i32 = 5000;

/// A program's access to the service.
pub struct Client {
    paths: ServicePaths,
    /// Connection for when no other can be made. The program may have closed it and reused its number.
    kept_link: OwnSlot,
    service: u64,
    process: Option<u32>,
    congestion: Congestion,
    prefixes: [Option<Prefix>; MAX_PREFIXES],
    state_table: &'static StateTable,
}

/// Meaning of a descriptor for the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceSocket {
    /// A connection, established or not.
    Connection {
        /// The connection that the socket's name describes.
        connection: Connection,
        /// True if the program sees an IPv6 socket, whose IPv4 addresses are mapped.
        is_v6: bool,
    },
    /// A bound socket, listening or not.
    Bound(BoundSocket),
}

/// Sends a request to the service with these paths. Returns the answer and the descriptor that came with it.
///
/// # Errors
/// ECONNREFUSED or ENOENT if there is no service; ETIMEDOUT if it does not answer; EPROTO if it has another
/// version; EPERM if it runs as another user.
pub fn send_request(paths: &ServicePaths, request: &Request) -> Result<(Response, Option<OwnFd>), Errno> {
    ask_by(link_with(paths)?, request, None)
}

/// Retries `work` while the service has no room for it, up to the timeout.
fn retry_while_busy<T>(work: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let begun_ms = uncopy_sys::thread::now_ms();
    loop {
        match work() {
            Err(Errno::EAGAIN)
                if uncopy_sys::thread::now_ms().wrapping_sub(begun_ms) < TIMEOUT_MS.unsigned_abs().into() =>
            {
                uncopy_sys::clock::pause();
            }
            done => return done,
        }
    }
}

fn link_with(paths: &ServicePaths) -> Result<OwnFd, Errno> {
    retry_while_busy(|| seqpacket::connect(&paths.control))
}

/// Asks over a connection and closes it. A descriptor may go with the request.
fn ask_by(link: OwnFd, request: &Request, with: Option<&OwnFd>) -> Result<(Response, Option<OwnFd>), Errno> {
    seqpacket::send_with(&link, &request.words(), with).and_then(|()| answer(&link))
}

fn answer(fd: &OwnFd) -> Result<(Response, Option<OwnFd>), Errno> {
    let mut words = [0; seqpacket::MAX_WORDS];
    let begun_ms = uncopy_sys::thread::now_ms();
    loop {
        match seqpacket::receive(fd, &mut words) {
            Ok(message) => {
                let answer = Response::parse(&words[..message.words]).ok_or(Errno(libc::EPROTO))?;
                return Ok((answer, message.fd));
            }
            Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
        let waited_ms = uncopy_sys::thread::now_ms().wrapping_sub(begun_ms);
        let Some(left_ms) = u64::try_from(TIMEOUT_MS).ok().and_then(|all| all.checked_sub(waited_ms)) else {
            return Err(Errno(libc::ETIMEDOUT));
        };
        wait::for_any(core::iter::once(fd), left_ms.max(1) as i32);
    }
}

/// Makes a new connection to the service, passed to it over the kept one.
fn link_by(kept_link: OwnRef) -> Result<OwnFd, Errno> {
    let [own, theirs] = seqpacket::pair()?;
    // Several processes may share `kept_link`, so no answer is received on it.
    retry_while_busy(|| seqpacket::send_with(kept_link, &Request::PassConnection.words(), Some(&theirs)))
        .map(|()| own)
}

/// Replaces `fd` by `made`, which inherits O_NONBLOCK, timeouts and linger, unless `ready` is an error.
fn replace<T>(fd: ProgramFd, made: &OwnFd, ready: Result<T, Errno>) -> Result<T, Errno> {
    let ready = ready?;
    unix::copy_options(fd, made)?;
    unix::replace_descriptor(made, fd).map(|()| ready)
}

impl Client {
    /// Connects to the service whose control socket has this path.
    ///
    /// # Errors
    /// EINVAL if the path is not legal; the errors of [`send_request`], and of mapping the state table.
    pub fn new(control: &[u8]) -> Result<Self, Errno> {
        let paths = ServicePaths::of_control(control).ok_or(Errno::EINVAL)?;
        let kept_link = OwnSlot::empty();
        let link = link_with(&paths).or_else(|why| {
            kept_link.replace(seqpacket::inherited_connection(&paths.control));
            link_by(kept_link.get().ok_or(why)?)
        })?;
        let process = kept_link.get().map_or_else(|| seqpacket::peer_process(&link), seqpacket::peer_process);
        let (Response::Service { service, congestion, prefixes }, Some(fd)) =
            ask_by(link, &Request::Hello, None)?
        else {
            return Err(Errno(libc::EPROTO));
        };
        let state_table = SharedMemory::map_others(fd, STATE_TABLE_BYTES)?;
        state_table.inherit()?;
        // SAFETY: the mapping is page-aligned, `STATE_TABLE_BYTES` long and never unmapped; `StateTable` consists of
        // atomic words, for which any bytes are valid.
        let words = unsafe { &*(state_table.base() as *const StateTable) };
        Ok(Self { paths, kept_link, service, process, congestion, prefixes, state_table: words })
    }

    /// Returns the folder of the lanes' sockets.
    #[must_use]
    pub fn lanes_directory(&self) -> &str {
        &self.paths.lanes
    }

    /// Returns the process ID of the service; `None`: it is not visible in this PID namespace.
    #[must_use]
    pub fn service_pid(&self) -> Option<u32> {
        self.process
    }

    fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        self.prefixes.iter().flatten()
    }

    /// Returns whether the service reaches an address.
    #[must_use]
    pub fn reaches(&self, remote: IpAddr) -> bool {
        self.prefixes().any(|prefix| prefix.contains(remote))
    }

    /// Returns whether the service owns a socket's address: one of its own, or the unspecified one.
    #[must_use]
    pub fn owns(&self, local: IpAddr) -> bool {
        local.is_unspecified() || self.prefixes().any(|prefix| prefix.service_address == local)
    }

    /// Returns the meaning of a descriptor; `None`: it is not of the service.
    #[must_use]
    pub fn service_socket(&self, fd: impl Descriptor) -> Option<ServiceSocket> {
        let own = unix::own_name(fd)?;
        let of_service =
            |connection: Connection| Some(connection).filter(|connection| connection.service == self.service);
        if let Some(connection) = Connection::parse(&own) {
            let is_v6 = connection.local.is_ipv6();
            return of_service(connection).map(|connection| ServiceSocket::Connection { connection, is_v6 });
        }
        // An accepted connection has its listener's name; the peer's name describes the connection.
        let bound = BoundSocket::parse(&own)?;
        match unix::peer_name(fd).and_then(|peer| Connection::parse(&peer)) {
            Some(connection) => of_service(connection)
                .map(|connection| ServiceSocket::Connection { connection, is_v6: bound.is_v6() }),
            None => Some(ServiceSocket::Bound(bound)),
        }
    }

    /// Returns the connection that a descriptor stands for, if any.
    #[must_use]
    pub fn connection(&self, fd: impl Descriptor) -> Option<Connection> {
        match self.service_socket(fd)? {
            ServiceSocket::Connection { connection, .. } => Some(connection),
            ServiceSocket::Bound(_) => None,
        }
    }

    /// Parses a UNIX address that the kernel returned; `None`: it is not a connection's.
    #[must_use]
    pub fn parse(&self, address: &[u8]) -> Option<Connection> {
        Connection::parse(&unix::Name::of_address(address)?).filter(|found| found.service == self.service)
    }

    /// Returns whether the service is gone. A dying service may still accept, but does not answer.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let request = Request::Info { slot: u32::MAX, serial: 0 };
        match self.link().and_then(|link| ask_by(link, &request, None)) {
            Ok(_) | Err(Errno(libc::ETIMEDOUT)) => false,
            Err(_) => true,
        }
    }

    /// Returns the state of a connection; `None`: the state table does not have it any more.
    #[must_use]
    pub fn connection_state(&self, connection: &Connection) -> Option<ConnectionState> {
        self.state_table.get(connection.slot, connection.serial)
    }

    fn link(&self) -> Result<OwnFd, Errno> {
        self.kept_link().map_or_else(|| link_with(&self.paths), link_by)
    }

    /// Returns the kept connection, unless the program has closed it.
    fn kept_link(&self) -> Option<OwnRef> {
        self.kept_link.get().filter(|kept_link| seqpacket::is_connected_to(*kept_link, &self.paths.control))
    }

    /// Keeps a connection open for this process, its children, and programs that they execute, before their
    /// user or root directory changes.
    pub fn keep_connection(&self) {
        if self.kept_link().is_none()
            && let Ok(link) = link_with(&self.paths)
            && let Some(high) = fd::duplicate_high(&link)
        {
            fd::keep_on_exec(&high);
            // The program has closed the former descriptor; its number is the program's now.
            self.kept_link.replace(Some(high)).map(OwnFd::leave_open);
        }
    }

    /// Asks the service. Descriptors may go with the request and come with the answer.
    fn request_with(
        &self,
        request: &Request,
        with: Option<&OwnFd>,
    ) -> Result<(Response, Option<OwnFd>), Errno> {
        // Programs do not know of the service: to them, the network is down.
        let asked = self.link().and_then(|link| ask_by(link, request, with));
        match asked.map_err(|_| Errno(libc::ENETDOWN))? {
            (Response::Failed(errno), _) => Err(Errno(errno)),
            answer => Ok(answer),
        }
    }

    fn request(&self, request: &Request) -> Result<Response, Errno> {
        self.request_with(request, None).map(|(answer, _)| answer)
    }

    /// Replaces `fd` by a bound socket, which looks to the program like one of the address's family.
    ///
    /// # Errors
    /// EADDRINUSE or EADDRNOTAVAIL; ENETDOWN if there is no service; an error of the sockets.
    pub fn bind(&self, fd: ProgramFd, address: SocketAddr, is_shared: bool) -> Result<(), Errno> {
        let random = uncopy_sys::ids::random().ok_or(Errno::EAGAIN)? as u32;
        let (id, address) = (BoundSocket::make_id(random, address.is_ipv6()), address::canonical(address));
        match self.request_with(&Request::Bind { address, id, is_shared }, None)? {
            (Response::Address(_), Some(made)) => replace(fd, &made, Ok(())),
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    /// Makes the service accept connections for a bound socket that already listens.
    ///
    /// # Errors
    /// EADDRINUSE if another socket listens on the address.
    pub fn listen(&self, bound: &BoundSocket, backlog: u32, options: Options) -> Result<(), Errno> {
        let BoundSocket { address, id } = *bound;
        self.request(&Request::Listen { address, id, backlog, options }).map(drop)
    }

    /// Stops the service from accepting connections for a bound socket. Returns a socket with the same address
    /// that does not listen.
    ///
    /// # Errors
    /// EINVAL if the service has no such socket; ENETDOWN if there is no service.
    pub fn unlisten(&self, bound: &BoundSocket) -> Result<OwnFd, Errno> {
        let BoundSocket { address, id } = *bound;
        match self.request_with(&Request::Unlisten { address, id }, None)? {
            (Response::Address(_), Some(made)) => Ok(made),
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    /// Makes the service keep received bytes for [`Client::take_received`], before the connection is shut for reading.
    ///
    /// # Errors
    /// ENOTCONN if the connection has ended; ENETDOWN if there is no service.
    pub fn keep_received(&self, connection: &Connection) -> Result<(), Errno> {
        let Connection { slot, serial, .. } = *connection;
        self.request(&Request::KeepReceived { slot, serial }).map(drop)
    }

    /// Takes at most `max_bytes` received bytes from the service, as a file positioned at its beginning;
    /// `None`: there are none now.
    ///
    /// # Errors
    /// ENOTCONN if the connection has ended; ENETDOWN if there is no service.
    pub fn take_received(
        &self,
        connection: &Connection,
        max_bytes: u32,
        is_peeked: bool,
    ) -> Result<Option<OwnFd>, Errno> {
        let Connection { slot, serial, .. } = *connection;
        let (answer, file) =
            self.request_with(&Request::TakeReceived { slot, serial, max_bytes, is_peeked }, None)?;
        Ok(file.filter(|_| matches!(answer, Response::Bytes(_))))
    }

    /// Returns the default congestion control of the service.
    #[must_use]
    pub const fn congestion(&self) -> Congestion {
        self.congestion
    }

    /// Begins a connection and replaces `fd` by its socket, which looks to the program like one of the peer's
    /// family. The socket is filled, so that it is not writable until the connection is established or has
    /// failed.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH or ENOBUFS; ENETDOWN if there is no service; an error of the
    /// sockets.
    pub fn connect(
        &self,
        fd: ProgramFd,
        local: SocketAddr,
        remote: SocketAddr,
        options: Options,
    ) -> Result<Connection, Errno> {
        let (local, plain) = (address::canonical(local), address::canonical(remote));
        let [made, theirs] = unix::pair()?;
        let asked = self.request_with(&Request::Connect { local, remote: plain, options }, Some(&theirs));
        drop(theirs);
        let begun = asked.and_then(|(answer, _)| {
            let Response::Connection { slot, serial, local } = answer else {
                return Err(Errno(libc::EPROTO));
            };
            let local = if remote.is_ipv6() { address::mapped(local) } else { local };
            let connection = Connection { service: self.service, slot, serial, local, remote };
            unix::bind(&made, &connection.name())?;
            // A connection that has already failed reports that when the program asks.
            match unix::fill(&made) {
                Err(Errno(libc::EPIPE | libc::ECONNRESET)) => Ok(connection),
                filled => filled.map(|()| connection),
            }
        });
        replace(fd, &made, begun)
    }

    /// Sets options of a connection. Programs do this for every connection, so this waits for the answer only
    /// if `close` is to reset the connection, as it may come next.
    ///
    /// # Errors
    /// ENETDOWN if there is no service.
    pub fn set_options(&self, connection: &Connection, options: Options) -> Result<(), Errno> {
        let Connection { slot, serial, .. } = *connection;
        if options.resets_on_close {
            return self.request(&Request::SetOptions { slot, serial, options }).map(drop);
        }
        let link = self.link().map_err(|_| Errno(libc::ENETDOWN))?;
        seqpacket::send(&link, &Request::SetOptions { slot, serial, options }.words())
    }

    /// Returns the details of a connection.
    ///
    /// # Errors
    /// ENOTCONN if the connection has ended.
    pub fn info(&self, connection: &Connection) -> Result<crate::message::Info, Errno> {
        let Connection { slot, serial, .. } = *connection;
        match self.request(&Request::Info { slot, serial })? {
            Response::Info(info) => Ok(info),
            _ => Err(Errno(libc::EPROTO)),
        }
    }
}
