//! Small objects: packed by size class into pageblocks that hold nothing else (ZCopy §3.2.1).
//!
//! Which slots are free is said by a bitmap in a table apart, a bit for each slot, so that neither allocating nor
//! freeing touches the pageblock. A thread has a *lane*: for each class one pageblock that it alone allocates from.
//! Anyone frees, by setting a bit. A pageblock without free slots is *closed*; when enough of them have been freed
//! it is *listed*, and the next thread that needs one *attaches* it, which lifts what protection it has.
//!
//! ```text
//!            no free slot             enough freed             a thread needs one
//! attached ───────────────► closed ────────────────► listed ─────────────────────► attached
//!                             │ all freed               │ all freed
//!                             └─────────────────────────┴──────────► free pages
//! ```

use crate::classes::{Class, Classes, MAX_CLASSES};
use crate::counters::{COUNTERS, count};
use crate::options::Options;
use crate::pages::{PAGE_BYTES, PAGES, address_of};
use crate::process::{self, BATCH_PAGES, LANES, Owner, pageblock_pages, process};
use crate::replace::{self, Replaced};
use crate::unit::{Id, Kind, Place, Unit, state};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::lock::Critical;
use uncopy_sys::thread::{EndKey, number};

/// Free share of the slots from which on a closed pageblock is listed, one part in eight; of a protected one, in four.
const LIST_SHARE: u32 = 8;
const LIST_SHARE_PROTECTED: u32 = 4;

/// The pageblock of each class that the lane's owner allocates from; links.
struct Lane {
    attached: [AtomicU32; MAX_CLASSES],
}

static LANE: [Lane; LANES] = [const { Lane { attached: [const { AtomicU32::new(0) }; MAX_CLASSES] } }; LANES];
/// First listed pageblock of each class, a link; under the lock of the class.
static LISTS: [AtomicU32; MAX_CLASSES] = [const { AtomicU32::new(0) }; MAX_CLASSES];
static CLASSES: Shared = Shared(UnsafeCell::new(Classes::none()));
static MAX_BYTES: AtomicUsize = AtomicUsize::new(0);
static END: EndKey = EndKey::new();

struct Shared(UnsafeCell<Classes>);
// SAFETY: written once, before anybody reads it.
unsafe impl Sync for Shared {}

uncopy_sys::locals! {
    /// The lane of this thread plus one.
    static OWN: Cell<u32> = Cell::new(0);
}

/// Computes the classes. Once, before the first allocation.
pub(crate) fn set_classes(options: &Options) {
    // SAFETY: nobody reads them before `is_ready`.
    unsafe { (*CLASSES.0.get()).fill(options) };
    MAX_BYTES.store(options.large_threshold, Relaxed);
}

/// The classes; once ready.
#[inline]
pub(crate) fn classes() -> &'static Classes {
    // SAFETY: written before `is_ready`, and not since.
    unsafe { &*CLASSES.0.get() }
}

extern "C" fn leave() {
    let lane = OWN.with(|own| own.replace(0)) as usize;
    let me = number() + 1;
    if lane != 0 {
        let _ = process().owners[lane - 1].0.compare_exchange(me, 0, SeqCst, Relaxed);
    }
    process::thread_ends(|| END.watch(leave));
}

/// The lane of the calling thread.
#[inline]
fn lane() -> Option<&'static Lane> {
    let lane = OWN.with(Cell::get) as usize;
    // In a forked child nobody owns a lane at first.
    if lane != 0 && process().owners[lane - 1].0.load(Relaxed) == number() + 1 {
        return Some(&LANE[lane - 1]);
    }
    enter()
}

#[cold]
fn enter() -> Option<&'static Lane> {
    let me = number() + 1;
    let free = |owner: &Owner| owner.0.compare_exchange(0, me, SeqCst, Relaxed).is_ok();
    let lane = process().owners.iter().position(free)?;
    OWN.with(|own| own.set(lane as u32 + 1));
    END.watch(leave);
    Some(&LANE[lane])
}

/// An object of this class; null without memory.
#[inline]
pub(crate) fn allocate(class: Class) -> *mut u8 {
    let lane = lane();
    if let Some(lane) = lane
        && let Some(id) = Id::from_link(lane.attached[usize::from(class.0)].load(Relaxed))
    {
        let unit = PAGES.unit(id);
        if unit.place() == Place::Attached
            && let Some(object) = take(unit)
        {
            return object;
        }
    }
    allocate_from_next(class, lane)
}

/// Takes a free slot.
#[inline]
fn take(unit: &Unit) -> Option<*mut u8> {
    let slots = unit.slots.load(Relaxed);
    let start = unit.start.load(Relaxed);
    let words = slots.div_ceil(64);
    let hint = unit.hint.load(Relaxed);
    for step in 0..words {
        let word = if hint + step < words { hint + step } else { hint + step - words };
        let bits = PAGES.bits(start, word as usize);
        let mut free = bits.load(Relaxed);
        while free != 0 {
            let bit = free & free.wrapping_neg();
            let before = bits.fetch_and(!bit, Acquire);
            if before & bit != 0 {
                if step > 0 {
                    unit.hint.store(word, Relaxed);
                }
                let slot = word * 64 + bit.trailing_zeros();
                return Some(
                    (address_of(start) + (slot * unit.size_bytes.load(Relaxed)) as usize) as *mut u8,
                );
            }
            free = before & !bit;
        }
    }
    None
}

/// Whether objects may still be allocated from the pageblock: it is not full.
pub(crate) fn is_open(unit: &Unit) -> bool {
    unit.place() == Place::Attached && has_free_slots(unit)
}

fn has_free_slots(unit: &Unit) -> bool {
    let start = unit.start.load(Relaxed);
    (0..unit.slots.load(Relaxed).div_ceil(64)).any(|word| PAGES.bits(start, word as usize).load(SeqCst) != 0)
}

fn free_slots(unit: &Unit) -> u32 {
    let start = unit.start.load(Relaxed);
    (0..unit.slots.load(Relaxed).div_ceil(64))
        .map(|word| PAGES.bits(start, word as usize).load(SeqCst).count_ones())
        .sum()
}

#[cold]
fn allocate_from_next(class: Class, lane: Option<&'static Lane>) -> *mut u8 {
    let _critical = Critical::enter_briefly();
    let index = usize::from(class.0);
    let lock = &process().classes[index];
    loop {
        let guard = lock.guard();
        if let Some(lane) = lane
            && let Some(id) = Id::from_link(lane.attached[index].swap(0, Relaxed))
            && close(index, id)
        {
            drop(guard);
            release(id);
            continue;
        }
        let listed = pop(index);
        drop(guard);
        let found = listed.or_else(|| new_pageblock(class)).or_else(|| scavenge(index));
        let Some(id) = found else { return core::ptr::null_mut() };
        reopen(id);
        let unit = PAGES.unit(id);
        let object = take(unit);
        match lane {
            Some(lane) => lane.attached[index].store(Id::link(Some(id)), Relaxed),
            None => {
                // Without a lane nobody would close it: the class keeps it.
                let guard = lock.guard();
                let is_empty = close(index, id);
                if !is_empty && unit.place() == Place::Closed && free_slots(unit) > 0 {
                    push(index, id);
                }
                drop(guard);
                if is_empty {
                    release(id);
                }
            }
        }
        if let Some(object) = object {
            return object;
        }
    }
}

/// The pageblock is nobody's to allocate from any more. Whether all its slots are free: then it is to be released.
/// Under the lock of the class.
fn close(class: usize, id: Id) -> bool {
    let unit = PAGES.unit(id);
    unit.set_place(Place::Closed);
    // After that: whoever frees a slot and finds the pageblock attached has freed it before this look.
    consider(class, id)
}

/// Lists a closed pageblock with enough free slots; whether all are free and it has left every list.
fn consider(class: usize, id: Id) -> bool {
    let unit = PAGES.unit(id);
    let free = free_slots(unit);
    unit.freed.store(free, Relaxed);
    let is_empty = free == unit.slots.load(Relaxed);
    match unit.place() {
        Place::Attached => false,
        Place::Closed if is_empty => {
            // Nobody else may find it and release it as well.
            unit.set_kind(Kind::Vacant);
            true
        }
        Place::Closed => {
            if free >= min_free(unit) && unit.is_plain.load(Relaxed) == 0 {
                push(class, id);
            }
            false
        }
        // One stays, so that a single object that comes and goes does not take pages and give them back.
        Place::Listed if is_empty && LISTS[class].load(Relaxed) != Id::link(Some(id)) => {
            remove(class, id);
            unit.set_kind(Kind::Vacant);
            true
        }
        Place::Listed => false,
    }
}

/// Free slots from which on a pageblock is listed.
fn min_free(unit: &Unit) -> u32 {
    let is_protected = PAGES.state(unit.start.load(Relaxed)).load(Relaxed) & state::PROTECTED != 0;
    let share = if is_protected { LIST_SHARE_PROTECTED } else { LIST_SHARE };
    (unit.slots.load(Relaxed) / share).max(1)
}

fn push(class: usize, id: Id) {
    let unit = PAGES.unit(id);
    // Behind the first, which keeps being used: so that others become empty.
    let first = LISTS[class].load(Relaxed);
    unit.set_place(Place::Listed);
    match Id::from_link(first) {
        None => {
            unit.next.store(0, Relaxed);
            unit.prev.store(0, Relaxed);
            LISTS[class].store(Id::link(Some(id)), Relaxed);
        }
        Some(first) => {
            let second = PAGES.unit(first).next.load(Relaxed);
            unit.next.store(second, Relaxed);
            unit.prev.store(Id::link(Some(first)), Relaxed);
            PAGES.unit(first).next.store(Id::link(Some(id)), Relaxed);
            if let Some(second) = Id::from_link(second) {
                PAGES.unit(second).prev.store(Id::link(Some(id)), Relaxed);
            }
        }
    }
}

fn remove(class: usize, id: Id) {
    let unit = PAGES.unit(id);
    let (next, prev) = (unit.next.load(Relaxed), unit.prev.load(Relaxed));
    match Id::from_link(prev) {
        Some(prev) => PAGES.unit(prev).next.store(next, Relaxed),
        None => LISTS[class].store(next, Relaxed),
    }
    if let Some(next) = Id::from_link(next) {
        PAGES.unit(next).prev.store(prev, Relaxed);
    }
    unit.set_place(Place::Closed);
}

fn pop(class: usize) -> Option<Id> {
    let id = Id::from_link(LISTS[class].load(Relaxed))?;
    remove(class, id);
    PAGES.unit(id).set_place(Place::Attached);
    Some(id)
}

/// A fresh pageblock, attached.
fn new_pageblock(class: Class) -> Option<Id> {
    let pages = pageblock_pages();
    let run = {
        let _guard = process::pool();
        // SAFETY: under the lock of the pool.
        unsafe { PAGES.take(pages, 1) }
    }?;
    let unit = PAGES.unit(run.id);
    let size_bytes = classes().bytes(class);
    let slots = pages * PAGE_BYTES as u32 / size_bytes;
    unit.class.store(class.0, Relaxed);
    unit.size_bytes.store(size_bytes, Relaxed);
    unit.slots.store(slots, Relaxed);
    let start = unit.start.load(Relaxed);
    for word in 0..slots.div_ceil(64) {
        let left = slots - word * 64;
        let bits = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        PAGES.bits(start, word as usize).store(bits, SeqCst);
    }
    unit.set_place(Place::Attached);
    unit.set_kind(Kind::Small);
    if let Some(uffd) = process().uffd_so_far() {
        replace::fill(uffd, start, pages);
    }
    Some(run.id)
}

/// Any pageblock of the class with a free slot, where there is no memory for another one.
fn scavenge(class: usize) -> Option<Id> {
    let lock = &process().classes[class];
    let _guard = lock.guard();
    let mut page = 0;
    while page < PAGES.frontier() {
        let Some(id) = PAGES.unit_at(page) else {
            page += 1;
            continue;
        };
        let unit = PAGES.unit(id);
        if unit.kind() == Kind::Small
            && usize::from(unit.class.load(Relaxed)) == class
            && unit.place() == Place::Closed
            && has_free_slots(unit)
        {
            unit.set_place(Place::Attached);
            return Some(id);
        }
        page = unit.span().1.max(page + 1);
    }
    None
}

/// Lifts the protection of a pageblock in one go, because objects are about to be written to it. What this cannot do
/// is done by the handler, page by page.
fn reopen(id: Id) {
    let (unit, live) = (PAGES.unit(id), PAGES.live(id));
    let Some(uffd) = process().uffd_so_far() else { return };
    let (start, end) = unit.span();
    let is_protected = |page: &u32| PAGES.state(*page).load(SeqCst) & state::PROTECTED != 0;
    if !(start..end).any(|page| is_protected(&page)) || unit.is_plain.load(Relaxed) != 0 {
        return;
    }
    let _guard = live.lock.guard();
    let kind = state::PROTECTED | state::LENT;
    let mut page = start;
    while page < end {
        let found = PAGES.state(page).load(SeqCst);
        let is_alike = |more: &u32| PAGES.state(page + more).load(SeqCst) & kind == found & kind;
        let run = (1..(end - page).min(BATCH_PAGES)).take_while(is_alike).count() as u32 + 1;
        let pages = page..page + run;
        page += run;
        if found & state::PROTECTED == 0 {
            continue;
        }
        pages.clone().for_each(|page| _ = PAGES.state(page).fetch_and(!kind, SeqCst));
        live.generation.fetch_add(1, SeqCst);
        let (address, len_bytes) = process::bytes_of(pages.start, run);
        let is_done = if found & state::LENT != 0 || live.tally().1 > 0 {
            let _guard = process().replacing.guard();
            // SAFETY: the unit's lock, and the right to let pages vanish, are held, and with that the room; the pages
            // are protected.
            let replaced = unsafe { replace::replace(uffd, unit, pages.start, run, process::room()) };
            replaced != Replaced::Refused
        } else {
            let lifted = uffd.unprotect(address, len_bytes).is_ok();
            count(&COUNTERS.lifted_pages, if lifted { run as usize } else { 0 });
            lifted
        };
        if !is_done {
            pages.for_each(|page| _ = PAGES.state(page).fetch_or(kind, SeqCst));
        }
    }
}

/// Gives an object back.
///
/// # Safety
/// `object` is one of this unit, and nobody uses it any more.
#[inline]
pub(crate) unsafe fn deallocate(id: Id, object: usize) {
    let unit = PAGES.unit(id);
    let start = unit.start.load(Relaxed);
    let slot = (object - address_of(start)) as u32 / unit.size_bytes.load(Relaxed);
    let bit = 1u64 << (slot % 64);
    if PAGES.bits(start, (slot / 64) as usize).fetch_or(bit, SeqCst) & bit != 0 {
        // Freed twice. Better ignored than an object that two own.
        return;
    }
    let place = unit.place();
    if place == Place::Attached {
        // Whoever closes it looks at the bitmap after that.
        return;
    }
    let freed = unit.freed.fetch_add(1, SeqCst) + 1;
    let matters = match place {
        Place::Attached => false,
        Place::Closed => freed >= min_free(unit) || freed >= unit.slots.load(Relaxed),
        Place::Listed => freed >= unit.slots.load(Relaxed),
    };
    if matters {
        reconsider(id);
    }
}

#[cold]
fn reconsider(id: Id) {
    let _critical = Critical::enter_briefly();
    let unit = PAGES.unit(id);
    let class = usize::from(unit.class.load(Relaxed));
    let is_empty = {
        let _guard = process().classes[class].guard();
        // It may have been released meanwhile, and be something else by now.
        unit.kind() == Kind::Small && usize::from(unit.class.load(Relaxed)) == class && consider(class, id)
    };
    if is_empty {
        release(id);
    }
}

/// Gives the pages of a pageblock back that has no object and is in no list.
fn release(id: Id) {
    crate::large::release(id);
}
