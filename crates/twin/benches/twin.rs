//! What the twin allocator costs: allocating and freeing, lending, a write to an object in flight, and a
//! write-protect fault next to a native page fault (ZCopy Table 2); and what it wastes.
//!
//! Needs permission to use userfaultfd. `make bench-twin` runs it.
#![allow(clippy::cast_possible_truncation, reason = "numbers of a benchmark fit 32 bits")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use uncopy_sys::PAGE_BYTES;
use uncopy_twin::{Buffer, Until, allocate, deallocate, lend, settle, statistics};

fn allocating(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate and free");
    for size in [64usize, 1000, 4096, 16 << 10, 64 << 10] {
        group.bench_function(BenchmarkId::new("twin", size), |bencher| {
            bencher.iter(|| {
                let object = allocate(black_box(size));
                // SAFETY: allocated just now, and not used.
                unsafe { deallocate(black_box(object)) };
            });
        });
        group.bench_function(BenchmarkId::new("malloc", size), |bencher| {
            bencher.iter(|| {
                // SAFETY: freed as it was allocated.
                unsafe { libc::free(black_box(libc::malloc(black_box(size)))) };
            });
        });
    }
    group.finish();
    // A thousand at a time, in the order of a queue.
    let mut group = criterion.benchmark_group("a thousand of 1000 bytes");
    group.bench_function("twin", |bencher| {
        bencher.iter(|| {
            let objects: [*mut u8; 1000] = core::array::from_fn(|_| allocate(1000));
            // SAFETY: allocated just now, and not used.
            objects.iter().for_each(|object| unsafe { deallocate(*object) });
        });
    });
    group.bench_function("malloc", |bencher| {
        bencher.iter(|| {
            // SAFETY: freed as they were allocated.
            unsafe {
                let objects: [*mut libc::c_void; 1000] = core::array::from_fn(|_| libc::malloc(1000));
                objects.iter().for_each(|object| libc::free(*object));
            }
        });
    });
    group.finish();
}

fn lending(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lend");
    for size in [4 * PAGE_BYTES, 16 * PAGE_BYTES, 128 * PAGE_BYTES] {
        let buffer = Buffer::zeroed(size).expect("memory");
        group.bench_function(BenchmarkId::new("again", size >> 10), |bencher| {
            bencher.iter(|| drop(black_box(lend(buffer.as_ptr() as usize, size, Until::Dropped))));
        });
    }
    group.finish();
}

/// Times of single events, in order: what others do on the machine moves the mean, not the lower percentiles.
fn report(name: &str, mut once: impl FnMut() -> Duration) {
    let mut times: Vec<u128> = (0..2000).map(|_| once().as_nanos()).collect();
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100] as f64 / 1000.0;
    println!("{name}: {:.2} µs (10 %), {:.2} µs (median), {:.2} µs (90 %)", at(10), at(50), at(90));
}

/// Time that `write` takes on an object of so many pages that `prepare` has prepared.
fn writing(pages: usize, prepare: impl Fn(&mut [u8]), write: impl Fn(&mut [u8])) -> Duration {
    let mut buffer = Buffer::zeroed(pages * PAGE_BYTES).expect("memory");
    prepare(&mut buffer);
    let begin = Instant::now();
    write(black_box(&mut buffer));
    begin.elapsed()
}

/// A write to memory in flight, and ZCopy's Table 2.
fn report_mutations(_criterion: &mut Criterion) {
    let lend_all =
        |buffer: &mut [u8], until| lend(buffer.as_ptr() as usize, buffer.len(), until).expect("lent");
    let one_byte = |buffer: &mut [u8]| buffer[buffer.len() / 2] = 1;
    report("write to a page in flight", || {
        writing(16, |buffer| drop(lend_all(buffer, Until::Dropped)), one_byte)
    });
    report("write to a protected page that is not in flight", || {
        writing(16, |buffer| settle(lend_all(buffer, Until::Completed)), one_byte)
    });
    report("write to an ordinary page", || writing(16, |_| {}, one_byte));
    // The kernel's own: a fresh anonymous page.
    report("native page fault", || {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping of this function's own.
        unsafe {
            let memory = libc::mmap(core::ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0);
            assert!(memory != libc::MAP_FAILED);
            let begin = Instant::now();
            memory.cast::<u8>().write_volatile(1);
            let spent = begin.elapsed();
            libc::munmap(memory, PAGE_BYTES);
            spent
        }
    });
    for pages in [16, 128] {
        report(&format!("write to all of {} KiB in flight", pages * 4), || {
            writing(pages, |buffer| drop(lend_all(buffer, Until::Dropped)), |buffer| buffer.fill(1))
        });
        report(&format!("allocate and fill {} KiB, lend, free", pages * 4), || {
            let begin = Instant::now();
            let mut buffer = Buffer::zeroed(pages * PAGE_BYTES).expect("memory");
            drop(lend_all(&mut buffer, Until::Dropped));
            drop(buffer);
            begin.elapsed()
        });
    }
}

/// Sizes as memcached's values have them (Atikoglu et al., SIGMETRICS 2012, pool ETC: many small, a long tail), drawn
/// from a generalised Pareto distribution with their parameters.
fn report_waste(_criterion: &mut Criterion) {
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    // All are kept, so that no size finds another one's free slots.
    let mut objects = Vec::new();
    for (name, least, most) in [("up to a page", 1usize, 4096usize), ("of all sizes", 1, 1 << 20)] {
        let before = statistics().used_bytes;
        let mut asked = 0usize;
        let begin = objects.len();
        while asked < 256 << 20 {
            let (scale, shape) = (214.476, 0.348_238);
            let size = (scale / shape * ((1.0 - next()).powf(-shape) - 1.0)) as usize;
            let size = size.clamp(least, most);
            asked += size;
            objects.push(Buffer::zeroed(size).expect("memory"));
        }
        let used = (statistics().used_bytes - before) as usize;
        println!(
            "waste, ETC value sizes {name}: {} objects, {} bytes asked for, {} bytes of pages: {:.2} %",
            objects.len() - begin,
            asked,
            used,
            100.0 * (1.0 - asked as f64 / used as f64)
        );
    }
}

/// Processor time that the calling thread has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Allocating and freeing in several threads at once: what each operation takes of a processor.
fn report_threads(_criterion: &mut Criterion) {
    const ROUNDS: usize = 1_000_000;
    for threads in [1, 2, 4] {
        for size in [100usize, 1000, 16 << 10] {
            let spent: Duration = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..threads)
                    .map(|_| {
                        scope.spawn(move || {
                            let mut kept = [core::ptr::null_mut(); 100];
                            let rounds = if size > PAGE_BYTES { ROUNDS / 10 } else { ROUNDS };
                            let begin = processor_time();
                            for round in 0..rounds {
                                let place = &mut kept[round * 7 % 100];
                                // SAFETY: null, or allocated below, and not used.
                                unsafe { deallocate(*place) };
                                *place = allocate(black_box(size));
                            }
                            let spent = (processor_time() - begin) / rounds as u32;
                            // SAFETY: as above.
                            kept.iter().for_each(|object| unsafe { deallocate(*object) });
                            spent
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("a thread ends well")).sum()
            });
            println!(
                "{threads} threads, {size} bytes: {:?} of a processor for allocating and freeing",
                spent / threads
            );
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = report_waste, report_mutations, report_threads, allocating, lending
}
criterion_main!(benches);
