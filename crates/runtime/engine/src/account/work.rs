//! Typical time of the engine's own work at a site, by the clock. The machine's constants hold for cache-warm code,
//! one call after another. In a server with much else to do between two calls, code and data come from memory, and
//! the work for a copy or an input takes several times as long (Redis under YCSB A: 21 µs for 25 calls).

use crate::account::accounts;
use crate::state::policy::POLICY;
use crate::state::recording;
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::sites::WorkPart;
use uncopy_sys::clock;

/// Upper bound on one piece of work, ns: beyond this, another thread had the processor.
const MAX_NS: u64 = 20_000;

/// A piece of engine work, timed from its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Clock reading at the beginning; 0: not timed.
    start: u64,
}

impl Work {
    /// Begins timing, except while a recording samples.
    #[inline]
    pub fn begin() -> Self {
        Self { start: if recording::is_on() { 0 } else { clock::start() } }
    }

    /// Time since the beginning, ns; `None` where the work is not timed.
    #[inline]
    pub fn took_ns(self) -> Option<i64> {
        clock::since_ns(self.start).map(|ns| ns.min(MAX_NS).cast_signed())
    }

    /// Charges the typical time of such work to the site on whose behalf it was done.
    #[inline]
    pub fn charge(self, site: SiteId, share: WorkPart) {
        if let Some(took_ns) = self.took_ns() {
            accounts::debit(site, POLICY.sites.typical_ns(site, share, took_ns));
        }
    }
}

/// Typical time of a call that took `took_ns` this time, `known_ns` of which are charged separately, ns; at
/// least `min_ns`.
#[inline]
pub fn call_ns(site: SiteId, took_ns: Option<i64>, known_ns: i64, min_ns: i64) -> i64 {
    let typical_ns = took_ns.map(|ns| POLICY.sites.typical_ns(site, WorkPart::Call, ns - known_ns));
    typical_ns.map_or(min_ns, |ns| ns.max(min_ns))
}
