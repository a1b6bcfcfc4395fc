//! The sites of one process while it is replayed: what each moved, and how long that took.

use crate::elision::Would;
use crate::hash::FastMap;
use crate::model::{Call, Object};
use uncopy_core::recording::Function;

/// What makes two calls those of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SiteKey {
    /// What it does.
    pub call: Call,
    /// What is at the other end.
    pub object: Object,
    /// The function that is called.
    pub function: Function,
    /// The stack's id in the recording.
    pub stack: u32,
}

/// Classes of time for a KiB, each a half of the next.
const SPEEDS: usize = 24;

/// Classes above the median that are believed: eight times as slow.
const SLOWER: usize = 3;

/// What a site did.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What makes it a site.
    pub key: SiteKey,
    /// Calls.
    pub events: u64,
    /// Bytes.
    pub bytes: u64,
    /// Of these, bytes of calls whose time was measured.
    pub timed_bytes: u64,
    /// Time that those took, ns.
    pub ns: u64,
    /// Calls, bytes and time by the power of two of their time for a KiB, ns.
    speeds: [(u32, u64, u64); SPEEDS],
    /// What its calls would have been.
    pub would: Wouldbe,
    leaf: u32,
}

/// What the calls of a site would have been under uncopy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wouldbe {
    /// Calls that would have been elided.
    pub elided: u64,
    /// Bytes that would not have been copied in them.
    pub elided_bytes: u64,
    /// Of these, bytes of calls whose time was measured.
    pub timed_elided_bytes: u64,
    /// The time that these took, ns.
    pub elided_ns: u64,
    /// Of the elided bytes, those that no message had just brought: kept, and used again.
    pub kept_bytes: u64,
    /// Views that would have been made.
    pub views: u64,
    /// Bytes of calls whose bytes were never received.
    pub own_bytes: u64,
    /// Bytes of calls into shared memory.
    pub shared_bytes: u64,
    /// Bytes of calls with too little in whole pages.
    pub small_bytes: u64,
}

/// The sites of one process.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    by_key: FastMap<SiteKey, u32>,
    by_leaf: FastMap<(Call, Object, u64), u32>,
    leaves: FastMap<u32, u64>,
    seen: Vec<Seen>,
}

impl Sites {
    /// The number of a site; a new one if it was not known.
    pub fn site(&mut self, key: SiteKey, leaf: &mut dyn FnMut(u32) -> u64) -> u32 {
        if let Some(site) = self.by_key.get(&key) {
            return *site;
        }
        let address = *self.leaves.entry(key.stack).or_insert_with(|| leaf(key.stack));
        let next = u32::try_from(self.by_leaf.len()).unwrap_or(u32::MAX);
        let leaf = *self.by_leaf.entry((key.call, key.object, address)).or_insert(next);
        let site = u32::try_from(self.seen.len()).unwrap_or(u32::MAX - 1);
        self.seen.push(Seen {
            key,
            events: 0,
            bytes: 0,
            timed_bytes: 0,
            ns: 0,
            speeds: [(0, 0, 0); SPEEDS],
            would: Wouldbe::default(),
            leaf,
        });
        self.by_key.insert(key, site);
        site
    }

    /// The number of the place that a site's call is made from, in whatever longer stack.
    #[must_use]
    pub fn leaf(&self, site: u32) -> u32 {
        self.seen.get(site as usize).map_or(u32::MAX, |seen| seen.leaf)
    }

    /// Every site, by number.
    #[must_use]
    pub fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// Adds a call. `ns`: how long it took, if that was measured.
    pub fn count(&mut self, site: u32, bytes: u64, ns: Option<u64>, continues: bool) {
        let Some(seen) = self.seen.get_mut(site as usize) else { return };
        seen.events += u64::from(!continues);
        seen.bytes += bytes;
        if let Some(ns) = ns {
            seen.timed_bytes += bytes;
            seen.ns = seen.ns.saturating_add(ns);
            let per_kib = ns.saturating_mul(1024) / bytes.max(1);
            let class = (u64::BITS - per_kib.leading_zeros()) as usize;
            let (count, class_bytes, class_ns) = &mut seen.speeds[class.min(SPEEDS - 1)];
            *count = count.saturating_add(1);
            *class_bytes = class_bytes.saturating_add(bytes);
            *class_ns = class_ns.saturating_add(ns);
        }
    }

    /// Adds what a copy would have been.
    pub fn count_elision(&mut self, site: u32, would: &Would, bytes: u64, ns: Option<u64>, are_kept: bool) {
        let Some(seen) = self.seen.get_mut(site as usize) else { return };
        let all = &mut seen.would;
        match *would {
            Would::Elide { elided_bytes, views } => {
                all.elided += 1;
                all.elided_bytes += elided_bytes;
                all.views += views;
                if are_kept {
                    all.kept_bytes += elided_bytes;
                }
                if let Some(ns) = ns {
                    all.timed_elided_bytes += elided_bytes;
                    all.elided_ns += scale(ns, elided_bytes, bytes);
                }
            }
            Would::TooSmall => all.small_bytes += bytes,
            Would::OwnBytes => all.own_bytes += bytes,
            Would::Shared => all.shared_bytes += bytes,
        }
    }
}

impl Seen {
    /// What its calls took of a processor, ns: those that were not measured at the others' speed; what took far
    /// longer than most was waiting for a processor, and counts at the slowest speed that is believed. Inputs may
    /// wait for bytes as well: they count at the speed that one in four of them reached.
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
        // The middle of the class [2^(class - 1), 2^class).
        let speed = |class: usize| if class == 0 { 0 } else { 3u64 << class >> 2 };
        if self.key.call == Call::Input {
            return scale(speed(quantile(1)), self.bytes, 1024).min(measured_ns);
        }
        let slowest = quantile(2) + SLOWER;
        let believed = self.speeds.iter().enumerate().map(|(class, (_, bytes, ns))| {
            if class <= slowest { *ns } else { scale(speed(slowest), *bytes, 1024).min(*ns) }
        });
        let believed_ns = believed.fold(0, u64::saturating_add);
        scale(believed_ns, self.bytes, self.timed_bytes)
    }
}

/// `whole * part / of`, cut to what there is room for; 0 of nothing is nothing.
#[must_use]
pub fn scale(whole: u64, part: u64, of: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(part) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}
