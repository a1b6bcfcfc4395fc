//! What the program does to the memory that malloc gave it, as far as the block heap has to know.

/// What a call that the program is about to make does to the addresses that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// Pages go, or come: `MADV_DONTNEED`, `MADV_COLD`, `MADV_POPULATE_WRITE`. The mapping stays what it was.
    Pages,
    /// Advice that leaves bytes and faults as they are: `MADV_SEQUENTIAL`, `MADV_DONTDUMP`. Views stay.
    Advice,
    /// The program asks for huge pages: `MADV_HUGEPAGE`.
    HugePages,
    /// The mapping gets other properties, in place: `mprotect`, `mlock`, `mbind`, `MADV_MERGEABLE`.
    Properties,
    /// The mapping will not be there in forked children: `MADV_DONTFORK`.
    NotInherited,
    /// A mapping of the program's own takes the place of the heap's: `MAP_FIXED`, `SHM_REMAP`.
    Covered,
    /// Nothing is left at the addresses, so that anybody's next mapping may come to lie there: `munmap`, `mremap`, `shmdt`.
    Vacated,
}
