//! Cost of tracking in the engine: looking up, making and dropping a view, each including the search for
//! the block, its lock and its counts; and a whole copy between two buffers.
//!
//! Needs permission to use userfaultfd. `make bench-tracking` runs it; the medians of the first three
//! should be at most 100 ns whatever the number of views.
#![allow(clippy::cast_possible_truncation, reason = "numbers of a benchmark fit 32 bits")]

use std::hint::black_box;
use std::time::{Duration, Instant};
use uncopy_engine::background::activation;
use uncopy_engine::range::directory;
use uncopy_engine::range::heap::HEAP;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::options::{Options, Policy};
use uncopy_core::page_map::{Dropped, View};
use uncopy_engine::arena::segment::{Draft, Segment};
use uncopy_engine::call::copy::copy;
use uncopy_engine::range::block::BlockRef;
use uncopy_sys::alloc::PrivateHeap;
use uncopy_sys::lock::Critical;

#[global_allocator]
static PRIVATE: PrivateHeap = PrivateHeap::new();

/// Live views, and the number per block: few, and as many as allowed (`MAX_VIEWS` in the engine).
const PLACEMENTS: [(u32, u32); 5] = [(10, 1), (10, 10), (1_000, 1_000), (100_000, 10), (100_000, 2_048)];
/// Pages between the starts of two views, so that each can be dropped and made by itself.
const STRIDE_PAGES: u32 = 4;
const VIEW_PAGES: u32 = 3;
/// Views that are dropped and made between two readings of the clock.
const BATCH: u32 = 64;

/// Blocks with `views` views altogether, at most `each` in a block.
struct Views {
    blocks: Vec<usize>,
    segment: Segment,
    each: u32,
    views: u32,
    random: u64,
}

impl Views {
    fn new(views: u32, each: u32) -> Self {
        let bytes = (each * STRIDE_PAGES) as usize * PAGE_BYTES;
        assert!(activation::activate(), "userfaultfd can be used");
        let draft = Draft::new(PAGE_BYTES * VIEW_PAGES as usize).expect("memory");
        let blocks = (0..views.div_ceil(each)).map(|_| block(bytes).base).collect();
        let mut all = Self { blocks, segment: draft.freeze(0), each, views, random: 0x9E37_79B9_7F4A_7C15 };
        (0..views).for_each(|view| all.insert(view));
        all
    }

    /// A view chosen at random.
    fn any(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random % u64::from(self.views)).unwrap_or(0)
    }

    fn at(&self, view: u32) -> (usize, PageRange) {
        let start = view % self.each * STRIDE_PAGES;
        let address = self.blocks[(view / self.each) as usize] + start as usize * PAGE_BYTES;
        (address, PageRange::new(start, start + VIEW_PAGES))
    }

    fn lookup(&self, view: u32) {
        let (address, pages) = self.at(view);
        let locked = directory::find(address).expect("a block").lock();
        black_box(locked.map().map(|map| map.at(pages.start, pages)));
    }

    fn insert(&mut self, view: u32) {
        let (address, pages) = self.at(view);
        let target = View { segment: self.segment.clone(), offset_bytes: 45 * view as usize, site: 0 };
        let mut dropped = Dropped::new();
        let mut locked = directory::find(address).expect("a block").lock();
        locked.change(|map| map.set_viewed(pages, target, &mut dropped));
        drop(locked);
    }

    fn drop_view(&mut self, view: u32) {
        let (address, pages) = self.at(view);
        let mut dropped = Dropped::new();
        let mut locked = directory::find(address).expect("a block").lock();
        locked.change(|map| map.set_empty(pages, &mut dropped));
        drop(locked);
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|block| HEAP.free(*block));
    }
}

/// Allocates and registers a block.
fn block(bytes: usize) -> BlockRef {
    assert!(activation::activate(), "userfaultfd can be used");
    let at = HEAP.allocate_aligned(bytes, 1).expect("a block").at;
    let _critical = Critical::enter();
    at.lock().register().expect("registered");
    at
}

fn configure() {
    activation::configure(&Options { policy: Policy::Always, foreign: false, ..Options::default() });
    assert!(activation::ensure_heap(), "there is memory for the block heap");
}

fn map_operations(criterion: &mut Criterion) {
    configure();
    for (views, each) in PLACEMENTS {
        let mut all = Views::new(views, each);
        let name = format!("{views} views, {each} in a block");
        let mut group = criterion.benchmark_group("block");
        group.bench_function(BenchmarkId::new("lookup", &name), |bencher| {
            bencher.iter(|| {
                let view = all.any();
                all.lookup(view);
            });
        });
        let batch = BATCH.min((views / 2).max(1));
        for timed in ["insert", "drop"] {
            group.bench_function(BenchmarkId::new(timed, &name), |bencher| {
                bencher.iter_custom(|rounds| {
                    let mut total = Duration::ZERO;
                    let mut left = rounds;
                    while left > 0 {
                        let count = left.min(u64::from(batch)) as usize;
                        left -= count as u64;
                        let mut chosen: Vec<u32> = (0..count).map(|_| all.any()).collect();
                        chosen.sort_unstable();
                        chosen.dedup();
                        let begin = Instant::now();
                        chosen.iter().for_each(|view| all.drop_view(*view));
                        let dropped = Instant::now();
                        chosen.iter().for_each(|view| all.insert(*view));
                        let end = Instant::now();
                        let spent = if timed == "drop" { dropped - begin } else { end - dropped };
                        total += spent.mul_f64(count as f64 / chosen.len() as f64);
                    }
                    total
                });
            });
        }
        group.finish();
    }
}

/// A message that is copied from buffer to buffer, each copy a view of the same segment.
fn copies(criterion: &mut Criterion) {
    const BUFFERS: usize = 13;
    let mut group = criterion.benchmark_group("copy");
    for bytes in [64 << 10, 512 << 10] {
        assert!(activation::activate(), "userfaultfd can be used");
        let buffers: Vec<BlockRef> = (0..BUFFERS).map(|_| block(bytes)).collect();
        for at in &buffers {
            let draft = Draft::new(bytes).expect("memory");
            let view = View { segment: draft.freeze(0), offset_bytes: 0, site: 0 };
            let pages = PageRange::new(0, (bytes / PAGE_BYTES) as u32);
            let _critical = Critical::enter();
            at.lock().change(|map| map.set_viewed(pages, view, &mut Dropped::new()));
        }
        let mut next = 0;
        group.bench_function(BenchmarkId::new("view to view", format!("{} KiB", bytes >> 10)), |bencher| {
            bencher.iter(|| {
                let (from, to) = (buffers[next % BUFFERS], buffers[(next + 1) % BUFFERS]);
                next += 1;
                // SAFETY: both are blocks of at least `bytes` bytes, distinct and used by this thread alone.
                assert!(unsafe { copy(to.base, from.base, bytes, 1) });
            });
        });
        buffers.iter().for_each(|at| HEAP.free(at.base));
    }
    group.finish();
}

criterion_group!(benches, map_operations, copies);
criterion_main!(benches);
