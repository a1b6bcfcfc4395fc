//! One message: split into parts, those in twin memory lent, and sent.

use super::pending;
use crate::{Loan, Until};
use core::mem::MaybeUninit;
use libc::{iovec, ssize_t};
use uncopy_sys::errno::{Errno, Keep};
use uncopy_sys::{readable, socket};
use uncopy_transmit::{Envelope, Hold, Part, Plan, Sent, Token, Way};

/// Parts that the kernel takes in one message (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;
/// Parts of most messages.
const PARTS_FEW: usize = 32;
/// Parts of one message that are lent; others of it are copied.
const MAX_LOANS: usize = 32;
/// Bytes below which a part is not worth protecting its pages for: it goes along as a copy.
const MIN_PART_BYTES: usize = 1024;

const NO_ENVELOPE: Envelope = Envelope { to: 0, to_len_bytes: 0, control: 0, control_len_bytes: 0 };

/// A part as the program gave it: the layout of `iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Given {
    /// First byte.
    pub address: usize,
    /// Bytes.
    pub len_bytes: usize,
}

impl Given {
    fn copied(self) -> Part {
        Part::Copied { ptr: self.address as *const u8, len: self.len_bytes }
    }

    /// What is left behind its first bytes.
    fn behind(self, bytes: usize) -> Self {
        Self { address: self.address + bytes, len_bytes: self.len_bytes - bytes }
    }

    /// No bytes.
    fn none(self) -> Self {
        Self { address: self.address, len_bytes: 0 }
    }

    /// What is worth lending of it, between what is not. In one piece without `room` for two more parts.
    fn cut(self, room: usize) -> [Self; 3] {
        let (address, len_bytes) = crate::worth_lending(self.address, self.len_bytes);
        if len_bytes == self.len_bytes || room < 2 {
            return [self.none(), Self { address: self.address, len_bytes: self.len_bytes }, self.none()];
        }
        let before = Self { address: self.address, len_bytes: (address - self.address).min(self.len_bytes) };
        let behind = address + len_bytes;
        let left = self.len_bytes - before.len_bytes - len_bytes;
        [before, Self { address, len_bytes }, Self { address: behind, len_bytes: left }]
    }

    /// Whether it lies in twin memory and is large enough.
    fn is_lendable(self) -> bool {
        self.len_bytes >= MIN_PART_BYTES
            && crate::contains(self.address)
            && crate::contains(self.address.wrapping_add(self.len_bytes - 1))
    }
}

/// Whether what the program points to can be read. What lies in the page of the stack that this call runs on needs no
/// question to the kernel.
#[inline]
pub fn is_readable(address: usize, len_bytes: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
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
    // SAFETY: aligned and readable, and of the layout of `iovec`.
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
            Self::Write => uncopy_transmit::plan(fd, len_bytes, lendable_bytes, 0, &Envelope::default()),
        }
    }

    fn make(self, fd: i32, parts: &[Part], plan: Plan) -> Result<Sent, Errno> {
        match self {
            Self::Message { flags, envelope } => uncopy_transmit::send(fd, parts, flags, envelope, plan),
            Self::Write => uncopy_transmit::write(fd, parts, plan),
        }
    }
}

/// What a message's loans become when it has been sent.
struct Loans {
    loans: [MaybeUninit<(usize, Loan)>; MAX_LOANS],
    count: usize,
}

impl Loans {
    const fn new() -> Self {
        Self { loans: [const { MaybeUninit::uninit() }; MAX_LOANS], count: 0 }
    }

    /// Lends a part that begins `offset` bytes into the message.
    fn lend(&mut self, offset: usize, given: Given, until: Until) -> Part {
        if self.count < MAX_LOANS
            && let Some(loan) = crate::lend(given.address, given.len_bytes, until)
        {
            self.loans[self.count].write((offset, loan));
            self.count += 1;
            return Part::Lent { ptr: given.address as *const u8, len: given.len_bytes };
        }
        given.copied()
    }

    /// The kernel may hold the first `referred_bytes` bytes of the message: until `token` is completed, or for good. And
    /// nothing of the rest.
    fn end(self, referred_bytes: usize, token: Option<Token>) {
        for loan in &self.loans[..self.count] {
            // SAFETY: the first `count` are initialised, and read once: `self` has no other use for them.
            let (offset, loan) = unsafe { loan.assume_init_read() };
            match token {
                _ if offset >= referred_bytes => crate::settle(loan),
                Some(token) => pending::keep(token, loan),
                None => drop(loan),
            }
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
        if part.is_lendable() {
            lendable_bytes += part.len_bytes;
        }
    }
    if super::is_small(lendable_bytes) {
        return None;
    }
    let keep = Keep::new();
    let plan = call.plan(fd, len_bytes, lendable_bytes);
    if plan.way == Way::Copy && !plan.is_timed() {
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
    let split = if given.len() <= PARTS_FEW { split::<PARTS_FEW> } else { split_many };
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
    while sent_bytes < len_bytes && wait_for_room(fd) {
        match send_some(fd, given, sent_bytes, rest, plan) {
            Some(Ok(bytes)) => sent_bytes += bytes,
            Some(Err(Errno(libc::EAGAIN))) => uncopy_sys::thread::pause(),
            // The next call is told.
            Some(Err(_)) | None => break,
        }
    }
    Some(Ok(sent_bytes))
}

/// Waits until a socket has room, as long as its owner wants to. False: the time is over, a signal came, or the
/// connection has ended.
fn wait_for_room(fd: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    let ready = unsafe { libc::poll(&raw mut asked, 1, socket::send_timeout_ms(fd).unwrap_or(-1)) };
    ready == 1 && asked.revents == libc::POLLOUT
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
    let mut loans = Loans::new();
    let until = if plan.way == Way::Completion { Until::Completed } else { Until::Dropped };
    let mut offset = 0;
    for (index, given) in given_parts.iter().enumerate() {
        let room = MAX.checked_sub(parts.count + given_parts.len() - index)?;
        let given = given.behind(skip.min(given.len_bytes));
        skip -= given_parts[index].len_bytes - given.len_bytes;
        let lends = plan.way != Way::Copy && given.is_lendable();
        let [before, within, behind] =
            if lends { given.cut(room) } else { [given.none(), given, given.none()] };
        parts.push(before.copied());
        let is_worth_it = lends && within.len_bytes >= MIN_PART_BYTES;
        let at = offset + before.len_bytes;
        parts.push(if is_worth_it { loans.lend(at, within, until) } else { within.copied() });
        parts.push(behind.copied());
        offset += given.len_bytes;
    }
    let parts = &parts.parts[..parts.count];
    if plan.way != Way::Copy && loans.count == 0 && skip_bytes == 0 {
        return None;
    }
    let result = call.make(fd, parts, plan);
    let (referred_bytes, token) = match &result {
        Ok(Sent { hold: Hold::Nothing, .. }) | Err(_) => (0, None),
        Ok(Sent { hold: Hold::Spliced, len_bytes }) => (*len_bytes, None),
        Ok(Sent { hold: Hold::Until(token), len_bytes }) => (*len_bytes, Some(*token)),
    };
    loans.end(referred_bytes, token);
    Some(result.map(|sent| sent.len_bytes))
}
