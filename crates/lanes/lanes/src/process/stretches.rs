//! Literal bytes and tokens that are read by one call.

use super::{Process, Received};
use crate::board::{MAX_ANNOUNCEMENTS, Slot};
use crate::message::{PlaceByRef, bytes_from, deliver};
use crate::receive::{Receiver, Stretch, Stretches};
use smallvec::SmallVec;
use uncopy_sys::iovec::Part;
use uncopy_sys::sync::Arc;

impl Stretches {
    /// Returns the buffers for reading these stretches from the socket: literal bytes go directly to their place
    /// in `parts`, tokens into `tokens`. All the bytes of the stretches must fit into `parts`.
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
    /// Delivers what the tokens stand for into `parts`, after the first `left_bytes` bytes of these stretches were
    /// read from the socket as [`Stretches::parts`] laid them out.
    ///
    /// # Errors
    /// A message, if the sender has announced something invalid.
    ///
    /// # Safety
    /// The parts must be writable as far as the stretches reach.
    pub(super) unsafe fn deliver_stretches(
        &'static self,
        stretches: &Stretches,
        mut left_bytes: usize,
        parts: &[Part],
        receiver: &mut Receiver,
        own: &Slot,
        place: &mut impl PlaceByRef,
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
                    let held = Arc::new(receiver.resolve_token(token, own, &self.lanes.peers)?);
                    let parts = bytes_from(parts, taken, held.len_bytes());
                    // SAFETY: `parts` are those of the caller from `taken` on, at most as long as the token's
                    // reference, and the caller guarantees that they are writable.
                    taken += unsafe { deliver(held, &self.lanes, 0, &parts, place) };
                    is_behind_token = true;
                }
            }
        }
        let may_have_more = is_behind_token || !stretches.is_complete || taken < stretches.len_bytes;
        let wanted = parts.iter().map(|part| part.len_bytes).sum();
        Ok(if may_have_more { Received::of(taken, wanted) } else { Received::Done(Ok(taken)) })
    }
}
