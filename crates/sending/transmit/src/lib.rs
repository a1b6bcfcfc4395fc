//! The transmit engine: sends the parts of a message, each copied or by reference, in the way that is
//! cheapest on the socket (ZCopy §3.2.2).
//!
//! This crate is independent of twin memory. The caller marks the parts that may go by reference
//! ([`Part::Lent`]), and learns whether the kernel may still hold them ([`Hold`]). Because protecting pages
//! has a cost, the caller asks for a [`plan`] before it lends anything.
//!
//! In every way, a message is sent as `sendmsg` would send it: with the same result, error numbers, partial
//! sends and order. One datagram stays one datagram.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

mod bump;
mod choice;
mod gather;
mod part;
mod pool;
mod socket_cache;
mod splice;
mod zerocopy;

pub use zerocopy::Token;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
pub use part::Part;
pub use uncopy_sys::PAGE_BYTES;
use uncopy_sys::descriptor::Descriptor as _;
pub use uncopy_sys::descriptor::ProgramFd;
pub use uncopy_sys::errno::Errno;
pub use uncopy_sys::socket::{Completed, Envelope, next_completed};

/// How the lent parts of a message are passed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Copied, because lending does not pay.
    Copy,
    /// By reference, without notification of when the kernel is done: the pages must be dropped, for good,
    /// before their addresses are written to again.
    Splice,
    /// By reference, until a completion reports that the kernel is done.
    Completion,
}

/// References that the kernel may hold to a message's lent parts after the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// None: the parts were copied or not sent.
    Nothing,
    /// Pages of the bytes sent, without notification of their release.
    Spliced,
    /// Pages of the bytes sent, until [`completions`] reports this token.
    Until(Token),
}

/// Result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Number of bytes sent, from the start of the message; on a stream possibly fewer than the message has.
    pub len_bytes: usize,
    /// References that the kernel may hold to the lent parts.
    pub hold: Hold,
}

/// Decision about one message: returned by [`plan`], passed to [`send`] after lending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How lent parts are passed to the kernel.
    pub way: Way,
    kind: socket_cache::Kind,
    promises: u8,
    is_counted: bool,
}

impl Plan {
    /// True if the message must be sent by [`send`] even if copied, so that it is counted.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Returns a plan that copies.
    #[must_use]
    pub const fn copy() -> Self {
        Self { way: Way::Copy, kind: socket_cache::Kind::Other, promises: 0, is_counted: false }
    }
}

/// Flags that every way supports.
const ORDINARY_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
/// Maximum payload of a UDP datagram in bytes.
const MAX_DATAGRAM_BYTES: usize = 65_507;

static TRUSTED: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Decides how to send a message of `len_bytes` bytes to `fd`, `lent_bytes` of which can be lent. Makes a
/// system call only occasionally. Preserves `errno`.
///
/// Returns [`Way::Copy`] if a reference does not pay or is not possible (flags, address, kind of descriptor).
#[must_use]
pub fn plan(fd: ProgramFd, len_bytes: usize, lent_bytes: usize, flags: i32, envelope: &Envelope) -> Plan {
    if lent_bytes < min_bytes() || flags & !ORDINARY_FLAGS != 0 || STOPPED.load(Relaxed) {
        return Plan::copy();
    }
    let (kind, promises) = socket_cache::of(fd);
    let is_datagram = kind.is_datagram();
    let is_possible = kind != socket_cache::Kind::Other
        && (envelope.is_blank() || is_datagram && promises & SocketOwner::SENDS_ALONE != 0)
        && (!is_datagram || len_bytes <= MAX_DATAGRAM_BYTES && flags & libc::MSG_MORE == 0);
    if !is_possible {
        return Plan::copy();
    }
    if kind.is_remote() && promises & SocketOwner::READS_ERRORS != 0 && zerocopy::is_effective(fd) {
        return Plan { way: Way::Completion, kind, promises, is_counted: false };
    }
    let choice = choice::choose(kind, lent_bytes);
    let way = if choice.by_reference { Way::Splice } else { Way::Copy };
    Plan { way, kind, promises, is_counted: choice.is_counted }
}

/// Returns the way that [`plan`] chooses now.
#[must_use]
pub fn way(fd: ProgramFd, len_bytes: usize, lent_bytes: usize, flags: i32, envelope: &Envelope) -> Way {
    plan(fd, len_bytes, lent_bytes, flags, envelope).way
}

/// True if lending a part of `len_bytes` bytes sent to `fd` pays, as measured in this process. Otherwise the
/// caller need not check whether the part can be lent.
#[must_use]
pub fn pays(fd: ProgramFd, len_bytes: usize) -> bool {
    way(fd, len_bytes, len_bytes, 0, &Envelope::default()) != Way::Copy
}

/// Returns the minimum size in bytes of a part that pays on any socket. Makes no system call.
#[inline]
#[must_use]
pub fn min_bytes() -> usize {
    choice::min_bytes()
}

/// Sets the minimum size in bytes of a part that is sent by reference: 1 for always, `usize::MAX` for never.
/// With `None`, the default, the size is measured. For experiments and tests.
pub fn set_break_even(min_bytes: Option<usize>) {
    choice::set_break_even(min_bytes);
}

/// Copies everything from now on, for a program that forbids itself system calls.
pub fn stop() {
    STOPPED.store(true, Relaxed);
}

/// Sends the parts as one message, as `sendmsg(fd, …, flags)` would. `plan` must come from [`plan`], called
/// before the parts were lent. The result's hold is never longer than the plan's way implies.
///
/// # Errors
/// Returns the error of sendmsg(2). Nothing was sent and nothing is held then.
pub fn send(
    fd: ProgramFd,
    parts: &[Part],
    flags: i32,
    envelope: &Envelope,
    plan: Plan,
) -> Result<Sent, Errno> {
    count_sent(plan, || match plan.way {
        Way::Copy => copied(gather::send(fd, parts, flags, envelope)),
        Way::Splice => splice(fd, parts, flags, envelope, plan),
        Way::Completion => match zerocopy::send(fd, parts, flags, envelope) {
            Some(result) => result.map(|(len_bytes, token)| Sent { len_bytes, hold: Hold::Until(token) }),
            None => copied(gather::send(fd, parts, flags, envelope)),
        },
    })
}

/// Converts the result of a copying send, after which the kernel holds nothing.
fn copied(result: Result<usize, Errno>) -> Result<Sent, Errno> {
    result.map(|len_bytes| Sent { len_bytes, hold: Hold::Nothing })
}

/// Sends, and counts the bytes sent if the plan requires that.
fn count_sent(plan: Plan, send: impl FnOnce() -> Result<Sent, Errno>) -> Result<Sent, Errno> {
    let result = send();
    if plan.is_counted
        && let Ok(sent) = &result
    {
        uncopy_trials::record_transfer(sent.len_bytes);
    }
    result
}

fn splice(fd: ProgramFd, parts: &[Part], flags: i32, envelope: &Envelope, plan: Plan) -> Result<Sent, Errno> {
    let promises = splice::Promises {
        ends_on_errors: plan.promises & SocketOwner::ENDS_ON_ERRORS != 0,
        sends_alone: plan.promises & SocketOwner::SENDS_ALONE != 0,
        trusts_descriptors: TRUSTED.load(Relaxed),
    };
    let result = if plan.kind.is_datagram() {
        splice::datagram(fd, parts, flags, envelope, promises)
    } else {
        let is_tcp = plan.kind != socket_cache::Kind::Unix;
        splice::stream(fd, parts, flags, is_tcp, promises)
    }?;
    let hold = if result.holds_pages { Hold::Spliced } else { Hold::Nothing };
    Ok(Sent { len_bytes: result.len_bytes, hold })
}

/// Writes the parts as `writev(fd, …)` would, to any kind of descriptor.
///
/// # Errors
/// Returns the error of writev(2). Nothing was written and nothing is held then.
pub fn write(fd: ProgramFd, parts: &[Part], plan: Plan) -> Result<Sent, Errno> {
    if plan.way == Way::Copy {
        return count_sent(plan, || copied(gather::write(fd, parts)));
    }
    match send(fd, parts, 0, &Envelope::default(), plan) {
        // The descriptor no longer refers to a socket.
        Err(Errno(libc::ENOTSOCK)) => copied(gather::write(fd, parts)),
        result => result,
    }
}

/// Waits until a socket has free space, for at most its SO_SNDTIMEO, in libc's `poll`, which is a
/// cancellation point. Returns false on timeout, on a signal, or if the connection has ended.
#[must_use]
#[allow(
    clippy::disallowed_methods,
    reason = "a system call of our own is no place to be cancelled; a hook passes this on"
)]
pub fn wait_for_room(fd: ProgramFd) -> bool {
    let mut poll_fd = libc::pollfd { fd: fd.number(), events: libc::POLLOUT, revents: 0 };
    #[allow(
        clippy::disallowed_methods,
        reason = "the library's hook does what libc's function does, and is cancelled as that is"
    )]
    // SAFETY: poll(2) accesses one entry, `poll_fd`, which outlives the call.
    let ready =
        unsafe { libc::poll(&raw mut poll_fd, 1, uncopy_sys::socket::send_timeout_ms(fd).unwrap_or(-1)) };
    ready == 1 && poll_fd.revents == libc::POLLOUT
}

/// Reads the completion notifications of a socket whose owner set [`SocketOwner::reads_errors`], without blocking,
/// and calls `done` with the token of each message whose pages the kernel has released. Should be called when
/// the socket reports POLLERR, and now and then before.
///
/// Closing the socket discards its notifications: pages still held then must be treated as held forever.
pub fn completions(fd: ProgramFd, done: &mut dyn FnMut(Token)) {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    zerocopy::completions(fd, done);
}

/// Guarantees that a socket's owner gives, which save system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOwner {
    /// The socket is non-blocking, SIGPIPE is ignored, and the socket is closed after any error.
    pub ends_on_errors: bool,
    /// No other thread sends on this socket, so a datagram may be built by several calls.
    pub sends_alone: bool,
    /// Only [`completions`] reads the socket's error queue, so MSG_ZEROCOPY may be used if the peer is on
    /// another host. Has no effect without `sends_alone`.
    pub reads_errors: bool,
}

impl SocketOwner {
    const ENDS_ON_ERRORS: u8 = 1;
    const SENDS_ALONE: u8 = 2;
    const READS_ERRORS: u8 = 4;

    fn bits(self) -> u8 {
        let bit = |promised: bool, bit: u8| if promised { bit } else { 0 };
        bit(self.ends_on_errors, Self::ENDS_ON_ERRORS)
            | bit(self.sends_alone, Self::SENDS_ALONE)
            | bit(self.reads_errors, Self::READS_ERRORS)
    }
}

/// Declares the guarantees of a socket's owner, for as long as the socket is open. Meant for servers.
pub fn declare_owner(fd: ProgramFd, owner: SocketOwner) {
    let mut bits = owner.bits();
    if bits & SocketOwner::READS_ERRORS != 0 {
        let _errno = uncopy_sys::errno::SavedErrno::new();
        if !owner.sends_alone || !zerocopy::enable(fd) {
            bits &= !SocketOwner::READS_ERRORS;
        }
    }
    socket_cache::set_owner(fd, bits);
}

/// Declares that no code in this process closes or replaces descriptors that it did not open. For servers.
pub fn trust_descriptors() {
    TRUSTED.store(true, Relaxed);
}
