//! When eliding pays: a running account, in time, for each call site and size.
//!
//! A site is where the program called from, with the size's power of two. Its *balance* rises by
//! what eliding saved and falls by what it cost (tracking, faults, page moves). A balance below
//! `-BUDGET_NS` switches the site off for a number of calls that doubles each time; then it is
//! probed again with a fraction of the budget, so that a site that always loses costs ever less.
//!
//! An input by itself saves nothing; it is credited with what each later copy of its segment saved beyond
//! its own cost, and charged when its views are touched: wholly for its own, half for those of copies.
//!
//! Copies can only show what they save while the input elides, and the input only while they do. So while an
//! input is probed, the copies of what it received are made views whether their sites are off or not.

use crate::options::Policy;
use crate::page_map::SiteId;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Receiving into a segment instead of the buffer.
pub const INPUT_NS: i64 = 500;
/// Asking the kernel what a foreign range is, and claiming it.
pub const CLAIM_NS: i64 = 5_000;

const BUDGET_NS: i64 = 50_000;
const PROBE_BUDGET_NS: i64 = BUDGET_NS / 4;
const CREDIT_CAP_NS: i64 = 400_000;
const OFF_CALLS: u32 = 64;
const MAX_BACKOFF: u32 = 12;
/// Room up to here is served from the reservoir, whatever arrives.
const LARGE_ROOM_BYTES: usize = 2 << 20;
/// Of larger room an input must be likely to fill this share, one in so many.
const FILLS_SHARE: usize = 4;
/// Calls that are passed over before it is tried again whether they do.
const MAX_PASSED: u32 = 1 << 14;
/// Sites of copies and inputs that are told apart. A model makes them anew for every order that it tries.
pub const SITES: usize = if cfg!(loom) { 16 } else { 1024 };
const PROBES: usize = 4;
/// For how many inputs in a row, at most, it is taken for granted that their bytes go on by a lane.
const MAX_LEAVING: u32 = 16;
/// For how many more after each that did.
const LEAVING_STEP: u32 = 2;

/// What a call site does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// memcpy, memmove and their like.
    Copy = 1,
    /// read, recv and their like.
    Input = 2,
    /// malloc and its like: see `placement`.
    Allocation = 3,
}

impl Kind {
    /// The word in tables and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Input => "input",
            Self::Allocation => "allocation",
        }
    }
}

/// The size class of a site: buffers from half of 2^class bytes up to it, exclusive.
#[must_use]
pub const fn size_class(len_bytes: usize) -> u32 {
    usize::BITS - len_bytes.leading_zeros()
}

/// What of ours takes time on behalf of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The call itself: a copy or an input.
    Call,
    /// Gathering an output of what came in there.
    Output,
    /// Giving up the views of a block that is freed.
    Free,
}
/// How many there are.
const SHARES: usize = 3;
/// Least step of a running median, ns.
const STEP_NS: u32 = 32;

struct Account {
    key: AtomicU64,
    balance_ns: AtomicI64,
    off_calls: AtomicU32,
    backoff: AtomicU32,
    /// What recent inputs brought, bytes: the most, fading. 0: not known.
    recent_bytes: AtomicU32,
    /// Calls with far more room than that, since one was looked at.
    passed_calls: AtomicU32,
    /// Inputs from here on whose bytes are likely to go on by a lane.
    leaving: AtomicU32,
    /// Running medians of what each share takes, ns.
    typical_ns: [AtomicU32; SHARES],
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
                    leaving: AtomicU32::new(0),
                    typical_ns: [const { AtomicU32::new(0) }; SHARES],
                }
            }; SITES],
        }
    }

    /// The account of a site. `caller` is a return address in the program.
    #[must_use]
    pub fn site(&self, kind: Kind, caller: usize, len_bytes: usize) -> SiteId {
        let size = u64::from(size_class(len_bytes));
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
        account.passed_calls.store((passed + 1) % MAX_PASSED, Relaxed);
        passed + 1 == MAX_PASSED
    }

    /// How many bytes an input with room for `room_bytes` is likely to bring.
    #[must_use]
    pub fn likely_bytes(&self, site: SiteId, room_bytes: usize) -> usize {
        match self.account(site).recent_bytes.load(Relaxed) as usize {
            0 => room_bytes,
            recent_bytes => recent_bytes.min(room_bytes),
        }
    }

    /// Takes note of what an input brought.
    pub fn record_input(&self, site: SiteId, got_bytes: usize) {
        let account = self.account(site);
        let recent_bytes = account.recent_bytes.load(Relaxed);
        let faded_bytes = recent_bytes - recent_bytes / 8;
        let got_bytes = u32::try_from(got_bytes).unwrap_or(u32::MAX);
        account.recent_bytes.store(got_bytes.max(faded_bytes).max(1), Relaxed);
    }

    /// Whether the bytes of an input are likely to go on by a lane. Each that is received for that brings the end of it nearer.
    #[must_use]
    pub fn leaves_by_lane(&self, site: SiteId) -> bool {
        let leaving = &self.account(site).leaving;
        let left = leaving.load(Relaxed);
        if left > 0 {
            leaving.store(left - 1, Relaxed);
        }
        left > 0
    }

    /// Takes note of bytes of an input that went on by a lane.
    pub fn record_leaving(&self, site: SiteId) {
        let leaving = &self.account(site).leaving;
        leaving.store((leaving.load(Relaxed) + LEAVING_STEP).min(MAX_LEAVING), Relaxed);
    }

    /// Takes note of what a share took this time, and returns what it typically takes: a running median. What only
    /// the first calls cost (a new buffer's pages are moved out of the way, records are made) hardly shows in it; by
    /// the clock of each call, an echo server of 256 KiB was switched off before any buffer was used twice.
    pub fn typical_ns(&self, site: SiteId, share: Share, took_ns: i64) -> i64 {
        let typical = &self.account(site).typical_ns[share as usize];
        let took_ns = u32::try_from(took_ns.max(0)).unwrap_or(u32::MAX);
        let before_ns = typical.load(Relaxed);
        let step_ns = before_ns / 16 + STEP_NS;
        let now_ns = if took_ns > before_ns {
            took_ns.min(before_ns.saturating_add(step_ns))
        } else {
            took_ns.max(before_ns.saturating_sub(step_ns))
        };
        // Lost updates between threads are steps that are not taken.
        typical.store(now_ns, Relaxed);
        i64::from(now_ns)
    }

    /// Adds what an elision saved.
    pub fn credit(&self, site: SiteId, ns: i64) {
        let account = self.account(site);
        let balance = account.balance_ns.load(Relaxed).saturating_add(ns).min(CREDIT_CAP_NS);
        account.balance_ns.store(balance, Relaxed);
        if balance > 0 && account.off_calls.load(Relaxed) > 0 {
            account.off_calls.store(0, Relaxed);
        }
        if balance > BUDGET_NS && account.backoff.load(Relaxed) > 0 {
            account.backoff.store(0, Relaxed);
        }
    }

    /// Subtracts what an elision cost; switches the site off when its budget is used up. Whether it did.
    pub fn debit(&self, site: SiteId, ns: i64) -> bool {
        let account = self.account(site);
        if account.off_calls.load(Relaxed) > 0 {
            // What views from before still cost shows nothing that is not known, and must not double the
            // time until the next probe once for each page of one message.
            return false;
        }
        let balance = account.balance_ns.load(Relaxed).saturating_sub(ns);
        if balance >= -BUDGET_NS {
            account.balance_ns.store(balance, Relaxed);
            return false;
        }
        let backoff = account.backoff.load(Relaxed).min(MAX_BACKOFF);
        account.off_calls.store(OFF_CALLS << backoff, Relaxed);
        account.backoff.store(backoff + 1, Relaxed);
        account.balance_ns.store(PROBE_BUDGET_NS - BUDGET_NS, Relaxed);
        true
    }

    /// Whether the site was switched off, elides again, and has not won yet.
    #[must_use]
    pub fn is_probed(&self, site: SiteId) -> bool {
        let account = self.account(site);
        account.backoff.load(Relaxed) > 0 && account.off_calls.load(Relaxed) == 0
    }

    /// What the site has to its credit, ns; how many calls it is off for; how often it was switched off since
    /// it last won.
    #[must_use]
    pub fn standing(&self, site: SiteId) -> (i64, u32, u32) {
        let account = self.account(site);
        let field = |field: &AtomicU32| field.load(Relaxed);
        (account.balance_ns.load(Relaxed), field(&account.off_calls), field(&account.backoff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::SharedCosts;

    #[test]
    fn large_room_that_stays_empty_is_passed_over_and_tried_again() {
        let sites = Sites::new();
        let site = sites.site(Kind::Input, 0x1234, 32 << 20);
        assert!(sites.fills(site, 32 << 20), "nothing is known yet");
        sites.record_input(site, 16);
        assert!(sites.fills(site, 64 << 10), "the reservoir has that much");
        let tried = (0..2 * MAX_PASSED).filter(|_| sites.fills(site, 32 << 20)).count();
        assert_eq!(tried, 2);
        sites.record_input(site, 12 << 20);
        assert!(sites.fills(site, 32 << 20));
        for _ in 0..20 {
            sites.record_input(site, 16);
        }
        assert!(!sites.fills(site, 32 << 20), "what came once fades");
    }

    #[test]
    fn an_input_is_likely_to_bring_what_others_brought_lately() {
        let sites = Sites::new();
        let site = sites.site(Kind::Input, 0x1234, 3 << 20);
        assert_eq!(sites.likely_bytes(site, 3 << 20), 3 << 20, "nothing is known");
        sites.record_input(site, 1 << 20);
        assert_eq!(sites.likely_bytes(site, 3 << 20), 1 << 20);
        assert_eq!(sites.likely_bytes(site, 5000), 5000, "no more than there is room for");
        (0..100).for_each(|_| sites.record_input(site, 70_000));
        assert_eq!(sites.likely_bytes(site, 3 << 20), 70_000, "not for ever");
    }

    #[test]
    fn what_left_by_a_lane_is_likely_to_leave_again_for_a_while() {
        let sites = Sites::new();
        let site = sites.site(Kind::Input, 0x1234, 64 << 10);
        let likely = || (0..100).filter(|_| sites.leaves_by_lane(site)).count();
        assert_eq!(likely(), 0);
        sites.record_leaving(site);
        assert_eq!(likely(), LEAVING_STEP as usize);
        (0..100).for_each(|_| sites.record_leaving(site));
        assert_eq!(likely(), MAX_LEAVING as usize);
    }

    #[test]
    fn what_a_share_typically_takes_is_neither_the_first_calls_nor_the_outliers() {
        let sites = Sites::new();
        let site = sites.site(Kind::Copy, 0x1234, 65536);
        let after = |calls: &mut dyn Iterator<Item = i64>| {
            calls.fold(0, |_, took_ns| sites.typical_ns(site, Share::Call, took_ns))
        };
        assert!(after(&mut [20_000; 5].into_iter()) < 250, "first calls");
        assert_eq!(after(&mut [150; 100].into_iter()), 150);
        let mixed = (0..2_000).map(|call| if call % 5 == 0 { 20_000 } else { 3_000 });
        assert!((2_500..=3_800).contains(&after(&mut mixed.into_iter())));
        assert_eq!(sites.typical_ns(site, Share::Output, 10), 10, "each share by itself");
    }

    #[test]
    fn a_site_that_loses_is_switched_off_for_ever_longer() {
        let sites = Sites::new();
        let site = sites.site(Kind::Copy, 0x1234, 65536);
        let costs = SharedCosts::new();
        let mut allowed_in = [0u32; 4];
        for allowed in &mut allowed_in {
            for _ in 0..4_000 {
                if sites.allows(site, Policy::Auto) {
                    *allowed += 1;
                    sites.credit(site, costs.copy_ns(65536));
                    sites.debit(site, costs.track_ns() + 16 * costs.fault_ns(1));
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
        let costs = SharedCosts::new();
        for call in 0..10_000 {
            assert!(sites.allows(site, Policy::Auto));
            sites.credit(site, costs.copy_ns(524_288));
            sites.debit(site, costs.track_ns() + if call % 4 == 0 { costs.fault_ns(1) } else { 0 });
        }
    }

    #[test]
    fn the_rest_of_what_one_message_costs_does_not_put_the_next_probe_off() {
        let sites = Sites::new();
        let site = sites.site(Kind::Copy, 0x1234, 1 << 20);
        let switched_off = (0..128).filter(|_| sites.debit(site, 8_000)).count();
        assert_eq!(switched_off, 1);
        let calls = (0..1_000).take_while(|_| !sites.allows(site, Policy::Auto)).count();
        assert_eq!(calls as u32, OFF_CALLS);
    }

    #[test]
    fn a_site_that_starts_to_win_comes_back() {
        let sites = Sites::new();
        let site = sites.site(Kind::Input, 0x99, 1 << 20);
        while sites.allows(site, Policy::Auto) {
            sites.debit(site, 80_000);
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
    fn a_site_that_wins_while_it_is_off_comes_back_at_once() {
        let sites = Sites::new();
        let site = sites.site(Kind::Copy, 0x99, 1 << 20);
        assert!(!sites.is_probed(site));
        while !sites.debit(site, 10_000) {}
        assert!(!sites.allows(site, Policy::Auto) && !sites.is_probed(site));
        sites.credit(site, 10_000);
        assert!(!sites.allows(site, Policy::Auto), "what it won does not make up for what it lost");
        sites.credit(site, 40_000);
        assert!(sites.allows(site, Policy::Auto) && sites.is_probed(site));
        sites.credit(site, 100_000);
        assert!(!sites.is_probed(site), "it has won");
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
}
