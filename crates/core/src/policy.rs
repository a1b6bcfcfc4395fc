//! When eliding pays: a running account, in time, for each call site and size.
//!
//! A site is where the program called from, with the size's power of two. Its *balance* rises by
//! what eliding saved and falls by what it cost (tracking, faults, page moves). A balance below
//! `-BUDGET_NS` switches the site off for a number of calls that doubles each time; then it is
//! probed again with a fraction of the budget, so that a site that always loses costs ever less.
//!
//! An input by itself saves nothing; it is credited with half of what each later copy of its
//! segment saved, and charged when its views are touched.

use crate::addr::PAGE_BYTES;
use crate::options::Policy;
use crate::page_map::SiteId;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Tracking one copy: locks, signal mask, plan, runs, their cache misses. Between 470 ns (twelve copies in
/// a row) and 900 ns (one at a time); `uncopy bench copies` shows it.
pub const TRACK_NS: i64 = 900;
/// A fault served by the handler thread; between its cost on the same and on the other CPU.
pub const FAULT_NS: i64 = 8_000;
/// Putting one page of a view in place, beside the fault itself.
pub const FILL_PAGE_NS: i64 = 350;
/// One `UFFDIO_MOVE`, and each page of it.
pub const MOVE_CALL_NS: i64 = 1_000;
/// See [`MOVE_CALL_NS`].
pub const MOVE_PAGE_NS: i64 = 45;
/// Receiving into a segment instead of the buffer.
pub const INPUT_NS: i64 = 500;
/// Asking the kernel what a foreign range is, and claiming it.
pub const CLAIM_NS: i64 = 5_000;
/// A run of present pages this short may be copied over; a longer one is moved out of the way.
pub const COPY_OVER_PAGES: u32 = 8;

/// Whether to move a run of `pages` present pages out of a view's way rather than copy over them, given
/// what copying over has cost this block since the last move. Adds to that cost.
///
/// As in the ski-rental problem: copying is repeated until it has cost as much as moving would, so the
/// sum is at most twice that of knowing beforehand.
#[must_use]
pub const fn moves_out(pages: u32, copied_over_ns: u32) -> (bool, u32) {
    let move_ns = (MOVE_CALL_NS + pages as i64 * MOVE_PAGE_NS) as u32;
    let total_ns = copied_over_ns.saturating_add(pages * COPY_PAGE_NS);
    if pages > COPY_OVER_PAGES {
        (true, copied_over_ns)
    } else if total_ns >= move_ns {
        (true, total_ns - move_ns)
    } else {
        (false, total_ns)
    }
}

/// Copying one page with warm caches.
const COPY_PAGE_NS: u32 = 100;

const BUDGET_NS: i64 = 50_000;
const PROBE_BUDGET_NS: i64 = BUDGET_NS / 4;
const CREDIT_CAP_NS: i64 = 400_000;
const OFF_CALLS: u32 = 64;
const BACKOFF_MOST: u32 = 12;
/// Room up to here is served from the reservoir, whatever arrives.
const LARGE_ROOM_BYTES: usize = 2 << 20;
/// Of larger room an input must be likely to fill this share, one in so many.
const FILLS_SHARE: usize = 4;
/// Calls that are passed over before it is tried again whether they do.
const PASSED_MOST: u32 = 1 << 14;
const SITES: usize = 1024;
const PROBES: usize = 4;

/// What copying `len_bytes` costs, taken low, so that doubt decides for copying.
///
/// A small copy that stays in the second-level cache costs 45 ns a page; the larger it is, the more it
/// also costs whoever copies next from colder caches (the kernel's copy into the page cache took a
/// quarter of the time once the copies before it were elided: Redis SET of 256 KiB).
#[must_use]
pub const fn copy_ns(len_bytes: usize) -> i64 {
    let page_ns = match len_bytes >> 10 {
        0..96 => 45,
        96..192 => 60,
        192..1024 => 100,
        1024..2560 => 160,
        _ => 300,
    };
    (len_bytes / PAGE_BYTES) as i64 * page_ns
}

/// What a call site does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// memcpy, memmove and their like.
    Copy = 1,
    /// read, recv and their like.
    Input = 2,
}

struct Account {
    key: AtomicU64,
    balance_ns: AtomicI64,
    off_calls: AtomicU32,
    backoff: AtomicU32,
    /// What recent inputs brought, bytes: the most, fading. 0: not known.
    recent_bytes: AtomicU32,
    /// Calls with far more room than that, since one was looked at.
    passed_calls: AtomicU32,
}

/// The accounts of all sites. A fixed table: a site that finds no place shares one.
pub struct Sites {
    accounts: [Account; SITES],
}

impl Default for Sites {
    fn default() -> Self {
        Self::new()
    }
}

impl Sites {
    /// Empty accounts.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            accounts: [const {
                Account {
                    key: AtomicU64::new(0),
                    balance_ns: AtomicI64::new(0),
                    off_calls: AtomicU32::new(0),
                    backoff: AtomicU32::new(0),
                    recent_bytes: AtomicU32::new(0),
                    passed_calls: AtomicU32::new(0),
                }
            }; SITES],
        }
    }

    /// The account of a site. `caller` is a return address in the program.
    #[must_use]
    pub fn site(&self, kind: Kind, caller: usize, len_bytes: usize) -> SiteId {
        let size = u64::from(usize::BITS - len_bytes.leading_zeros());
        let key = ((caller as u64) << 8) ^ (size << 2) ^ kind as u64;
        let hash = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        let first = hash % SITES;
        for probe in 0..PROBES {
            let index = (first + probe) % SITES;
            let account = &self.accounts[index];
            let held = account.key.load(Relaxed);
            let mine = held == key
                || (held == 0
                    && match account.key.compare_exchange(0, key, Relaxed, Relaxed) {
                        Ok(_) => true,
                        Err(other) => other == key,
                    });
            if mine {
                return index as SiteId;
            }
        }
        first as SiteId
    }

    fn account(&self, site: SiteId) -> &Account {
        &self.accounts[usize::from(site) % SITES]
    }

    /// Whether to elide at this site now. Each call while it is off brings its next probe nearer.
    #[must_use]
    pub fn allows(&self, site: SiteId, policy: Policy) -> bool {
        match policy {
            Policy::Always => true,
            Policy::Never => false,
            Policy::Auto => {
                let account = self.account(site);
                let off = account.off_calls.load(Relaxed);
                if off > 0 {
                    // Lost updates between threads only shift the moment of the next probe.
                    account.off_calls.store(off - 1, Relaxed);
                }
                off == 0
            }
        }
    }

    /// Whether an input with room for `room_bytes` is likely to fill a good part of it. Room beyond what the
    /// reservoir holds costs a fill of every page, whatever arrives: a client library whose buffer has
    /// grown to 32 MiB once asks for that much at each answer of a few bytes.
    #[must_use]
    pub fn fills(&self, site: SiteId, room_bytes: usize) -> bool {
        let account = self.account(site);
        let recent_bytes = account.recent_bytes.load(Relaxed) as usize;
        if room_bytes <= LARGE_ROOM_BYTES || recent_bytes == 0 || recent_bytes >= room_bytes / FILLS_SHARE {
            return true;
        }
        let passed = account.passed_calls.load(Relaxed);
        account.passed_calls.store((passed + 1) % PASSED_MOST, Relaxed);
        passed + 1 == PASSED_MOST
    }

    /// Takes note of what an input brought.
    pub fn record_input(&self, site: SiteId, got_bytes: usize) {
        let account = self.account(site);
        let recent_bytes = account.recent_bytes.load(Relaxed);
        let faded_bytes = recent_bytes - recent_bytes / 8;
        let got_bytes = u32::try_from(got_bytes).unwrap_or(u32::MAX);
        account.recent_bytes.store(got_bytes.max(faded_bytes).max(1), Relaxed);
    }

    /// Adds what an elision saved.
    pub fn credit(&self, site: SiteId, ns: i64) {
        let account = self.account(site);
        let balance = account.balance_ns.load(Relaxed).saturating_add(ns).min(CREDIT_CAP_NS);
        account.balance_ns.store(balance, Relaxed);
        if balance > BUDGET_NS {
            account.backoff.store(0, Relaxed);
        }
    }

    /// Subtracts what an elision cost; switches the site off when its budget is used up.
    pub fn debit(&self, site: SiteId, ns: i64) {
        let account = self.account(site);
        let balance = account.balance_ns.load(Relaxed).saturating_sub(ns);
        if balance >= -BUDGET_NS {
            account.balance_ns.store(balance, Relaxed);
            return;
        }
        let backoff = account.backoff.load(Relaxed).min(BACKOFF_MOST);
        account.off_calls.store(OFF_CALLS << backoff, Relaxed);
        account.backoff.store(backoff + 1, Relaxed);
        account.balance_ns.store(PROBE_BUDGET_NS - BUDGET_NS, Relaxed);
    }
}

/// Where to place the blocks of an allocation site: with blocks that hold views or apart from them.
///
/// Blocks that never take part in I/O stay unregistered, so that their first touch is an ordinary
/// kernel fault and not one that our handler serves.
pub struct Placement {
    scores: [core::sync::atomic::AtomicI8; SITES],
}

impl Default for Placement {
    fn default() -> Self {
        Self::new()
    }
}

impl Placement {
    const MOST: i8 = 8;

    /// No history.
    #[must_use]
    pub const fn new() -> Self {
        Self { scores: [const { core::sync::atomic::AtomicI8::new(0) }; SITES] }
    }

    /// The entry of an allocation site.
    #[must_use]
    pub const fn site(caller: usize, class_index: usize) -> u16 {
        let key = (caller as u64).wrapping_add((class_index as u64) << 56);
        ((key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % SITES) as u16
    }

    /// Whether this site's next block should be one that can hold views at once.
    #[must_use]
    pub fn prefers_registered(&self, site: u16) -> bool {
        self.scores[usize::from(site) % SITES].load(Relaxed) > 0
    }

    /// Records whether a block held a view between its allocation and its release.
    pub fn record(&self, site: u16, held_a_view: bool) {
        let score = &self.scores[usize::from(site) % SITES];
        let old = score.load(Relaxed);
        let new = if held_a_view {
            old.saturating_add(2).min(Self::MOST)
        } else {
            old.saturating_sub(1).max(-Self::MOST)
        };
        if new != old {
            score.store(new, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_room_that_stays_empty_is_passed_over_and_tried_again() {
        let sites = Sites::new();
        let site = sites.site(Kind::Input, 0x1234, 32 << 20);
        assert!(sites.fills(site, 32 << 20), "nothing is known yet");
        sites.record_input(site, 16);
        assert!(sites.fills(site, 64 << 10), "the reservoir has that much");
        let tried = (0..2 * PASSED_MOST).filter(|_| sites.fills(site, 32 << 20)).count();
        assert_eq!(tried, 2);
        sites.record_input(site, 12 << 20);
        assert!(sites.fills(site, 32 << 20));
        for _ in 0..20 {
            sites.record_input(site, 16);
        }
        assert!(!sites.fills(site, 32 << 20), "what came once fades");
    }

    #[test]
    fn a_site_that_loses_is_switched_off_for_ever_longer() {
        let sites = Sites::new();
        let site = sites.site(Kind::Copy, 0x1234, 65536);
        let mut allowed_in = [0u32; 4];
        for allowed in &mut allowed_in {
            for _ in 0..4_000 {
                if sites.allows(site, Policy::Auto) {
                    *allowed += 1;
                    sites.credit(site, copy_ns(65536));
                    sites.debit(site, TRACK_NS + 16 * FAULT_NS);
                }
            }
        }
        assert!(allowed_in[0] < 40, "{allowed_in:?}");
        assert!(allowed_in[3] <= 1, "{allowed_in:?}");
    }

    #[test]
    fn a_site_that_wins_stays_on_and_forgives_rare_touches() {
        let sites = Sites::new();
        let site = sites.site(Kind::Copy, 0x1234, 524_288);
        for call in 0..10_000 {
            assert!(sites.allows(site, Policy::Auto));
            sites.credit(site, copy_ns(524_288));
            sites.debit(site, TRACK_NS + if call % 4 == 0 { FAULT_NS } else { 0 });
        }
    }

    #[test]
    fn a_site_that_starts_to_win_comes_back() {
        let sites = Sites::new();
        let site = sites.site(Kind::Input, 0x99, 1 << 20);
        while sites.allows(site, Policy::Auto) {
            sites.debit(site, 10 * FAULT_NS);
        }
        let allowed = (0..2_000)
            .filter(|_| {
                let allowed = sites.allows(site, Policy::Auto);
                if allowed {
                    sites.credit(site, 20_000);
                }
                allowed
            })
            .count();
        assert!(allowed > 1_900, "{allowed}");
    }

    #[test]
    fn sites_differ_by_caller_kind_and_size() {
        let sites = Sites::new();
        let one = sites.site(Kind::Copy, 0x1000, 65536);
        assert_eq!(one, sites.site(Kind::Copy, 0x1000, 70_000));
        assert_ne!(one, sites.site(Kind::Copy, 0x1000, 200_000));
        assert_ne!(one, sites.site(Kind::Copy, 0x1008, 65536));
        assert_ne!(one, sites.site(Kind::Input, 0x1000, 65536));
    }

    #[test]
    fn copying_over_costs_at_most_one_move_before_the_run_is_moved_out() {
        let mut spent_ns = 0;
        let mut copies = 0;
        loop {
            let (moves, rest_ns) = moves_out(2, spent_ns);
            if moves {
                break;
            }
            spent_ns = rest_ns;
            copies += 1;
        }
        assert_eq!(copies, 5);
        assert!(moves_out(COPY_OVER_PAGES + 1, 0).0);
    }

    #[test]
    fn placement_follows_what_blocks_did() {
        let placement = Placement::new();
        let site = Placement::site(0x4000, 9);
        assert!(!placement.prefers_registered(site));
        placement.record(site, true);
        assert!(placement.prefers_registered(site));
        for _ in 0..4 {
            placement.record(site, false);
        }
        assert!(!placement.prefers_registered(site));
    }
}
