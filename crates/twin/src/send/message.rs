//! One message: split into parts, those in twin memory lent, and sent.

use super::{Loans, pending};
use libc::{iovec, ssize_t};
use uncopy_sys::errno::{Errno, Keep};
use uncopy_sys::iovec::MAX_PARTS;
pub use uncopy_sys::iovec::Part as Given;
use uncopy_sys::{PAGE_BYTES, readable, socket};
use uncopy_transmit::{Envelope, Part, Plan, Sent, Way};

/// Parts of most messages: room on the stack for these only.
const FEW_PARTS: usize = 32;
/// Parts of one message that are lent; others of it are copied.
const MAX_LOANS: usize = 32;
/// Bytes below which a part is not worth protecting its pages for: it goes along as a copy.
const MIN_PART_BYTES: usize = 1024;

const NO_ENVELOPE: Envelope = Envelope { to: 0, to_len_bytes: 0, control: 0, control_len_bytes: 0 };

fn copied(given: Given) -> Part {
    Part::Copied { ptr: given.address as *const u8, len: given.len_bytes }
}

/// Lent if that can be done, `offset` bytes into the message.
fn lent(given: Given, offset: usize, loans: &mut Loans<MAX_LOANS>) -> Part {
    loans.lend(offset, given.address as *const u8, given.len_bytes)
}

/// What is left behind its first bytes.
fn behind(given: Given, bytes: usize) -> Given {
    Given { address: given.address + bytes, len_bytes: given.len_bytes - bytes }
}

/// All of it, with nothing before or behind.
fn alone(given: Given) -> [Given; 3] {
    let none = Given { len_bytes: 0, ..given };
    [none, given, none]
}

/// What is worth lending of it, between what is not. In one piece without `room` for two more parts.
fn cut(given: Given, room: usize) -> [Given; 3] {
    let (address, len_bytes) = crate::worth_lending(given.address, given.len_bytes);
    if len_bytes == given.len_bytes || room < 2 {
        return alone(given);
    }
    let before = Given { address: given.address, len_bytes: (address - given.address).min(given.len_bytes) };
    let left = given.len_bytes - before.len_bytes - len_bytes;
    [before, Given { address, len_bytes }, Given { address: address + len_bytes, len_bytes: left }]
}

/// Whether it lies in twin memory and is large enough.
fn is_lendable(given: Given) -> bool {
    given.len_bytes >= MIN_PART_BYTES
        && crate::pages::contains(given.address)
        && crate::pages::contains(given.address.wrapping_add(given.len_bytes - 1))
}

/// Whether what the program points to can be read. What lies in the page of the stack that this call runs on needs no
/// question to the kernel.
#[inline]
pub fn is_readable(address: usize, len_bytes: usize) -> bool {
    let here = core::hint::black_box(0u8);
    let top = &raw const here as usize;
    let is_above = address.wrapping_sub(top) < PAGE_BYTES - top % PAGE_BYTES;
    (is_above && len_bytes <= PAGE_BYTES - address % PAGE_BYTES) || readable::is_readable(address, len_bytes)
}

/// The parts of a vector of the program's; `None`: it is empty, too long or cannot be read, which is the kernel's to
/// say.
///
/// # Safety
/// Nobody changes the vector while the result is in use.
pub unsafe fn given<'a>(vector: *const iovec, count: usize) -> Option<&'a [Given]> {
    let fits = (1..=MAX_PARTS).contains(&count) && vector.cast::<Given>().is_aligned();
    let readable = fits && is_readable(vector as usize, count * size_of::<iovec>());
    // SAFETY: `count` entries are aligned and readable, as just checked; an entry has the layout of `iovec` and may hold any
    // bytes; the caller says that nobody changes them.
    readable.then(|| unsafe { core::slice::from_raw_parts(vector.cast(), count) })
}

/// How a call sends.
#[derive(Clone, Copy)]
pub enum Call<'a> {
    /// The `send` family: with flags.
    Message { flags: i32, envelope: &'a Envelope },
    /// `write` and `writev`: the descriptor may be anything.
    Write,
}

impl Call<'_> {
    fn flags(self) -> i32 {
        match self {
            Self::Message { flags, .. } => flags,
            Self::Write => 0,
        }
    }

    /// The same call to a socket, with these flags as well: `write` is `send` without any.
    fn with(self, more_flags: i32) -> Self {
        match self {
            Self::Message { flags, envelope } => Self::Message { flags: flags | more_flags, envelope },
            Self::Write => Self::Message { flags: more_flags, envelope: &NO_ENVELOPE },
        }
    }

    fn plan(self, fd: i32, len_bytes: usize, lendable_bytes: usize) -> Plan {
        match self {
            Self::Message { flags, envelope } => {
                uncopy_transmit::plan(fd, len_bytes, lendable_bytes, flags, envelope)
            }
            Self::Write => uncopy_transmit::plan(fd, len_bytes, lendable_bytes, 0, &NO_ENVELOPE),
        }
    }

    fn make(self, fd: i32, parts: &[Part], plan: Plan) -> Result<Sent, Errno> {
        match self {
            Self::Message { flags, envelope } => uncopy_transmit::send(fd, parts, flags, envelope, plan),
            Self::Write => uncopy_transmit::write(fd, parts, plan),
        }
    }
}

/// Sends the parts as one message; `None`: nothing was done, because nothing is to be gained.
pub fn send(fd: i32, given: &[Given], call: Call<'_>) -> Option<ssize_t> {
    let mut len_bytes = 0usize;
    let mut lendable_bytes = 0;
    for part in given {
        // The kernel refuses sums that do not fit.
        len_bytes = len_bytes.checked_add(part.len_bytes).filter(|sum| isize::try_from(*sum).is_ok())?;
        if is_lendable(*part) {
            lendable_bytes += part.len_bytes;
        }
    }
    if super::is_small(lendable_bytes) {
        return None;
    }
    let keep = Keep::new();
    let plan = call.plan(fd, len_bytes, lendable_bytes);
    if plan.way == Way::Copy && !plan.is_counted() {
        return None;
    }
    let flags = call.flags();
    let waits = flags & libc::MSG_DONTWAIT == 0 && !socket::is_non_blocking(fd);
    let result = if waits {
        send_waiting(fd, given, call, plan, len_bytes)
    } else {
        send_some(fd, given, 0, call, plan)
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

/// Sends as much as there is room for now; `None`: nothing can be lent.
fn send_some(
    fd: i32,
    given: &[Given],
    skip_bytes: usize,
    call: Call<'_>,
    plan: Plan,
) -> Option<Result<usize, Errno>> {
    let split = if given.len() <= FEW_PARTS { split::<FEW_PARTS> } else { split_many };
    split(fd, given, skip_bytes, call, plan)
}

#[cold]
#[inline(never)]
fn split_many(
    fd: i32,
    given: &[Given],
    skip_bytes: usize,
    call: Call<'_>,
    plan: Plan,
) -> Option<Result<usize, Errno>> {
    split::<MAX_PARTS>(fd, given, skip_bytes, call, plan)
}

/// Sends on a socket whose calls wait for room. A thread can be cancelled while it waits, and a signal ends the wait:
/// so nothing waits here but libc's `poll`, while nothing is held, and what finds no room at all is left to libc's own
/// call (`None`).
fn send_waiting(
    fd: i32,
    given: &[Given],
    call: Call<'_>,
    plan: Plan,
    len_bytes: usize,
) -> Option<Result<usize, Errno>> {
    let mut sent_bytes = match send_some(fd, given, 0, call.with(libc::MSG_DONTWAIT), plan)? {
        // No room; or the number stands for something else by now.
        Err(Errno(libc::EAGAIN | libc::ENOTSOCK)) => return None,
        Err(error) => return Some(Err(error)),
        Ok(bytes) => bytes,
    };
    // A signal for a broken pipe is for the call that sends nothing.
    let rest = call.with(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    while sent_bytes < len_bytes && uncopy_transmit::wait_for_room(fd) {
        match send_some(fd, given, sent_bytes, rest, plan) {
            Some(Ok(bytes)) => sent_bytes += bytes,
            Some(Err(Errno(libc::EAGAIN))) => uncopy_sys::thread::pause(),
            // The next call is told.
            Some(Err(_)) | None => break,
        }
    }
    Some(Ok(sent_bytes))
}

/// Parts as they are sent.
struct Parts<const MAX: usize> {
    parts: [Part; MAX],
    count: usize,
}

impl<const MAX: usize> Parts<MAX> {
    /// Adds a part, unless it is empty. There is room.
    fn push(&mut self, part: Part) {
        if !part.is_empty() {
            self.parts[self.count] = part;
            self.count += 1;
        }
    }
}

fn split<const MAX: usize>(
    fd: i32,
    given_parts: &[Given],
    skip_bytes: usize,
    call: Call<'_>,
    plan: Plan,
) -> Option<Result<usize, Errno>> {
    let mut skip = skip_bytes;
    let mut parts = Parts { parts: [Part::Copied { ptr: core::ptr::null(), len: 0 }; MAX], count: 0 };
    let mut loans = Loans::<MAX_LOANS>::new(plan);
    let mut offset = 0;
    for (index, given) in given_parts.iter().enumerate() {
        let room = MAX.checked_sub(parts.count + given_parts.len() - index)?;
        let given = behind(*given, skip.min(given.len_bytes));
        skip -= given_parts[index].len_bytes - given.len_bytes;
        let lends = plan.way != Way::Copy && is_lendable(given);
        let [before, within, behind] = if lends { cut(given, room) } else { alone(given) };
        parts.push(copied(before));
        let is_worth_it = lends && within.len_bytes >= MIN_PART_BYTES;
        let at = offset + before.len_bytes;
        parts.push(if is_worth_it { lent(within, at, &mut loans) } else { copied(within) });
        parts.push(copied(behind));
        offset += given.len_bytes;
    }
    let parts = &parts.parts[..parts.count];
    if plan.way != Way::Copy && loans.is_empty() && skip_bytes == 0 {
        return None;
    }
    Some(loans.send(|| call.make(fd, parts, plan), pending::keep))
}
