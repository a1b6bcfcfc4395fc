//! What things cost on this machine, in nanoseconds: a few constants, measured when the library starts to
//! work, or read from where `uncopy doctor --calibrate` put them.
//!
//! Invariant: each constant lies within the range of its row in [`COSTS`]. What a disturbed measurement says
//! beyond that is cut to it.

use crate::addr::PAGE_BYTES;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

extern crate std;
use std::string::String;

/// A run of present pages this short may be copied over; a longer one is moved out of the way. More where that costs more than copying four
/// times as many pages: dropping pages instead of moving them takes some 20 µs.
pub const COPY_OVER_PAGES: u32 = 8;
const MAX_COPY_OVER_PAGES: u32 = 256;

/// One constant: its name, what is assumed unless it is measured, and what is believed of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct CostSpec {
    /// Name, in the cache file and in JSON.
    pub name: &'static str,
    /// Assumed, ns.
    pub default_ns: u32,
    /// Least believed, ns.
    pub min_ns: u32,
    /// Most believed, ns.
    pub max_ns: u32,
}

macro_rules! costs {
    ($($(#[$doc:meta])* $variant:ident => $name:literal, $default:literal, $least:literal..=$most:literal;)*) => {
        /// What is measured. The discriminant is the place in [`Costs`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Cost { $($(#[$doc])* $variant,)* }

        /// Every constant, in the order of [`Cost`].
        pub const COSTS: &[CostSpec] = &[$(CostSpec {
            name: $name, default_ns: $default, min_ns: $least, max_ns: $most,
        },)*];

        impl Cost {
            /// Every constant.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
}

costs! {
    /// Copying a page where source and destination are in the first two levels of cache.
    CopyNear => "copy_near", 45, 15..=400;
    /// Copying a page of a buffer that just about fits the second level.
    CopyHot => "copy_hot", 100, 20..=800;
    /// Copying a page whose bytes are in memory.
    CopyCold => "copy_cold", 450, 60..=4_000;
    /// A fault that the handler thread serves: 4.2 µs on the same CPU, 12.4 µs on another.
    Fault => "fault", 8_000, 1_500..=60_000;
    /// Putting one page of a view in place, beside the fault itself.
    FillPage => "fill_page", 350, 50..=3_000;
    /// One `UFFDIO_MOVE`.
    MoveCall => "move_call", 1_000, 200..=10_000;
    /// Each page of it.
    MovePage => "move_page", 45, 10..=1_000;
    /// Tracking one copy, and what it brings with it: fresh pages for the segments, moves, cold records. The
    /// hook itself takes 180 ns where twelve copies follow one another, and about twice that for one at a time. With
    /// 400 here, Redis SET of 64 KiB took 1.17 times the processor time and the echo server gained none
    /// at 64 KiB; with 900 both are left alone. Not measured when the library starts to work.
    Track => "track", 900, 100..=4_000;
}

const COUNT: usize = COSTS.len();
/// Longest text of [`Costs::to_text`], bytes.
pub const MAX_TEXT_BYTES: usize = 256;
/// Room beyond which a copy runs out of the second level of cache, KiB, and the steps on the way there.
const STEPS_KIB: [usize; 4] = [96, 192, 1024, 2560];

/// The constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs([u32; COUNT]);

impl Default for Costs {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Costs {
    /// Those of the machine that this was written on.
    pub const DEFAULT: Self = {
        let mut all = [0; COUNT];
        let mut index = 0;
        while index < COUNT {
            all[index] = COSTS[index].default_ns;
            index += 1;
        }
        Self(all)
    };

    /// One constant, ns.
    #[must_use]
    pub const fn get(&self, which: Cost) -> u32 {
        self.0[which as usize]
    }

    /// Sets one, cut to what is believed of it.
    pub fn set(&mut self, which: Cost, ns: u64) {
        let spec = &COSTS[which as usize];
        let ns = u32::try_from(ns).unwrap_or(u32::MAX);
        self.0[which as usize] = ns.clamp(spec.min_ns, spec.max_ns);
    }

    /// `name=ns,…`, as the cache file and the environment carry them.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (spec, ns) in COSTS.iter().zip(self.0) {
            let comma = if text.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(text, "{comma}{}={ns}", spec.name);
        }
        text
    }

    /// Reads what [`Costs::to_text`] wrote. `None` unless every constant is there once and within its range.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut costs = Self([0; COUNT]);
        let mut fields = text.split(|byte| *byte == b',');
        for (spec, slot) in COSTS.iter().zip(&mut costs.0) {
            let value = fields.next()?.strip_prefix(spec.name.as_bytes())?.strip_prefix(b"=")?;
            let is_short = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
            let digits = value.iter().filter(|_| is_short);
            let ns = digits.fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
            *slot = Some(ns).filter(|ns| (spec.min_ns..=spec.max_ns).contains(ns))?;
        }
        fields.next().is_none().then_some(costs)
    }

    /// What copying a page costs in a copy of each of the sizes that [`STEPS_KIB`] separates, taken low, so
    /// that doubt decides for copying.
    ///
    /// A small copy that stays in the second level of cache costs little; the larger it is, the more it also
    /// costs whoever copies next from colder caches (the kernel's copy into the page cache took a quarter of
    /// the time once the copies before it were elided: Redis SET of 256 KiB). The shares are those that made
    /// the constants of the first machine: 45, 60, 100, 160, 300 ns.
    fn copy_page_ns(&self) -> [u32; STEPS_KIB.len() + 1] {
        let [near, hot, cold] = [Cost::CopyNear, Cost::CopyHot, Cost::CopyCold].map(|which| self.get(which));
        let hot = hot.max(near);
        let cold = cold.max(hot);
        [near, near + (hot - near) / 4, hot, hot + (cold - hot) / 6, hot + (cold - hot) * 4 / 7]
    }
}

/// The constants in force, which change once, when they have been measured, except for [`Cost::Track`], which
/// follows what copies show.
pub struct SharedCosts {
    all: [AtomicU32; COUNT],
    copy_page_ns: [AtomicU32; STEPS_KIB.len() + 1],
    /// A run of present pages this short may be copied over.
    copy_over_pages: AtomicU32,
}

impl Default for SharedCosts {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedCosts {
    /// The assumed ones.
    #[must_use]
    pub const fn new() -> Self {
        let mut all = [const { AtomicU32::new(0) }; COUNT];
        let mut index = 0;
        while index < COUNT {
            all[index] = AtomicU32::new(COSTS[index].default_ns);
            index += 1;
        }
        let copy_page_ns = [45, 58, 100, 158, 300];
        let mut pages = [const { AtomicU32::new(0) }; STEPS_KIB.len() + 1];
        index = 0;
        while index < copy_page_ns.len() {
            pages[index] = AtomicU32::new(copy_page_ns[index]);
            index += 1;
        }
        Self { all, copy_page_ns: pages, copy_over_pages: AtomicU32::new(COPY_OVER_PAGES) }
    }

    /// Puts measured ones in force.
    pub fn adopt(&self, costs: &Costs) {
        for (shared, ns) in self.all.iter().zip(costs.0) {
            shared.store(ns, Relaxed);
        }
        for (shared, ns) in self.copy_page_ns.iter().zip(costs.copy_page_ns()) {
            shared.store(ns, Relaxed);
        }
        let break_even = costs.get(Cost::MoveCall) / (4 * costs.get(Cost::CopyHot));
        self.copy_over_pages.store(break_even.clamp(COPY_OVER_PAGES, MAX_COPY_OVER_PAGES), Relaxed);
    }

    /// Those in force.
    #[must_use]
    pub fn snapshot(&self) -> Costs {
        let mut costs = Costs::DEFAULT;
        for (ns, shared) in costs.0.iter_mut().zip(&self.all) {
            *ns = shared.load(Relaxed);
        }
        costs
    }

    /// One constant, ns.
    #[inline]
    #[must_use]
    pub fn get(&self, which: Cost) -> i64 {
        i64::from(self.all[which as usize].load(Relaxed))
    }

    /// Tracking one copy, ns.
    #[inline]
    #[must_use]
    pub fn track_ns(&self) -> i64 {
        self.get(Cost::Track)
    }

    /// What copying `len_bytes` costs, taken low, ns.
    #[inline]
    #[must_use]
    pub fn copy_ns(&self, len_bytes: usize) -> i64 {
        let kib = len_bytes >> 10;
        let step = STEPS_KIB.iter().take_while(|step| kib >= **step).count();
        (len_bytes / PAGE_BYTES) as i64 * i64::from(self.copy_page_ns[step].load(Relaxed))
    }

    /// What copying `len_bytes` costs that another processor has written, ns.
    #[inline]
    #[must_use]
    pub fn fetch_ns(&self, len_bytes: usize) -> i64 {
        (len_bytes / PAGE_BYTES) as i64 * self.get(Cost::CopyCold)
    }

    /// What so many moves of so many pages in all cost, ns.
    #[must_use]
    pub fn moves_ns(&self, calls: usize, pages: usize) -> i64 {
        calls as i64 * self.get(Cost::MoveCall) + pages as i64 * self.get(Cost::MovePage)
    }

    /// What a fault costs that puts `pages` pages in place, ns.
    #[must_use]
    pub fn fault_ns(&self, pages: u32) -> i64 {
        self.get(Cost::Fault) + i64::from(pages) * self.get(Cost::FillPage)
    }

    /// Whether to move a run of `pages` present pages out of a view's way rather than copy over them, given
    /// what copying over has cost this block since the last move; and that cost with this run's.
    ///
    /// As in the ski-rental problem: copying is repeated until it has cost as much as moving would, so the
    /// sum is at most twice that of knowing beforehand.
    #[must_use]
    pub fn moves_out(&self, pages: u32, copied_over_ns: u32) -> (bool, u32) {
        let move_ns = u32::try_from(self.moves_ns(1, pages as usize)).unwrap_or(u32::MAX);
        let page_ns = self.all[Cost::CopyHot as usize].load(Relaxed);
        let total_ns = copied_over_ns.saturating_add(pages.saturating_mul(page_ns));
        if pages > self.copy_over_pages.load(Relaxed) {
            (true, copied_over_ns)
        } else if total_ns >= move_ns {
            (true, total_ns - move_ns)
        } else {
            (false, total_ns)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assumed_constants_cost_what_they_say() {
        let shared = SharedCosts::new();
        assert_eq!(shared.snapshot(), Costs::DEFAULT);
        let assumed = [16, 128, 512, 2048, 8192].map(|kib| shared.copy_ns(kib << 10));
        shared.adopt(&Costs::DEFAULT);
        assert_eq!([16, 128, 512, 2048, 8192].map(|kib| shared.copy_ns(kib << 10)), assumed);
        assert_eq!(shared.copy_ns(64 << 10), 16 * 45);
        assert_eq!(shared.copy_ns(512 << 10), 128 * 100);
        assert_eq!(shared.copy_ns(4 << 20), 1024 * 300);
    }

    #[test]
    fn text_reads_back_and_anything_else_is_refused() {
        let mut costs = Costs::DEFAULT;
        costs.set(Cost::Fault, 4_321);
        let text = costs.to_text();
        assert!(text.len() <= MAX_TEXT_BYTES);
        assert_eq!(Costs::parse(text.as_bytes()), Some(costs));
        let changed = |from: &str, to: &str| Costs::parse(text.replacen(from, to, 1).as_bytes());
        assert_eq!(changed("fault=4321", "fault=4321,"), None);
        assert_eq!(changed("fault=4321", "fault=1"), None, "below what is believed");
        assert_eq!(changed("fault=4321", "fault=99999999999"), None);
        assert_eq!(changed("fault=4321", "fault=4e3"), None);
        assert_eq!(changed("fault", "default"), None);
        assert_eq!(Costs::parse(&text.as_bytes()[..text.len() - 10]), None);
        assert_eq!(Costs::parse(b""), None);
    }

    #[test]
    fn absurd_measurements_are_cut_to_what_is_believed() {
        let mut costs = Costs::DEFAULT;
        for (which, spec) in Cost::ALL.iter().zip(COSTS) {
            costs.set(*which, 0);
            assert_eq!(costs.get(*which), spec.min_ns);
            costs.set(*which, u64::MAX);
            assert_eq!(costs.get(*which), spec.max_ns);
        }
        assert_eq!(Costs::parse(costs.to_text().as_bytes()), Some(costs));
        // A page of a larger copy never costs less than one of a smaller.
        costs.set(Cost::CopyNear, 300);
        costs.set(Cost::CopyHot, 100);
        costs.set(Cost::CopyCold, 90);
        assert!(costs.copy_page_ns().is_sorted());
    }

    #[test]
    fn copying_over_costs_at_most_one_move_before_the_run_is_moved_out() {
        let costs = SharedCosts::new();
        let mut spent_ns = 0;
        let mut copies = 0;
        loop {
            let (moves, rest_ns) = costs.moves_out(2, spent_ns);
            if moves {
                break;
            }
            spent_ns = rest_ns;
            copies += 1;
        }
        assert_eq!(copies, 5);
        assert!(costs.moves_out(COPY_OVER_PAGES + 1, 0).0);
    }
}
