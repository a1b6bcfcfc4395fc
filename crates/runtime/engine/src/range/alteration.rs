//! Changes that the program makes to mappings of memory from malloc, as far as they concern the block heap.

/// Effect of a call that the program is about to make on the addresses that the call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// Pages are dropped or made present: `MADV_DONTNEED`, `MADV_COLD`, `MADV_POPULATE_WRITE`. The mapping stays.
    Pages,
    /// Advice that changes neither bytes nor faults: `MADV_SEQUENTIAL`, `MADV_DONTDUMP`. Views stay.
    Advice,
    /// The program asks for huge pages: `MADV_HUGEPAGE`.
    HugePages,
    /// The mapping's properties change in place: `mprotect`, `mlock`, `mbind`, `MADV_MERGEABLE`.
    Properties,
    /// Forked children do not inherit the mapping: `MADV_DONTFORK`.
    NotInherited,
    /// A mapping of the program's replaces the heap's: `MAP_FIXED`, `SHM_REMAP`.
    MappedOver,
    /// The addresses become free for any later mapping: `munmap`, `mremap`, `shmdt`.
    Unmapped,
}
