//! Interval map of the recorded bytes in a process's memory.
//!
//! Invariants: pieces are nonempty and do not overlap. There are never more than [`MAX_PIECES`]; beyond that,
//! the half that belongs to the oldest operations is forgotten.

use std::collections::BTreeMap;

/// Maximum pieces; each takes about 60 bytes.
pub const MAX_PIECES: usize = 1 << 18;

/// Contents of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Number of the operation that the bytes belong to.
    pub operation: u64,
    /// Position of the first byte within the operation's bytes.
    pub offset: u64,
    /// Step of the operation that wrote the bytes.
    pub step: u16,
    /// True if the bytes were received, false if the program produced them.
    pub is_received: bool,
    /// True if uncopy would have made a view of the bytes.
    pub is_view: bool,
    /// Site that wrote the bytes.
    pub site: u32,
}

impl Content {
    /// Returns the content `bytes` bytes further on.
    #[must_use]
    const fn after(mut self, bytes: u64) -> Self {
        self.offset += bytes;
        self
    }

    fn continues(&self, earlier: &Self, earlier_len: u64) -> bool {
        earlier.after(earlier_len) == *self
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    content: Content,
}

/// A part of a range that was looked up: offset from the range's start, length, content.
pub type Found = (u64, u64, Content);

/// The known contents of one process's memory.
#[derive(Debug, Default)]
pub struct MemoryContents {
    pieces: BTreeMap<u64, Piece>,
}

impl MemoryContents {
    /// Forgets the contents of all memory.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Returns the number of pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// True if no contents are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Replaces `found` by the known contents of `start..start + len`, in order of address.
    pub fn lookup(&self, start: u64, len: u64, found: &mut Vec<Found>) {
        found.clear();
        let end = start.saturating_add(len);
        if start >= end {
            return;
        }
        if let Some((at, piece)) = self.pieces.range(..start).next_back()
            && piece.end > start
        {
            found.push((0, piece.end.min(end) - start, piece.content.after(start - at)));
        }
        for (at, piece) in self.pieces.range(start..end) {
            found.push((at - start, piece.end.min(end) - at, piece.content));
        }
    }

    /// Returns end and content of the last piece that begins before `address`.
    #[must_use]
    pub fn before(&self, address: u64) -> Option<(u64, Content)> {
        let (_, piece) = self.pieces.range(..address).next_back()?;
        Some((piece.end, piece.content))
    }

    /// Forgets the contents of `start..start + len`.
    pub fn forget(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        if start >= end {
            return;
        }
        if let Some((at, piece)) = self.pieces.range_mut(..start).next_back()
            && piece.end > start
        {
            let (at, old) = (*at, *piece);
            piece.end = start;
            if old.end > end {
                let content = old.content.after(end - at);
                self.pieces.insert(end, Piece { end: old.end, content });
                return;
            }
        }
        while let Some((at, piece)) = self.pieces.range(start..end).next() {
            let (at, old) = (*at, *piece);
            self.pieces.remove(&at);
            if old.end > end {
                let content = old.content.after(end - at);
                self.pieces.insert(end, Piece { end: old.end, content });
            }
        }
    }

    /// Sets the contents of `start..start + len`.
    pub fn set(&mut self, start: u64, len: u64, content: Content) {
        let end = start.saturating_add(len);
        if start >= end {
            return;
        }
        self.forget(start, len);
        if let Some((at, piece)) = self.pieces.range_mut(..start).next_back()
            && piece.end == start
            && content.continues(&piece.content, start - at)
        {
            piece.end = end;
            return;
        }
        self.pieces.insert(start, Piece { end, content });
        if self.pieces.len() > MAX_PIECES {
            self.forget_oldest();
        }
    }

    /// Moves the contents of `from..from + len` to `to`, replacing those there and leaving none behind.
    pub fn relocate(&mut self, from: u64, to: u64, len: u64, scratch: &mut Vec<Found>) {
        self.lookup(from, len, scratch);
        self.forget(from, len);
        self.forget(to, len);
        for (at, len, content) in &*scratch {
            self.set(to.saturating_add(*at), *len, *content);
        }
    }

    fn forget_oldest(&mut self) {
        let mut ages: Vec<u64> = self.pieces.values().map(|piece| piece.content.operation).collect();
        let middle = ages.len() / 2;
        let (_, oldest_kept, _) = ages.select_nth_unstable(middle);
        let oldest_kept = *oldest_kept;
        self.pieces.retain(|_, piece| piece.content.operation > oldest_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPACE_BYTES: u64 = 200;

    fn content(operation: u64) -> Content {
        Content { operation, offset: 0, step: 0, is_received: true, is_view: true, site: 0 }
    }

    #[derive(Clone, Debug)]
    enum Change {
        Set(u64, u64),
        Forget(u64, u64),
        Relocate(u64, u64, u64),
    }

    fn change() -> impl Strategy<Value = Change> {
        let range = || (0..SPACE_BYTES, 0..60u64);
        prop_oneof![
            4 => range().prop_map(|(at, len)| Change::Set(at, len)),
            1 => range().prop_map(|(at, len)| Change::Forget(at, len)),
            1 => (0..SPACE_BYTES, 0..SPACE_BYTES, 0..60u64).prop_map(|(from, to, len)| Change::Relocate(from, to, len)),
        ]
    }

    proptest! {
        #[test]
        fn contents_agree_with_a_byte_array(changes in prop::collection::vec(change(), 1..60)) {
            let mut memory = MemoryContents::default();
            let mut model = vec![None; 2 * SPACE_BYTES as usize];
            let mut found = Vec::new();
            for (number, change) in changes.into_iter().enumerate() {
                let index_of = |at: u64| usize::try_from(at).expect("small");
                match change {
                    Change::Set(at, len) => {
                        memory.set(at, len, content(number as u64));
                        for index in 0..len {
                            model[index_of(at + index)] = Some((number as u64, index));
                        }
                    }
                    Change::Forget(at, len) => {
                        memory.forget(at, len);
                        model[index_of(at)..index_of(at + len)].fill(None);
                    }
                    Change::Relocate(from, to, len) => {
                        memory.relocate(from, to, len, &mut found);
                        let moved = model[index_of(from)..index_of(from + len)].to_vec();
                        model[index_of(from)..index_of(from + len)].fill(None);
                        model[index_of(to)..index_of(to + len)].copy_from_slice(&moved);
                    }
                }
                memory.lookup(3, 2 * SPACE_BYTES - 3, &mut found);
                let mut seen = vec![None; model.len()];
                for (at, len, content) in &found {
                    prop_assert!(*len > 0);
                    for index in 0..*len {
                        let byte = &mut seen[index_of(3 + at + index)];
                        prop_assert_eq!(*byte, None, "pieces overlap");
                        *byte = Some((content.operation, content.offset + index));
                    }
                }
                prop_assert_eq!(&seen[3..], &model[3..]);
            }
        }
    }

    #[test]
    fn oldest_pieces_are_forgotten_first() {
        let mut memory = MemoryContents::default();
        for number in 0..=MAX_PIECES as u64 {
            memory.set(number * 16, 8, content(number));
        }
        assert!((MAX_PIECES / 2 - 2..=MAX_PIECES / 2 + 2).contains(&memory.len()), "{}", memory.len());
        let mut found = Vec::new();
        memory.lookup(0, 1 << 12, &mut found);
        assert!(found.is_empty(), "the oldest");
        memory.lookup(MAX_PIECES as u64 * 16, 8, &mut found);
        assert_eq!(found.len(), 1, "the latest");
    }

    #[test]
    fn ranges_at_the_end_of_the_address_space_do_not_wrap() {
        let mut memory = MemoryContents::default();
        memory.set(u64::MAX - 4, 100, content(1));
        memory.forget(u64::MAX, u64::MAX);
        let mut found = Vec::new();
        memory.lookup(0, u64::MAX, &mut found);
        assert_eq!(found, [(u64::MAX - 4, 4, content(1))]);
    }
}
