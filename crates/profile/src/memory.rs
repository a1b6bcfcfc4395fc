//! Which recorded bytes lie where in a process's memory: an interval map.
//!
//! Invariants: pieces do not overlap and none is empty; there are never more than [`MAX_PIECES`]: the ones of the
//! oldest operations are forgotten then, half of all at a time.

use std::collections::BTreeMap;

/// Pieces that are remembered at most; each takes some 60 bytes.
pub const MAX_PIECES: usize = 1 << 18;

/// What a stretch of memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The operation that its bytes belong to, by its number since the start.
    pub operation: u64,
    /// Place in the operation's bytes of the first one.
    pub offset: u64,
    /// The step of the operation that put them here.
    pub step: u16,
    /// Whether they were received (and not made by the program).
    pub is_received: bool,
    /// Whether uncopy would have made a view of them.
    pub is_view: bool,
    /// The site that put them here.
    pub site: u32,
}

impl Content {
    /// The same `bytes` further on.
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

/// A part of a range that was looked up: place from the range's start, length, content.
pub type Found = (u64, u64, Content);

/// The memory of one process.
#[derive(Debug, Default)]
pub struct Memory {
    pieces: BTreeMap<u64, Piece>,
}

impl Memory {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Number of pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Puts what is known of `start..start + len` into `found`, in order.
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

    /// The last piece that begins before `address`: its end and what it holds.
    #[must_use]
    pub fn before(&self, address: u64) -> Option<(u64, Content)> {
        let (_, piece) = self.pieces.range(..address).next_back()?;
        Some((piece.end, piece.content))
    }

    /// Forgets what lies in `start..start + len`.
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

    /// Notes that `start..start + len` holds `content`.
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

    /// Moves what lies in `from..from + len` to `to`; nothing is left behind.
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

    const ROOM: u64 = 200;

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
        let range = || (0..ROOM, 0..60u64);
        prop_oneof![
            4 => range().prop_map(|(at, len)| Change::Set(at, len)),
            1 => range().prop_map(|(at, len)| Change::Forget(at, len)),
            1 => (0..ROOM, 0..ROOM, 0..60u64).prop_map(|(from, to, len)| Change::Relocate(from, to, len)),
        ]
    }

    proptest! {
        #[test]
        fn every_byte_is_what_a_byte_array_says(changes in prop::collection::vec(change(), 1..60)) {
            let mut memory = Memory::default();
            let mut model = vec![None; 2 * ROOM as usize];
            let mut found = Vec::new();
            for (number, change) in changes.into_iter().enumerate() {
                let place = |at: u64| usize::try_from(at).expect("small");
                match change {
                    Change::Set(at, len) => {
                        memory.set(at, len, content(number as u64));
                        for index in 0..len {
                            model[place(at + index)] = Some((number as u64, index));
                        }
                    }
                    Change::Forget(at, len) => {
                        memory.forget(at, len);
                        model[place(at)..place(at + len)].fill(None);
                    }
                    Change::Relocate(from, to, len) => {
                        memory.relocate(from, to, len, &mut found);
                        let moved = model[place(from)..place(from + len)].to_vec();
                        model[place(from)..place(from + len)].fill(None);
                        model[place(to)..place(to + len)].copy_from_slice(&moved);
                    }
                }
                memory.lookup(3, 2 * ROOM - 3, &mut found);
                let mut seen = vec![None; model.len()];
                for (at, len, content) in &found {
                    prop_assert!(*len > 0);
                    for index in 0..*len {
                        let byte = &mut seen[place(3 + at + index)];
                        prop_assert_eq!(*byte, None, "pieces overlap");
                        *byte = Some((content.operation, content.offset + index));
                    }
                }
                prop_assert_eq!(&seen[3..], &model[3..]);
            }
        }
    }

    #[test]
    fn what_is_too_much_to_remember_is_forgotten_oldest_first() {
        let mut memory = Memory::default();
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
        let mut memory = Memory::default();
        memory.set(u64::MAX - 4, 100, content(1));
        memory.forget(u64::MAX, u64::MAX);
        let mut found = Vec::new();
        memory.lookup(0, u64::MAX, &mut found);
        assert_eq!(found, [(u64::MAX - 4, 4, content(1))]);
    }
}
