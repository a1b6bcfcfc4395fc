//! The block heap: the program's large allocations, in blocks of whole pages that are found by address arithmetic.
//!
//! ```text
//! reservation: | class 0 span | class 1 span | … | class 55 span |      one span: 2^shift bytes
//! span:        | block 0 | block 1 | … | (not yet committed)      |
//! ```
//!
//! A block is an ordinary private mapping until it first holds a view; it is then registered with
//! userfaultfd, once, and stays registered. Each class keeps registered and plain free blocks apart, and
//! hands out the kind that earlier blocks of the allocation site became.

use crate::range::block::{Block, BlockRef, Flag};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::state::gate::{HEAP_BASE, HEAP_LEN_BYTES};
use crate::state::phase::STATE;
use crate::state::policy::POLICY;
use crate::state::{counters, ledger};
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange};
use uncopy_core::classes::{CLASSES, Class};
use uncopy_core::page_map::{Dropped, State};
use uncopy_core::stats::Counter;
use uncopy_sys::bytes;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::lock::{Critical, Lock};
use uncopy_sys::mem::{self, Advice, Reservation};
use uncopy_sys::presence::{Presence, Section};
use uncopy_sys::sync::CachePadded;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

mod free_blocks;
mod lead;
mod plain;
mod release;
mod renewal;
pub(crate) mod retention;

use free_blocks::{Free, FreeBlocks};
use lead::Lead;

/// Log2 of a span where nothing limits the address space.
const MAX_SHIFT: u32 = 34;
/// Log2 of the smallest useful span.
const MIN_SHIFT: u32 = 22;
/// Length committed at a time, bytes.
const STEP_BYTES: usize = 4 << 20;
/// Number of larger classes whose free blocks may serve a request, if its own class has none with pages: a
/// fault for every page costs more than the excess (Redis SET of 16 KiB to 4 MiB: 64 faults for each with
/// two, 21 with three, as with jemalloc).
const LARGER_CLASSES: usize = 3;
/// Shortest block that is relocated by mremap, bytes. For shorter ones, the first touch of its pages would
/// cost the block's next user more (0.9 µs each) than copying: with 128 KiB here, Redis SET of 64 KiB took
/// 1.4 times the CPU time.
const RELOCATE_BYTES: usize = 4 << 20;

#[repr(align(128))]
struct ClassState {
    free: Guarded<Free>,
    blocks: AtomicU32,
    /// Number of blocks whose addresses and records are committed.
    committed: AtomicU32,
    /// True if the class makes no more blocks, because the addresses behind them were given back.
    closed: AtomicBool,
}

impl ClassState {
    uncopy_sys::constant! {
        const fn new() -> Self {
            Self {
                free: Guarded::new(Free { registered: FreeBlocks::NONE, plain: FreeBlocks::NONE }),
                blocks: AtomicU32::new(0),
                committed: AtomicU32::new(0),
                closed: AtomicBool::new(false),
            }
        }
    }
}

/// The block heap of a process.
pub struct Heap {
    shift: AtomicU32,
    /// Address of the records; a class's begin at `records + class * records_step`.
    records: AtomicUsize,
    records_step: AtomicUsize,
    classes: [ClassState; CLASSES],
    retained_pages: CachePadded<AtomicUsize>,
    /// Time at which the next class's free blocks are examined if there is no handler, ms.
    trim_due_ms: AtomicU64,
    trimmed_class: AtomicUsize,
}

/// A block just handed out by [`Heap::allocate`].
#[derive(Clone, Copy)]
pub struct Allocation {
    /// The block and its position.
    pub at: BlockRef,
    /// Whether all bytes of the block are zero.
    pub is_zero: bool,
}

uncopy_sys::statics! {
    /// The block heap of this process.
    pub static HEAP: CachePadded<Heap> = CachePadded(Heap::new());
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl Heap {
    uncopy_sys::constant! {
        /// A heap without a reservation.
        #[must_use]
        pub const fn new() -> Self {
            Self {
                shift: AtomicU32::new(0),
                records: AtomicUsize::new(0),
                records_step: AtomicUsize::new(0),
                #[cfg(not(loom))]
                classes: [const { ClassState::new() }; CLASSES],
                #[cfg(loom)]
                classes: core::array::from_fn(|_| ClassState::new()),
                retained_pages: CachePadded(AtomicUsize::new(0)),
                trim_due_ms: AtomicU64::new(0),
                trimmed_class: AtomicUsize::new(0),
            }
        }
    }

    /// Reserves the range. To be called once, under the lock of activation. `max_bytes`: the rest of the
    /// limit on the address space.
    ///
    /// # Errors
    /// ENOMEM where even a small range cannot be reserved.
    pub fn reserve(&self, max_bytes: usize) -> Result<(), Errno> {
        let mut shift = MAX_SHIFT;
        loop {
            let len_bytes = CLASSES << shift;
            let records_step = (1usize << shift) / PAGE_BYTES * core::mem::size_of::<Block>();
            let fits = len_bytes + CLASSES * records_step <= max_bytes;
            let reserved = if fits {
                Reservation::new(len_bytes).and_then(|blocks| {
                    Reservation::new(CLASSES * records_step).map(|records| (blocks, records)).inspect_err(
                        |_| {
                            // SAFETY: the range was reserved by this call and its address is not published:
                            // nothing refers to it.
                            let _ = unsafe { mem::unmap(blocks.base(), blocks.len_bytes()) };
                        },
                    )
                })
            } else {
                Err(Errno::ENOMEM)
            };
            match reserved {
                Ok((blocks, records)) => {
                    records.advise(records.base(), records.len_bytes(), Advice::NoHugePages);
                    records.advise(records.base(), records.len_bytes(), Advice::NotInCoreDumps);
                    blocks.advise(blocks.base(), blocks.len_bytes(), Advice::NotInCoreDumps);
                    // SAFETY: called once; readers first check `HEAP_LEN_BYTES`, which is published below.
                    unsafe { HEAP_MEMORY.set(blocks, records) };
                    self.shift.store(shift, Relaxed);
                    self.records.store(records.base(), Relaxed);
                    self.records_step.store(records_step, Relaxed);
                    HEAP_BASE.store(blocks.base(), Relaxed);
                    HEAP_LEN_BYTES.store(len_bytes, Release);
                    return Ok(());
                }
                Err(errno) if shift <= MIN_SHIFT => return Err(errno),
                Err(_) => shift -= 2,
            }
        }
    }

    /// Whether the heap has its reservation.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        HEAP_LEN_BYTES.load(Acquire) != 0
    }

    /// The block that holds `address`.
    #[must_use]
    pub fn find(&self, address: usize) -> Option<BlockRef> {
        let len_bytes = HEAP_LEN_BYTES.load(Acquire);
        let offset = address.wrapping_sub(HEAP_BASE.load(Relaxed));
        if offset >= len_bytes {
            return None;
        }
        let shift = self.shift.load(Relaxed);
        let class = Class::from_index(offset >> shift)?;
        let index = ((offset & ((1 << shift) - 1)) / class.bytes()) as u32;
        (index < self.classes[class.index()].blocks.load(Acquire)).then(|| self.block(class, index))
    }

    fn block(&self, class: Class, index: u32) -> BlockRef {
        let record = self.records.load(Relaxed)
            + class.index() * self.records_step.load(Relaxed)
            + index as usize * core::mem::size_of::<Block>();
        let base = HEAP_BASE.load(Relaxed)
            + (class.index() << self.shift.load(Relaxed))
            + index as usize * class.bytes();
        // SAFETY: the record is committed, since `index < committed`, and stays so; all-zero bytes are a
        // valid `Block`, and its fields are atomics or guarded by its lock.
        BlockRef { block: unsafe { &*(record as *const Block) }, base, pages: class.pages(), slot: None }
    }

    /// Allocates a block of at least `len_bytes`, aligned to a cache line. `caller`: return address in the program.
    /// `None` if it is too large or no memory is left: the program's own allocator then serves the request.
    #[must_use]
    pub fn allocate(&self, len_bytes: usize, caller: usize) -> Option<Allocation> {
        let (class, lead) = Lead::for_len(len_bytes)?;
        self.obtain(class, lead, len_bytes, caller)
    }

    /// Allocates a block as [`allocate`](Self::allocate) does, aligned to a page.
    #[must_use]
    pub fn allocate_aligned(&self, len_bytes: usize, caller: usize) -> Option<Allocation> {
        self.obtain(Class::for_len(len_bytes)?, Lead::None, len_bytes, caller)
    }

    fn obtain(&self, class: Class, lead: Lead, len_bytes: usize, caller: usize) -> Option<Allocation> {
        let shift = self.shift.load(Relaxed);
        if !self.is_reserved() || class.bytes() > 1 << shift {
            return None;
        }
        let _presence = Presence::enter()?;
        let site = POLICY.placement.site(caller, class.index());
        // While nothing is elided, absent pages of registered blocks only cost faults: 3 % of Redis' GET of 256 KiB.
        let wants_registered = POLICY.registers_every_block()
            || !POLICY.trial_disables_eliding() && POLICY.placement.prefers_registered(site);
        let at = loop {
            let at = self.take(class, wants_registered)?;
            if self.is_reusable(at, site) {
                break at;
            }
        };
        if !wants_registered && at.block.has(Flag::REGISTERED) && at.may_have_absent_pages() {
            Self::unregister(at);
        }
        let retained = at.block.retained_pages();
        self.retained_pages.fetch_sub(retained as usize, Relaxed);
        at.block.set_request(site, lead.bytes(at.base, at.bytes(), len_bytes), len_bytes);
        at.block.clear(Flag::HELD_A_VIEW.or(Flag::UNTRIED));
        if POLICY.trial_disables_eliding() {
            at.block.set(Flag::UNTRIED);
        }
        let is_fresh = at.block.has(Flag::FRESH);
        if is_fresh && wants_registered && !at.block.has(Flag::REGISTERED) {
            // Registered now, while no page is known to be present.
            if STATE.is_active() {
                let _critical = Critical::enter();
                // After a refusal the block stays plain.
                let _ = at.lock().register();
            }
        }
        at.block.clear(Flag::FRESH);
        at.block.set(Flag::ALLOCATED);
        counters::add(Counter::BlocksBytes, at.bytes());
        let is_registered = at.block.has(Flag::REGISTERED);
        ledger::record_allocation(site, caller, len_bytes, is_registered);
        Some(Allocation { at, is_zero: is_fresh })
    }

    /// Makes a free block plain, so that the kernel fills its absent pages. If that is refused, the handler
    /// fills them.
    fn unregister(at: BlockRef) {
        if !STATE.is_active() {
            return;
        }
        let _critical = Critical::enter_briefly();
        let mut dropped = Dropped::new();
        at.lock().make_plain(&mut dropped);
        drop(dropped);
    }

    /// Takes a free block of the class; if none of these has pages, one of a slightly larger class that
    /// has; else a new one.
    fn take(&self, class: Class, wants_registered: bool) -> Option<BlockRef> {
        let state = &self.classes[class.index()];
        let free = &mut *state.free.lock();
        if !free.of_kind(wants_registered).has_pages() {
            let larger = (1..=LARGER_CLASSES).filter_map(|steps| Class::from_index(class.index() + steps));
            for larger in larger.filter(|larger| larger.bytes() <= 1 << self.shift.load(Relaxed)) {
                let Some(mut free) = self.classes[larger.index()].free.try_lock() else { continue };
                let list = free.of_kind(wants_registered);
                if list.has_pages()
                    && let Some(index) = self.pop(larger, list)
                {
                    return Some(self.block(larger, index));
                }
            }
        }
        let index = if wants_registered {
            self.pop(class, &mut free.registered).or_else(|| self.pop(class, &mut free.plain))
        } else {
            // Prefer a registered block to a new one: a site that makes views by turns would otherwise get
            // blocks of both kinds for each turn.
            self.pop(class, &mut free.plain).or_else(|| self.pop(class, &mut free.registered))
        };
        Some(self.block(class, index.or_else(|| self.extend(class, state))?))
    }

    fn pop(&self, class: Class, free: &mut FreeBlocks) -> Option<u32> {
        self.pop_from(class, free.first())
    }

    fn pop_from(&self, class: Class, list: &mut u32) -> Option<u32> {
        let index = list.checked_sub(1)?;
        *list = self.block(class, index).block.take_next_free();
        Some(index)
    }

    /// Adds a block to the class; returns its index.
    fn extend(&self, class: Class, state: &ClassState) -> Option<u32> {
        let (blocks, records) = HEAP_MEMORY.reservations()?;
        let index = state.blocks.load(Relaxed);
        let max_blocks = (1usize << self.shift.load(Relaxed)) / class.bytes();
        if index as usize >= max_blocks || state.closed.load(Relaxed) {
            return None;
        }
        let committed = state.committed.load(Relaxed);
        if index == committed {
            let step = ((STEP_BYTES / class.bytes()).max(1)).min(max_blocks - index as usize) as u32;
            let base = HEAP_BASE.load(Relaxed) + (class.index() << self.shift.load(Relaxed));
            let from = base + index as usize * class.bytes();
            let len_bytes = step as usize * class.bytes();
            blocks.commit(from, len_bytes).ok()?;
            blocks.advise(from, len_bytes, Advice::InCoreDumps);
            // Pages of blocks are moved one by one, and a huge page makes memory resident that the program
            // never touches: 200 blocks of 2,100 KiB, 64 KiB of each touched, took 402 MiB where the
            // system's setting is `always`.
            blocks.advise(from, len_bytes, Advice::NoHugePages);
            let first = self.records.load(Relaxed) + class.index() * self.records_step.load(Relaxed);
            let from = (first + index as usize * core::mem::size_of::<Block>()) / PAGE_BYTES * PAGE_BYTES;
            let to = (first + (index + step) as usize * core::mem::size_of::<Block>())
                .next_multiple_of(PAGE_BYTES);
            records.commit(from, to - from).ok()?;
            state.committed.store(committed + step, Relaxed);
        }
        #[cfg(loom)]
        self.begin_record(class, index);
        self.block(class, index).block.set(Flag::FRESH);
        state.blocks.store(index + 1, Release);
        Some(index)
    }

    #[cfg(loom)]
    fn begin_record(&self, class: Class, index: u32) {
        let record = core::ptr::from_ref(self.block(class, index).block).cast_mut();
        // SAFETY: the record was committed by `extend`, large enough and aligned for a `Block`; the block's
        // index is not published yet.
        unsafe { record.write(Block::new()) };
    }

    /// Zeroes the program's first `len_bytes` bytes of a block that was just allocated.
    pub fn zero(&self, at: BlockRef, len_bytes: usize) {
        let range = ByteRange::at(at.block.lead_bytes(), len_bytes.min(at.room_bytes()));
        let present = |pages: PageRange| {
            let part = ByteRange::from(pages).intersection(range);
            // SAFETY: the caller owns the block, `part` lies within it, and its mapping is writable.
            unsafe { bytes::zero((at.base + part.start) as *mut u8, part.len()) };
        };
        if !at.block.has(Flag::REGISTERED) {
            present(at.all());
            return;
        }
        let Some(_section) = Section::enter() else {
            present(at.all());
            return;
        };
        if let Some(map) = at.lock().map() {
            // A free block has no views; its empty pages read as zeroes.
            map.for_each(range.overlapped_pages(), |pages, state| {
                if state == State::Present {
                    present(pages);
                }
            });
        }
    }

    /// Moves the pages of a plain block to another with mremap. False, with nothing changed, if that is
    /// impossible or does not pay.
    #[must_use]
    pub fn relocate(&self, from: BlockRef, to: BlockRef) -> bool {
        // Mappings of the program's own would be moved along or mapped over.
        let refusing = Flag::REGISTERED.or(Flag::OTHER_PROPERTIES).or(Flag::MAPPED_OVER).or(Flag::UNMAPPED);
        let plain = |at: &BlockRef| !at.block.has(refusing);
        let len_bytes = from.bytes().min(to.bytes());
        let lead_bytes = from.block.lead_bytes();
        let asked_bytes = to.block.usable_bytes();
        if len_bytes < RELOCATE_BYTES || lead_bytes + asked_bytes > to.bytes() {
            return false;
        }
        let Some((blocks, _)) = HEAP_MEMORY.reservations() else { return false };
        let Some(_section) = Section::enter() else { return false };
        let (first, second) = if from.base < to.base { (from, to) } else { (to, from) };
        let _first = first.lock();
        let _second = second.lock();
        if !plain(&from) || !plain(&to) {
            return false;
        }
        // SAFETY: both blocks are plain and locked; `to` was just allocated, so its bytes are not needed.
        let moved = unsafe { blocks.relocate(from.base, to.base, len_bytes) }.is_ok();
        if moved {
            // Moving whole pages keeps the lead.
            to.block.set_request(to.block.alloc_site(), lead_bytes as u16, asked_bytes);
            to.block.set(Flag::RELOCATED);
            from.block.set(Flag::RELOCATED);
            to.copy_advice(from);
        }
        moved
    }

    /// Calls `each` for every block that exists, in order of address.
    pub fn for_each_block(&self, mut each: impl FnMut(BlockRef)) {
        for index in 0..CLASSES {
            let Some(class) = Class::from_index(index) else { return };
            for block in 0..self.classes[index].blocks.load(Acquire) {
                each(self.block(class, block));
            }
        }
    }

    /// The block with number `index` of a class.
    pub(crate) fn nth(&self, class: usize, index: u32) -> Option<BlockRef> {
        let exists = index < self.classes.get(class)?.blocks.load(Acquire);
        Class::from_index(class).filter(|_| exists).map(|class| self.block(class, index))
    }

    /// The locks of all classes, to be held across a fork.
    pub fn class_locks(&self) -> impl Iterator<Item = &Lock> {
        self.classes.iter().map(|class| class.free.raw())
    }
}
