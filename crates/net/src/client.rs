//! The program's side: asks the service, and makes the streams that are connections.

use crate::address;
use crate::board::{BOARD_BYTES, Board, Condition};
use crate::message::{Answer, MAX_PREFIXES, Options, Prefix, Question};
use crate::name::{Bound, Connection};
use crate::places::Places;
use std::net::{IpAddr, SocketAddr};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::Shared;
use uncopy_sys::{file, link, unix, wait};

/// How long an answer is waited for, ms.
const TIMEOUT_MS: i32 = 5000;

/// What a program knows of the service.
pub struct Client {
    places: Places,
    service: u64,
    prefixes: [Option<Prefix>; MAX_PREFIXES],
    board: &'static Board,
}

/// What a descriptor is to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// A connection, or what will be one.
    Connection {
        /// Which.
        connection: Connection,
        /// Whether it is one of IPv6 to the program, which sees addresses of IPv4 mapped.
        is_v6: bool,
    },
    /// A bound socket, listening or not.
    Bound(Bound),
}

/// Asks a question of the service with these places. With its answer comes a descriptor, or -1.
///
/// # Errors
/// ECONNREFUSED, ENOENT: there is no service. ETIMEDOUT: it does not answer. EPROTO: it is of another version. EPERM: it is
/// another user's.
pub fn ask(places: &Places, question: &Question) -> Result<(Answer, i32), Errno> {
    let fd = link_with(places)?;
    let answer = ask_by(fd, question);
    link::end(fd);
    answer
}

/// A link with the service, once it takes one more.
fn link_with(places: &Places) -> Result<i32, Errno> {
    let begun_ms = uncopy_sys::thread::now_ms();
    loop {
        match link::connect(&places.control) {
            Err(Errno::EAGAIN)
                if uncopy_sys::thread::now_ms().wrapping_sub(begun_ms) < TIMEOUT_MS.unsigned_abs().into() =>
            {
                uncopy_sys::clock::pause();
            }
            linked => return linked,
        }
    }
}

fn ask_by(fd: i32, question: &Question) -> Result<(Answer, i32), Errno> {
    link::send(fd, &question.words(), -1)?;
    let mut words = [0; link::MAX_WORDS];
    let begun_ms = uncopy_sys::thread::now_ms();
    loop {
        match link::receive(fd, &mut words) {
            Ok(came) => {
                return match Answer::parse(&words[..came.words]) {
                    Some(answer) => Ok((answer, came.fd)),
                    None => {
                        if came.fd >= 0 {
                            file::close(came.fd);
                        }
                        Err(Errno(libc::EPROTO))
                    }
                };
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

impl Client {
    /// Gets to know the service whose control socket has this path.
    ///
    /// # Errors
    /// EINVAL: it is no path of a control socket. Else as [`ask`], and what mapping its board says.
    pub fn new(control: &[u8]) -> Result<Self, Errno> {
        let places = Places::of_control(control).ok_or(Errno::EINVAL)?;
        let (answer, fd) = ask(&places, &Question::Hello)?;
        let Answer::Service { service, prefixes } = answer else {
            if fd >= 0 {
                file::close(fd);
            }
            return Err(Errno(libc::EPROTO));
        };
        let board = Shared::map_others(fd, BOARD_BYTES)?;
        // SAFETY: a mapping of that length, page-aligned, which is never given up; all of it is atomic words, for which any bytes are
        // valid.
        let words = unsafe { &*(board.base() as *const Board) };
        Ok(Self { places, service, prefixes, board: words })
    }

    /// Where lanes meet.
    #[must_use]
    pub fn lanes(&self) -> &str {
        &self.places.lanes
    }

    fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        self.prefixes.iter().flatten()
    }

    /// Whether connections to an address go through the service.
    #[must_use]
    pub fn reaches(&self, remote: IpAddr) -> bool {
        self.prefixes().any(|prefix| prefix.has(remote))
    }

    /// Whether a socket that is bound to this address is the service's: one of its own, or any.
    #[must_use]
    pub fn owns(&self, local: IpAddr) -> bool {
        local.is_unspecified() || self.prefixes().any(|prefix| prefix.own == local)
    }

    /// What a descriptor is; `None`: nothing of the service's.
    #[must_use]
    pub fn known(&self, fd: i32) -> Option<Known> {
        let own = unix::own_name(fd)?;
        let of_service =
            |connection: Connection| Some(connection).filter(|connection| connection.service == self.service);
        if let Some(connection) = Connection::parse(&own) {
            let is_v6 = connection.local.is_ipv6();
            return of_service(connection).map(|connection| Known::Connection { connection, is_v6 });
        }
        // Not even a connection that was accepted has another name than its listener's.
        let bound = Bound::parse(&own, &self.places.listeners)?;
        match unix::peer_name(fd).and_then(|peer| Connection::parse(&peer)) {
            Some(connection) => of_service(connection)
                .map(|connection| Known::Connection { connection, is_v6: bound.is_v6() }),
            None => Some(Known::Bound(bound)),
        }
    }

    /// The connection that a descriptor is; `None`: it is none.
    #[must_use]
    pub fn connection(&self, fd: i32) -> Option<Connection> {
        match self.known(fd)? {
            Known::Connection { connection, .. } => Some(connection),
            Known::Bound(_) => None,
        }
    }

    /// The bound socket that a descriptor is; `None`: it is none. The name of an accepted connection is its listener's: see
    /// [`Client::connection`] first.
    #[must_use]
    pub fn bound(&self, fd: i32) -> Option<Bound> {
        Bound::parse(&unix::own_name(fd)?, &self.places.listeners)
    }

    /// What an address says that the kernel gave out; `None`: it is no connection's.
    #[must_use]
    pub fn parse(&self, address: &[u8]) -> Option<Connection> {
        Connection::parse(&unix::Name::of_address(address)?).filter(|found| found.service == self.service)
    }

    /// Whether there is no service any more: whoever dies may still take links, but does not answer.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match ask(&self.places, &Question::Info { slot: u32::MAX, serial: 0 }) {
            Ok(_) | Err(Errno(libc::ETIMEDOUT)) => false,
            Err(_) => true,
        }
    }

    /// How a connection is; `None`: nothing is known of it any more.
    #[must_use]
    pub fn condition(&self, connection: &Connection) -> Option<Condition> {
        self.board.get(connection.slot, connection.serial)
    }

    fn asks(&self, question: &Question) -> Result<Answer, Errno> {
        // That there is no service is nothing that a program knows.
        let (answer, fd) = ask(&self.places, question).map_err(|_| Errno(libc::ENETDOWN))?;
        if fd >= 0 {
            file::close(fd);
        }
        match answer {
            Answer::Failed(errno) => Err(Errno(errno)),
            answer => Ok(answer),
        }
    }

    /// A socket that is bound to an address, in the place of `fd`. To the program it is one of the address's family.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL; ENETDOWN: there is no service; what the sockets say.
    pub fn bind(&self, fd: i32, address: SocketAddr, is_shared: bool) -> Result<(), Errno> {
        let random = uncopy_sys::ids::random().ok_or(Errno::EAGAIN)? as u32;
        let (id, address) = (Bound::number(random, address.is_ipv6()), address::plain(address));
        let answer = self.asks(&Question::Bind { address, id, is_shared })?;
        let Answer::Address(address) = answer else { return Err(Errno(libc::EPROTO)) };
        let path = Bound { address, id }.path(&self.places.listeners).ok_or(Errno(libc::ENAMETOOLONG))?;
        self.replace(fd, |made| unix::bind(made, &path))
    }

    /// Makes a socket ready and puts it in the place of `fd`, with what that has to say of waiting.
    fn replace(&self, fd: i32, ready: impl FnOnce(i32) -> Result<(), Errno>) -> Result<(), Errno> {
        let made = unix::stream()?;
        let done = ready(made).and_then(|()| unix::inherit(fd, made)).and_then(|()| unix::replace(made, fd));
        file::close(made);
        done
    }

    /// A bound socket, which listens already, waits for connections.
    ///
    /// # Errors
    /// EADDRINUSE.
    pub fn listen(&self, bound: &Bound, backlog: u32, options: Options) -> Result<(), Errno> {
        let Bound { address, id } = *bound;
        self.asks(&Question::Listen { address, id, backlog, options }).map(drop)
    }

    /// Begins a connection in the place of `fd`. It cannot be written to before it is there, or has failed. To the program it is one
    /// of the peer's family: its name has addresses as the program sees them.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH, ENOBUFS; ENETDOWN: there is no service; what the sockets say.
    pub fn connect(
        &self,
        fd: i32,
        local: SocketAddr,
        remote: SocketAddr,
        options: Options,
    ) -> Result<Connection, Errno> {
        let (local, plain) = (address::plain(local), address::plain(remote));
        let answer = self.asks(&Question::Connect { local, remote: plain, options })?;
        let Answer::Connection { slot, serial, local } = answer else { return Err(Errno(libc::EPROTO)) };
        let local = if remote.is_ipv6() { address::mapped(local) } else { local };
        let connection = Connection { service: self.service, slot, serial, local, remote };
        self.replace(fd, |made| {
            unix::bind(made, &connection.name())?;
            unix::connect(made, &self.places.streams)?;
            // One that has failed by now is found to have when it is asked.
            match unix::fill(made) {
                Err(Errno(libc::EPIPE | libc::ECONNRESET)) => Ok(()),
                filled => filled,
            }
        })?;
        Ok(connection)
    }

    /// Sets options of a connection. Whether that was done is not waited for, as programs do this for every connection, unless a `close`
    /// that comes next is to be a reset.
    ///
    /// # Errors
    /// ENETDOWN: there is no service.
    pub fn set(&self, connection: &Connection, options: Options) -> Result<(), Errno> {
        let Connection { slot, serial, .. } = *connection;
        if options.resets {
            return self.asks(&Question::Set { slot, serial, options }).map(drop);
        }
        let fd = link_with(&self.places).map_err(|_| Errno(libc::ENETDOWN))?;
        let sent = link::send(fd, &Question::Set { slot, serial, options }.words(), -1);
        link::end(fd);
        sent
    }

    /// What is known of a connection.
    ///
    /// # Errors
    /// ENOTCONN: it is no more.
    pub fn info(&self, connection: &Connection) -> Result<crate::message::Info, Errno> {
        let Connection { slot, serial, .. } = *connection;
        match self.asks(&Question::Info { slot, serial })? {
            Answer::Info(info) => Ok(info),
            _ => Err(Errno(libc::EPROTO)),
        }
    }
}
