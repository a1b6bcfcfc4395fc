//! Literal bytes and tokens that are read by one call.

use super::{Process, Received};
use crate::board::{MAX_ANNOUNCEMENTS, Slot};
use crate::message::{Kept, bytes_from, deliver};
use crate::receive::{Receiver, Stretch, Stretches};
use smallvec::SmallVec;
use uncopy_sys::iovec::Part;
use uncopy_sys::sync::Arc;

impl Stretches {
    /// Where what the socket has goes, into the `parts` that have room for all that the stretches bring: literal bytes where they belong,
    /// tokens into `tokens`.
    pub(super) fn parts(
        &self,
        parts: &[Part],
        tokens: &mut [u8; MAX_ANNOUNCEMENTS as usize],
    ) -> SmallVec<[Part; 8]> {
        let mut tokens = tokens.iter_mut();
        let (mut into, mut at): (SmallVec<[Part; 8]>, usize) = (SmallVec::new(), 0);
        for stretch in &self.all {
            match stretch {
                Stretch::Literal(len_bytes) => {
                    into.extend(bytes_from(parts, at, *len_bytes));
                    at += len_bytes;
                }
                Stretch::Token(token) => {
                    let byte = tokens
                        .next()
                        .map(|byte| Part { address: core::ptr::from_mut(byte) as usize, len_bytes: 1 });
                    into.extend(byte);
                    at += token.reference.len_bytes as usize;
                }
            }
        }
        into
    }
}

impl Process {
    /// The first `left_bytes` bytes of what these stretches are in the socket were read, literal ones to where they belong among the
    /// `parts`: puts there what the tokens stand for.
    ///
    /// # Errors
    /// The sender has announced what cannot be.
    ///
    /// # Safety
    /// The parts must be memory that may be written, as far as the stretches reach.
    pub(super) unsafe fn took(
        &'static self,
        stretches: &Stretches,
        mut left_bytes: usize,
        parts: &[Part],
        receiver: &mut Receiver,
        own: &Slot,
        place: &mut impl FnMut(Part, usize, &dyn Fn() -> Kept) -> bool,
    ) -> Result<Received, &'static str> {
        let (mut taken, mut is_behind_token) = (0, false);
        for stretch in &stretches.all {
            match stretch {
                _ if left_bytes == 0 => break,
                Stretch::Literal(len_bytes) => {
                    let len_bytes = left_bytes.min(*len_bytes);
                    (left_bytes, taken) = (left_bytes - len_bytes, taken + len_bytes);
                    is_behind_token = false;
                }
                Stretch::Token(token) => {
                    left_bytes -= 1;
                    let held = Arc::new(receiver.took_token(token, own, &self.lanes.peers)?);
                    let parts = bytes_from(parts, taken, held.len_bytes());
                    // SAFETY: the caller answers for the parts.
                    taken += unsafe { deliver(held, &self.lanes, 0, &parts, place) };
                    is_behind_token = true;
                }
            }
        }
        let goes_on = is_behind_token || !stretches.are_all || taken < stretches.len_bytes;
        let wanted = parts.iter().map(|part| part.len_bytes).sum();
        Ok(if goes_on { Received::of(taken, wanted) } else { Received::Done(Ok(taken)) })
    }
}
