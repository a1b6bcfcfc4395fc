//! The program's side: asks the service, and makes the streams that are connections.

use crate::board::{BOARD_BYTES, Board, Condition};
use crate::message::{Answer, MAX_PREFIXES, Options, Prefix, Question};
use crate::name::{Bound, Connection};
use crate::places::Places;
use std::net::{IpAddr, SocketAddr};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::Shared;
use uncopy_sys::{file, link, unix, wait};

/// How long an answer is waited for, ms.
const PATIENCE_MS: i32 = 5000;

/// What a program knows of the service.
pub struct Client {
    places: Places,
    service: u64,
    prefixes: [Option<Prefix>; MAX_PREFIXES],
    board: &'static Board,
}

/// Asks a question of the service with these places. With its answer comes a descriptor, or -1.
///
/// # Errors
/// ECONNREFUSED, ENOENT: there is no service. ETIMEDOUT: it does not answer. EPROTO: it is of another version. EPERM: it is
/// another user's.
pub fn ask(places: &Places, question: &Question) -> Result<(Answer, i32), Errno> {
    let fd = link::connect(&places.control)?;
    let answer = ask_by(fd, question);
    link::end(fd);
    answer
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
        let Some(left_ms) = u64::try_from(PATIENCE_MS).ok().and_then(|all| all.checked_sub(waited_ms)) else {
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

    /// The connection that a descriptor is; `None`: it is none.
    #[must_use]
    pub fn connection(&self, fd: i32) -> Option<Connection> {
        let own = unix::own_name(fd)?;
        let known = Connection::parse(&own).or_else(|| Connection::parse(&unix::peer_name(fd)?));
        known.filter(|connection| connection.service == self.service)
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

    /// How a connection is; `None`: nothing is known of it any more.
    #[must_use]
    pub fn condition(&self, connection: &Connection) -> Option<Condition> {
        self.board.get(connection.slot, connection.serial)
    }

    fn asks(&self, question: &Question) -> Result<Answer, Errno> {
        let (answer, fd) = ask(&self.places, question)?;
        if fd >= 0 {
            file::close(fd);
        }
        match answer {
            Answer::Failed(errno) => Err(Errno(errno)),
            answer => Ok(answer),
        }
    }

    /// A socket that is bound to an address, in the place of `fd`.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL; what the sockets say.
    pub fn bind(&self, fd: i32, address: SocketAddr, is_shared: bool) -> Result<(), Errno> {
        let id = uncopy_sys::ids::random().ok_or(Errno::EAGAIN)? as u32;
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

    /// Begins a connection in the place of `fd`. It cannot be written to before it is there, or has failed.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH, ENOBUFS; what the sockets say.
    pub fn connect(
        &self,
        fd: i32,
        local: SocketAddr,
        remote: SocketAddr,
        options: Options,
    ) -> Result<Connection, Errno> {
        let answer = self.asks(&Question::Connect { local, remote, options })?;
        let Answer::Connection { slot, serial, local } = answer else { return Err(Errno(libc::EPROTO)) };
        let connection = Connection { service: self.service, slot, serial, local, remote };
        self.replace(fd, |made| {
            unix::bind(made, &connection.name())?;
            unix::connect(made, &self.places.streams)?;
            unix::fill(made)
        })?;
        Ok(connection)
    }

    /// Sets options of a connection.
    ///
    /// # Errors
    /// As [`ask`].
    pub fn set(&self, connection: &Connection, options: Options) -> Result<(), Errno> {
        let Connection { slot, serial, .. } = *connection;
        self.asks(&Question::Set { slot, serial, options }).map(drop)
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
