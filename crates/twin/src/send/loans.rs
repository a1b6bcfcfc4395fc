//! The loans of one message, and what becomes of each when the message has been sent. Whoever sends twin memory by
//! reference does it with these: nothing else decides which loan the kernel may still hold.
//!
//! The kernel takes a message from its start. Of one whose first `sent_bytes` it took, a part that begins `offset` bytes
//! into the message was taken, at least some of it, if `offset < sent_bytes`:
//!
//! | the call | its loans with `offset < sent_bytes` | the others |
//! |---|---|---|
//! | failed, or copied all it took | settled | settled |
//! | spliced | dropped: the kernel may hold the pages for good | settled |
//! | until a token is completed | confirmed, then kept with the token | settled |
//!
//! Invariant: each loan ends once, by one of these. Settling one that the kernel holds would let a write change bytes on
//! their way; so whatever is in doubt is dropped, which costs a page later and is never wrong.

use crate::{Loan, Until, lend, settle};
use core::mem::MaybeUninit;
use uncopy_sys::errno::Errno;
use uncopy_transmit::{Hold, Part, Plan, Sent, Token, Way};

/// At most `MAX` loans of one message, by where in the message their parts begin. No memory but its own: it is used
/// inside calls of programs that may hold any lock. Dropping it drops every loan.
#[derive(Debug)]
pub struct Loans<const MAX: usize> {
    until: Until,
    /// The first `count` are initialised.
    loans: [MaybeUninit<(usize, Loan)>; MAX],
    count: usize,
}

impl<const MAX: usize> Loans<MAX> {
    /// No loans yet of a message that is sent as `plan` says.
    #[must_use]
    pub const fn new(plan: Plan) -> Self {
        let until = if matches!(plan.way, Way::Completion) { Until::Completed } else { Until::Dropped };
        Self { until, loans: [const { MaybeUninit::uninit() }; MAX], count: 0 }
    }

    /// Whether nothing was lent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The part of `len` bytes at `ptr` that begins `offset` bytes into the message: lent, or to be copied where it
    /// cannot be lent or there are too many loans.
    pub fn lend(&mut self, offset: usize, ptr: *const u8, len: usize) -> Part {
        let Some(slot) = self.loans.get_mut(self.count) else { return Part::Copied { ptr, len } };
        let Some(loan) = lend(ptr as usize, len, self.until) else { return Part::Copied { ptr, len } };
        slot.write((offset, loan));
        self.count += 1;
        Part::Lent { ptr, len }
    }

    /// Makes the call that sends the message, and ends the loans by its result. `keep` gets those that the kernel holds
    /// until a token is completed, and settles them then ([`settle`]).
    ///
    /// # Errors
    /// Those of `send`; nothing is held then.
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
                // A write during the call is noted before the program's call returns.
                loan.confirm();
                keep(token, loan);
            }
            None => drop(loan),
        });
        result.map(|sent| sent.len_bytes)
    }

    fn drain(&mut self, mut end: impl FnMut(usize, Loan)) {
        for slot in &self.loans[..core::mem::take(&mut self.count)] {
            // SAFETY: `lend` initialised the first `count`; the count is 0 from here on, so that each is read once.
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
