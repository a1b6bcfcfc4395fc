//! Cost of capturing a stack with cached rules, and with one rule read from the tables.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use uncopy_unwind::{MAX_FRAMES, Registers, capture, init, invalidate_cache};

/// Calls `section` in a frame that is `levels` calls deeper, passing `most` on.
#[inline(never)]
fn below(levels: usize, most: usize, section: &mut dyn FnMut(usize)) -> usize {
    if levels == 0 {
        section(most);
        return 0;
    }
    black_box(below(levels - 1, most, section)) + 1
}

fn captures(criterion: &mut Criterion) {
    init();
    let mut frames = [0; MAX_FRAMES];
    for most in [1, 8, 32] {
        criterion.bench_function(&format!("capture {most} frames, known"), |bencher| {
            below(MAX_FRAMES, most, &mut |most| {
                bencher.iter(|| {
                    assert_eq!(capture(Registers::here(), &mut frames[..most]), most);
                    black_box(&frames);
                });
            });
        });
    }
    criterion.bench_function("capture 8 frames, unknown", |bencher| {
        below(MAX_FRAMES, 8, &mut |most| {
            bencher.iter(|| {
                invalidate_cache();
                assert_eq!(capture(Registers::here(), &mut frames[..most]), most);
            });
        });
    });
}

criterion_group!(benches, captures);
criterion_main!(benches);
