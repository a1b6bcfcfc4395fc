//! Small objects, packed by size class into pageblocks (ZCopy §3.2.1).
//!
//! Free slots are recorded in a bitmap apart from the pages, one bit per slot, so neither allocating nor
//! freeing touches the pageblock. Each thread has a cache with one pageblock per class, from which only this
//! thread allocates. Any thread frees an object by setting its bit. A pageblock without free slots is
//! *closed*. Once enough of its objects are freed, it is *listed*, and the next thread in need *attaches* it,
//! which lifts any protection.
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
use crate::process::{self, BATCH_PAGES, Owner, THREAD_CACHES, pageblock_pages, process};
use crate::replace::{self, Replaced};
use crate::unit::{Availability, Id, Kind, Unit, state};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use uncopy_sys::lock::Critical;
use uncopy_sys::thread::{EndKey, number};

/// A closed pageblock is listed when an eighth of its slots is free, or a quarter if protected.
const LIST_SHARE: u32 = 8;
const LIST_SHARE_PROTECTED: u32 = 4;

/// Pageblocks from which one thread allocates, by class; encoded indices.
struct ThreadCache {
    attached: [AtomicU32; MAX_CLASSES],
}

static CACHES: [ThreadCache; THREAD_CACHES] =
    [const { ThreadCache { attached: [const { AtomicU32::new(0) }; MAX_CLASSES] } }; THREAD_CACHES];
/// First listed pageblock of each class, as an encoded index; guarded by the class's lock.
static LISTS: [AtomicU32; MAX_CLASSES] = [const { AtomicU32::new(0) }; MAX_CLASSES];
static CLASSES: Shared = Shared(UnsafeCell::new(Classes::none()));
static MAX_BYTES: AtomicUsize = AtomicUsize::new(0);
static END: EndKey = EndKey::new();

struct Shared(UnsafeCell<Classes>);
// SAFETY: the classes are written once by `set_classes`, before `is_ready` lets other threads read them.
unsafe impl Sync for Shared {}

uncopy_sys::locals! {
    /// Index of this thread's cache plus one; 0 if it has none.
    static OWN_CACHE: Cell<u32> = Cell::new(0);
}

/// Computes the size classes. Must be called once, before the first allocation.
pub(crate) fn set_classes(options: &Options) {
    // SAFETY: the caller runs before `is_ready` is set, so no other reference to the classes exists.
    unsafe { (*CLASSES.0.get()).fill(options) };
    MAX_BYTES.store(options.large_threshold, Relaxed);
}

/// Returns the size classes. Must not be called before the allocator is ready.
#[inline]
pub(crate) fn classes() -> &'static Classes {
    // SAFETY: the classes were written before `is_ready` was set (Release), and not since.
    unsafe { &*CLASSES.0.get() }
}

extern "C" fn leave() {
    let cache = OWN_CACHE.with(|own| own.replace(0)) as usize;
    let me = number() + 1;
    if cache != 0 {
        let _ = process().owners[cache - 1].0.compare_exchange(me, 0, SeqCst, Relaxed);
    }
    process::on_thread_end(|| END.watch(leave));
}

/// Returns the calling thread's cache.
#[inline]
fn cache() -> Option<&'static ThreadCache> {
    let cache = OWN_CACHE.with(Cell::get) as usize;
    // In a forked child all caches are unowned at first.
    if cache != 0 && process().owners[cache - 1].0.load(Relaxed) == number() + 1 {
        return Some(&CACHES[cache - 1]);
    }
    claim_cache()
}

#[cold]
fn claim_cache() -> Option<&'static ThreadCache> {
    let me = number() + 1;
    let free = |owner: &Owner| owner.0.compare_exchange(0, me, SeqCst, Relaxed).is_ok();
    let cache = process().owners.iter().position(free)?;
    OWN_CACHE.with(|own| own.set(cache as u32 + 1));
    END.watch(leave);
    Some(&CACHES[cache])
}

/// Allocates an object of this class; null if there is no memory.
#[inline]
pub(crate) fn allocate(class: Class) -> *mut u8 {
    let cache = cache();
    if let Some(cache) = cache
        && let Some(id) = Id::decode(cache.attached[usize::from(class.0)].load(Relaxed))
    {
        let unit = PAGES.unit(id);
        if unit.availability() == Availability::Attached
            && let Some(object) = allocate_slot(unit)
        {
            return object;
        }
    }
    allocate_from_next(class, cache)
}

#[inline]
fn allocate_slot(unit: &Unit) -> Option<*mut u8> {
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

/// True if objects may still be allocated from the pageblock.
pub(crate) fn is_open(unit: &Unit) -> bool {
    unit.availability() == Availability::Attached && has_free_slots(unit)
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
fn allocate_from_next(class: Class, cache: Option<&'static ThreadCache>) -> *mut u8 {
    let _critical = Critical::enter_briefly();
    let index = usize::from(class.0);
    let lock = &process().classes[index];
    loop {
        let guard = lock.guard();
        if let Some(cache) = cache
            && let Some(id) = Id::decode(cache.attached[index].swap(0, Relaxed))
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
        let object = allocate_slot(unit);
        match cache {
            Some(cache) => cache.attached[index].store(Id::encode(Some(id)), Relaxed),
            None => {
                // A thread without a cache lists the pageblock at once, since it would not close it later.
                let guard = lock.guard();
                let is_empty = close(index, id);
                if !is_empty && unit.availability() == Availability::Closed && free_slots(unit) > 0 {
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

/// Detaches a pageblock. Returns true if all its slots are free, so that the caller must release it. The
/// caller must hold the class's lock.
fn close(class: usize, id: Id) -> bool {
    let unit = PAGES.unit(id);
    unit.set_availability(Availability::Closed);
    // Must follow `set_availability`: a thread that frees a slot and still finds the pageblock attached has
    // set the bit before this check.
    update_listing(class, id)
}

/// Lists a closed pageblock with enough free slots. Returns true if all are free and it is in no list.
fn update_listing(class: usize, id: Id) -> bool {
    let unit = PAGES.unit(id);
    let free = free_slots(unit);
    unit.freed.store(free, Relaxed);
    let is_empty = free == unit.slots.load(Relaxed);
    match unit.availability() {
        Availability::Attached => false,
        Availability::Closed if is_empty => {
            // Keeps other threads from releasing the pageblock too.
            unit.set_kind(Kind::Vacant);
            true
        }
        Availability::Closed => {
            if free >= min_free(unit) && unit.is_unregistered.load(Relaxed) == 0 {
                push(class, id);
            }
            false
        }
        // One empty pageblock stays listed, so that a single object that comes and goes has no cost.
        Availability::Listed if is_empty && LISTS[class].load(Relaxed) != Id::encode(Some(id)) => {
            remove(class, id);
            unit.set_kind(Kind::Vacant);
            true
        }
        Availability::Listed => false,
    }
}

/// Returns the number of free slots from which on a pageblock is listed.
fn min_free(unit: &Unit) -> u32 {
    let is_protected = PAGES.state(unit.start.load(Relaxed)).load(Relaxed) & state::PROTECTED != 0;
    let share = if is_protected { LIST_SHARE_PROTECTED } else { LIST_SHARE };
    (unit.slots.load(Relaxed) / share).max(1)
}

fn push(class: usize, id: Id) {
    let unit = PAGES.unit(id);
    // Inserted second: the first one stays in use, so that others become empty.
    let first = LISTS[class].load(Relaxed);
    unit.set_availability(Availability::Listed);
    match Id::decode(first) {
        None => {
            unit.next.store(0, Relaxed);
            unit.prev.store(0, Relaxed);
            LISTS[class].store(Id::encode(Some(id)), Relaxed);
        }
        Some(first) => {
            let second = PAGES.unit(first).next.load(Relaxed);
            unit.next.store(second, Relaxed);
            unit.prev.store(Id::encode(Some(first)), Relaxed);
            PAGES.unit(first).next.store(Id::encode(Some(id)), Relaxed);
            if let Some(second) = Id::decode(second) {
                PAGES.unit(second).prev.store(Id::encode(Some(id)), Relaxed);
            }
        }
    }
}

fn remove(class: usize, id: Id) {
    let unit = PAGES.unit(id);
    let (next, prev) = (unit.next.load(Relaxed), unit.prev.load(Relaxed));
    match Id::decode(prev) {
        Some(prev) => PAGES.unit(prev).next.store(next, Relaxed),
        None => LISTS[class].store(next, Relaxed),
    }
    if let Some(next) = Id::decode(next) {
        PAGES.unit(next).prev.store(prev, Relaxed);
    }
    unit.set_availability(Availability::Closed);
}

fn pop(class: usize) -> Option<Id> {
    let id = Id::decode(LISTS[class].load(Relaxed))?;
    remove(class, id);
    PAGES.unit(id).set_availability(Availability::Attached);
    Some(id)
}

/// Returns a new pageblock, attached.
fn new_pageblock(class: Class) -> Option<Id> {
    let pages = pageblock_pages();
    let run = {
        let _guard = process::pool();
        // SAFETY: `take_run` requires the pool's lock, which the guard holds.
        unsafe { PAGES.take_run(pages, 1) }
    }?;
    let unit = PAGES.unit(run.id);
    let size_bytes = classes().bytes(class);
    let slots = pages * PAGE_BYTES as u32 / size_bytes;
    unit.class.store(class.0, Relaxed);
    unit.size_bytes.store(size_bytes, Relaxed);
    unit.slots.store(slots, Relaxed);
    let start = unit.start.load(Relaxed);
    for word in 0..slots.div_ceil(64) {
        let remaining = slots - word * 64;
        let bits = if remaining >= 64 { u64::MAX } else { (1 << remaining) - 1 };
        PAGES.bits(start, word as usize).store(bits, SeqCst);
    }
    unit.set_availability(Availability::Attached);
    unit.set_kind(Kind::Small);
    if let Some(uffd) = process().uffd_if_started() {
        replace::fill(uffd, start, pages);
    }
    Some(run.id)
}

/// Returns any closed pageblock of the class with a free slot, for when there is no memory for a new one.
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
            && unit.availability() == Availability::Closed
            && has_free_slots(unit)
        {
            unit.set_availability(Availability::Attached);
            return Some(id);
        }
        page = unit.span().1.max(page + 1);
    }
    None
}

/// Lifts the protection of a whole pageblock, because objects in it are about to be written to. Pages for
/// which this fails are left to the handler.
fn reopen(id: Id) {
    let (unit, local) = (PAGES.unit(id), PAGES.local(id));
    let Some(uffd) = process().uffd_if_started() else { return };
    let (start, end) = unit.span();
    let is_protected = |page: &u32| PAGES.state(*page).load(SeqCst) & state::PROTECTED != 0;
    if !(start..end).any(|page| is_protected(&page)) || unit.is_unregistered.load(Relaxed) != 0 {
        return;
    }
    let _guard = local.lock.guard();
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
        local.generation.fetch_add(1, SeqCst);
        let (address, len_bytes) = process::bytes_of(pages.start, run);
        let is_done = if found & state::LENT != 0 || local.tally().1 > 0 {
            let _guard = process().replacing.guard();
            // SAFETY: this thread holds the unit's lock and `replacing`, which covers the buffer of `scratch()`.
            // The pages are protected, so no thread can write to them, and the buffer has BATCH_PAGES pages.
            let replaced = unsafe { replace::replace(uffd, unit, pages.start, run, process::scratch()) };
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

/// Frees an object of the unit.
///
/// # Safety
/// `object` must be an object of this unit that is no longer in use.
#[inline]
pub(crate) unsafe fn deallocate(id: Id, object: usize) {
    let unit = PAGES.unit(id);
    let start = unit.start.load(Relaxed);
    let slot = (object - address_of(start)) as u32 / unit.size_bytes.load(Relaxed);
    let bit = 1u64 << (slot % 64);
    if PAGES.bits(start, (slot / 64) as usize).fetch_or(bit, SeqCst) & bit != 0 {
        // Double free: ignoring it is better than handing the object out twice.
        return;
    }
    let availability = unit.availability();
    if availability == Availability::Attached {
        // The thread that closes the pageblock checks the bitmap afterwards.
        return;
    }
    let freed = unit.freed.fetch_add(1, SeqCst) + 1;
    let needs_update = match availability {
        Availability::Attached => false,
        Availability::Closed => freed >= min_free(unit) || freed >= unit.slots.load(Relaxed),
        Availability::Listed => freed >= unit.slots.load(Relaxed),
    };
    if needs_update {
        recheck_listing(id);
    }
}

#[cold]
fn recheck_listing(id: Id) {
    let _critical = Critical::enter_briefly();
    let unit = PAGES.unit(id);
    let class = usize::from(unit.class.load(Relaxed));
    let is_empty = {
        let _guard = process().classes[class].guard();
        // The pageblock may have been released meanwhile, and the unit reused.
        unit.kind() == Kind::Small
            && usize::from(unit.class.load(Relaxed)) == class
            && update_listing(class, id)
    };
    if is_empty {
        release(id);
    }
}

/// Frees the pages of a pageblock that has no objects and is in no list.
fn release(id: Id) {
    crate::large::release(id);
}
