//! Whether a call site elides: a running account of time saved and spent.
//!
//! A site is a return address in the program with the size's power of two. Time that eliding saves raises
//! the site's *balance*; tracking, faults and page moves lower it. A balance below `-BUDGET_NS` switches
//! the site off for a number of calls that doubles each time. Then the site is probed with a fraction of
//! the budget, so that a site that always loses costs less and less.
//!
//! An input alone saves nothing. Its site is credited with what later copies of its segment save beyond
//! their own cost. A touch of its own views is charged to it in full, a touch of a copy's views by half.
//!
//! Copies save time only while the input elides, and the input only while they do. So while an input's site
//! is probed, copies of its segments become views even if their own sites are off.

use crate::options::Policy;
use crate::page_map::SiteId;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Cost of receiving into a segment instead of the buffer, ns.
pub const INPUT_NS: i64 = 500;
/// Cost of identifying and claiming a foreign range, ns.
pub const CLAIM_NS: i64 = 5_000;

const BUDGET_NS: i64 = 50_000;
const PROBE_BUDGET_NS: i64 = BUDGET_NS / 4;
const CREDIT_CAP_NS: i64 = 400_000;
const OFF_CALLS: u32 = 64;
const MAX_BACKOFF: u32 = 12;
/// Largest buffer for which the reservoir has enough pages, whatever arrives, bytes.
const LARGE_BUFFER_BYTES: usize = 2 << 20;
/// An input is expected to fill a larger buffer to at least one part in this many.
const FILL_DIVISOR: usize = 4;
/// Number of calls that are passed over until one tests that expectation again.
const MAX_PASSED: u32 = 1 << 14;
/// Number of sites of copies and inputs that are told apart. Loom models create the table for each execution.
pub const SITES: usize = if cfg!(loom) { 16 } else { 1024 };
const PROBES: usize = 4;
/// Maximum number of inputs in a row whose bytes are expected to leave by reference.
const MAX_LEAVING_INPUTS: u32 = 16;
/// Number of inputs that one whose bytes left by reference adds to those.
const LEAVING_INPUTS_STEP: u32 = 2;

/// Way in which bytes of an input leave by reference, if they lie in memory that others can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// To another process by a lane.
    Lane,
    /// To a file by a mapped log.
    Log,
}

impl Exit {
    /// All ways in which bytes leave by reference.
    pub const ALL: [Self; 2] = [Self::Lane, Self::Log];
}

/// Kind of call made at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum SiteKind {
    /// memcpy, memmove and similar functions.
    Copy = 1,
    /// read, recv and similar functions.
    Input = 2,
    /// malloc and similar functions: see `placement`.
    Allocation = 3,
}

impl SiteKind {
    /// Returns the word used in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Input => "input",
            Self::Allocation => "allocation",
        }
    }
}

/// Returns the size class of a buffer: class `n` holds lengths from 2^(n-1) up to 2^n, exclusive.
#[must_use]
pub const fn size_class(len_bytes: usize) -> u32 {
    usize::BITS - len_bytes.leading_zeros()
}

/// Part of uncopy's own work for a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkPart {
    /// The call itself: a copy or an input.
    Call,
    /// Gathering an output of bytes that the site received.
    Output,
    /// Dropping the views of a block that is freed.
    Free,
}
const SHARES: usize = 3;
const MIN_MEDIAN_STEP_NS: u32 = 32;

struct Account {
    key: AtomicU64,
    balance_ns: AtomicI64,
    off_calls: AtomicU32,
    backoff: AtomicU32,
    /// Decaying maximum of recent inputs, bytes; 0 while unknown.
    recent_bytes: AtomicU32,
    /// Number of calls passed over since the last one that was not.
    passed_calls: AtomicU32,
    /// Number of inputs from here on whose bytes are expected to leave by each [`Exit`].
    leaving_inputs: [AtomicU32; Exit::ALL.len()],
    /// Running median of the time of each share, ns.
    typical_ns: [AtomicU32; SHARES],
}

/// Accounts of all sites, in a fixed table. A site that finds no slot shares one.
pub struct Sites {
    accounts: [Account; SITES],
}

impl Default for Sites {
    fn default() -> Self {
        Self::new()
    }
}

impl Sites {
    /// Returns accounts without history.
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
                    leaving_inputs: [const { AtomicU32::new(0) }; Exit::ALL.len()],
                    typical_ns: [const { AtomicU32::new(0) }; SHARES],
                }
            }; SITES],
        }
    }

    /// Returns the slot of a site; `caller` is a return address in the program.
    #[must_use]
    pub fn site(&self, kind: SiteKind, caller: usize, len_bytes: usize) -> SiteId {
        let size = u64::from(size_class(len_bytes));
        let key = ((caller as u64) << 8) ^ (size << 2) ^ kind as u64;
        let hash = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        let first = hash % SITES;
        for probe in 0..PROBES {
            let index = (first + probe) % SITES;
            let account = &self.accounts[index];
            let stored_key = account.key.load(Relaxed);
            let is_claimed = stored_key == key
                || (stored_key == 0
                    && match account.key.compare_exchange(0, key, Relaxed, Relaxed) {
                        Ok(_) => true,
                        Err(other) => other == key,
                    });
            if is_claimed {
                return index as SiteId;
            }
        }
        first as SiteId
    }

    fn account(&self, site: SiteId) -> &Account {
        &self.accounts[usize::from(site) % SITES]
    }

    /// Whether to elide this call of the site. Counts down to the next probe while the site is off.
    #[must_use]
    pub fn allows(&self, site: SiteId, policy: Policy) -> bool {
        match policy {
            Policy::Always => true,
            Policy::Never => false,
            Policy::Auto => {
                let account = self.account(site);
                let off = account.off_calls.load(Relaxed);
                if off > 0 {
                    // Updates lost between threads only shift the next probe.
                    account.off_calls.store(off - 1, Relaxed);
                }
                off == 0
            }
        }
    }

    /// Whether an input is expected to fill a good part of a buffer of `buffer_bytes`. Room beyond the
    /// reservoir costs a fill of every page, whatever arrives. A client library whose buffer once grew to
    /// 32 MiB offers that much room for each answer of a few bytes.
    #[must_use]
    pub fn is_likely_to_fill(&self, site: SiteId, buffer_bytes: usize) -> bool {
        let account = self.account(site);
        let recent_bytes = account.recent_bytes.load(Relaxed) as usize;
        if buffer_bytes <= LARGE_BUFFER_BYTES
            || recent_bytes == 0
            || recent_bytes >= buffer_bytes / FILL_DIVISOR
        {
            return true;
        }
        let passed = account.passed_calls.load(Relaxed);
        account.passed_calls.store((passed + 1) % MAX_PASSED, Relaxed);
        passed + 1 == MAX_PASSED
    }

    /// Returns the expected length of an input with room for `buffer_bytes`.
    #[must_use]
    pub fn likely_bytes(&self, site: SiteId, buffer_bytes: usize) -> usize {
        match self.account(site).recent_bytes.load(Relaxed) as usize {
            0 => buffer_bytes,
            recent_bytes => recent_bytes.min(buffer_bytes),
        }
    }

    /// Records the length of an input.
    pub fn record_input(&self, site: SiteId, got_bytes: usize) {
        let account = self.account(site);
        let recent_bytes = account.recent_bytes.load(Relaxed);
        let faded_bytes = recent_bytes - recent_bytes / 8;
        let got_bytes = u32::try_from(got_bytes).unwrap_or(u32::MAX);
        account.recent_bytes.store(got_bytes.max(faded_bytes).max(1), Relaxed);
    }

    /// Whether the bytes of this input are expected to leave by reference. Counts down.
    #[must_use]
    pub fn leaves_by(&self, exit: Exit, site: SiteId) -> bool {
        let inputs = &self.account(site).leaving_inputs[exit as usize];
        let remaining = inputs.load(Relaxed);
        if remaining > 0 {
            inputs.store(remaining - 1, Relaxed);
        }
        remaining > 0
    }

    /// Records that bytes of an input left, by reference or so that they could have.
    pub fn record_leaving(&self, exit: Exit, site: SiteId) {
        let inputs = &self.account(site).leaving_inputs[exit as usize];
        inputs.store((inputs.load(Relaxed) + LEAVING_INPUTS_STEP).min(MAX_LEAVING_INPUTS), Relaxed);
    }

    /// Records the time of a share and returns its running median. The median hides costs of the first
    /// calls only, such as moving a new buffer's pages away. With the time of each call instead, an echo
    /// server of 256 KiB was switched off before it had used any buffer twice.
    pub fn typical_ns(&self, site: SiteId, share: WorkPart, took_ns: i64) -> i64 {
        let typical = &self.account(site).typical_ns[share as usize];
        let took_ns = u32::try_from(took_ns.max(0)).unwrap_or(u32::MAX);
        let before_ns = typical.load(Relaxed);
        let step_ns = before_ns / 16 + MIN_MEDIAN_STEP_NS;
        let now_ns = if took_ns > before_ns {
            took_ns.min(before_ns.saturating_add(step_ns))
        } else {
            took_ns.max(before_ns.saturating_sub(step_ns))
        };
        // An update lost between threads only skips a step.
        typical.store(now_ns, Relaxed);
        i64::from(now_ns)
    }

    /// Adds the time that an elision saved.
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

    /// Subtracts the cost of an elision. True if that uses up the budget and switches the site off.
    pub fn debit(&self, site: SiteId, ns: i64) -> bool {
        let account = self.account(site);
        if account.off_calls.load(Relaxed) > 0 {
            // Costs of earlier views are no news, and must not double the pause once per page of a message.
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

    /// Whether the site is being probed: it was switched off, elides again, and has not won yet.
    #[must_use]
    pub fn is_probed(&self, site: SiteId) -> bool {
        let account = self.account(site);
        account.backoff.load(Relaxed) > 0 && account.off_calls.load(Relaxed) == 0
    }

    /// Returns the balance in ns, the number of calls for which the site stays off, and how often it was
    /// switched off since it last won.
    #[must_use]
    pub fn snapshot(&self, site: SiteId) -> (i64, u32, u32) {
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
        let site = sites.site(SiteKind::Input, 0x1234, 32 << 20);
        assert!(sites.is_likely_to_fill(site, 32 << 20), "nothing is known yet");
        sites.record_input(site, 16);
        assert!(sites.is_likely_to_fill(site, 64 << 10), "the reservoir has that much");
        let tried = (0..2 * MAX_PASSED).filter(|_| sites.is_likely_to_fill(site, 32 << 20)).count();
        assert_eq!(tried, 2);
        sites.record_input(site, 12 << 20);
        assert!(sites.is_likely_to_fill(site, 32 << 20));
        for _ in 0..20 {
            sites.record_input(site, 16);
        }
        assert!(!sites.is_likely_to_fill(site, 32 << 20), "what came once fades");
    }

    #[test]
    fn an_input_is_likely_to_bring_what_others_brought_lately() {
        let sites = Sites::new();
        let site = sites.site(SiteKind::Input, 0x1234, 3 << 20);
        assert_eq!(sites.likely_bytes(site, 3 << 20), 3 << 20, "nothing is known");
        sites.record_input(site, 1 << 20);
        assert_eq!(sites.likely_bytes(site, 3 << 20), 1 << 20);
        assert_eq!(sites.likely_bytes(site, 5000), 5000, "no more than there is room for");
        (0..100).for_each(|_| sites.record_input(site, 70_000));
        assert_eq!(sites.likely_bytes(site, 3 << 20), 70_000, "not for ever");
    }

    #[test]
    fn inputs_are_expected_to_leave_by_reference_for_a_while() {
        let sites = Sites::new();
        let site = sites.site(SiteKind::Input, 0x1234, 64 << 10);
        let likely = |exit| (0..100).filter(|_| sites.leaves_by(exit, site)).count();
        assert_eq!(likely(Exit::Lane), 0);
        sites.record_leaving(Exit::Lane, site);
        assert_eq!((likely(Exit::Log), likely(Exit::Lane)), (0, LEAVING_INPUTS_STEP as usize));
        (0..100).for_each(|_| sites.record_leaving(Exit::Log, site));
        assert_eq!((likely(Exit::Log), likely(Exit::Lane)), (MAX_LEAVING_INPUTS as usize, 0));
    }

    #[test]
    fn the_running_median_ignores_first_calls_and_outliers() {
        let sites = Sites::new();
        let site = sites.site(SiteKind::Copy, 0x1234, 65536);
        let after = |calls: &mut dyn Iterator<Item = i64>| {
            calls.fold(0, |_, took_ns| sites.typical_ns(site, WorkPart::Call, took_ns))
        };
        assert!(after(&mut [20_000; 5].into_iter()) < 250, "first calls");
        assert_eq!(after(&mut [150; 100].into_iter()), 150);
        let mixed = (0..2_000).map(|call| if call % 5 == 0 { 20_000 } else { 3_000 });
        assert!((2_500..=3_800).contains(&after(&mut mixed.into_iter())));
        assert_eq!(sites.typical_ns(site, WorkPart::Output, 10), 10, "each share by itself");
    }

    #[test]
    fn a_site_that_loses_is_switched_off_for_ever_longer() {
        let sites = Sites::new();
        let site = sites.site(SiteKind::Copy, 0x1234, 65536);
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
        let site = sites.site(SiteKind::Copy, 0x1234, 524_288);
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
        let site = sites.site(SiteKind::Copy, 0x1234, 1 << 20);
        let switched_off = (0..128).filter(|_| sites.debit(site, 8_000)).count();
        assert_eq!(switched_off, 1);
        let calls = (0..1_000).take_while(|_| !sites.allows(site, Policy::Auto)).count();
        assert_eq!(calls as u32, OFF_CALLS);
    }

    #[test]
    fn a_site_that_starts_to_win_comes_back() {
        let sites = Sites::new();
        let site = sites.site(SiteKind::Input, 0x99, 1 << 20);
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
        let site = sites.site(SiteKind::Copy, 0x99, 1 << 20);
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
        let one = sites.site(SiteKind::Copy, 0x1000, 65536);
        assert_eq!(one, sites.site(SiteKind::Copy, 0x1000, 70_000));
        assert_ne!(one, sites.site(SiteKind::Copy, 0x1000, 200_000));
        assert_ne!(one, sites.site(SiteKind::Copy, 0x1008, 65536));
        assert_ne!(one, sites.site(SiteKind::Input, 0x1000, 65536));
    }
}
