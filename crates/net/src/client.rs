//! The program's side: asks the service, and makes the streams that are connections.

use crate::address;
use crate::board::{BOARD_BYTES, Board, Condition};
use crate::message::{Answer, Congestion, MAX_PREFIXES, Options, Prefix, Question};
use crate::name::{Bound, Connection};
use crate::places::Places;
use std::net::{IpAddr, SocketAddr};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::Shared;
use uncopy_sys::sync::atomic::{AtomicI32, Ordering::Relaxed};
use uncopy_sys::{fd, file, link, unix, wait};

/// How long an answer is waited for, ms.
const TIMEOUT_MS: i32 = 5000;

/// What a program knows of the service.
pub struct Client {
    places: Places,
    /// A link for when no other can be made, or what was one; -1: none.
    kept: AtomicI32,
    service: u64,
    process: Option<u32>,
    congestion: Congestion,
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
    ask_by(link_with(places)?, question, -1)
}

/// Does what the service has to have room for.
fn patiently<T>(work: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
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

fn link_with(places: &Places) -> Result<i32, Errno> {
    patiently(|| link::connect(&places.control))
}

/// Asks by a link, which is ended. With the question goes a descriptor, or -1.
fn ask_by(fd: i32, question: &Question, with: i32) -> Result<(Answer, i32), Errno> {
    let answer = link::send(fd, &question.words(), with).and_then(|()| answer(fd));
    link::end(fd);
    answer
}

fn answer(fd: i32) -> Result<(Answer, i32), Errno> {
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

/// The link that was kept before this program was executed.
fn kept_before(places: &Places) -> Option<i32> {
    let mut kept = None;
    let _ = fd::each_open(|fd| {
        if link::is_with(fd, &places.control) {
            kept = Some(fd);
        }
    });
    kept
}

/// A link that the service gets by the one that was kept.
fn link_by(kept: i32) -> Result<i32, Errno> {
    let [own, theirs] = link::pair()?;
    // Others may have it, too: nobody receives there.
    let sent = patiently(|| link::send(kept, &Question::Link.words(), theirs));
    link::end(theirs);
    sent.map(|()| own).inspect_err(|_| link::end(own))
}

/// Puts the socket `made`, if it could be made ready, in the place of `fd`, with what that has to say of waiting.
fn replace<T>(fd: i32, made: i32, ready: Result<T, Errno>) -> Result<T, Errno> {
    let done = ready.and_then(|ready| {
        unix::inherit(fd, made)?;
        unix::replace(made, fd).map(|()| ready)
    });
    file::close(made);
    done
}

impl Client {
    /// Gets to know the service whose control socket has this path.
    ///
    /// # Errors
    /// EINVAL: it is no path of a control socket. Else as [`ask`], and what mapping its board says.
    pub fn new(control: &[u8]) -> Result<Self, Errno> {
        let places = Places::of_control(control).ok_or(Errno::EINVAL)?;
        let (link, kept) = match link_with(&places) {
            Ok(link) => (link, None),
            Err(why) => {
                let kept = kept_before(&places).ok_or(why)?;
                (link_by(kept)?, Some(kept))
            }
        };
        let process = link::process_of(kept.unwrap_or(link));
        let (answer, fd) = ask_by(link, &Question::Hello, -1)?;
        let Answer::Service { service, congestion, prefixes } = answer else {
            if fd >= 0 {
                file::close(fd);
            }
            return Err(Errno(libc::EPROTO));
        };
        let board = Shared::map_others(fd, BOARD_BYTES)?;
        board.inherit()?;
        // SAFETY: a mapping of that length, page-aligned, which is never given up; all of it is atomic words, for which any bytes are
        // valid.
        let words = unsafe { &*(board.base() as *const Board) };
        let kept = AtomicI32::new(kept.unwrap_or(-1));
        Ok(Self { places, kept, service, process, congestion, prefixes, board: words })
    }

    /// Where lanes meet.
    #[must_use]
    pub fn lanes(&self) -> &str {
        &self.places.lanes
    }

    /// The service's process; `None`: this one does not see it.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.process
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
        let bound = Bound::parse(&own)?;
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

    /// What an address says that the kernel gave out; `None`: it is no connection's.
    #[must_use]
    pub fn parse(&self, address: &[u8]) -> Option<Connection> {
        Connection::parse(&unix::Name::of_address(address)?).filter(|found| found.service == self.service)
    }

    /// Whether there is no service any more: whoever dies may still take links, but does not answer.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let question = Question::Info { slot: u32::MAX, serial: 0 };
        match self.link().and_then(|link| ask_by(link, &question, -1)) {
            Ok(_) | Err(Errno(libc::ETIMEDOUT)) => false,
            Err(_) => true,
        }
    }

    /// How a connection is; `None`: nothing is known of it any more.
    #[must_use]
    pub fn condition(&self, connection: &Connection) -> Option<Condition> {
        self.board.get(connection.slot, connection.serial)
    }

    fn link(&self) -> Result<i32, Errno> {
        self.kept().map_or_else(|| link_with(&self.places), link_by)
    }

    /// The link that was kept, if the program has not closed it.
    fn kept(&self) -> Option<i32> {
        let kept = self.kept.load(Relaxed);
        (kept >= 0 && link::is_with(kept, &self.places.control)).then_some(kept)
    }

    /// Keeps a link for this process, its children, and what they execute: their user or their root directory may be another one from
    /// here on.
    pub fn keep_link(&self) {
        if self.kept().is_none()
            && let Ok(link) = link_with(&self.places)
        {
            if let Some(high) = fd::duplicate_high(link) {
                fd::keep_on_exec(high);
                self.kept.store(high, Relaxed);
            }
            link::end(link);
        }
    }

    /// Asks; a descriptor goes with the question, or -1, and one comes with the answer, or -1.
    fn asks_with(&self, question: &Question, with: i32) -> Result<(Answer, i32), Errno> {
        // That there is no service is nothing that a program knows.
        let asked = self.link().and_then(|link| ask_by(link, question, with));
        match asked.map_err(|_| Errno(libc::ENETDOWN))? {
            (Answer::Failed(errno), _) => Err(Errno(errno)),
            answer => Ok(answer),
        }
    }

    fn asks(&self, question: &Question) -> Result<Answer, Errno> {
        let (answer, fd) = self.asks_with(question, -1)?;
        if fd >= 0 {
            file::close(fd);
        }
        Ok(answer)
    }

    /// A socket that is bound to an address, in the place of `fd`. To the program it is one of the address's family.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL; ENETDOWN: there is no service; what the sockets say.
    pub fn bind(&self, fd: i32, address: SocketAddr, is_shared: bool) -> Result<(), Errno> {
        let random = uncopy_sys::ids::random().ok_or(Errno::EAGAIN)? as u32;
        let (id, address) = (Bound::number(random, address.is_ipv6()), address::plain(address));
        match self.asks_with(&Question::Bind { address, id, is_shared }, -1)? {
            (Answer::Address(_), made) => replace(fd, made, Ok(())),
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    /// A bound socket, which listens already, waits for connections.
    ///
    /// # Errors
    /// EADDRINUSE.
    pub fn listen(&self, bound: &Bound, backlog: u32, options: Options) -> Result<(), Errno> {
        let Bound { address, id } = *bound;
        self.asks(&Question::Listen { address, id, backlog, options }).map(drop)
    }

    /// A bound socket waits for connections no more. Another socket with its address, which does not listen, for its place.
    ///
    /// # Errors
    /// EINVAL: the service has no such socket. ENETDOWN: there is no service.
    pub fn unlisten(&self, bound: &Bound) -> Result<i32, Errno> {
        let Bound { address, id } = *bound;
        match self.asks_with(&Question::Unlisten { address, id }, -1)? {
            (Answer::Address(_), made) if made >= 0 => Ok(made),
            (_, other) => {
                if other >= 0 {
                    file::close(other);
                }
                Err(Errno(libc::EPROTO))
            }
        }
    }

    /// The program is about to shut a connection for reading: the service keeps what comes for [`Client::take`].
    ///
    /// # Errors
    /// ENOTCONN: it is no more. ENETDOWN: there is no service.
    pub fn keep(&self, connection: &Connection) -> Result<(), Errno> {
        let Connection { slot, serial, .. } = *connection;
        self.asks(&Question::Keep { slot, serial }).map(drop)
    }

    /// Takes received bytes that the service keeps, `max_bytes` at most: a file of them, at its begin. `None`: there are none now.
    ///
    /// # Errors
    /// ENOTCONN: it is no more. ENETDOWN: there is no service.
    pub fn take(
        &self,
        connection: &Connection,
        max_bytes: u32,
        is_peeked: bool,
    ) -> Result<Option<i32>, Errno> {
        let Connection { slot, serial, .. } = *connection;
        let (answer, file) = self.asks_with(&Question::Take { slot, serial, max_bytes, is_peeked }, -1)?;
        Ok(matches!(answer, Answer::Bytes(_)).then_some(file).filter(|file| *file >= 0))
    }

    /// The congestion control of connections that choose none.
    #[must_use]
    pub const fn congestion(&self) -> Congestion {
        self.congestion
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
        let [made, theirs] = unix::pair()?;
        let asked = self.asks_with(&Question::Connect { local, remote: plain, options }, theirs);
        file::close(theirs);
        let begun = asked.and_then(|(answer, _)| {
            let Answer::Connection { slot, serial, local } = answer else { return Err(Errno(libc::EPROTO)) };
            let local = if remote.is_ipv6() { address::mapped(local) } else { local };
            let connection = Connection { service: self.service, slot, serial, local, remote };
            unix::bind(made, &connection.name())?;
            // One that has failed by now is found to have when it is asked.
            match unix::fill(made) {
                Err(Errno(libc::EPIPE | libc::ECONNRESET)) => Ok(connection),
                filled => filled.map(|()| connection),
            }
        });
        replace(fd, made, begun)
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
        let fd = self.link().map_err(|_| Errno(libc::ENETDOWN))?;
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
