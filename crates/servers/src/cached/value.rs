//! The bytes of items. Each lies in a block of twin memory together with the CR LF that ends it on the wire, and the
//! line that ends the answer to a `get`, so that the answer to one key is a header and one part:
//!
//! ```text
//! │ value │ CR LF │ END CR LF │
//! └── line() ─────┘           │
//! └── last_line() ────────────┘
//! ```
//!
//! A [`Draft`] has one owner, who fills it; a [`Value`] is shared and never written. Overwriting an item makes a new
//! value: what a response refers to, or the kernel still holds, stays as it is.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::cached::budget::Budget;

/// What ends a value on the wire.
pub const END_OF_LINE: &[u8; 2] = b"\r\n";

/// What ends the answer to a `get`.
pub const END_OF_ANSWER: &[u8; 5] = b"END\r\n";

/// A block of twin memory, given back when dropped.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    /// With the CR LF; END_OF_ANSWER follows.
    len_bytes: usize,
    budget: Arc<Budget>,
}

// SAFETY: a block is memory of its own that any thread may use and give back (uncopy_twin); `budget` is Send.
unsafe impl Send for Block {}
// SAFETY: through a shared block memory is only read (Value); it is written to through the one owner of a Draft.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `start` came from allocate in Draft::new; the block is its only owner, and is dropped once.
        unsafe { uncopy_twin::deallocate(self.start.as_ptr()) };
    }
}

/// A value that is being filled: from the network, or from other values.
#[derive(Debug)]
pub struct Draft {
    block: Block,
    /// Bytes from the start that are filled; `filled_bytes ≤ block.len_bytes`.
    filled_bytes: usize,
}

impl Draft {
    /// Room for `len_bytes` and the CR LF; `None` when memory is short.
    pub fn new(len_bytes: usize, budget: &Arc<Budget>) -> Option<Self> {
        let len_bytes = len_bytes.checked_add(END_OF_LINE.len())?;
        if !budget.expect(len_bytes) {
            return None;
        }
        let Some(start) = NonNull::new(uncopy_twin::allocate(len_bytes + END_OF_ANSWER.len())) else {
            budget.expect_no_more(len_bytes);
            budget.refuse();
            return None;
        };
        // SAFETY: the block has room for END_OF_ANSWER behind len_bytes, and nobody else has it; bytes need no alignment.
        unsafe { start.add(len_bytes).cast().write(*END_OF_ANSWER) };
        let block = Block { start, len_bytes, budget: Arc::clone(budget) };
        Some(Self { block, filled_bytes: 0 })
    }

    /// A whole value of these bytes.
    pub fn of(parts: &[&[u8]], budget: &Arc<Budget>) -> Option<Value> {
        let mut draft = Self::new(parts.iter().map(|part| part.len()).sum(), budget)?;
        for part in parts {
            draft.append(part);
        }
        draft.append(END_OF_LINE);
        draft.finish()
    }

    /// How many bytes are missing, with the CR LF.
    pub fn missing_bytes(&self) -> usize {
        self.block.len_bytes - self.filled_bytes
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: filled_bytes ≤ len_bytes, which the block has; bytes may be uninitialised in the slice's type; &mut self
        // is the block's only owner for as long as the slice lives.
        unsafe {
            let rest = self.block.start.as_ptr().add(self.filled_bytes);
            std::slice::from_raw_parts_mut(rest.cast(), self.missing_bytes())
        }
    }

    /// Appends as many of `bytes` as fit, and says how many those were.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.missing_bytes());
        // SAFETY: `taken` is at most the length of both; the room is in a block that nobody else has, so that it does not
        // overlap `bytes`.
        unsafe { self.room().as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), taken) };
        self.filled_bytes += taken;
        taken
    }

    /// Receives from `socket` into the missing part: how many bytes.
    ///
    /// # Errors
    /// As read(2).
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let (received, _) = rustix::io::read(socket, self.room())?;
        let received_bytes = received.len();
        self.filled_bytes += received_bytes;
        Ok(received_bytes)
    }

    /// The value; `None` when it does not end with CR LF, or is not complete.
    pub fn finish(self) -> Option<Value> {
        if self.missing_bytes() > 0 {
            return None;
        }
        let value = Value::adopt(self);
        value.line().ends_with(END_OF_LINE).then_some(value)
    }

    fn into_block(self) -> Block {
        let this = std::mem::ManuallyDrop::new(self);
        this.block.budget.expect_no_more(this.block.len_bytes);
        // SAFETY: `this.block` is valid and is read once: `this` is not used again, and ManuallyDrop keeps its destructor
        // from running.
        unsafe { std::ptr::read(&raw const this.block) }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.block.budget.expect_no_more(self.block.len_bytes);
    }
}

/// A complete block, counted as used for as long as anybody refers to it.
#[derive(Debug)]
struct Stored(Block);

impl Drop for Stored {
    fn drop(&mut self) {
        self.0.budget.release(self.0.len_bytes);
    }
}

/// A value; clones share it.
#[derive(Clone, Debug)]
pub struct Value(Arc<Stored>);

impl Value {
    fn adopt(draft: Draft) -> Self {
        let block = draft.into_block();
        block.budget.charge(block.len_bytes);
        Self(Arc::new(Stored(block)))
    }

    /// The value with its CR LF.
    pub fn line(&self) -> &[u8] {
        let block = &self.0.0;
        // SAFETY: `adopt` is given drafts only whose len_bytes are filled (finish); nothing writes to a block afterwards, and
        // it lives as long as `self`.
        unsafe { std::slice::from_raw_parts(block.start.as_ptr(), block.len_bytes) }
    }

    /// The value with its CR LF and the end of an answer.
    pub fn last_line(&self) -> &[u8] {
        let block = &self.0.0;
        // SAFETY: Draft::new wrote END_OF_ANSWER behind len_bytes, which are filled; nothing writes to a block afterwards, and
        // it lives as long as `self`.
        unsafe { std::slice::from_raw_parts(block.start.as_ptr(), block.len_bytes + END_OF_ANSWER.len()) }
    }

    /// The value alone.
    pub fn bytes(&self) -> &[u8] {
        let line = self.line();
        &line[..line.len() - END_OF_LINE.len()]
    }

    /// Whether somebody besides the caller refers to it: a response that is not sent yet.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_value_counts_as_used_until_the_last_reference_goes() {
        let budget = Arc::new(Budget::new(1 << 20));
        let value = Draft::of(&[b"ab", b"", b"c"], &budget).expect("room");
        assert_eq!((value.bytes(), value.line()), (&b"abc"[..], &b"abc\r\n"[..]));
        assert_eq!(value.last_line(), b"abc\r\nEND\r\n");
        assert_eq!(budget.used_bytes(), 5);
        let other = value.clone();
        assert!(value.is_shared());
        drop(value);
        assert_eq!((other.bytes(), other.is_shared(), budget.used_bytes()), (&b"abc"[..], false, 5));
        drop(other);
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.expect(1 << 20), "nothing counts as arriving");
    }

    #[test]
    fn a_draft_takes_no_more_than_it_has_room_for_and_must_end_with_cr_lf() {
        let budget = Arc::new(Budget::new(1 << 20));
        let mut draft = Draft::new(3, &budget).expect("room");
        assert_eq!(draft.append(b"abcdefg"), 5);
        assert_eq!((draft.missing_bytes(), draft.append(b"x")), (0, 0));
        assert!(draft.finish().is_none());
        assert!(Draft::new(0, &budget).expect("room").finish().is_none(), "not complete");
        assert!(Draft::new(1 << 20, &budget).is_none() && Draft::new(usize::MAX, &budget).is_none());
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.expect(1 << 20), "nothing counts as arriving");
    }

    #[test]
    fn a_draft_is_received_piece_by_piece() {
        let budget = Arc::new(Budget::new(1 << 20));
        let (mut peer, socket) = UnixStream::pair().expect("a pair");
        let mut draft = Draft::new(6, &budget).expect("room");
        draft.append(b"ab");
        for piece in [&b"cd"[..], b"ef\r\nget"] {
            peer.write_all(piece).expect("connected");
            draft.receive(socket.as_fd()).expect("there is something");
        }
        assert_eq!(draft.finish().expect("complete").bytes(), b"abcdef");
    }
}
