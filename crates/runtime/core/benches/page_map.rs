//! Benchmarks of the page map: look up, insert and drop a view while there are few or many.
//!
//! `make bench-tracking` runs them together with the engine's (`crates/runtime/engine/benches`). The
//! medians are to be at most 100 ns at any number of views.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use uncopy_core::addr::PageRange;
use uncopy_core::page_map::{Dropped, PageMap, View};

/// Maximum number of views of one block (`MAX_VIEWS` in the engine).
const MAX_VIEWS: u32 = 2048;

/// Number of live views, and of views in each block.
const PLACEMENTS: [(u32, u32); 5] = [(10, 1), (10, 10), (1_000, 1_000), (100_000, 10), (100_000, MAX_VIEWS)];

/// Distance between the starts of two views, so that each can be dropped by itself.
const STRIDE_PAGES: u32 = 4;
const VIEW_PAGES: u32 = 3;

/// Blocks with `views` views in all and `each` views per block.
struct Blocks {
    maps: Vec<PageMap<Arc<u32>>>,
    each: u32,
    views: u32,
    segment: Arc<u32>,
    random: u64,
}

impl Blocks {
    fn new(views: u32, each: u32) -> Self {
        let maps = (0..views.div_ceil(each)).map(|_| PageMap::new()).collect();
        let mut blocks = Self { maps, each, views, segment: Arc::new(0), random: 0x9E37_79B9_7F4A_7C15 };
        for view in 0..views {
            blocks.insert(view);
        }
        blocks
    }

    fn random_view(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random % u64::from(self.views)).unwrap_or(0)
    }

    fn pages(&self, view: u32) -> PageRange {
        let start = view % self.each * STRIDE_PAGES;
        PageRange::new(start, start + VIEW_PAGES)
    }

    fn map(&mut self, view: u32) -> &mut PageMap<Arc<u32>> {
        &mut self.maps[(view / self.each) as usize]
    }

    fn insert(&mut self, view: u32) {
        let pages = self.pages(view);
        let target = View { segment: Arc::clone(&self.segment), offset_bytes: 45 * view as usize, site: 0 };
        let mut dropped = Dropped::new();
        self.map(view).set_viewed(pages, target, &mut dropped);
    }

    fn drop_view(&mut self, view: u32) {
        let pages = self.pages(view);
        let mut dropped = Dropped::new();
        self.map(view).set_present(pages, &mut dropped);
    }

    fn lookup(&mut self, view: u32) {
        let pages = self.pages(view);
        black_box(self.map(view).at(pages.start + 1, pages));
    }
}

fn page_map(criterion: &mut Criterion) {
    for (views, each) in PLACEMENTS {
        let mut blocks = Blocks::new(views, each);
        let name = format!("{views} views, {each} in a block");
        let mut group = criterion.benchmark_group("page map");
        group.bench_function(BenchmarkId::new("lookup", &name), |bencher| {
            bencher.iter(|| {
                let view = blocks.random_view();
                blocks.lookup(view);
            });
        });
        // Drops some views and inserts them again in another order, so that the map's size stays the same.
        let batch = (views / 2).clamp(1, 64);
        let mut chosen = Vec::new();
        for timed in ["insert", "drop"] {
            group.bench_function(BenchmarkId::new(timed, &name), |bencher| {
                bencher.iter_custom(|rounds| {
                    let mut total = std::time::Duration::ZERO;
                    let mut left = rounds;
                    while left > 0 {
                        let count = left.min(u64::from(batch));
                        left -= count;
                        chosen.clear();
                        while (chosen.len() as u64) < count {
                            let view = blocks.random_view();
                            if !chosen.contains(&view) {
                                chosen.push(view);
                            }
                        }
                        let begin = std::time::Instant::now();
                        chosen.iter().for_each(|view| blocks.drop_view(*view));
                        let dropped = std::time::Instant::now();
                        chosen.iter().rev().for_each(|view| blocks.insert(*view));
                        let end = std::time::Instant::now();
                        total += if timed == "drop" { dropped - begin } else { end - dropped };
                    }
                    total
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, page_map);
criterion_main!(benches);
