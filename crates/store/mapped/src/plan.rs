//! The smallest set of file operations with the same result as a sequence of changes.

use crate::layout::Lsn;
use crate::record::{Change, Extent};
use crate::table::{FileId, Identity};
use std::collections::BTreeMap;

/// Maximum number of sources of a write (`IOV_MAX`).
pub const MAX_SOURCES: usize = 1024;

/// A write to a file: its sources, back to back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileWrite {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len_bytes: u64,
    /// Places of the bytes, at most [`MAX_SOURCES`].
    pub sources: Vec<Extent>,
}

/// Operations on a file, to be carried out in the order of the fields. They can be repeated from the beginning,
/// also after an interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    /// Registration of the file. A file that was registered twice has two plans, in this order.
    pub file: FileId,
    /// Identity of the file.
    pub identity: Identity,
    /// Size to truncate the file to before the writes, bytes.
    pub shrink_to: Option<u64>,
    /// Writes, sorted by offset; they neither overlap nor have bytes of the same extent twice.
    pub writes: Vec<FileWrite>,
    /// Size to extend the file to after the writes, bytes.
    pub grow_to: Option<u64>,
    /// Number of bytes of records that later ones replaced.
    pub superseded_bytes: u64,
}

/// A run of a file that comes from one place.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u64,
    extent: Extent,
}

/// Ranges of a file that later changes have determined. They neither overlap nor touch.
#[derive(Debug, Default)]
struct Covered(BTreeMap<u64, u64>);

impl Covered {
    /// Adds a range, and calls `each` with its parts that were not covered.
    fn cover(&mut self, start: u64, end: u64, mut each: impl FnMut(u64, u64)) {
        let (mut first, mut last, mut at) = (start, end, start);
        let before = self.0.range(..start).next_back().filter(|(_, to)| **to >= start);
        let mut touched = before.map(|(from, to)| (*from, *to));
        touched = touched.or_else(|| self.next_touched(start, end));
        while let Some((from, to)) = touched {
            if from > at {
                each(at, from);
            }
            at = at.max(to);
            (first, last) = (first.min(from), last.max(to));
            self.0.remove(&from);
            touched = self.next_touched(start, end);
        }
        if at < end {
            each(at, end);
        }
        self.0.insert(first, last);
    }

    fn next_touched(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.0.range(start..=end).next().map(|(from, to)| (*from, *to))
    }
}

/// Collects the changes of a file and plans their digest.
#[derive(Debug)]
pub struct Planner {
    file: FileId,
    identity: Identity,
    changes: Vec<Change>,
}

impl Planner {
    /// Returns a planner for a file without changes.
    #[must_use]
    pub const fn new(file: FileId, identity: Identity) -> Self {
        Self { file, identity, changes: Vec::new() }
    }

    /// Returns the position of the log at which the file was registered.
    #[must_use]
    pub const fn incarnation(&self) -> Lsn {
        self.file.incarnation
    }

    /// Adds a change that comes after all others. Its offsets are within
    /// [`MAX_FILE_BYTES`](crate::record::MAX_FILE_BYTES), as those of decoded records are.
    pub fn add(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Returns the operations with the result of all changes.
    #[must_use]
    pub fn finish(self) -> FilePlan {
        let mut pieces = Vec::new();
        let (mut covered, mut superseded_bytes) = (Covered::default(), 0);
        // Smallest size that a later change gives the file: bytes behind it do not survive.
        let mut limit = None::<u64>;
        // Size after the last change, if a change sets it.
        let (mut size, mut end_of_writes) = (None, 0);
        for change in self.changes.iter().rev() {
            match change {
                Change::Resize(to) => {
                    size = size.or(Some(end_of_writes.max(*to)));
                    limit = Some(limit.map_or(*to, |limit| limit.min(*to)));
                }
                Change::Write { offset, extents } => {
                    let written_bytes: u64 = extents.iter().map(|extent| extent.len_bytes as u64).sum();
                    end_of_writes = end_of_writes.max(offset + written_bytes);
                    let kept_bytes = keep(*offset, extents, limit, &mut covered, &mut pieces);
                    superseded_bytes += written_bytes - kept_bytes;
                }
                Change::Pad => {}
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let end = pieces.last().map_or(0, |piece| piece.offset + piece.extent.len_bytes as u64);
        let grow_to = size.filter(|size| *size > end.max(limit.unwrap_or(0)));
        let (file, identity, writes) = (self.file, self.identity, join(&pieces));
        FilePlan { file, identity, shrink_to: limit, writes, grow_to, superseded_bytes }
    }
}

/// Adds those parts of a write to `pieces` that no later change replaces. Returns their length, bytes.
fn keep(
    offset: u64,
    extents: &[Extent],
    limit: Option<u64>,
    covered: &mut Covered,
    pieces: &mut Vec<Piece>,
) -> u64 {
    let (mut start, mut kept_bytes) = (offset, 0);
    for extent in extents {
        let whole_end = start + extent.len_bytes as u64;
        let end = limit.map_or(whole_end, |limit| whole_end.min(limit));
        if start < end {
            covered.cover(start, end, |from, to| {
                let source = extent.source.skip((from - start) as usize);
                kept_bytes += to - from;
                pieces
                    .push(Piece { offset: from, extent: Extent { source, len_bytes: (to - from) as usize } });
            });
        }
        start = whole_end;
    }
    kept_bytes
}

/// Joins sorted pieces that lie back to back in the file.
fn join(pieces: &[Piece]) -> Vec<FileWrite> {
    let mut writes: Vec<FileWrite> = Vec::new();
    for Piece { offset, extent } in pieces.iter().copied() {
        let neighbour = writes.last_mut().filter(|write| write.offset + write.len_bytes == offset);
        let Some(write) = neighbour.filter(|write| write.sources.len() < MAX_SOURCES) else {
            writes.push(FileWrite { offset, len_bytes: extent.len_bytes as u64, sources: vec![extent] });
            continue;
        };
        write.len_bytes += extent.len_bytes as u64;
        match write.sources.last_mut() {
            Some(last) if last.source.skip(last.len_bytes) == extent.source => {
                last.len_bytes += extent.len_bytes
            }
            _ => write.sources.push(extent),
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Source;
    use uncopy_core::random::{STEP, splitmix64};

    fn planned(changes: &[Change]) -> FilePlan {
        let identity = Identity { device: 1, inode: 2, generation: 3, path: Vec::new() };
        let mut planner = Planner::new(FileId { entry: 0, incarnation: Lsn(0) }, identity);
        changes.iter().for_each(|change| planner.add(change.clone()));
        planner.finish()
    }

    /// Returns a file of `memory`'s bytes after a plan.
    fn carried_out(plan: &FilePlan, base: &[u8], memory: &[u8]) -> Vec<u8> {
        let mut file = base.to_vec();
        if let Some(size) = plan.shrink_to {
            file.resize(size as usize, 0);
        }
        let mut end_of_last = None;
        for write in &plan.writes {
            assert!(end_of_last.is_none_or(|end| write.offset > end), "neighbours are joined");
            let mut at = write.offset as usize;
            for extent in &write.sources {
                let Source::Inline(from) = extent.source else { unreachable!("no chunks here") };
                file.resize(file.len().max(at + extent.len_bytes), 0);
                file[at..at + extent.len_bytes].copy_from_slice(&memory[from..from + extent.len_bytes]);
                at += extent.len_bytes;
            }
            end_of_last = Some(write.offset + write.len_bytes);
        }
        if let Some(size) = plan.grow_to {
            assert!(size as usize > file.len());
            file.resize(size as usize, 0);
        }
        file
    }

    #[test]
    fn a_plan_has_the_result_of_all_changes_and_writes_each_byte_once() {
        let mut state = 11u64;
        let mut random = |below: u64| {
            state = state.wrapping_add(STEP);
            splitmix64(state) % below
        };
        for _ in 0..3000 {
            let memory: Vec<u8> = (0..512).map(|_| random(255) as u8 + 1).collect();
            let base: Vec<u8> = vec![0xff; random(50) as usize];
            let mut wanted = base.clone();
            let (mut changes, mut written_bytes) = (Vec::new(), 0);
            for _ in 0..random(9) {
                if random(5) == 0 {
                    let size = random(60);
                    changes.push(Change::Resize(size));
                    wanted.resize(size as usize, 0);
                    continue;
                }
                let offset = random(40);
                let mut extents = Vec::new();
                let mut at = offset as usize;
                for _ in 0..=random(3) {
                    let (from, len_bytes) = (random(480) as usize, 1 + random(12) as usize);
                    extents.push(Extent { source: Source::Inline(from), len_bytes });
                    wanted.resize(wanted.len().max(at + len_bytes), 0);
                    wanted[at..at + len_bytes].copy_from_slice(&memory[from..from + len_bytes]);
                    at += len_bytes;
                }
                written_bytes += at as u64 - offset;
                changes.push(Change::Write { offset, extents });
            }
            let plan = planned(&changes);
            assert_eq!(carried_out(&plan, &base, &memory), wanted, "{changes:?}");
            let again = carried_out(&plan, &wanted, &memory);
            assert_eq!(again, wanted, "repeated: {changes:?}");
            let digested_bytes: u64 = plan.writes.iter().map(|write| write.len_bytes).sum();
            assert_eq!(digested_bytes + plan.superseded_bytes, written_bytes, "{changes:?}");
        }
    }

    #[test]
    fn consecutive_appends_are_one_write_and_long_ones_are_split() {
        let append = |index: u64, from: usize| {
            let extents = vec![Extent { source: Source::Inline(from), len_bytes: 10 }];
            Change::Write { offset: (5 << 30) + index * 10, extents }
        };
        let contiguous: Vec<Change> = (0..3000).map(|index| append(index, index as usize * 10)).collect();
        let plan = planned(&contiguous);
        let one = vec![Extent { source: Source::Inline(0), len_bytes: 30_000 }];
        assert_eq!(plan.writes, [FileWrite { offset: 5 << 30, len_bytes: 30_000, sources: one }]);
        let scattered: Vec<Change> = (0..3000).map(|index| append(index, index as usize * 64)).collect();
        let sources: Vec<usize> =
            planned(&scattered).writes.iter().map(|write| write.sources.len()).collect();
        assert_eq!(sources, [MAX_SOURCES, MAX_SOURCES, 3000 - 2 * MAX_SOURCES]);
    }
}
