//! Splits a message into parts, lends those in twin memory, and sends it.

use super::{Loans, pending};
use libc::{iovec, ssize_t};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::{Errno, SavedErrno};
use uncopy_sys::iovec::MAX_PARTS;
pub use uncopy_sys::iovec::Part as SendPart;
use uncopy_sys::readable::is_readable;
use uncopy_sys::socket;
use uncopy_transmit::{Envelope, Part, Plan, Sent, Way};

/// Number of parts up to which a small array on the stack is used.
const SMALL_PARTS: usize = 32;
/// Maximum parts of a message that are lent; further ones are copied.
const MAX_LOANS: usize = 32;
/// Minimum size in bytes of a part that is worth protecting; smaller ones are copied.
const MIN_PART_BYTES: usize = 1024;

const NO_ENVELOPE: Envelope = Envelope { to: 0, to_len_bytes: 0, control: 0, control_len_bytes: 0 };

fn copied(part: SendPart) -> Part {
    Part::Copied { ptr: part.address as *const u8, len: part.len_bytes }
}

/// Lends a part that begins `offset` bytes into the message, or else marks it as copied.
fn lent(part: SendPart, offset: usize, loans: &mut Loans<MAX_LOANS>) -> Part {
    loans.lend(offset, part.address as *const u8, part.len_bytes)
}

/// Returns the rest of a part after its first `bytes` bytes.
fn skip_first(part: SendPart, bytes: usize) -> SendPart {
    SendPart { address: part.address + bytes, len_bytes: part.len_bytes - bytes }
}

/// Returns the whole part, with nothing before or after.
fn whole(part: SendPart) -> [SendPart; 3] {
    let none = SendPart { len_bytes: 0, ..part };
    [none, part, none]
}

/// Splits a part into what is worth lending, and what lies before and after, if `spare_parts` is at least 2.
fn split_lendable(part: SendPart, spare_parts: usize) -> [SendPart; 3] {
    let (address, len_bytes) = crate::worth_lending(part.address, part.len_bytes);
    if len_bytes == part.len_bytes || spare_parts < 2 {
        return whole(part);
    }
    let before = SendPart { address: part.address, len_bytes: (address - part.address).min(part.len_bytes) };
    let remaining_bytes = part.len_bytes - before.len_bytes - len_bytes;
    [
        before,
        SendPart { address, len_bytes },
        SendPart { address: address + len_bytes, len_bytes: remaining_bytes },
    ]
}

/// True if the part lies in twin memory and is large enough.
fn is_lendable(part: SendPart) -> bool {
    part.len_bytes >= MIN_PART_BYTES
        && crate::pages::contains(part.address)
        && crate::pages::contains(part.address.wrapping_add(part.len_bytes - 1))
}

/// Returns the parts of a vector of the program's. Returns `None` if it is empty, too long or unreadable; the
/// kernel then reports the error.
///
/// # Safety
/// The vector must not change while the result is in use.
pub unsafe fn read_vector<'a>(vector: *const iovec, count: usize) -> Option<&'a [SendPart]> {
    let fits = (1..=MAX_PARTS).contains(&count) && vector.cast::<SendPart>().is_aligned();
    let readable = fits && is_readable(vector as usize, count * size_of::<iovec>());
    // SAFETY: `count` entries were just found to be aligned and readable. A `Part` has the layout of `iovec`
    // and allows any bytes. The caller guarantees that the vector does not change.
    readable.then(|| unsafe { core::slice::from_raw_parts(vector.cast(), count) })
}

#[derive(Clone, Copy)]
pub enum Call<'a> {
    /// The `send` family, which takes flags.
    Message { flags: i32, envelope: &'a Envelope },
    /// `write` and `writev`, whose descriptor may be of any kind.
    Write,
}

impl Call<'_> {
    fn flags(self) -> i32 {
        match self {
            Self::Message { flags, .. } => flags,
            Self::Write => 0,
        }
    }

    /// Returns the call with additional flags; `write` becomes `send`.
    fn with_flags(self, more_flags: i32) -> Self {
        match self {
            Self::Message { flags, envelope } => Self::Message { flags: flags | more_flags, envelope },
            Self::Write => Self::Message { flags: more_flags, envelope: &NO_ENVELOPE },
        }
    }

    fn plan(self, fd: ProgramFd, len_bytes: usize, lendable_bytes: usize) -> Plan {
        match self {
            Self::Message { flags, envelope } => {
                uncopy_transmit::plan(fd, len_bytes, lendable_bytes, flags, envelope)
            }
            Self::Write => uncopy_transmit::plan(fd, len_bytes, lendable_bytes, 0, &NO_ENVELOPE),
        }
    }

    fn execute(self, fd: ProgramFd, parts: &[Part], plan: Plan) -> Result<Sent, Errno> {
        match self {
            Self::Message { flags, envelope } => uncopy_transmit::send(fd, parts, flags, envelope, plan),
            Self::Write => uncopy_transmit::write(fd, parts, plan),
        }
    }
}

/// Sends the parts as one message. Returns `None` if nothing was done, because nothing would be gained.
pub fn send(fd: ProgramFd, parts: &[SendPart], call: Call<'_>) -> Option<ssize_t> {
    let mut len_bytes = 0usize;
    let mut lendable_bytes = 0;
    for part in parts {
        // The kernel rejects sums that overflow `ssize_t`.
        len_bytes = len_bytes.checked_add(part.len_bytes).filter(|sum| isize::try_from(*sum).is_ok())?;
        if is_lendable(*part) {
            lendable_bytes += part.len_bytes;
        }
    }
    if super::is_small(lendable_bytes) {
        return None;
    }
    let keep = SavedErrno::new();
    let plan = call.plan(fd, len_bytes, lendable_bytes);
    if plan.way == Way::Copy && !plan.is_counted() {
        return None;
    }
    let flags = call.flags();
    let is_blocking = flags & libc::MSG_DONTWAIT == 0 && !socket::is_non_blocking(fd);
    let result = if is_blocking {
        send_waiting(fd, parts, call, plan, len_bytes)
    } else {
        send_some(fd, parts, 0, call, plan)
    }?;
    drop(keep);
    Some(match result {
        Ok(sent_bytes) => sent_bytes.cast_signed(),
        Err(error) => {
            uncopy_sys::errno::set(error.0);
            -1
        }
    })
}

/// Sends as much as there is space for. Returns `None` if nothing can be lent.
fn send_some(
    fd: ProgramFd,
    parts: &[SendPart],
    skip_bytes: usize,
    call: Call<'_>,
    plan: Plan,
) -> Option<Result<usize, Errno>> {
    let split = if parts.len() <= SMALL_PARTS { split::<SMALL_PARTS> } else { split_many };
    split(fd, parts, skip_bytes, call, plan)
}

#[cold]
#[inline(never)]
fn split_many(
    fd: ProgramFd,
    parts: &[SendPart],
    skip_bytes: usize,
    call: Call<'_>,
    plan: Plan,
) -> Option<Result<usize, Errno>> {
    split::<MAX_PARTS>(fd, parts, skip_bytes, call, plan)
}

/// Sends on a blocking socket. While blocked, a thread can be cancelled and interrupted by signals. So the
/// only blocking call here is libc's `poll`, made while no resources are held; if there is no space at all,
/// libc's own call must be made (`None`).
fn send_waiting(
    fd: ProgramFd,
    parts: &[SendPart],
    call: Call<'_>,
    plan: Plan,
    len_bytes: usize,
) -> Option<Result<usize, Errno>> {
    let mut sent_bytes = match send_some(fd, parts, 0, call.with_flags(libc::MSG_DONTWAIT), plan)? {
        // No space, or the descriptor no longer refers to a socket.
        Err(Errno(libc::EAGAIN | libc::ENOTSOCK)) => return None,
        Err(error) => return Some(Err(error)),
        Ok(bytes) => bytes,
    };
    // SIGPIPE is only for a call that sends nothing.
    let rest = call.with_flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    while sent_bytes < len_bytes && uncopy_transmit::wait_for_room(fd) {
        match send_some(fd, parts, sent_bytes, rest, plan) {
            Some(Ok(bytes)) => sent_bytes += bytes,
            Some(Err(Errno(libc::EAGAIN))) => uncopy_sys::thread::pause(),
            // The next call reports the error.
            Some(Err(_)) | None => break,
        }
    }
    Some(Ok(sent_bytes))
}

struct Parts<const MAX: usize> {
    parts: [Part; MAX],
    count: usize,
}

impl<const MAX: usize> Parts<MAX> {
    /// Adds a part, unless it is empty. There must be room.
    fn push(&mut self, part: Part) {
        if !part.is_empty() {
            self.parts[self.count] = part;
            self.count += 1;
        }
    }
}

fn split<const MAX: usize>(
    fd: ProgramFd,
    program_parts: &[SendPart],
    skip_bytes: usize,
    call: Call<'_>,
    plan: Plan,
) -> Option<Result<usize, Errno>> {
    let mut skip = skip_bytes;
    let mut parts = Parts { parts: [Part::Copied { ptr: core::ptr::null(), len: 0 }; MAX], count: 0 };
    let mut loans = Loans::<MAX_LOANS>::new(plan);
    let mut offset = 0;
    for (index, part) in program_parts.iter().enumerate() {
        let spare_parts = MAX.checked_sub(parts.count + program_parts.len() - index)?;
        let part = skip_first(*part, skip.min(part.len_bytes));
        skip -= program_parts[index].len_bytes - part.len_bytes;
        let lends = plan.way != Way::Copy && is_lendable(part);
        let [before, within, after] = if lends { split_lendable(part, spare_parts) } else { whole(part) };
        parts.push(copied(before));
        let is_worth_it = lends && within.len_bytes >= MIN_PART_BYTES;
        let at = offset + before.len_bytes;
        parts.push(if is_worth_it { lent(within, at, &mut loans) } else { copied(within) });
        parts.push(copied(after));
        offset += part.len_bytes;
    }
    let parts = &parts.parts[..parts.count];
    if plan.way != Way::Copy && loans.is_empty() && skip_bytes == 0 {
        return None;
    }
    Some(loans.send(|| call.execute(fd, parts, plan), pending::keep))
}
