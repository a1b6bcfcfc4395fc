//! TCP sockets whose peers a service of user-level TCP reaches (`--net`). Without it each hook is a load and a branch.
//!
//! A program's socket is one of the kernel's until `bind`, `listen` or `connect` decides. If it is the service's, a UNIX socket takes
//! the descriptor's number: from there on poll, epoll, fork, exec and the like are the kernel's, receives and sends are those of a
//! UNIX stream, which may be a lane, and only what TCP says otherwise is hooked. What a socket is stands in its name, what options it
//! has in a note that it keeps: nothing is remembered here, but for descriptors that epoll watches too early ([`registrations`]).
//!
//! | call | what is done |
//! |---|---|
//! | `bind`, `listen` | a UNIX socket, if the address is one of the service's, or any |
//! | `connect` | a UNIX socket, if the service reaches the peer |
//! | `shutdown`, `connect` to no family | see [`ending`] |
//! | `accept`, `getsockname`, `getpeername` | addresses are those of TCP |
//! | `getsockopt`, `setsockopt` | see [`options`] |
//! | `setuid` and its like, `chroot` | a link with the service is kept |
//! | poll, epoll that tells a hang-up | POLLERR, if the connection has such an error: see [`failures`] |
//! | a receive that brings nothing, a send that fails | the connection's error, if it has one |
//! | a send that names an address | as without it |

mod addresses;
mod congestion;
mod connecting;
mod ending;
mod failures;
mod kept;
mod options;
mod registrations;
mod stand_in;

use crate::lanes;
use addresses::{Room, given};
use connecting::connect_there;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};
pub use failures::fill as fill_polls;
use kept::Kept;
use libc::{epoll_event, sockaddr, socklen_t, ssize_t};
pub use registrations::{closed, closed_range, in_child};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use uncopy_core::streams::Outcome;
use uncopy_engine::state::phase::look_at_streams;
use uncopy_engine::state::{early, ledger};
use uncopy_interpose::{before, entry, slots};
use uncopy_net::address;
use uncopy_net::board::Condition;
use uncopy_net::client::{Client, Known};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::filter::{self, Feature};
use uncopy_sys::lock::Critical;
use uncopy_sys::{socket, tcp};

/// Connections that wait to be accepted, at most (net.core.somaxconn, whose default it is from Linux 5.4 on).
const MAX_BACKLOG: u32 = 4096;

slots! {
    BIND = c"bind": unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    LISTEN = c"listen": unsafe extern "C" fn(c_int, c_int) -> c_int;
    CONNECT = c"connect": unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    SHUTDOWN = c"shutdown": unsafe extern "C" fn(c_int, c_int) -> c_int;
    ACCEPT = c"accept": unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    ACCEPT4 = c"accept4": unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    GETSOCKNAME = c"getsockname": unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    GETPEERNAME = c"getpeername": unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    GETSOCKOPT = c"getsockopt": unsafe extern "C" fn(c_int, c_int, c_int, *mut core::ffi::c_void, *mut socklen_t) -> c_int;
    EPOLL_CTL = c"epoll_ctl": unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    CHROOT = c"chroot": unsafe extern "C" fn(*const c_char) -> c_int;
}

static CLIENT: AtomicPtr<Client> = AtomicPtr::new(core::ptr::null_mut());

/// What is known of the service; `None`: there is none.
#[inline(always)]
fn client() -> Option<&'static Client> {
    // SAFETY: null, or made by `switch_on` and never freed.
    unsafe { CLIENT.load(Acquire).as_ref() }
}

/// Whether there is a service.
#[inline(always)]
pub fn is_on() -> bool {
    client().is_some()
}

/// Gets to know the service with this control socket, whose connections are the program's from here on. Where its lanes meet; `None`:
/// it does not answer, and one line has said so.
pub fn switch_on(control: &[u8]) -> Option<&'static str> {
    if !filter::allows(Feature::Links) {
        uncopy_sys::mem::say(format_args!(
            "uncopy: no net: a filter of system calls does not let it through\n"
        ));
        return None;
    }
    match Client::new(control) {
        Ok(client) => {
            let client = Box::leak(Box::new(client));
            CLIENT.store(client, Release);
            if let Some(process) = client.process() {
                uncopy_lanes::service::trust(process);
            }
            look_at_streams();
            Some(client.lanes())
        }
        Err(why) => {
            let control = control.escape_ascii();
            uncopy_sys::mem::say(format_args!(
                "uncopy: no net: nobody answers at {control} ({why:?}); see 'uncopy doctor'\n"
            ));
            None
        }
    }
}

/// Nothing is asked of the service, or of the kernel, from here on.
pub fn end() {
    CLIENT.store(core::ptr::null_mut(), Release);
}

/// Before the program becomes another user's (see [`crate::credentials`]), or gets another root directory: then it could not find
/// the service.
pub fn before_change() {
    if let Some(client) = client() {
        let _errno = errno::Keep::new();
        let _critical = Critical::enter();
        client.keep_link();
    }
}

before!(chroot CHROOT (path: *const c_char) -> c_int, { before_change(); });

/// What libc's function returns for this.
fn result(done: Result<(), Errno>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(why) => {
            errno::set(why.0);
            -1
        }
    }
}

/// Binds a socket of the program's to an address of the service's, in its descriptor's place.
fn bind_to(client: &Client, fd: c_int, address: SocketAddr) -> Result<(), Errno> {
    let kept = Kept::of_tcp(fd);
    lanes::closed(fd);
    uncopy_record::closed(fd);
    client.bind(fd, address, kept.reuses_port())?;
    kept.keep(fd);
    registrations::renew(fd);
    Ok(())
}

/// Whether an address is one of those that a socket of this domain has.
const fn is_of(domain: c_int, address: &SocketAddr) -> bool {
    address.is_ipv6() == (domain == libc::AF_INET6)
}

/// `None`: it is libc's to do.
fn bind_there(fd: c_int, address: SocketAddr) -> Option<Result<(), Errno>> {
    let client = client().filter(|client| client.owns(address::plain(address).ip()))?;
    let _critical = Critical::enter();
    let domain = tcp::undecided(fd)?;
    is_of(domain, &address).then(|| bind_to(client, fd, address))
}

entry!(bind BIND (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int, is_on(), {
    match given(address, len).and_then(|address| bind_there(fd, address)) {
        Some(done) => result(done),
        None => BIND.call()(fd, address, len),
    }
});

/// Any address and port.
const fn any(domain: c_int) -> SocketAddr {
    match domain {
        libc::AF_INET6 => SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        _ => SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    }
}

/// Lets a bound socket listen that `listen` lets listen. `None`: it is libc's to do.
fn listen_there(fd: c_int, backlog: c_int, listen: impl FnOnce() -> c_int) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _critical = Critical::enter();
    if let Some(domain) = tcp::undecided(fd)
        && let Err(why) = bind_to(client, fd, any(domain))
    {
        return Some(Err(why));
    }
    let Some(Known::Bound(bound)) = client.known(fd) else { return None };
    if listen() != 0 {
        return Some(Err(Errno(errno::get())));
    }
    let backlog = backlog.cast_unsigned().min(MAX_BACKLOG);
    Some(client.listen(&bound, backlog, Kept::of(fd).options()))
}

entry!(listen LISTEN (fd: c_int, backlog: c_int) -> c_int, is_on(), {
    let listen = || LISTEN.call()(fd, backlog);
    match listen_there(fd, backlog, listen) {
        Some(done) => result(done),
        None => listen(),
    }
});

entry!(connect CONNECT (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int, is_on(), {
    let done = if addresses::is_of_no_family(address, len) {
        ending::disconnect(fd)
    } else {
        given(address, len).and_then(|address| connect_there(fd, address))
    };
    match done {
        Some(done) => result(done),
        None => CONNECT.call()(fd, address, len),
    }
});

entry!(shutdown SHUTDOWN (fd: c_int, how: c_int) -> c_int, is_on(), {
    match ending::shut_down(fd, how) {
        Some(done) => result(done),
        None => SHUTDOWN.call()(fd, how),
    }
});

/// Enters an accepted connection in the account of `--explain`, if there is one.
fn explain_accepted(client: &Client, accepted: c_int) {
    if ledger::are_kept() {
        let _errno = errno::Keep::new();
        if client.connection(accepted).is_some() {
            ledger::add_stream(Outcome::Served, 1);
        } else if tcp::is_tcp(accepted) {
            ledger::add_stream(Outcome::Unserved, 1);
        }
    }
}

/// Accepts by `call`. Who has connected is said as the program knows it.
///
/// # Safety
/// As accept.
unsafe fn accept_by(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    call: impl Fn(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    let Some(client) = client() else { return call(address, len) };
    let call = |address, len| {
        let accepted = call(address, len);
        if accepted >= 0 {
            explain_accepted(client, accepted);
        } else {
            ending::refused_accept(fd);
        }
        accepted
    };
    // SAFETY: what the program passed.
    let Some(room) = (unsafe { Room::of(address, len) }) else {
        let accepted = call(address, len);
        if accepted >= 0 {
            Kept::hand_on(fd, accepted);
        }
        return accepted;
    };
    let mut bytes = addresses::Storage::default();
    let mut len_bytes = size_of_val(&bytes) as socklen_t;
    let accepted = call((&raw mut bytes).cast(), &raw mut len_bytes);
    if accepted < 0 {
        return accepted;
    }
    let bytes = bytes.bytes(len_bytes);
    let Some(connection) = client.parse(bytes) else {
        room.put(bytes);
        return accepted;
    };
    let _errno = errno::Keep::new();
    let is_v6 = matches!(client.known(fd), Some(Known::Bound(bound)) if bound.is_v6());
    room.put_address(connection.remote, is_v6);
    Kept::hand_on(fd, accepted);
    accepted
}

/// Whether something is to be done for an accept. Who accepts connections begins with eliding at once.
fn accepts() -> bool {
    early::end();
    is_on()
}

entry!(accept ACCEPT (fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, accepts(), {
    let real = ACCEPT.call();
    accept_by(fd, address, len, |address, len| real(fd, address, len))
});

entry!(accept4 ACCEPT4 (fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int, accepts(), {
    let real = ACCEPT4.call();
    accept_by(fd, address, len, |address, len| real(fd, address, len, flags))
});

/// An end's address of what a descriptor is; `None`: it is libc's to say.
fn named(
    fd: c_int,
    of_connection: impl FnOnce(&Client, uncopy_net::name::Connection) -> Result<SocketAddr, Errno>,
    of_bound: impl FnOnce(SocketAddr) -> Option<SocketAddr>,
) -> Option<Result<(SocketAddr, bool), Errno>> {
    let client = client()?;
    let _errno = errno::Keep::new();
    match client.known(fd)? {
        Known::Connection { connection, is_v6 } => {
            Some(of_connection(client, connection).map(|address| (address, is_v6)))
        }
        Known::Bound(bound) => of_bound(bound.address).map(|address| Ok((address, bound.is_v6()))),
    }
}

/// Gives the program such an address, or what `call` says.
///
/// # Safety
/// As getsockname.
unsafe fn tell(
    named: Option<Result<(SocketAddr, bool), Errno>>,
    address: *mut sockaddr,
    len: *mut socklen_t,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(named) = named else { return call() };
    // SAFETY: what the program passed. What cannot be written is for the kernel to refuse.
    let Some(room) = (unsafe { Room::of(address, len) }) else { return call() };
    result(named.map(|(address, is_v6)| room.put_address(address, is_v6)))
}

entry!(getsockname GETSOCKNAME (fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, is_on(), {
    let own = named(fd, |_, connection| Ok(connection.local), Some);
    tell(own, address, len, || GETSOCKNAME.call()(fd, address, len))
});

entry!(getpeername GETPEERNAME (fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, is_on(), {
    let of_connection = |client: &Client, connection| {
        let is_begun = client.condition(&connection) != Some(Condition::Connecting);
        if is_begun && !ending::is_over(client, fd, &connection) {
            Ok(connection.remote)
        } else {
            Err(Errno(libc::ENOTCONN))
        }
    };
    let peer = named(fd, of_connection, |_| None);
    tell(peer, address, len, || GETPEERNAME.call()(fd, address, len))
});

entry!(getsockopt GETSOCKOPT
(fd: c_int, level: c_int, name: c_int, value: *mut core::ffi::c_void, len: *mut socklen_t) -> c_int, is_on(), {
    let real = || GETSOCKOPT.call()(fd, level, name, value, len);
    match options::get(fd, level, name, value.cast(), len, &real) {
        Some(done) => result(done),
        None => real(),
    }
});

/// What `setsockopt` returns where an option is not the kernel's; `None`: it is.
///
/// # Safety
/// As setsockopt.
pub unsafe fn set_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const core::ffi::c_void,
    len: socklen_t,
) -> Option<c_int> {
    // SAFETY: what the program passed.
    unsafe { options::set(fd, level, name, value.cast(), len) }.map(result)
}

entry!(epoll_ctl EPOLL_CTL (epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int, is_on(), {
    let done = EPOLL_CTL.call()(epoll, operation, fd, event);
    if done == 0 {
        failures::note(epoll, operation, fd, event);
        registrations::note(epoll, operation, fd, event);
    }
    done
});

/// What a receive returns that `got` so many bytes: where that is nothing, the connection's error, if it has one that nobody was told.
#[inline(always)]
pub fn received(fd: c_int, got: ssize_t) -> ssize_t {
    if got > 0 || !is_on() { got } else { look_at_error(fd, got, libc::ECONNRESET) }
}

/// What a receive returns that has found the end: what came after the program has shut the connection for reading, by `read` of a file
/// of it. `len_bytes` says how much the program has room for.
#[inline(always)]
pub fn rest(
    fd: c_int,
    got: ssize_t,
    len_bytes: impl FnOnce() -> usize,
    flags: c_int,
    read: impl FnOnce(c_int) -> ssize_t,
) -> ssize_t {
    if got != 0 || !is_on() { got } else { ending::rest(fd, len_bytes(), flags, read) }
}

/// What a send returns, likewise.
#[inline(always)]
pub fn sent(fd: c_int, sent: ssize_t) -> ssize_t {
    if sent >= 0 || !is_on() { sent } else { look_at_error(fd, sent, libc::EPIPE) }
}

/// The flags with which a send is made in place of these: a connection's error comes without a signal, which a UNIX socket cannot know.
#[inline(always)]
pub fn quiet(flags: c_int) -> c_int {
    if is_on() { flags | libc::MSG_NOSIGNAL } else { flags }
}

/// What a send returns that was made so: where these flags do not say otherwise, its signal comes with EPIPE.
#[inline(always)]
pub fn loud(fd: c_int, flags: c_int, sent: ssize_t) -> ssize_t {
    if sent < 0 && is_on() && flags & libc::MSG_NOSIGNAL == 0 {
        raise(fd);
    }
    sent
}

/// Whether a send did nothing because it named an address: a UNIX stream that is connected takes none, and TCP looks at none.
#[inline(always)]
pub fn refuses_address(fd: c_int, sent: ssize_t) -> bool {
    sent < 0 && is_on() && has_refused_address(fd)
}

#[cold]
#[inline(never)]
fn has_refused_address(fd: c_int) -> bool {
    let _errno = errno::Keep::new();
    errno::get() == libc::EISCONN && client().is_some_and(|client| client.connection(fd).is_some())
}

#[cold]
#[inline(never)]
fn raise(fd: c_int) {
    let _errno = errno::Keep::new();
    if errno::get() == libc::EPIPE && socket::kind(fd).is_ok() {
        // SAFETY: no requirements.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
}

#[cold]
#[inline(never)]
fn look_at_error(fd: c_int, result: ssize_t, usual: c_int) -> ssize_t {
    let (before, is_send) = (errno::get(), usual == libc::EPIPE);
    if result < 0 && before == if is_send { libc::ENOTCONN } else { libc::EINVAL } {
        errno::set(ending::of_unconnected(fd, is_send).unwrap_or(before));
        return result;
    }
    if result < 0 && before != usual && before != libc::ECONNRESET {
        return result;
    }
    let Some(client) = client() else { return result };
    let condition = client.connection(fd).and_then(|connection| client.condition(&connection));
    errno::set(before);
    match condition {
        // The peer has ended its stream before it has reset the connection: that end is what is received.
        Some(Condition::Failed(why)) if (is_send || why != libc::EPIPE) && Kept::tell(fd) => {
            errno::set(why);
            -1
        }
        Some(Condition::Failed(_)) if is_send => {
            errno::set(libc::EPIPE);
            -1
        }
        Some(Condition::Failed(_)) => 0,
        // The program has shut its own side down, or nobody is there any more who could tell how it ended.
        Some(Condition::Established) if result == 0 && client.is_gone() => {
            errno::set(libc::ECONNRESET);
            -1
        }
        _ => {
            errno::set(before);
            result
        }
    }
}
