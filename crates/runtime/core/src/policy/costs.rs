//! Costs of basic steps on this machine, in nanoseconds. The library measures them when it starts to work,
//! or reads what `uncopy doctor --calibrate` stored.
//!
//! Invariant: each constant is in the range of its row in [`COSTS`]. A measurement outside is clamped.

use crate::addr::PAGE_BYTES;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

extern crate std;
use std::string::String;

/// Longest run of present pages that may be copied over instead of moved out of the way. The run may be
/// longer where one move costs more than copying four times its pages: dropping pages instead of moving
/// them takes some 20 µs.
pub const COPY_OVER_PAGES: u32 = 8;
const MAX_COPY_OVER_PAGES: u32 = 256;

/// Name, default and plausible range of a constant.
#[derive(Clone, Copy, Debug)]
pub struct CostSpec {
    /// Name in the cache file and in JSON.
    pub name: &'static str,
    /// Default, ns.
    pub default_ns: u32,
    /// Minimum plausible value, ns.
    pub min_ns: u32,
    /// Maximum plausible value, ns.
    pub max_ns: u32,
}

macro_rules! costs {
    ($($(#[$doc:meta])* $variant:ident => $name:literal, $default:literal, $least:literal..=$most:literal;)*) => {
        /// A constant. The discriminant is the index in [`Costs`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Cost { $($(#[$doc])* $variant,)* }

        /// Every constant, in the order of [`Cost`].
        pub const COSTS: &[CostSpec] = &[$(CostSpec {
            name: $name, default_ns: $default, min_ns: $least, max_ns: $most,
        },)*];

        impl Cost {
            /// Every constant, in the order of the discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
}

costs! {
    /// Copy of a page, source and destination in the first two levels of cache.
    CopyNear => "copy_near", 45, 15..=400;
    /// Copy of a page of a buffer that just fits the second level of cache.
    CopyHot => "copy_hot", 100, 20..=800;
    /// Copy of a page whose bytes are in memory.
    CopyCold => "copy_cold", 450, 60..=4_000;
    /// A fault that the handler thread serves: 4.2 µs on the same CPU, 12.4 µs on another one.
    Fault => "fault", 8_000, 1_500..=60_000;
    /// Putting a page of a view in place, without the fault itself.
    FillPage => "fill_page", 350, 50..=3_000;
    /// A call of `UFFDIO_MOVE`, without the pages.
    MoveCall => "move_call", 1_000, 200..=10_000;
    /// Each page of an `UFFDIO_MOVE`.
    MovePage => "move_page", 45, 10..=1_000;
    /// Tracking a copy, with fresh pages for the segments, moves and cache-cold records. Assumed, not
    /// measured. The hook alone takes 180 ns if twelve copies follow one another, and about twice that for
    /// a single one. With 400 ns here, Redis SET of 64 KiB took 1.17 times the processor time and the echo
    /// server of 64 KiB gained nothing.
    Track => "track", 900, 100..=4_000;
}

const COUNT: usize = COSTS.len();
/// Maximum length of [`Costs::to_text`], bytes.
pub const MAX_TEXT_BYTES: usize = 256;
/// Sizes at which a copied page gets more expensive, up to one that exceeds the second level of cache, KiB.
const STEPS_KIB: [usize; 4] = [96, 192, 1024, 2560];

/// A value for each constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs([u32; COUNT]);

impl Default for Costs {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Costs {
    /// The defaults, from the machine that this was written on.
    pub const DEFAULT: Self = {
        let mut all = [0; COUNT];
        let mut index = 0;
        while index < COUNT {
            all[index] = COSTS[index].default_ns;
            index += 1;
        }
        Self(all)
    };

    /// Returns a constant, ns.
    #[must_use]
    pub const fn get(&self, which: Cost) -> u32 {
        self.0[which as usize]
    }

    /// Sets a constant, clamped to its plausible range.
    pub fn set(&mut self, which: Cost, ns: u64) {
        let spec = &COSTS[which as usize];
        let ns = u32::try_from(ns).unwrap_or(u32::MAX);
        self.0[which as usize] = ns.clamp(spec.min_ns, spec.max_ns);
    }

    /// Returns `name=ns,…`, as stored in the cache file and the environment.
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

    /// Parses the output of [`Costs::to_text`]. `None` unless every constant is there once and in its range.
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

    /// Returns the cost of copying a page, for each range of copy sizes that [`STEPS_KIB`] separates. The
    /// estimate is low, so that doubt decides for copying.
    ///
    /// A large copy also evicts other data from the caches, which slows later copies: for Redis SET of 256
    /// KiB, the kernel's copy into the page cache took a quarter of the time once earlier copies were
    /// elided. The fractions fit the constants of the first machine: 45, 60, 100, 160, 300 ns.
    fn copy_page_ns(&self) -> [u32; STEPS_KIB.len() + 1] {
        let [near, hot, cold] = [Cost::CopyNear, Cost::CopyHot, Cost::CopyCold].map(|which| self.get(which));
        let hot = hot.max(near);
        let cold = cold.max(hot);
        [near, near + (hot - near) / 4, hot, hot + (cold - hot) / 6, hot + (cold - hot) * 4 / 7]
    }
}

/// The constants in force: the defaults until measured or given ones are adopted.
pub struct SharedCosts {
    all: [AtomicU32; COUNT],
    copy_page_ns: [AtomicU32; STEPS_KIB.len() + 1],
    /// Longest run of present pages that may be copied over.
    copy_over_pages: AtomicU32,
}

impl Default for SharedCosts {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedCosts {
    /// Returns the default costs.
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

    /// Puts `costs` into force.
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

    /// Returns the constants in force.
    #[must_use]
    pub fn snapshot(&self) -> Costs {
        let mut costs = Costs::DEFAULT;
        for (ns, shared) in costs.0.iter_mut().zip(&self.all) {
            *ns = shared.load(Relaxed);
        }
        costs
    }

    /// Returns a constant, ns.
    #[inline]
    #[must_use]
    pub fn get(&self, which: Cost) -> i64 {
        i64::from(self.all[which as usize].load(Relaxed))
    }

    /// Returns the cost of tracking a copy, ns.
    #[inline]
    #[must_use]
    pub fn track_ns(&self) -> i64 {
        self.get(Cost::Track)
    }

    /// Returns a low estimate of the cost of copying `len_bytes`, ns.
    #[inline]
    #[must_use]
    pub fn copy_ns(&self, len_bytes: usize) -> i64 {
        let kib = len_bytes >> 10;
        let step = STEPS_KIB.iter().take_while(|step| kib >= **step).count();
        (len_bytes / PAGE_BYTES) as i64 * i64::from(self.copy_page_ns[step].load(Relaxed))
    }

    /// Returns the cost of copying `len_bytes` that another processor has written, ns.
    #[inline]
    #[must_use]
    pub fn fetch_ns(&self, len_bytes: usize) -> i64 {
        (len_bytes / PAGE_BYTES) as i64 * self.get(Cost::CopyCold)
    }

    /// Returns the cost of `calls` moves of `pages` pages in all, ns.
    #[must_use]
    pub fn moves_ns(&self, calls: usize, pages: usize) -> i64 {
        calls as i64 * self.get(Cost::MoveCall) + pages as i64 * self.get(Cost::MovePage)
    }

    /// Returns the cost of a fault that puts `pages` pages in place, ns.
    #[must_use]
    pub fn fault_ns(&self, pages: u32) -> i64 {
        self.get(Cost::Fault) + i64::from(pages) * self.get(Cost::FillPage)
    }

    /// Whether to move a run of `pages` present pages out of a view's way rather than copy over it.
    /// `copied_over_ns` is what copying over has cost this block since the last move. Also returns the new
    /// value of that cost.
    ///
    /// This is the ski-rental rule: copy until copying has cost as much as a move, so that the total is at
    /// most twice the optimum.
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
        // A page of a larger copy never costs less than a page of a smaller one.
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
