//! Registration of a block with userfaultfd: only a registered block can hold views.

use crate::arena::segment::Segment;
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::range::page_in::fill_views;
use crate::state::phase::STATE;
use crate::state::policy::POLICY;
use crate::state::{counters, gate};
use core::ops::Range;
use uncopy_core::addr::PageRange;
use uncopy_core::page_map::{Dropped, PageMap};
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::{mem, procmap};

/// Longest foreign range that is made present as a whole, bytes: the input that follows will fill most of
/// it. In longer ranges only the pages of the view are made present.
const POPULATE_BYTES: usize = 4 << 20;
/// Number of runs of absent pages above which a plain block is populated when it is registered.
const MAX_ABSENT_RUNS: usize = 64;

impl Locked {
    /// Registers the block with userfaultfd, so that it can hold views. Afterwards every page is present
    /// or, if never touched, empty.
    ///
    /// # Errors
    /// EINVAL or ENOMEM if the block must not be registered; the errors of the kernel. The block is then as before.
    pub fn register(&mut self) -> Result<(), Errno> {
        let block = self.at.block;
        if uncopy_sys::alloc::is_low() {
            return Err(Errno::ENOMEM);
        }
        let refusing = Flag::RELOCATED.or(Flag::DISOWNED).or(Flag::STACK).or(Flag::HUGE_PAGES);
        let is_refused = block.has(refusing) || self.is_doubtful();
        if is_refused || !STATE.is_active() {
            // UFFDIO_MOVE does not cross mappings, and splits huge pages; a disowned block's mapping is the
            // program's.
            return Err(Errno::EINVAL);
        }
        if block.has(Flag::REGISTERED) {
            return if self.has_many_views() { Err(Errno::ENOMEM) } else { Ok(()) };
        }
        if counters::get(Counter::RegisteredBlocks) >= STATE.max_registered() {
            return Err(Errno::ENOMEM);
        }
        let (base, bytes, uffd) = (self.at.base, self.at.bytes(), self.at.uffd());
        let mut map = PageMap::new();
        if self.at.slot.is_some() {
            self.register_foreign()?;
        } else if block.has(Flag::FRESH) {
            uffd.register(base, bytes)?;
            // Pages of a block that was never touched may be present all the same: locked memory is
            // populated, and a huge page may reach over from a neighbour.
            if HEAP_MEMORY.discard(base, bytes).is_ok() {
                map.set_empty(self.at.all(), &mut Dropped::new());
            } else {
                // Unregistered first: no page holds data yet, and if populating fails, the block is plain
                // memory that reads as zeroes.
                uffd.unregister(base, bytes)?;
                HEAP_MEMORY.populate(base, bytes)?;
                uffd.register(base, bytes)?;
            }
        } else {
            uffd.register(base, bytes)?;
            // From here on only the handler, which waits for this lock, places absent pages.
            let absent =
                |run: Range<u32>| map.set_empty(PageRange::new(run.start, run.end), &mut Dropped::new());
            if mem::absent_runs(base, self.at.pages, MAX_ABSENT_RUNS, absent).is_err() {
                map = PageMap::new();
                uffd.unregister(base, bytes)?;
                HEAP_MEMORY.populate(base, bytes)?;
                uffd.register(base, bytes)?;
            }
            // Recorded now, not only when the block is freed: for a program that fills its memory with
            // received data, every block was populated for nothing.
            POLICY.placement.record(block.alloc_site(), true);
        }
        self.begin(map);
        gate::count_registered();
        counters::add(Counter::RegisteredBlocks, 1);
        Ok(())
    }

    /// Registers a foreign range. Changes of its mapping are reported from then on, so this is when to
    /// check that the mapping still is as it was when the range was claimed.
    fn register_foreign(&self) -> Result<(), Errno> {
        let BlockRef { block, base, .. } = self.at;
        let bytes = self.at.bytes();
        if bytes <= POPULATE_BYTES {
            mem::populate(base, bytes)?;
            block.set(Flag::POPULATED);
        }
        let uffd = self.at.uffd();
        uffd.register(base, bytes)?;
        if can_hold_views(base, base + bytes) {
            return Ok(());
        }
        block.set(Flag::DISOWNED);
        // If that is refused, absent pages are served as empty.
        let _ = uffd.unregister(base, bytes);
        Err(Errno::EINVAL)
    }

    /// Makes pages of a foreign range present that are about to be moved out, unless registering did so.
    pub fn populate(&self, pages: PageRange) {
        if self.at.slot.is_some() && !self.at.block.has(Flag::POPULATED) {
            // After a refusal the pages are copied over, and fault.
            let _ = mem::populate(self.at.base + pages.start_bytes(), pages.len_bytes());
        }
    }

    /// Places the bytes of every view and unregisters the block, which is ordinary memory from then on: the
    /// kernel fills its empty pages. False: some views are left, and their faults are still served.
    pub fn make_plain(&mut self, dropped: &mut Dropped<Segment>) -> bool {
        if !self.is_registered() {
            return true;
        }
        if let Some(open) = self.exchange_open(None) {
            open.close();
        }
        fill_views(self, self.at.all(), dropped);
        let is_filled = self.map().is_some_and(|map| map.views() == 0);
        if !is_filled {
            return false;
        }
        let unregistered = self.at.uffd().unregister(self.at.base, self.at.bytes());
        // Faults outside every known range are answered with zeroes, which is right for absent pages of a
        // foreign range without views.
        if unregistered.is_err() && self.at.slot.is_none() {
            return false;
        }
        self.forget_registration();
        true
    }

    /// Records that the block is not registered any more; it must hold no views.
    pub fn forget_registration(&mut self) {
        if !self.is_registered() {
            return;
        }
        let all = self.at.all();
        self.change(|map| map.set_present(all, &mut Dropped::new()));
        // The open end's room goes back; a call that still fills it holds a reference of its own.
        if let Some(open) = self.exchange_open(None) {
            open.close();
        }
        self.end();
        gate::count_unregistered();
        counters::subtract(Counter::RegisteredBlocks, 1);
    }
}

/// Whether `start..end` is memory that can hold views, and not the caller's stack.
pub(crate) fn can_hold_views(start: usize, end: usize) -> bool {
    let marker = 0u8;
    let stack = &raw const marker as usize;
    procmap::for_each_mapping(start, end, |mapping| {
        mapping.can_hold_views && !(mapping.start <= stack && stack < mapping.end)
    })
    .unwrap_or(false)
}
