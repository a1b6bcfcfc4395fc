//! Inputs by reference: bytes of a TCP stream that are likely to leave by a socket stay in a pipe
//! (`arena/held.rs`).
//!
//! ```text
//! available bytes   | head |------------------- held -------------------| tail |
//! in the draft        read from the pipe                                 received as usual
//! ```
//!
//! The head has the fringe, the pages that the program is known to touch, and a page more, because copies may
//! begin at another offset in their pages; the tail likewise.
//!
//! The call takes what was available when it asked, or what its buffer has room for. So it never waits, and its
//! result is one that the program's own call could have had at that moment. Whatever needs more than that goes
//! the usual way: other flags, a low-water mark (SO_RCVLOWAT), a stream with an upper-layer protocol (kTLS).

use crate::arena::held;
use crate::call::in_flight::{CallResources, RedirectedParts as Targets};
use crate::call::input::Input;
use crate::call::redirected::{Redirected, Target};
use crate::state::policy::POLICY;
use crate::state::recording;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::options::Policy;
use uncopy_core::policy::trials::catalogue::HOLDING;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::SavedErrno;
use uncopy_sys::iovec::Part;
use uncopy_sys::{socket, stream};

/// Number of held bytes from which a pipe may pay (relay of 64 KiB over loopback: 0.87 of the server's
/// processor time, docs/design/holding.md).
const MIN_BYTES: usize = 32 << 10;
/// Whether `--policy auto` tries it. Not before its gain over the copying way is measured on programs.
const IS_TRIED: bool = false;
/// Number of touched pages at one end of a buffer beyond which its bytes are not held.
const MAX_TOUCHED_PAGES: u32 = 8;

/// Bytes of an input that are not held, at its start and at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Margins {
    head_bytes: usize,
    tail_bytes: usize,
}

/// Number of pages at one end that the program is known to touch, up to the last such page.
const fn touched_pages(mask: u64) -> u32 {
    u64::BITS - mask.leading_zeros()
}

/// Returns the margins of an input of `len_bytes` bytes at `start` of its block, of which the program touches
/// pages at both ends; `None` if these are too many.
fn margins(start: usize, len_bytes: usize, touched: [u32; 2]) -> Option<Margins> {
    if touched.iter().any(|pages| *pages > MAX_TOUCHED_PAGES) {
        return None;
    }
    // A touched page may be the one with the fringe, which is not whole.
    let [head_pages, tail_pages] = touched.map(|pages| pages.max(1) as usize);
    let end = start + len_bytes;
    Some(Margins {
        head_bytes: (start.next_multiple_of(PAGE_BYTES) - start) + head_pages * PAGE_BYTES,
        tail_bytes: end % PAGE_BYTES + tail_pages * PAGE_BYTES,
    })
}

/// Whether inputs of this size are held at the moment, if the program does not look at them.
fn is_on(part: &Redirected) -> bool {
    match POLICY.mode() {
        _ if recording::is_on() => false,
        Policy::Always => true,
        Policy::Never => false,
        Policy::Auto => IS_TRIED && POLICY.sites.leaves_unseen(part.account) && uncopy_trials::is_on(HOLDING),
    }
}

fn min_bytes() -> usize {
    if POLICY.mode() == Policy::Always { PAGE_BYTES } else { MIN_BYTES }
}

/// Number of bytes that the program's own receive would get at once from a TCP stream; `None` if it might wait
/// for more, or is no plain TCP stream's.
fn available_bytes(socket: ProgramFd, room_bytes: usize) -> Option<usize> {
    let unread_bytes = stream::unread(socket).ok().filter(|bytes| *bytes >= min_bytes())?;
    if !socket::is_plain_tcp(socket) {
        return None;
    }
    let is_enough = unread_bytes >= room_bytes
        || socket::receive_low_water_bytes(socket).is_ok_and(|least| least as usize <= unread_bytes);
    is_enough.then_some(unread_bytes.min(room_bytes))
}

impl Input<'_> {
    /// Receives by reference what a `recv` or `read` of the redirected parts would get. Returns the number of
    /// bytes; `None`: nothing was received, make the call. Preserves `errno`.
    #[must_use]
    pub fn receive_held(&self, socket: ProgramFd) -> Option<usize> {
        self.with_targets(|parts, targets| {
            let _errno = SavedErrno::new();
            receive(socket, parts, targets)
        })
    }

    /// Whether the program's call would wait for bytes that are to be received by reference. The caller may then
    /// peek at the first byte, which waits as the call does.
    #[must_use]
    pub fn awaits_held(&self, socket: ProgramFd) -> bool {
        let awaits = self.with_targets(|_, _| {
            let _errno = SavedErrno::new();
            let is_empty = stream::unread(socket) == Ok(0);
            let awaits = is_empty && !socket::is_non_blocking(socket) && socket::is_plain_tcp(socket);
            (awaits && !socket::has_peek_offset(socket)).then_some(())
        });
        awaits.is_some()
    }

    /// Passes the parts and their targets on if all are redirected and some should be held.
    fn with_targets<T>(&self, act: impl FnOnce(&[Part], &Targets) -> Option<T>) -> Option<T> {
        if self.is_outside() {
            return None;
        }
        self.inspect(|held| {
            let CallResources::Input(targets) = held else { return None };
            let is_wanted = |(part, (_, target)): (&Part, &(usize, Redirected))| {
                target.allowed && part.len_bytes >= min_bytes() && is_on(target)
            };
            let all_are_redirected = targets.len() == self.parts().len();
            let is_any_wanted = all_are_redirected && self.parts().iter().zip(targets).any(is_wanted);
            if is_any_wanted { act(self.parts(), targets) } else { None }
        })
    }
}

/// Chooses the bytes of an input of `len_bytes` into a part that are received by reference: numbers of bytes up to
/// the tail, and in the head. `None`: none.
fn plan(target: &Redirected, len_bytes: usize) -> Option<(usize, usize)> {
    if !target.allowed || matches!(target.target, Target::Shared(_)) || !is_on(target) {
        return None;
    }
    let learned = POLICY.touches.learned(target.account);
    let touched = [learned.head, learned.tail].map(touched_pages);
    let Margins { head_bytes, tail_bytes } = margins(target.range.start, len_bytes, touched)?;
    let front_bytes = len_bytes.checked_sub(tail_bytes)?;
    (front_bytes >= head_bytes + min_bytes()).then_some((front_bytes, head_bytes))
}

/// Receives what is available, or what the parts have room for. `None`: nothing was received.
fn receive(socket: ProgramFd, parts: &[Part], targets: &Targets) -> Option<usize> {
    let room_bytes = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len_bytes));
    let available_bytes = available_bytes(socket, room_bytes)?;
    let mut got_bytes = 0;
    for (part, (_, target)) in parts.iter().zip(targets) {
        let part = Part { len_bytes: part.len_bytes.min(available_bytes - got_bytes), ..*part };
        let Some(part_bytes) = receive_part(socket, part, target, got_bytes > 0) else { break };
        got_bytes += part_bytes;
        if part_bytes < part.len_bytes || got_bytes == available_bytes {
            break;
        }
    }
    (got_bytes > 0).then_some(got_bytes)
}

/// Receives one part. `has_bytes`: the call has received bytes before. `None`: no more can be.
fn receive_part(socket: ProgramFd, part: Part, target: &Redirected, has_bytes: bool) -> Option<usize> {
    let mut got_bytes = 0;
    if let Some((front_bytes, head_bytes)) = plan(target, part.len_bytes) {
        match &target.target {
            Target::Draft(draft) => draft.note_held(),
            Target::Open(open) => open.segment.note_held(),
            Target::Shared(_) => return None,
        }
        // SAFETY: `part` names pages of the draft or of the open end that belong to this call, behind all filled bytes.
        got_bytes = unsafe { held::receive(socket, part.address, front_bytes, head_bytes) };
        if got_bytes == 0 && !has_bytes {
            return None;
        }
    }
    // An urgent byte ends a receive that has bytes already.
    if (has_bytes || got_bytes > 0) && stream::is_at_mark(socket) == Ok(true) {
        return Some(got_bytes);
    }
    let rest = Part { address: part.address + got_bytes, len_bytes: part.len_bytes - got_bytes };
    // SAFETY: `rest` is the end of `part`, whose pages are present and belong to this call.
    let more = unsafe { socket::receive_available(socket, &[rest]) };
    // Another reader of the socket may have been faster.
    Some(got_bytes + more.unwrap_or(0))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn margins_end_at_page_boundaries_and_have_the_touched_pages() {
        let margins_of = |start, len_bytes, touched| {
            let Margins { head_bytes, tail_bytes } = margins(start, len_bytes, touched)?;
            assert_eq!((start + head_bytes) % PAGE_BYTES, 0);
            assert_eq!((start + len_bytes - tail_bytes) % PAGE_BYTES, 0);
            Some((head_bytes, tail_bytes))
        };
        assert_eq!(margins_of(0, 16 * PAGE_BYTES, [0, 0]), Some((PAGE_BYTES, PAGE_BYTES)));
        assert_eq!(margins_of(16, 16 * PAGE_BYTES, [0, 0]), Some((2 * PAGE_BYTES - 16, PAGE_BYTES + 16)));
        assert_eq!(margins_of(4095, 100_000, [3, 2]).map(|(head, _)| head), Some(1 + 3 * PAGE_BYTES));
        assert_eq!(margins_of(0, 1 << 20, [0, MAX_TOUCHED_PAGES + 1]), None);
        assert_eq!((touched_pages(0), touched_pages(1), touched_pages(0b1010)), (0, 1, 4));
    }
}
