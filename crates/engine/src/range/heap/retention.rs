//! What free blocks retain: how many of their pages stay, and how upkeep gives them back.

use super::Heap;
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::heap_memory::HEAP_MEMORY;
use crate::state::phase::{Phase, STATE};
use crate::state::{counters, limits};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::classes::{CLASSES, Class};
use uncopy_core::page_map::Dropped;
use uncopy_core::stats::Counter;
use uncopy_sys::clock;
use uncopy_sys::lock::Critical;
use uncopy_sys::sync::atomic::Ordering::Relaxed;

/// A free block with no more present pages than this keeps them, however much others retain.
const RETAINED_FREELY_PAGES: u32 = 8;

/// What free blocks may retain however long, where no handler gives it back, bytes.
const RETAINED_FOR_GOOD_BYTES: usize = 40 << 20;
/// So many blocks become bare in one step.
const STEP_BLOCKS: u32 = 4;
/// Every class is looked at once in that time then, unless some have more free blocks than that, ms.
const ROUND_MS: u64 = 1000;

/// A free block that has been taken out of the lists.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    class: usize,
    is_registered: bool,
    index: u32,
    /// Its pages could not be given back.
    is_bare: bool,
}

impl Heap {
    /// Whether a free block with so many present pages is to give them back at once.
    pub(super) fn retains_too_much(&self, more_pages: u32) -> bool {
        // A call for a few pages costs more than they are worth: upkeep gives them back in its time.
        let is_left_to_upkeep = (1..=RETAINED_FREELY_PAGES).contains(&more_pages) && STATE.is_active();
        !is_left_to_upkeep
            && self.retained_pages() + more_pages as usize > limits::max_retained_bytes() / PAGE_BYTES
    }

    /// Present pages of free blocks.
    pub(crate) fn retained_pages(&self) -> usize {
        self.retained_pages.load(Relaxed)
    }

    /// Of a class, how many free blocks are to become bare now: half of those, registered and plain, that were
    /// free already when this was last asked, and that nobody has needed since. `None`: another thread holds
    /// the class's lock.
    pub(crate) fn surplus_blocks(&self, class: usize) -> Option<[u32; 2]> {
        let state = &self.classes[class];
        let mut free = state.free.try_lock()?;
        let free = &mut *free;
        let surplus = [&mut free.registered, &mut free.plain].map(|list| {
            let surplus = list.olds.div_ceil(2);
            if list.old == 0 {
                (list.old, list.olds) = (list.recent, list.recents);
                (list.recent, list.recents) = (0, 0);
            }
            surplus
        });
        Some(surplus)
    }

    /// One step of making free blocks of a class bare, of which there are `surplus`: how many are left to be, and a block
    /// that is still to be put back, because another thread holds the class's lock.
    pub(crate) fn trim(&self, class: usize, [registered, plain]: [u32; 2]) -> ([u32; 2], Option<Taken>) {
        let is_registered = registered > 0;
        let surplus = if is_registered { registered } else { plain };
        let count = surplus.min(STEP_BLOCKS);
        let (mut left, mut kept) = (surplus - count, None);
        for _ in 0..count {
            let Some(mut taken) = self.take_old(class, is_registered) else {
                left = 0;
                break;
            };
            self.make_bare(&mut taken);
            if !self.put_back(taken) {
                kept = Some(taken);
                break;
            }
        }
        (if is_registered { [left, plain] } else { [0, left] }, kept)
    }

    /// Takes an old block out of the lists. `None`: there is none, or another thread holds the class's lock.
    pub(crate) fn take_old(&self, class_index: usize, is_registered: bool) -> Option<Taken> {
        let class = Class::from_index(class_index)?;
        let state = &self.classes[class_index];
        let mut free = state.free.try_lock()?;
        let list = if is_registered { &mut free.registered } else { &mut free.plain };
        let index = self.pop_from(class, &mut list.old);
        if index.is_some() {
            list.olds -= 1;
        }
        Some(Taken { class: class_index, is_registered, index: index?, is_bare: false })
    }

    /// Gives the pages of a block that was taken out of the lists back to the kernel.
    pub(crate) fn make_bare(&self, taken: &mut Taken) {
        let Some(class) = Class::from_index(taken.class) else { return };
        let at = self.block(class, taken.index);
        let retained = at.block.retained_pages();
        if retained > 0 {
            let Some(mut locked) = at.try_lock() else { return };
            if self.discard_locked(&mut locked, taken.is_registered) {
                counters::add(Counter::TrimmedBytes, retained as usize * PAGE_BYTES);
            }
            // Where it is refused (locked memory), there is no use in asking again.
            at.block.set_retained_pages(0);
            self.retained_pages.fetch_sub(retained as usize, Relaxed);
        }
        taken.is_bare = true;
    }

    /// Puts it back, among the bare ones if it is. False: another thread holds the class's lock.
    pub(crate) fn put_back(&self, taken: Taken) -> bool {
        let (Some(class), state) = (Class::from_index(taken.class), &self.classes[taken.class]) else {
            return true;
        };
        let Some(mut free) = state.free.try_lock() else { return false };
        let free = if taken.is_registered { &mut free.registered } else { &mut free.plain };
        let list = if taken.is_bare {
            &mut free.bare
        } else {
            free.recents += 1;
            &mut free.recent
        };
        self.block(class, taken.index).block.set_next_free(*list);
        *list = taken.index + 1;
        true
    }

    /// Where no handler does so: gives back pages of free blocks that nobody has needed for a while, of one class at a time.
    pub(super) fn trim_now_and_then(&self) {
        if self.retained_pages() * PAGE_BYTES <= RETAINED_FOR_GOOD_BYTES || STATE.phase() == Phase::Active {
            return;
        }
        let (now_ms, due_ms) = (clock::now_ms(), self.trim_due_ms.load(Relaxed));
        let next_ms = now_ms + ROUND_MS / CLASSES as u64;
        if now_ms < due_ms || self.trim_due_ms.compare_exchange(due_ms, next_ms, Relaxed, Relaxed).is_err() {
            return;
        }
        let class = self.trimmed_class.load(Relaxed) % CLASSES;
        let surplus = self.surplus_blocks(class).unwrap_or_default();
        if surplus.iter().all(|blocks| *blocks <= STEP_BLOCKS) {
            self.trimmed_class.fetch_add(1, Relaxed);
        }
        let mut left = surplus.map(|blocks| blocks.min(STEP_BLOCKS));
        while left != [0, 0] {
            // A handler that forks, or jumps out of here, would find a block's lock held.
            let _critical = Critical::enter();
            let taken;
            (left, taken) = self.trim(class, left);
            while taken.is_some_and(|taken| !self.put_back(taken)) {
                clock::pause();
            }
        }
    }

    /// Where no handler does so: gives back pages of free blocks beyond what may be retained, after the program has freed
    /// `freed_bytes`. The bound shrinks by less than that with every block that is freed, so as much is enough to keep it.
    pub(super) fn trim_excess(&self, freed_bytes: usize) {
        let mut left_pages = freed_bytes / PAGE_BYTES;
        if STATE.phase() == Phase::Active || !self.retains_too_much(0) {
            return;
        }
        // A handler that forks, or jumps out of here, would find a block's lock held.
        let _critical = Critical::enter();
        let mut empty_classes = 0;
        while left_pages > 0 && empty_classes < CLASSES && self.retains_too_much(0) {
            let class = self.trimmed_class.load(Relaxed) % CLASSES;
            let Some(taken) = self.take_with_pages(class) else {
                self.trimmed_class.fetch_add(1, Relaxed);
                empty_classes += 1;
                continue;
            };
            empty_classes = 0;
            left_pages = left_pages.saturating_sub(self.give_back(taken));
        }
    }

    /// Takes a block that retains pages out of a class's lists, one that has been free for long if there is one.
    fn take_with_pages(&self, class: usize) -> Option<Taken> {
        [true, false].into_iter().find_map(|is_registered| {
            self.take_old(class, is_registered).or_else(|| {
                let mut free = self.classes[class].free.try_lock()?;
                let list = free.of_kind(is_registered);
                let index = self.pop_from(Class::from_index(class)?, &mut list.recent)?;
                list.recents -= 1;
                Some(Taken { class, is_registered, index, is_bare: false })
            })
        })
    }

    /// Gives the pages of a block back and puts it where blocks without pages are; how many it had.
    fn give_back(&self, mut taken: Taken) -> usize {
        let before = self.retained_pages();
        self.make_bare(&mut taken);
        while !self.put_back(taken) {
            clock::pause();
        }
        before.saturating_sub(self.retained_pages()).max(1)
    }

    /// Gives a free block's pages back to the kernel.
    pub(super) fn discard(&self, at: BlockRef, registered: bool) -> bool {
        let _critical = Critical::enter();
        self.discard_locked(&mut at.lock(), registered)
    }

    fn discard_locked(&self, locked: &mut Locked, registered: bool) -> bool {
        let at = locked.at;
        // What the program took away, or put something else over, is not the heap's to empty.
        let is_its = !at.block.has(Flag::COVERED.or(Flag::VACATED));
        if !is_its || HEAP_MEMORY.discard(at.base, at.bytes()).is_err() {
            return false;
        }
        if registered {
            locked.change(|map| map.set_empty(at.all(), &mut Dropped::new()));
        } else {
            at.block.set(Flag::FRESH);
        }
        true
    }
}
