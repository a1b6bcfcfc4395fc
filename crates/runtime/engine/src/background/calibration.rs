//! Calibration: measures the costs of operations on this machine when the engine is activated, with pages
//! of the arena, the userfaultfd and the handler thread that will be used, in well under [`MAX_NS`].
//!
//! Runs inside a `Critical`, under the lock of activation, when no other thread uses the arena yet.
//! Allocates nothing and touches no memory of the program. Each constant is the second best of a few tries,
//! so that other processes' activity is not counted. Constants that could not be measured keep their
//! defaults, and `Costs` clamps values from disturbed measurements.

use crate::arena::pages::ARENA;
use std::time::Instant;
use uncopy_core::addr::{ArenaPages, PAGE_BYTES};
use uncopy_core::policy::Costs;
use uncopy_core::policy::costs::Cost;
use uncopy_sys::{bytes, pins, uffd};

/// Time after which no further measurement is begun, ns. A try in progress is finished, which takes far less.
const MAX_NS: u64 = 3_500_000;
/// Number of buffers, which are copied from one to the next, as programs do.
const BUFFERS: u32 = 8;
/// Pages of each buffer, such that all buffers fit the second level of cache.
const NEAR_PAGES: u32 = 12;
/// Pages of each buffer, such that the buffers exceed the second level of cache.
const HOT_PAGES: u32 = 64;
/// Pages moved at a time.
const MOVED_PAGES: u32 = 64;
/// Pages of a cache-cold copy: evicting a line takes 50 ns.
const CACHE_COLD_PAGES: u32 = 8;
const TRIES: usize = 5;
const LINE_BYTES: usize = 64;

struct Calibration {
    begin: Instant,
    costs: Costs,
}

/// Error: the time is up, or the kernel refused an operation.
struct Stop;

/// Measures the costs of the arena's pages. The handler of its userfaultfd must be running.
#[must_use]
pub(super) fn measure() -> Costs {
    let mut calibration = Calibration { begin: Instant::now(), costs: Costs::DEFAULT };
    // If a measurement fails, those before it count.
    let _ = calibration.all();
    calibration.costs
}

fn since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Calibration {
    fn all(&mut self) -> Result<(), Stop> {
        // Pages that are taken and not given back on failure are leaked, which is harmless.
        let resident = ARENA.take_resident(BUFFERS * HOT_PAGES).map_err(|_| Stop)?.pages;
        let copied = self.copies(resident);
        let nonresident = ARENA.take_nonresident(MOVED_PAGES).map_err(|_| Stop)?;
        self.moves(resident, nonresident)?;
        self.faults(nonresident)?;
        ARENA.give_resident(resident);
        copied
    }

    /// Times `work` [`TRIES`] times, each after `prepare`; returns the second best, ns.
    fn time(
        &self,
        mut prepare: impl FnMut(),
        mut work: impl FnMut() -> Result<(), Stop>,
    ) -> Result<u64, Stop> {
        let mut times = [0; TRIES];
        for time in &mut times {
            if since(self.begin) > MAX_NS {
                return Err(Stop);
            }
            prepare();
            let begin = Instant::now();
            work()?;
            *time = since(begin);
        }
        times.sort_unstable();
        Ok(times[1])
    }

    fn copies(&mut self, resident: ArenaPages) -> Result<(), Stop> {
        let copy = |from: u32, to: u32, pages: u32| {
            let (from, to) = (ARENA.address(from), ARENA.address(to));
            // SAFETY: callers pass pages of `resident`, which are present and used by this calibration alone.
            unsafe { bytes::copy(to as *mut u8, from as *const u8, pages as usize * PAGE_BYTES) };
        };
        // Copies from buffer to buffer: each source was just written, each destination some time ago.
        let chain = |pages: u32| {
            for buffer in 1..BUFFERS {
                copy(resident.start + (buffer - 1) * pages, resident.start + buffer * pages, pages);
            }
        };
        let mut measured = [(Cost::CopyNear, NEAR_PAGES, 0), (Cost::CopyHot, HOT_PAGES, 0)];
        for (_, pages, ns) in &mut measured {
            chain(*pages);
            *ns = self.time(
                || (),
                || {
                    chain(*pages);
                    Ok(())
                },
            )?;
        }
        let len_bytes = CACHE_COLD_PAGES as usize * PAGE_BYTES;
        let (from, to) = (resident.start, resident.start + CACHE_COLD_PAGES);
        let forget = || {
            forget_lines(ARENA.address(from), 2 * len_bytes);
        };
        let mut cold_ns = None;
        if cfg!(target_arch = "x86_64") {
            cold_ns = Some(self.time(forget, || {
                copy(from, to, CACHE_COLD_PAGES);
                Ok(())
            })?);
        }
        for (which, pages, ns) in measured {
            self.costs.set(which, ns / u64::from(pages * (BUFFERS - 1)));
        }
        if let Some(ns) = cold_ns {
            self.costs.set(Cost::CopyCold, ns / u64::from(CACHE_COLD_PAGES));
        }
        Ok(())
    }

    /// Moves pages from `resident` to `nonresident` and back, one at a time and many at a time; drops pages
    /// instead where they are not moved.
    fn moves(&mut self, resident: ArenaPages, nonresident: ArenaPages) -> Result<(), Stop> {
        if !uffd::can_move_pages() {
            return self.drops(nonresident);
        }
        let uffd = ARENA.uffd();
        let shuttle = |pages: u32| {
            for (from, to) in [(resident, nonresident), (nonresident, resident)] {
                let len_bytes = pages as usize * PAGE_BYTES;
                // SAFETY: both ranges were taken by this calibration alone; the source is present and the
                // destination absent.
                let placed =
                    unsafe { uffd.move_pages(ARENA.address(to.start), ARENA.address(from.start), len_bytes) };
                if placed.done_bytes != len_bytes {
                    return Err(Stop);
                }
            }
            Ok(())
        };
        let one_ns = self.time(|| (), || shuttle(1))? / 2;
        let many_ns = self.time(|| (), || shuttle(MOVED_PAGES))? / 2;
        self.set_moves(one_ns, many_ns);
        Ok(())
    }

    /// Drops pages that were filled before, as a block's are, one at a time and many at a time.
    fn drops(&mut self, pages: ArenaPages) -> Result<(), Stop> {
        let time = |count: u32| {
            let pages = ArenaPages::new(pages.start, pages.start + count);
            // Pages that could not be filled are dropped sooner; `Costs` clamps the result.
            let fill = || _ = ARENA.fill_zeroes(ARENA.uffd(), ARENA.address(pages.start), pages.len_bytes());
            let drop = || (pins::has_no_pins() && ARENA.make_absent(pages)).then_some(()).ok_or(Stop);
            self.time(fill, drop)
        };
        let (one_ns, many_ns) = (time(1)?, time(MOVED_PAGES)?);
        self.set_moves(one_ns, many_ns);
        Ok(())
    }

    fn set_moves(&mut self, one_ns: u64, many_ns: u64) {
        let page_ns = many_ns.saturating_sub(one_ns) / u64::from(MOVED_PAGES - 1);
        self.costs.set(Cost::MovePage, page_ns);
        self.costs.set(Cost::MoveCall, one_ns.saturating_sub(page_ns));
    }

    /// Touches absent pages, which the handler thread fills; then fills some without a fault.
    fn faults(&mut self, nonresident: ArenaPages) -> Result<(), Stop> {
        let mut page = nonresident.start;
        let mut next = || {
            page += 1;
            page - 1
        };
        let touch_ns = self.time(
            || (),
            || {
                let address = ARENA.address(next());
                // SAFETY: the page was taken by this calibration, in registered memory; the handler places
                // zeroes there.
                unsafe { (address as *const u8).read_volatile() };
                Ok(())
            },
        )?;
        let fill_ns = self.time(
            || (),
            || {
                let address = ARENA.address(next());
                ARENA.fill_zeroes(ARENA.uffd(), address, PAGE_BYTES).map_err(|_| Stop)
            },
        )?;
        self.costs.set(Cost::FillPage, fill_ns);
        self.costs.set(Cost::Fault, touch_ns.saturating_sub(fill_ns));
        ARENA.give_resident(ArenaPages::new(nonresident.start, page));
        ARENA.give_nonresident(ArenaPages::new(page, nonresident.end));
        Ok(())
    }
}

/// Evicts the lines of a range from every cache.
fn forget_lines(address: usize, len_bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: callers pass a mapped range, which clflush does not change; SSE2 is part of x86-64.
    unsafe {
        for line in (address..address + len_bytes).step_by(LINE_BYTES) {
            core::arch::x86_64::_mm_clflush(line as *const u8);
        }
        core::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, len_bytes, LINE_BYTES);
}
