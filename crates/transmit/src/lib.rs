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

mod gather;
mod part;

pub use part::Part;
pub use uncopy_sys::errno::Errno;
pub use uncopy_sys::socket::Envelope;

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

/// Names what the kernel holds until it says that it is done. Never reused in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

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

/// How a message of `len_bytes` bytes of which `lent_bytes` could be lent would go out now.
///
/// [`Way::Copy`] where a reference does not pay or is not possible (flags, an address, this kind of descriptor).
#[must_use]
pub fn way(fd: i32, len_bytes: usize, lent_bytes: usize, flags: i32, envelope: &Envelope) -> Way {
    let _ = (fd, len_bytes, lent_bytes, flags, envelope);
    Way::Copy
}

/// Whether it pays to lend a part of `len_bytes` bytes that goes to `fd`; calibrated. Below that a caller need
/// not even ask whether it can be lent.
#[must_use]
pub fn pays(fd: i32, len_bytes: usize) -> bool {
    way(fd, len_bytes, len_bytes, 0, &Envelope::default()) != Way::Copy
}

/// The fewest bytes that pay anywhere: a comparison, no system call.
#[must_use]
pub fn least_bytes() -> usize {
    usize::MAX
}

/// Sends the parts as one message, as `sendmsg(fd, …, flags)` would. `way` is what [`way`] said when the parts
/// were lent: what is sent by reference is never held longer than that way says.
///
/// # Errors
/// What sendmsg says. Nothing was sent and nothing is held then.
pub fn send(fd: i32, parts: &[Part], flags: i32, envelope: &Envelope, way: Way) -> Result<Sent, Errno> {
    let _ = way;
    gather::send(fd, parts, flags, envelope).map(|len_bytes| Sent { len_bytes, hold: Hold::Nothing })
}

/// Writes the parts as `writev(fd, …)` would, whatever the descriptor is.
///
/// # Errors
/// What writev says. Nothing was written and nothing is held then.
pub fn write(fd: i32, parts: &[Part], way: Way) -> Result<Sent, Errno> {
    let _ = way;
    gather::write(fd, parts).map(|len_bytes| Sent { len_bytes, hold: Hold::Nothing })
}

/// Gives what the kernel has done with since the last call, without waiting. Returns whether it still holds
/// anything.
pub fn completions(done: &mut dyn FnMut(Token)) -> bool {
    let _ = done;
    false
}

/// What a socket's owner promises, so that calls to the kernel can be saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The socket is non-blocking, SIGPIPE is ignored, and after an error nothing but closing follows.
    pub ends_on_errors: bool,
    /// No other thread sends on this socket: a datagram may be put together in several calls.
    pub sends_alone: bool,
    /// Nobody else reads the socket's error queue: MSG_ZEROCOPY may be used, and [`completions`] reads it.
    pub reads_errors: bool,
}

/// Says what the owner of a socket promises, until it is closed. For servers that know their sockets.
pub fn own(fd: i32, owner: Owner) {
    let _ = (fd, owner);
}

/// Says that nothing in this process closes or replaces descriptors that it did not open. For servers.
pub fn trust_descriptors() {}
