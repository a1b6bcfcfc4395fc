//! Static probes (USDT), at which bpftrace, perf, SystemTap and gdb count and trace uncopy's decisions.
//!
//! Each probe is one `nop`, with a note in the ELF section `.note.stapsdt` that names the probe and the registers with
//! its arguments (SystemTap's format 3). A tracer replaces the `nop` by a breakpoint. Nothing is tested or called while
//! nobody traces, so a probe may stand in a hot path if its arguments are at hand there.
//!
//! Names and arguments are documented in `docs/tools.md#probes`, and the end-to-end test `probes` checks them in the
//! built library. Every argument has 64 bits.

/// Fires after a copy of `len_bytes` bytes whose destination became a view of `elided_bytes` bytes.
#[inline(always)]
pub fn elided_copy(destination: usize, source: usize, len_bytes: usize, elided_bytes: usize) {
    probe::probe!(uncopy, elided_copy, destination, source, len_bytes, elided_bytes);
}

/// Fires in the handler thread before it serves a fault of thread `thread_id` at `page_address`: it places `pages`
/// pages, with a view's bytes or, if `is_view` is false, with zeroes.
#[inline(always)]
pub fn fault(page_address: usize, pages: u32, is_view: bool, thread_id: u32) {
    probe::probe!(uncopy, fault, page_address, pages, is_view, thread_id);
}

/// Fires after a pair of slices that was a trial of `factor`. `finding`: 0 unknown, 1 saves, 2 costs, 3 no difference;
/// `is_on`: whether the factor is on outside trials; `ratio_ppm`: processor time per byte with the factor, relative to
/// that without, in millionths; `pairs`: number of pairs that the ratio is measured from.
#[inline(always)]
pub fn trial(factor: usize, finding: u8, is_on: bool, ratio_ppm: i64, pairs: u32) {
    probe::probe!(uncopy, trial, factor, finding, is_on, ratio_ppm, pairs);
}

/// Fires when uncopy copies instead, because the kernel refused something. Arguments: address and length of `reason`.
#[inline(always)]
pub fn fallback(reason: &str) {
    probe::probe!(uncopy, fallback, reason.as_ptr(), reason.len());
}
