//! Costs and savings of sending by reference.
//!
//! Pages that are lent without completions never come back: they go back to the kernel and not to the reservoir, so that the next
//! segment needs fresh ones. That is paid once for a page, however often it is sent.

use super::costs::SharedCosts;
use crate::addr::PAGE_BYTES;

/// Cost of giving a page back that the kernel holds, ns: 11.5 µs for 128 pages (`madvise`, MADV_DONTNEED).
const DISCARD_NS: i64 = 90;
/// Cost of the kernel's copy of a page beside the copying, ns: allocating and freeing the pages of the copy.
const PAGE_ALLOC_NS: i64 = 60;

/// Returns the cost of giving `pages` pages back to the kernel, ns. Fresh ones are charged to the input that needs them.
#[must_use]
pub fn dropped_ns(pages: u32) -> i64 {
    i64::from(pages) * DISCARD_NS
}

/// Returns a lower estimate of what sending `len_bytes` bytes by reference saves, ns. The system calls are not included.
#[must_use]
pub fn saved_ns(costs: &SharedCosts, len_bytes: usize) -> i64 {
    costs.copy_ns(len_bytes) + (len_bytes / PAGE_BYTES) as i64 * PAGE_ALLOC_NS
}
