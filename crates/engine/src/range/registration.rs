//! Registration of a block with userfaultfd: only a registered block can hold views.

use crate::arena::segment::Segment;
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::range::page_in::fill_views;
use crate::state::counters;
use crate::state::phase::STATE;
use crate::state::policy::POLICY;
use core::ops::Range;
use uncopy_core::addr::PageRange;
use uncopy_core::page_map::{Dropped, PageMap};
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::{mem, procmap};

/// Foreign ranges up to here are made present as a whole: the input that is about to come will fill most of
/// it. Of longer ones only what is to be viewed is.
const POPULATE_BYTES: usize = 4 << 20;
/// Of a plain block that is to be registered: with more runs of absent pages than this, all of them are filled.
const MAX_ABSENT_RUNS: usize = 64;

impl Locked {
    /// Registers the block with userfaultfd, so that it can hold views. Every page is present afterwards or, if
    /// nobody has touched it, empty.
    ///
    /// # Errors
    /// What the kernel says; the block is then as before.
    pub fn register(&mut self) -> Result<(), Errno> {
        let block = self.at.block;
        if uncopy_sys::alloc::is_low() {
            return Err(Errno::ENOMEM);
        }
        let refusing = Flag::RELOCATED.or(Flag::DISOWNED).or(Flag::STACK).or(Flag::HUGE_PAGES);
        let is_refused = block.has(refusing) || self.is_doubtful();
        if is_refused || !STATE.is_active() {
            // UFFDIO_MOVE does not cross mappings, and splits huge pages; a disowned block's are the program's.
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
            // Never touched, but pages may be there all the same: locked memory is populated, and a huge
            // page may reach over from a neighbour.
            if HEAP_MEMORY.discard(base, bytes).is_ok() {
                map.set_empty(self.at.all(), &mut Dropped::new());
            } else {
                // Whatever fails from here on: no page of it holds anything, and what is registered and not
                // known to be so reads as zeroes.
                uffd.unregister(base, bytes)?;
                HEAP_MEMORY.populate(base, bytes)?;
                uffd.register(base, bytes)?;
            }
        } else {
            uffd.register(base, bytes)?;
            // From here on nobody but the handler, which waits for this lock, puts a page where none is.
            let absent =
                |run: Range<u32>| map.set_empty(PageRange::new(run.start, run.end), &mut Dropped::new());
            if mem::absent_runs(base, self.at.pages, MAX_ABSENT_RUNS, absent).is_err() {
                map = PageMap::new();
                uffd.unregister(base, bytes)?;
                HEAP_MEMORY.populate(base, bytes)?;
                uffd.register(base, bytes)?;
            }
            // Known now, not only when it is freed: a program that fills its memory with what it receives had every
            // block of it populated for nothing.
            POLICY.placement.record(block.alloc_site(), true);
        }
        self.begin(map);
        counters::add(Counter::RegisteredBlocks, 1);
        Ok(())
    }

    /// Registers a foreign range. What can be done to its mapping is reported from then on; so this is
    /// when to look whether it still is what it was when the range was claimed.
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
        // Where it is refused, absent pages are served as what they are, empty.
        let _ = uffd.unregister(base, bytes);
        Err(Errno::EINVAL)
    }

    /// Of a foreign range: makes pages present that are about to be moved out, if that was not done when
    /// it was registered.
    pub fn populate(&self, pages: PageRange) {
        if self.at.slot.is_some() && !self.at.block.has(Flag::POPULATED) {
            // Where it is refused they are copied over, and fault.
            let _ = mem::populate(self.at.base + pages.start_bytes(), pages.len_bytes());
        }
    }

    /// Puts the bytes of every view in place and takes the registration back: the block is ordinary memory
    /// from here on, whose empty pages are the kernel's to fill. False: that could not be done for all
    /// of it; what is left goes on being served.
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
        // Faults outside every known range are answered with zeroes, which is what a foreign range's absent
        // pages hold once its views are gone.
        if unregistered.is_err() && self.at.slot.is_none() {
            return false;
        }
        self.forget_registration();
        true
    }

    /// Takes note that the block is not registered any more; it must hold no views.
    pub fn forget_registration(&mut self) {
        if !self.is_registered() {
            return;
        }
        let all = self.at.all();
        self.change(|map| map.set_present(all, &mut Dropped::new()));
        // Its room goes back; a call that still fills it holds a reference of its own.
        if let Some(open) = self.exchange_open(None) {
            open.close();
        }
        self.end();
        counters::subtract(Counter::RegisteredBlocks, 1);
    }
}

/// Whether `start..end` is memory that can hold views, and not the stack that the caller runs on.
pub(crate) fn can_hold_views(start: usize, end: usize) -> bool {
    let marker = 0u8;
    let stack = &raw const marker as usize;
    procmap::all(start, end, |mapping| {
        mapping.can_hold_views && !(mapping.start <= stack && stack < mapping.end)
    })
    .unwrap_or(false)
}
