//! The transmit engine: sends the parts of a message, each copied or by reference, by the way that pays on
//! its socket (ZCopy §3.2.2).
//!
//! It knows nothing of twin memory: a caller says which parts may go by reference ([`Part::Lent`]), and is told
//! whether the kernel may still hold them ([`Hold`]). A caller asks [`way`] before it lends anything, because
//! protecting pages costs something as well.
//!
//! Whatever the way, a message is sent as `sendmsg` would have sent it: the same result, the same error numbers,
//! partial sends, order, and one datagram stays one.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

mod bump;
mod choice;
mod facts;
mod gather;
mod part;
mod pool;
mod splice;
mod zerocopy;

pub use zerocopy::Token;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
pub use part::Part;
pub use uncopy_sys::PAGE_BYTES;
pub use uncopy_sys::errno::Errno;
pub use uncopy_sys::socket::{Completed, Envelope, next_completed};

/// How the lent parts of a message go to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As copies: it does not pay to lend them.
    Copy,
    /// As references, and nothing tells when the kernel has done with them: pages must be dropped before they
    /// are written to again, for good.
    Splice,
    /// As references until a completion says that the kernel has done with them.
    Completion,
}

/// What the kernel holds of a message's lent parts when the call has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: they were copied, or not sent.
    Nothing,
    /// Perhaps the pages of the bytes sent, with nothing to tell when it is done.
    Spliced,
    /// Perhaps the pages of the bytes sent, until [`completions`] gives this token.
    Until(Token),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of the message that were sent, counted from its start; may be fewer than it has on a stream.
    pub len_bytes: usize,
    /// What the kernel holds of the lent parts.
    pub hold: Hold,
}

/// What was decided about one message: ask with [`plan`], lend, and [`send`] with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How lent parts go.
    pub way: Way,
    kind: facts::Kind,
    promises: u8,
    is_counted: bool,
}

impl Plan {
    /// Whether the message is to be sent by [`send`] even if it copies, so that it is counted.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// A plan that copies.
    #[must_use]
    pub const fn copy() -> Self {
        Self { way: Way::Copy, kind: facts::Kind::Other, promises: 0, is_counted: false }
    }
}

/// Flags that do not ask for anything but what every way does.
const ORDINARY_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
/// The largest datagram there is.
const MAX_DATAGRAM_BYTES: usize = 65_507;

static TRUSTED: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Decides how a message of `len_bytes` bytes, `lent_bytes` of which could be lent, goes to `fd`. Seldom makes a
/// system call. `errno` is kept.
///
/// [`Way::Copy`] where a reference does not pay or is not possible (flags, an address, this kind of descriptor).
#[must_use]
pub fn plan(fd: i32, len_bytes: usize, lent_bytes: usize, flags: i32, envelope: &Envelope) -> Plan {
    if lent_bytes < min_bytes() || flags & !ORDINARY_FLAGS != 0 || STOPPED.load(Relaxed) {
        return Plan::copy();
    }
    let (kind, promises) = facts::of(fd);
    let is_datagram = kind.is_datagram();
    let is_possible = kind != facts::Kind::Other
        && (envelope.is_blank() || is_datagram && promises & Owner::SENDS_ALONE != 0)
        && (!is_datagram || len_bytes <= MAX_DATAGRAM_BYTES && flags & libc::MSG_MORE == 0);
    if !is_possible {
        return Plan::copy();
    }
    if kind.is_far() && promises & Owner::READS_ERRORS != 0 && zerocopy::pays(fd) {
        return Plan { way: Way::Completion, kind, promises, is_counted: false };
    }
    let choice = choice::choose(kind, lent_bytes);
    let way = if choice.refers { Way::Splice } else { Way::Copy };
    Plan { way, kind, promises, is_counted: choice.is_counted }
}

/// How a message would go out now: see [`plan`].
#[must_use]
pub fn way(fd: i32, len_bytes: usize, lent_bytes: usize, flags: i32, envelope: &Envelope) -> Way {
    plan(fd, len_bytes, lent_bytes, flags, envelope).way
}

/// Whether it pays to lend a part of `len_bytes` bytes that goes to `fd`; calibrated. Below that a caller need
/// not even ask whether it can be lent.
#[must_use]
pub fn pays(fd: i32, len_bytes: usize) -> bool {
    way(fd, len_bytes, len_bytes, 0, &Envelope::default()) != Way::Copy
}

/// Smallest part that pays anywhere, bytes: a comparison, no system call.
#[inline]
#[must_use]
pub fn min_bytes() -> usize {
    choice::min_bytes()
}

/// Sets the size from which on parts go by reference, bytes: 1 is always, `usize::MAX` never. `None`: measured,
/// as it is from the start. For experiments and tests.
pub fn set_break_even(min_bytes: Option<usize>) {
    choice::set(min_bytes);
}

/// From here on everything is copied: for a program that forbids itself system calls.
pub fn stop() {
    STOPPED.store(true, Relaxed);
}

/// Sends the parts as one message, as `sendmsg(fd, …, flags)` would. `plan` is what [`plan`] said before the parts
/// were lent; what is sent by reference is never held longer than its way says.
///
/// # Errors
/// What sendmsg says. Nothing was sent and nothing is held then.
pub fn send(fd: i32, parts: &[Part], flags: i32, envelope: &Envelope, plan: Plan) -> Result<Sent, Errno> {
    counted(plan, || match plan.way {
        Way::Copy => copied(gather::send(fd, parts, flags, envelope)),
        Way::Splice => splice(fd, parts, flags, envelope, plan),
        Way::Completion => match zerocopy::send(fd, parts, flags, envelope) {
            Some(result) => result.map(|(len_bytes, token)| Sent { len_bytes, hold: Hold::Until(token) }),
            None => copied(gather::send(fd, parts, flags, envelope)),
        },
    })
}

/// What nothing is held of.
fn copied(result: Result<usize, Errno>) -> Result<Sent, Errno> {
    result.map(|len_bytes| Sent { len_bytes, hold: Hold::Nothing })
}

/// Sends, and counts what was sent if that is wanted.
fn counted(plan: Plan, send: impl FnOnce() -> Result<Sent, Errno>) -> Result<Sent, Errno> {
    let result = send();
    if plan.is_counted
        && let Ok(sent) = &result
    {
        uncopy_trials::moved(sent.len_bytes);
    }
    result
}

fn splice(fd: i32, parts: &[Part], flags: i32, envelope: &Envelope, plan: Plan) -> Result<Sent, Errno> {
    let promises = splice::Promises {
        ends_on_errors: plan.promises & Owner::ENDS_ON_ERRORS != 0,
        sends_alone: plan.promises & Owner::SENDS_ALONE != 0,
        trusts_descriptors: TRUSTED.load(Relaxed),
    };
    let outcome = if plan.kind.is_datagram() {
        splice::datagram(fd, parts, flags, envelope, promises)
    } else {
        let is_tcp = plan.kind != facts::Kind::Unix;
        splice::stream(fd, parts, flags, is_tcp, promises)
    }?;
    let hold = if outcome.is_referred { Hold::Spliced } else { Hold::Nothing };
    Ok(Sent { len_bytes: outcome.len_bytes, hold })
}

/// Writes the parts as `writev(fd, …)` would, whatever the descriptor is.
///
/// # Errors
/// What writev says. Nothing was written and nothing is held then.
pub fn write(fd: i32, parts: &[Part], plan: Plan) -> Result<Sent, Errno> {
    if plan.way == Way::Copy {
        return counted(plan, || copied(gather::write(fd, parts)));
    }
    match send(fd, parts, 0, &Envelope::default(), plan) {
        // The number stands for something else by now.
        Err(Errno(libc::ENOTSOCK)) => copied(gather::write(fd, parts)),
        result => result,
    }
}

/// Waits until a socket has room, as long as its owner wants to (SO_SNDTIMEO), by libc's `poll`: a thread can be cancelled
/// there, and a signal ends it. False: the time is over, a signal came, or the connection has ended.
#[must_use]
#[allow(
    clippy::disallowed_methods,
    reason = "a system call of our own is no place to be cancelled; a hook passes this on"
)]
pub fn wait_for_room(fd: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    #[allow(
        clippy::disallowed_methods,
        reason = "the library's hook does what libc's function does, and is cancelled as that is"
    )]
    // SAFETY: one entry.
    let ready =
        unsafe { libc::poll(&raw mut asked, 1, uncopy_sys::socket::send_timeout_ms(fd).unwrap_or(-1)) };
    ready == 1 && asked.revents == libc::POLLOUT
}

/// Reads the notices of a socket whose owner promised [`Owner::reads_errors`], without waiting, and gives the token of
/// each message whose pages the kernel has done with. To be called when the socket reports an error (POLLERR), and
/// now and then before.
///
/// Notices are lost when the socket is closed: what is still held then is held for good.
pub fn completions(fd: i32, done: &mut dyn FnMut(Token)) {
    let _errno = uncopy_sys::errno::Keep::new();
    zerocopy::completions(fd, done);
}

/// What a socket's owner promises, so that calls to the kernel can be saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The socket is non-blocking, SIGPIPE is ignored, and after an error nothing but closing follows.
    pub ends_on_errors: bool,
    /// No other thread sends on this socket: a datagram may be put together in several calls.
    pub sends_alone: bool,
    /// Nobody else reads the socket's error queue: MSG_ZEROCOPY may be used where the peer is on another machine, and
    /// [`completions`] reads it. Together with `sends_alone` only.
    pub reads_errors: bool,
}

impl Owner {
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

/// Says what the owner of a socket promises, until it is closed. For servers that know their sockets.
pub fn own(fd: i32, owner: Owner) {
    let mut bits = owner.bits();
    if bits & Owner::READS_ERRORS != 0 {
        let _errno = uncopy_sys::errno::Keep::new();
        if !owner.sends_alone || !zerocopy::own(fd) {
            bits &= !Owner::READS_ERRORS;
        }
    }
    facts::own(fd, bits);
}

/// Says that nothing in this process closes or replaces descriptors that it did not open. For servers.
pub fn trust_descriptors() {
    TRUSTED.store(true, Relaxed);
}
