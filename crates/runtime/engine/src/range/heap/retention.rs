//! Retention: how many pages of free blocks stay resident, and how upkeep gives them back.

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

/// A free block with no more present pages than this keeps them, whatever the others retain.
const RETAINED_FREELY_PAGES: u32 = 8;

/// Bytes that free blocks may retain indefinitely where no handler runs.
const RETAINED_FOR_GOOD_BYTES: usize = 40 << 20;
/// Most blocks of a class that become bare in one step.
const STEP_BLOCKS: u32 = 4;
/// Time in which every class is examined once where no handler runs, unless some have more free blocks than
/// a step handles, ms.
const ROUND_MS: u64 = 1000;

/// A free block that has been taken out of the lists.
#[derive(Clone, Copy)]
pub(crate) struct DetachedBlock {
    class: usize,
    is_registered: bool,
    index: u32,
    /// Whether the block's pages have been given back, or cannot be.
    is_bare: bool,
}

impl Heap {
    /// Whether a free block with `more_pages` present pages is to give them back at once.
    pub(super) fn retains_too_much(&self, more_pages: u32) -> bool {
        // A system call for a few pages costs more than they are worth: upkeep gives them back later.
        let is_left_to_upkeep = (1..=RETAINED_FREELY_PAGES).contains(&more_pages) && STATE.is_active();
        !is_left_to_upkeep
            && self.retained_pages() + more_pages as usize > limits::max_retained_bytes() / PAGE_BYTES
    }

    pub(crate) fn retained_pages(&self) -> usize {
        self.retained_pages.load(Relaxed)
    }

    /// Numbers of free blocks of a class, registered and plain, to be made bare now: half of those that were free
    /// already at the last call and not needed since. `None`: another thread holds the class's lock.
    pub(crate) fn surplus_blocks(&self, class: usize) -> Option<[u32; 2]> {
        let state = &self.classes[class];
        let mut free = state.free.try_lock()?;
        let free = &mut *free;
        let surplus = [&mut free.registered, &mut free.plain].map(|list| {
            let surplus = list.old_count.div_ceil(2);
            if list.old == 0 {
                (list.old, list.old_count) = (list.recent, list.recent_count);
                (list.recent, list.recent_count) = (0, 0);
            }
            surplus
        });
        Some(surplus)
    }

    /// Makes some of the `surplus` free blocks of a class bare. Returns the numbers left, and a block that
    /// is still to be put back, because another thread holds the class's lock.
    pub(crate) fn trim(
        &self,
        class: usize,
        [registered, plain]: [u32; 2],
    ) -> ([u32; 2], Option<DetachedBlock>) {
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
    pub(crate) fn take_old(&self, class_index: usize, is_registered: bool) -> Option<DetachedBlock> {
        let class = Class::from_index(class_index)?;
        let state = &self.classes[class_index];
        let mut free = state.free.try_lock()?;
        let list = if is_registered { &mut free.registered } else { &mut free.plain };
        let index = self.pop_from(class, &mut list.old);
        if index.is_some() {
            list.old_count -= 1;
        }
        Some(DetachedBlock { class: class_index, is_registered, index: index?, is_bare: false })
    }

    /// Gives the pages of a block that was taken out of the lists back to the kernel.
    pub(crate) fn make_bare(&self, taken: &mut DetachedBlock) {
        let Some(class) = Class::from_index(taken.class) else { return };
        let at = self.block(class, taken.index);
        let retained = at.block.retained_pages();
        if retained > 0 {
            let Some(mut locked) = at.try_lock() else { return };
            if self.discard_locked(&mut locked, taken.is_registered) {
                counters::add(Counter::TrimmedBytes, retained as usize * PAGE_BYTES);
            }
            // After a refusal (locked memory), another try would fail, too.
            at.block.set_retained_pages(0);
            self.retained_pages.fetch_sub(retained as usize, Relaxed);
        }
        taken.is_bare = true;
    }

    /// Puts a block back into the lists. False: another thread holds the class's lock.
    pub(crate) fn put_back(&self, taken: DetachedBlock) -> bool {
        let (Some(class), state) = (Class::from_index(taken.class), &self.classes[taken.class]) else {
            return true;
        };
        let Some(mut free) = state.free.try_lock() else { return false };
        let free = if taken.is_registered { &mut free.registered } else { &mut free.plain };
        let list = if taken.is_bare {
            &mut free.bare
        } else {
            free.recent_count += 1;
            &mut free.recent
        };
        self.block(class, taken.index).block.set_next_free(*list);
        *list = taken.index + 1;
        true
    }

    /// Gives back pages of free blocks that were not needed for a while, of one class at a time. For
    /// processes without a handler.
    pub(super) fn trim_periodically(&self) {
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
            // A signal handler that forks, or jumps out of here, would find a block's lock held.
            let _critical = Critical::enter();
            let taken;
            (left, taken) = self.trim(class, left);
            while taken.is_some_and(|taken| !self.put_back(taken)) {
                clock::pause();
            }
        }
    }

    /// Gives back pages of free blocks beyond the bound, after the program has freed `freed_bytes`, where
    /// no handler runs. Each freed block lowers the bound by less than its length, so giving back that many
    /// bytes keeps the bound.
    pub(super) fn trim_excess(&self, freed_bytes: usize) {
        let mut left_pages = freed_bytes / PAGE_BYTES;
        if STATE.phase() == Phase::Active || !self.retains_too_much(0) {
            return;
        }
        // A signal handler that forks, or jumps out of here, would find a block's lock held.
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

    /// Takes a block that retains pages out of a class's lists, an old one if possible.
    fn take_with_pages(&self, class: usize) -> Option<DetachedBlock> {
        [true, false].into_iter().find_map(|is_registered| {
            self.take_old(class, is_registered).or_else(|| {
                let mut free = self.classes[class].free.try_lock()?;
                let list = free.of_kind(is_registered);
                let index = self.pop_from(Class::from_index(class)?, &mut list.recent)?;
                list.recent_count -= 1;
                Some(DetachedBlock { class, is_registered, index, is_bare: false })
            })
        })
    }

    /// Makes a block bare and puts it back; returns how many pages it had.
    fn give_back(&self, mut taken: DetachedBlock) -> usize {
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
        // The heap must not empty pages that the program has unmapped or mapped over.
        let is_own = !at.block.has(Flag::MAPPED_OVER.or(Flag::UNMAPPED));
        if !is_own || HEAP_MEMORY.discard(at.base, at.bytes()).is_err() {
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
