//! Freeing a block: its views are dropped, its site is judged, and its pages are retained or given back.

use super::Heap;
use crate::account::work::Work;
use crate::range::block::{BlockRef, Flag};
use crate::range::carriers;
use crate::range::page_in::clear_long_runs;
use crate::state::gate::HEAP_BASE;
use crate::state::phase::{Phase, STATE};
use crate::state::policy::POLICY;
use crate::state::{bell, counters, ledger};
use uncopy_core::classes::Class;
use uncopy_core::ledger::Field;
use uncopy_core::page_map::Dropped;
use uncopy_core::policy::sites::WorkPart;
use uncopy_core::stats::Counter;
use uncopy_sys::lock::Critical;
use uncopy_sys::presence::Presence;
use uncopy_sys::sync::atomic::Ordering::Relaxed;

impl Heap {
    /// Frees the block that begins at `address`. Any other address is ignored, as is a second free: such a
    /// program is wrong, but uncopy must not end it.
    pub fn free(&self, address: usize) {
        let Some(at) = self.find(address) else { return };
        // While a fork waits for this thread, the block is leaked.
        let Some(_presence) = Presence::enter() else { return };
        if at.start() != address || !at.block.clear(Flag::ALLOCATED) {
            return;
        }
        self.make_stack_plain();
        at.block.clear(Flag::STACK);
        let (registered, held_a_view) = (at.block.has(Flag::REGISTERED), at.block.has(Flag::HELD_A_VIEW));
        let site = at.block.alloc_site();
        self.judge_site(at, site, held_a_view);
        if let Some(entry) = ledger::allocation_entry(site).filter(|_| held_a_view) {
            entry.add(Field::Elided, 1);
            entry.add(Field::ElidedBytes, at.bytes() as u64);
        }
        counters::subtract(Counter::BlocksBytes, at.bytes());
        if STATE.phase() == Phase::Inactive && !registered {
            // Blocks are not handed out any more. One munmap, as libc would make: the program may have
            // installed a filter that allows no other call.
            Self::unmap(at);
            return;
        }
        // In a plain block, only pages that this owner or an earlier one asked for are likely to have been touched.
        let mut present_pages = at.block.asked_pages().max(at.block.retained_pages());
        if registered {
            let work = held_a_view.then(Work::begin);
            let _critical = Critical::enter_briefly();
            let mut dropped = Dropped::new();
            {
                let mut locked = at.lock();
                locked.change(|map| map.empty_all_views(&mut dropped));
                if held_a_view && STATE.is_active() {
                    clear_long_runs(&mut locked);
                }
                present_pages = at.pages - at.block.absent_pages();
                if let Some(open) = locked.exchange_open(None) {
                    open.close();
                }
            }
            drop(dropped);
            if let Some(work) = work {
                work.charge(at.last_site(), WorkPart::Free);
            }
        }
        let mut registered = registered;
        if at.block.has(Flag::DISOWNED.or(Flag::OTHER_PROPERTIES)) {
            let Some(kept) = self.recover(at, registered, present_pages) else { return };
            (registered, present_pages) = kept;
        }
        if self.retains_too_much(present_pages) && self.discard(at, registered) {
            present_pages = 0;
        }
        at.block.set_retained_pages(present_pages);
        self.retained_pages.fetch_add(present_pages as usize, Relaxed);
        let Some(class) = Class::for_len(at.bytes()) else { return };
        let span = HEAP_BASE.load(Relaxed) + (class.index() << self.shift.load(Relaxed));
        let index = ((address - span) / class.bytes()) as u32;
        let state = &self.classes[class.index()];
        {
            let free = &mut *state.free.lock();
            let list = if registered { &mut free.registered } else { &mut free.plain };
            at.block.set_next_free(list.recent);
            list.recent = index + 1;
            list.recent_count += 1;
        }
        if present_pages > 0 {
            bell::request_upkeep();
            self.trim_periodically();
        }
        self.trim_excess(at.bytes());
    }

    /// Learns from a freed block whether its site's next blocks should be registered, or be blocks at all.
    fn judge_site(&self, at: BlockRef, site: u16, held_a_view: bool) {
        if !held_a_view && (at.block.has(Flag::UNTRIED) || POLICY.trial_disables_eliding()) {
            return;
        }
        POLICY.placement.record(site, held_a_view);
        if !held_a_view && POLICY.placement.holds_no_views(site) && STATE.is_active() {
            let class_index = Class::for_len(at.bytes()).map_or(0, Class::index);
            carriers::record_viewless_blocks(
                POLICY.placement.caller(site, class_index),
                at.block.usable_bytes(),
            );
        }
    }
}
