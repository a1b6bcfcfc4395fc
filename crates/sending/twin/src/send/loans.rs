//! Loans of one message, and their end when the message has been sent. All code that sends twin memory by
//! reference uses this type, which alone decides which loans the kernel may still hold.
//!
//! The kernel takes a message from its start. If it took `sent_bytes` bytes, it took at least some of a part
//! that begins `offset` bytes into the message if `offset < sent_bytes`:
//!
//! | call | loans with `offset < sent_bytes` | other loans |
//! |---|---|---|
//! | failed, or copied all it took | settled | settled |
//! | spliced | dropped: the kernel may hold the pages forever | settled |
//! | holds until a token completes | confirmed, then kept with the token | settled |
//!
//! Invariant: each loan ends exactly once. Settling a loan that the kernel holds would let a write change
//! bytes in flight; in doubt a loan is dropped, which costs a page later but is always safe.

use crate::{Loan, Until, lend, settle};
use core::mem::MaybeUninit;
use uncopy_sys::errno::Errno;
use uncopy_transmit::{Hold, Part, Plan, Sent, Token, Way};

/// Up to `MAX` loans of one message, with the offsets of their parts in the message. Does not allocate,
/// because callers may hold any lock. Dropping this value drops all loans.
#[derive(Debug)]
pub struct Loans<const MAX: usize> {
    until: Until,
    /// The first `count` elements are initialised.
    loans: [MaybeUninit<(usize, Loan)>; MAX],
    count: usize,
}

impl<const MAX: usize> Loans<MAX> {
    /// Creates an empty set of loans for a message to be sent as `plan` says.
    #[must_use]
    pub const fn new(plan: Plan) -> Self {
        let until = if matches!(plan.way, Way::Completion) { Until::Completed } else { Until::Dropped };
        Self { until, loans: [const { MaybeUninit::uninit() }; MAX], count: 0 }
    }

    /// True if nothing was lent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Lends the part of `len` bytes at `ptr` that begins `offset` bytes into the message. Returns a part to
    /// be copied if it cannot be lent or there are too many loans.
    pub fn lend(&mut self, offset: usize, ptr: *const u8, len: usize) -> Part {
        let Some(slot) = self.loans.get_mut(self.count) else { return Part::Copied { ptr, len } };
        let Some(loan) = lend(ptr as usize, len, self.until) else { return Part::Copied { ptr, len } };
        slot.write((offset, loan));
        self.count += 1;
        Part::Lent { ptr, len }
    }

    /// Calls `send`, which sends the message, and ends the loans according to its result. `keep` receives
    /// loans that the kernel holds until a token completes, and must [`settle`] them then.
    ///
    /// # Errors
    /// Returns the error of `send`; nothing is held then.
    pub fn send(
        mut self,
        send: impl FnOnce() -> Result<Sent, Errno>,
        mut keep: impl FnMut(Token, Loan),
    ) -> Result<usize, Errno> {
        let result = send();
        let (held_bytes, token) = match result {
            Ok(Sent { hold: Hold::Nothing, .. }) | Err(_) => (0, None),
            Ok(Sent { hold: Hold::Spliced, len_bytes }) => (len_bytes, None),
            Ok(Sent { hold: Hold::Until(token), len_bytes }) => (len_bytes, Some(token)),
        };
        self.drain(|offset, loan| match token {
            _ if offset >= held_bytes => settle(loan),
            Some(token) => {
                // Any write during the call is noticed before the program's call returns.
                loan.confirm();
                keep(token, loan);
            }
            None => drop(loan),
        });
        result.map(|sent| sent.len_bytes)
    }

    fn drain(&mut self, mut end: impl FnMut(usize, Loan)) {
        for slot in &self.loans[..core::mem::take(&mut self.count)] {
            // SAFETY: `lend` has initialised the first `count` slots; the count is now 0, so each is read
            // once.
            let (offset, loan) = unsafe { slot.assume_init_read() };
            end(offset, loan);
        }
    }
}

impl<const MAX: usize> Drop for Loans<MAX> {
    fn drop(&mut self) {
        self.drain(|_, loan| drop(loan));
    }
}
