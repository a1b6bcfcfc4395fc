//! The amount of work of digests.

use uncopy_mapped::plan::{FilePlan, FileWrite};

/// Number of bytes that a digest has taken from records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Digested {
    /// Bytes of the records.
    pub bytes: u64,
    /// Those that made files longer.
    appended_bytes: u64,
}

impl Digested {
    /// Returns the bytes of a plan for a file that had `size` bytes.
    pub fn of(plan: &FilePlan, size: u64) -> Self {
        let new_bytes =
            |write: &FileWrite| (write.offset + write.len_bytes).saturating_sub(write.offset.max(size));
        let bytes = plan.writes.iter().map(|write| write.len_bytes).sum::<u64>();
        let appended_bytes = plan.writes.iter().map(new_bytes).sum();
        Self { bytes: bytes + plan.superseded_bytes, appended_bytes }
    }

    pub const fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.appended_bytes += other.appended_bytes;
    }

    /// Whether a later digest would have had hardly less to write: the bytes are better written while they are in
    /// the processor's cache, and their room in the log used again.
    pub const fn grows(self) -> bool {
        self.appended_bytes * 4 >= self.bytes * 3
    }
}
