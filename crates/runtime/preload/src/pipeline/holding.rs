//! Receiving and sending by reference: bytes that stay in the kernel between the two calls.
//!
//! As in `lending`, this module blocks only in libc's `poll`, and only after it has sent something; if there is
//! no room at all, the program's own call is made.

use super::lending::Lending;
use super::op::Op;
use core::ffi::{c_int, c_void};
use libc::ssize_t;
use smallvec::SmallVec;
use uncopy_core::options::Policy;
use uncopy_core::stats::Counter;
use uncopy_engine::arena::held;
use uncopy_engine::call::input::Input;
use uncopy_engine::call::output::Output;
use uncopy_engine::state::counters;
use uncopy_engine::state::policy::POLICY;
use uncopy_record::Function;
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
use uncopy_sys::socket::{self, Envelope, Readiness};
use uncopy_transmit::{self as transmit, HeldSender, HeldSent, Waiting};

/// Receives by reference if the bytes are likely to leave unseen. Returns the result of the call; `None`: make it.
pub fn receive(op: &Op, input: &Input<'_>) -> Option<ssize_t> {
    // A recvmsg and a recvfrom have more to store than bytes. Bytes for a lane are received into shared memory.
    let is_simple = matches!(op.transfer.function, Function::Read | Function::Readv | Function::Recv);
    let flags = op.stream?;
    if !is_simple || flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 || crate::lanes::is_on() {
        return None;
    }
    let got_bytes = input.receive_held(op.fd());
    if got_bytes.is_some() || flags & libc::MSG_DONTWAIT != 0 || !input.awaits_held(op.fd()) {
        return got_bytes.map(|got_bytes| got_bytes as ssize_t);
    }
    // Waits as the call does, with its time limit and its signals, and gets its error, or the end of the stream.
    let peeked = input.call(|parts| peek(op.fd(), parts[0].address, flags));
    if peeked > 0 { input.receive_held(op.fd()).map(|got_bytes| got_bytes as ssize_t) } else { Some(peeked) }
}

/// Peeks at the first byte of a stream socket by libc's `recv`, which waits and is a cancellation point.
fn peek(fd: ProgramFd, to: usize, flags: c_int) -> ssize_t {
    #[allow(
        clippy::disallowed_methods,
        reason = "the library's hook passes a receive of one byte on, which is cancelled as the program's"
    )]
    // SAFETY: the caller passes the address of a byte that may be written.
    unsafe {
        libc::recv(fd.number(), to as *mut c_void, 1, flags | libc::MSG_PEEK)
    }
}

/// Sends an output of which bytes are held in the kernel, if that is possible. Otherwise they are read out.
pub fn send(fd: ProgramFd, output: &mut Output, flags: c_int) -> Lending {
    let is_non_blocking = socket::is_non_blocking(fd);
    let is_forced = POLICY.mode() == Policy::Always;
    let is_possible =
        (is_non_blocking || flags & libc::MSG_DONTWAIT == 0) && transmit::accepts_held(fd, flags, is_forced);
    if !is_possible {
        output.read_out();
        return Lending::Gather;
    }
    let parts = output.held_parts();
    let waiting = if is_non_blocking { Waiting::ByDescriptor } else { Waiting::Never };
    let sender = HeldSender::new(fd, flags, waiting);
    let mut message = Message { fd, flags, waiting, sender, parts: &parts, sent_bytes: 0, referred_bytes: 0 };
    let ended = output.call(|_| message.send());
    counters::add(Counter::HeldSentBytes, message.referred_bytes);
    match ended {
        Ok(End::Done) => Lending::Sent(Ok(message.sent_bytes)),
        _ if message.sent_bytes > 0 => Lending::Sent(Ok(message.sent_bytes)),
        Ok(End::NoRoom) => {
            output.read_out();
            Lending::Gather
        }
        Err(error) => Lending::Sent(Err(error)),
    }
}

enum End {
    /// The message was sent, or the non-blocking socket takes no more.
    Done,
    /// A blocking call has to wait, and has sent nothing.
    NoRoom,
}

enum Step {
    Bytes { len_bytes: usize, is_full: bool },
    NoRoom,
}

struct Message<'a> {
    fd: ProgramFd,
    flags: c_int,
    waiting: Waiting,
    /// Sender of held bytes; `None` if they must be copied.
    sender: Option<HeldSender>,
    parts: &'a [(Part, bool)],
    sent_bytes: usize,
    /// Bytes that were sent by reference.
    referred_bytes: usize,
}

impl Message<'_> {
    fn send(&mut self) -> Result<End, Errno> {
        let mut first = self.parts.first().map(|first| first.0);
        while let Some(part) = first {
            // A reset would be reported by the next message and cleared, although this call returns a count.
            if self.sent_bytes > 0 && socket::readiness(self.fd, 0) == Readiness::Ended {
                return Ok(End::Done);
            }
            let step = if self.parts[0].1 { self.send_held(part)? } else { self.send_copied(part)? };
            match step {
                Step::Bytes { len_bytes, is_full } => {
                    self.sent_bytes += len_bytes;
                    first = self.advance(part, len_bytes);
                    if is_full && self.waiting == Waiting::ByDescriptor {
                        return Ok(End::Done);
                    }
                }
                Step::NoRoom if self.sent_bytes == 0 => return Ok(End::NoRoom),
                Step::NoRoom if !self.wait_for_room() => return Ok(End::Done),
                // Writable, yet with too little space for references or for a whole part.
                Step::NoRoom => uncopy_sys::thread::pause(),
            }
        }
        Ok(End::Done)
    }

    /// Waits in libc's `poll`. False: the call ends.
    fn wait_for_room(&mut self) -> bool {
        if let Some(sender) = &mut self.sender {
            sender.wait();
        }
        transmit::wait_for_room(self.fd)
    }

    /// Removes the first `len_bytes` bytes, of which `part` has the first; returns what is left of the next part.
    fn advance(&mut self, part: Part, mut len_bytes: usize) -> Option<Part> {
        let mut rest = part;
        loop {
            if len_bytes < rest.len_bytes {
                return Some(Part {
                    address: rest.address + len_bytes,
                    len_bytes: rest.len_bytes - len_bytes,
                });
            }
            len_bytes -= rest.len_bytes;
            self.parts = &self.parts[1..];
            rest = self.parts.first()?.0;
        }
    }

    /// Sends the first parts, up to the next with held bytes, as copies. `first`: what is left of the first one.
    fn send_copied(&mut self, first: Part) -> Result<Step, Errno> {
        let copied: SmallVec<[Part; 16]> = core::iter::once(first)
            .chain(self.parts[1..].iter().take_while(|(_, is_held)| !is_held).map(|(part, _)| *part))
            .collect();
        self.copy(&copied, copied.len() < self.parts.len())
    }

    fn copy(&mut self, parts: &[Part], more: bool) -> Result<Step, Errno> {
        let mut flags = self.flags | libc::MSG_DONTWAIT;
        if more {
            flags |= libc::MSG_MORE;
        }
        if self.sent_bytes > 0 {
            flags |= libc::MSG_NOSIGNAL;
        }
        let all_bytes: usize = parts.iter().map(|part| part.len_bytes).sum();
        match socket::send(self.fd, parts, flags, &Envelope::default()) {
            Ok(len_bytes) => {
                if let Some(sender) = &mut self.sender {
                    sender.note_sent(len_bytes);
                }
                Ok(Step::Bytes { len_bytes, is_full: len_bytes < all_bytes })
            }
            Err(Errno::EAGAIN) if self.waiting == Waiting::Never => Ok(Step::NoRoom),
            Err(error) => Err(error),
        }
    }

    fn send_held(&mut self, part: Part) -> Result<Step, Errno> {
        let is_last = self.parts.len() == 1;
        let more = !is_last || self.flags & libc::MSG_MORE != 0;
        let duplicate = |pipe, len_bytes| {
            let _critical = Critical::enter_briefly();
            held::duplicate(part.address, len_bytes, pipe)
        };
        let has_sent = self.sent_bytes > 0;
        let sent = match &mut self.sender {
            Some(sender) => sender.send(part.len_bytes, more, has_sent, duplicate)?,
            None => HeldSent::Unavailable,
        };
        match sent {
            HeldSent::Bytes { len_bytes, is_full } => {
                self.referred_bytes += len_bytes;
                Ok(Step::Bytes { len_bytes, is_full })
            }
            HeldSent::NoRoom => Ok(Step::NoRoom),
            HeldSent::Unavailable => {
                {
                    let _critical = Critical::enter();
                    held::make_present(part.address, part.len_bytes);
                }
                self.copy(&[part], !is_last)
            }
        }
    }
}
