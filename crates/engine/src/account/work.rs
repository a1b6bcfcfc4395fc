//! What our own work at a site typically takes, by the clock: the constants are those of code that runs warm, one call
//! after another. In a server with much else to do between two calls, code and records come from memory, and a copy's
//! or an input's share takes several times as long (Redis under YCSB A: 21 µs for 25 calls).

use crate::account::accounts;
use crate::state::policy::POLICY;
use crate::state::recording;
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::sites::Share;
use uncopy_sys::clock;

/// No work of ours takes longer than this, ns: another thread had the processor.
const MAX_NS: u64 = 20_000;

/// A piece of work that began.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// 0: no clock runs.
    start: u64,
}

impl Work {
    /// It begins.
    #[inline]
    pub fn begin() -> Self {
        Self { start: if recording::is_on() { 0 } else { clock::start() } }
    }

    /// What it took so far, ns. `None` where no clock says.
    #[inline]
    pub fn took_ns(self) -> Option<i64> {
        clock::since_ns(self.start).map(|ns| ns.min(MAX_NS).cast_signed())
    }

    /// Charges what it typically takes to the site on whose behalf it was done.
    #[inline]
    pub fn charge(self, site: SiteId, share: Share) {
        if let Some(took_ns) = self.took_ns() {
            accounts::debit(site, POLICY.sites.typical_ns(site, share, took_ns));
        }
    }
}

/// What a call typically takes that took `took_ns` this time, `known_ns` of it for what is charged by itself; at
/// least `min_ns`.
#[inline]
pub fn call_ns(site: SiteId, took_ns: Option<i64>, known_ns: i64, min_ns: i64) -> i64 {
    let typical_ns = took_ns.map(|ns| POLICY.sites.typical_ns(site, Share::Call, ns - known_ns));
    typical_ns.map_or(min_ns, |ns| ns.max(min_ns))
}
