//! Data that arrived in memory shared with other processes: the buffer becomes a view of it where that pays.

use crate::account::work::{Work, call_ns};
use crate::account::{accounts, books};
use crate::arena::segment::SharedBytes;
use crate::background::{activation, release};
use crate::call::examined::{MAX_PART_BYTES, claim, needs_no_engine, reject_reason};
use crate::call::input::Part;
use crate::range::apply::{Source, apply};
use crate::range::block::{BlockRef, Flag};
use crate::range::directory;
use crate::range::heap::HEAP;
use crate::range::page_in::prepare_overwrite;
use crate::state::policy::POLICY;
use crate::state::{gate, ledger, recording};
use uncopy_core::addr::ByteRange;
use uncopy_core::ledger::Field;
use uncopy_core::page_map::Dropped;
use uncopy_core::plan::{Piece, plan, with_touched};
use uncopy_core::policy::SiteKind;
use uncopy_core::policy::sites::INPUT_NS;
use uncopy_sys::presence::Section;

/// Makes a part of the program's buffer a view of bytes in shared memory, as many as the part has, which `shared`
/// returns. False: nothing was done, and the caller must copy them. `caller` only distinguishes call sites.
///
/// # Safety
/// The program must have passed this buffer for an input.
pub unsafe fn make_view(part: Part, caller: usize, shared: impl FnOnce() -> SharedBytes) -> bool {
    let is_short = part.len_bytes < gate::min_engine_bytes() || part.len_bytes > MAX_PART_BYTES;
    if is_short || recording::is_on() || needs_no_engine(&[part]) {
        return false;
    }
    HEAP.make_stack_plain();
    let work = Work::begin();
    let Some(section) = Section::enter() else { return false };
    release::release_if_memory_low();
    let site = POLICY.sites.site(SiteKind::Input, caller, part.len_bytes);
    ledger::record_call(site, SiteKind::Input, caller, part.len_bytes);
    let why_not = reject_reason(site, POLICY.costs.fetch_ns(part.len_bytes));
    let found =
        directory::find(part.address).and_then(|at| Some((at, at.range(part.address, part.len_bytes)?)));
    let claimed = match found {
        None if why_not.is_none() => claim(site, &part),
        found => found,
    };
    let can_view =
        |at: &BlockRef| why_not.is_none() && !at.block.has(Flag::DISOWNED) && activation::activate();
    let Some((at, range)) = claimed.filter(|(at, _)| can_view(at)) else {
        ledger::record_refusal(site, why_not.unwrap_or(Field::Refused));
        if let Some((at, range)) = found.filter(|(at, _)| at.may_have_absent_pages()) {
            prepare(at, range);
        }
        return false;
    };
    POLICY.sites.record_input(site, part.len_bytes);
    let segment = shared().freeze(site);
    let mut dropped = Dropped::new();
    let mut locked = at.lock();
    if let Some(open) = locked.exchange_open(None) {
        open.close();
    }
    if locked.register().is_err() {
        ledger::record_refusal(site, Field::Refused);
        drop(locked);
        return false;
    }
    let pieces = [Piece::Segment { segment, offset_bytes: 0, len_bytes: part.len_bytes }];
    let source = Source { start: range.start, pieces: &pieces, plain: 0 };
    let steps =
        with_touched(plan(range.start, &pieces, 1), range.overlapped_pages(), POLICY.pages_to_copy(site));
    // SAFETY: the block is registered and locked; the source is a segment outside the heap, whose bytes are
    // readable while `pieces` holds it.
    let done = unsafe { apply(&mut locked, &source, &steps, site, &mut dropped) };
    let moved_ns = books::enter_shared_input(site, part.len_bytes, &done);
    at.set_last_buffer(site, range.overlapped_pages());
    drop(locked);
    // SAFETY: the caller promises that the program passed this buffer for an input, so it is writable; no
    // lock is held.
    unsafe { source.fetch_missing(&section, &done.missing, at.base) };
    drop(dropped);
    accounts::debit(site, moved_ns + call_ns(site, work.took_ns(), done.known_ns(), INPUT_NS));
    true
}

/// Whether all of a part lies in a block whose mapping the program has not changed, so that it is readable
/// and writable.
#[must_use]
pub fn is_in_block(part: Part) -> bool {
    let found = directory::find(part.address).filter(|at| !at.block.has(Flag::DISOWNED));
    found.is_some_and(|at| at.range(part.address, part.len_bytes).is_some())
}

fn prepare(at: BlockRef, range: ByteRange) {
    let mut dropped = Dropped::new();
    prepare_overwrite(&mut at.lock(), range, &mut dropped);
}
