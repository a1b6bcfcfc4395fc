//! Call sites of one process: bytes moved and time taken, summed during replay.

use crate::elision::Effect;
use crate::model::{Call, Object};
use rustc_hash::FxHashMap;
use uncopy_core::recording::Function;

/// Identity of a call site within one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SiteKey {
    /// Kind of call made at the site.
    pub call: Call,
    /// Kind of object that an input or output refers to.
    pub object: Object,
    /// The libc function called.
    pub function: Function,
    /// Id of the call stack in the recording.
    pub stack: u32,
}

/// Number of speed classes; class n holds calls that take up to 2^n ns per KiB.
const SPEED_CLASSES: usize = 24;

/// Number of classes above the median that count in full, that is up to eight times as slow.
const MAX_CLASSES_ABOVE_MEDIAN: usize = 3;

/// Sums of one site.
#[derive(Clone, Debug)]
pub struct SiteStats {
    /// Identity of the site.
    pub key: SiteKey,
    /// Number of calls made at the site.
    pub events: u64,
    /// Bytes that these calls moved.
    pub bytes: u64,
    /// Bytes of calls whose time was measured.
    pub timed_bytes: u64,
    /// Time of the measured calls, in nanoseconds.
    pub ns: u64,
    /// Calls, bytes and nanoseconds per speed class.
    speeds: [(u32, u64, u64); SPEED_CLASSES],
    /// Effect that uncopy would have had on the site's calls.
    pub effect: EffectSums,
    leaf: u32,
}

/// Effect that uncopy would have had on the calls of a site.
#[derive(Clone, Copy, Debug, Default)]
pub struct EffectSums {
    /// Number of calls that would have been elided.
    pub elided: u64,
    /// Bytes that these calls would not have copied.
    pub elided_bytes: u64,
    /// Elided bytes of calls whose time was measured.
    pub timed_elided_bytes: u64,
    /// Time that the measured calls took for elided bytes, in nanoseconds.
    pub elided_ns: u64,
    /// Elided bytes that do not come from a message in progress, but were stored and are used again.
    pub stored_bytes: u64,
    /// Number of views that would have been made.
    pub views: u64,
    /// Bytes of calls whose bytes were never received.
    pub own_bytes: u64,
    /// Bytes of calls that copy into shared memory.
    pub shared_bytes: u64,
    /// Bytes of calls with too few whole pages.
    pub small_bytes: u64,
}

/// All sites of one process.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    by_key: FxHashMap<SiteKey, u32>,
    by_leaf: FxHashMap<(Call, Object, u64), u32>,
    leaves: FxHashMap<u32, u64>,
    stats: Vec<SiteStats>,
}

impl Sites {
    /// Returns the number of a site, adding the site if it is new.
    pub fn site(&mut self, key: SiteKey, leaf: &mut dyn FnMut(u32) -> u64) -> u32 {
        if let Some(site) = self.by_key.get(&key) {
            return *site;
        }
        let address = *self.leaves.entry(key.stack).or_insert_with(|| leaf(key.stack));
        let next = u32::try_from(self.by_leaf.len()).unwrap_or(u32::MAX);
        let leaf = *self.by_leaf.entry((key.call, key.object, address)).or_insert(next);
        let site = u32::try_from(self.stats.len()).unwrap_or(u32::MAX - 1);
        self.stats.push(SiteStats {
            key,
            events: 0,
            bytes: 0,
            timed_bytes: 0,
            ns: 0,
            speeds: [(0, 0, 0); SPEED_CLASSES],
            effect: EffectSums::default(),
            leaf,
        });
        self.by_key.insert(key, site);
        site
    }

    /// Returns the number of a site's call location, which sites share that differ only in the callers'
    /// frames.
    #[must_use]
    pub fn leaf(&self, site: u32) -> u32 {
        self.stats.get(site as usize).map_or(u32::MAX, |stats| stats.leaf)
    }

    /// Returns all sites, indexed by number.
    #[must_use]
    pub fn stats(&self) -> &[SiteStats] {
        &self.stats
    }

    /// Adds a call of `bytes` bytes; `ns` is its duration, if measured.
    pub fn count(&mut self, site: u32, bytes: u64, ns: Option<u64>, continues: bool) {
        let Some(stats) = self.stats.get_mut(site as usize) else { return };
        stats.events += u64::from(!continues);
        stats.bytes += bytes;
        if let Some(ns) = ns {
            stats.timed_bytes += bytes;
            stats.ns = stats.ns.saturating_add(ns);
            let per_kib = ns.saturating_mul(1024) / bytes.max(1);
            let class = (u64::BITS - per_kib.leading_zeros()) as usize;
            let (count, class_bytes, class_ns) = &mut stats.speeds[class.min(SPEED_CLASSES - 1)];
            *count = count.saturating_add(1);
            *class_bytes = class_bytes.saturating_add(bytes);
            *class_ns = class_ns.saturating_add(ns);
        }
    }

    /// Adds the effect that uncopy would have had on a copy.
    pub fn count_elision(
        &mut self,
        site: u32,
        effect: &Effect,
        bytes: u64,
        ns: Option<u64>,
        are_stored: bool,
    ) {
        let Some(stats) = self.stats.get_mut(site as usize) else { return };
        let all = &mut stats.effect;
        match *effect {
            Effect::Elide { elided_bytes, views } => {
                all.elided += 1;
                all.elided_bytes += elided_bytes;
                all.views += views;
                if are_stored {
                    all.stored_bytes += elided_bytes;
                }
                if let Some(ns) = ns {
                    all.timed_elided_bytes += elided_bytes;
                    all.elided_ns += scale(ns, elided_bytes, bytes);
                }
            }
            Effect::TooSmall => all.small_bytes += bytes,
            Effect::OwnBytes => all.own_bytes += bytes,
            Effect::Shared => all.shared_bytes += bytes,
        }
    }
}

impl SiteStats {
    /// Returns the processor time of the site's calls, in nanoseconds. Unmeasured calls count at the speed of
    /// the measured ones. Calls much slower than most were preempted, and count at the slowest plausible
    /// speed. Inputs may also wait for data, so all of them count at the speed that the fastest quarter
    /// reaches.
    #[must_use]
    pub fn work_ns(&self) -> u64 {
        let measured_ns = scale(self.ns, self.bytes, self.timed_bytes);
        let all: u64 = self.speeds.iter().map(|(count, _, _)| u64::from(*count)).sum();
        let quantile = |part: u64| {
            let mut below = 0;
            let class = self.speeds.iter().position(|(count, _, _)| {
                below += u64::from(*count);
                below * 4 >= all.max(1) * part
            });
            class.unwrap_or(0)
        };
        // Middle of the class [2^(class - 1), 2^class).
        let speed = |class: usize| if class == 0 { 0 } else { 3u64 << class >> 2 };
        if self.key.call == Call::Input {
            return scale(speed(quantile(1)), self.bytes, 1024).min(measured_ns);
        }
        let slowest = quantile(2) + MAX_CLASSES_ABOVE_MEDIAN;
        let plausible = self.speeds.iter().enumerate().map(|(class, (_, bytes, ns))| {
            if class <= slowest { *ns } else { scale(speed(slowest), *bytes, 1024).min(*ns) }
        });
        let plausible_ns = plausible.fold(0, u64::saturating_add);
        scale(plausible_ns, self.bytes, self.timed_bytes)
    }
}

/// Returns `whole * part / of`, saturating; `of` 0 counts as 1.
#[must_use]
pub fn scale(whole: u64, part: u64, of: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(part) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}
