//! Cost of the twin allocator: allocating and freeing, lending, writing to an object in flight, and a
//! write-protect fault compared with a native page fault (ZCopy, Table 2). Also the space it wastes.
//!
//! Needs permission to use userfaultfd. `make bench-twin` runs this benchmark.
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
                // SAFETY: `allocate` has just returned `object`, which nothing else uses.
                unsafe { deallocate(black_box(object)) };
            });
        });
        group.bench_function(BenchmarkId::new("malloc", size), |bencher| {
            bencher.iter(|| {
                // SAFETY: free(3) takes what malloc(3) has just returned.
                unsafe { libc::free(black_box(libc::malloc(black_box(size)))) };
            });
        });
    }
    group.finish();
    // A thousand objects at a time, freed in the order of allocation.
    let mut group = criterion.benchmark_group("a thousand of 1000 bytes");
    group.bench_function("twin", |bencher| {
        bencher.iter(|| {
            let objects: [*mut u8; 1000] = core::array::from_fn(|_| allocate(1000));
            // SAFETY: `allocate` has just returned these objects, which nothing uses and which are freed
            // once.
            objects.iter().for_each(|object| unsafe { deallocate(*object) });
        });
    });
    group.bench_function("malloc", |bencher| {
        bencher.iter(|| {
            // SAFETY: free(3) takes what malloc(3) has just returned, each pointer once.
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

/// Prints percentiles of single events; the lower ones are immune to other load on the machine.
fn report(name: &str, mut once: impl FnMut() -> Duration) {
    let mut times: Vec<u128> = (0..2000).map(|_| once().as_nanos()).collect();
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100] as f64 / 1000.0;
    println!("{name}: {:.2} µs (10 %), {:.2} µs (median), {:.2} µs (90 %)", at(10), at(50), at(90));
}

/// Returns the time that `write` takes on an object of `pages` pages after `prepare`.
fn time_write(pages: usize, prepare: impl Fn(&mut [u8]), write: impl Fn(&mut [u8])) -> Duration {
    let mut buffer = Buffer::zeroed(pages * PAGE_BYTES).expect("memory");
    prepare(&mut buffer);
    let start = Instant::now();
    write(black_box(&mut buffer));
    start.elapsed()
}

/// Measures writes to memory in flight, and reproduces ZCopy's Table 2.
fn report_mutations(_criterion: &mut Criterion) {
    let lend_all =
        |buffer: &mut [u8], until| lend(buffer.as_ptr() as usize, buffer.len(), until).expect("lent");
    let one_byte = |buffer: &mut [u8]| buffer[buffer.len() / 2] = 1;
    report("write to a page in flight", || {
        time_write(16, |buffer| drop(lend_all(buffer, Until::Dropped)), one_byte)
    });
    report("write to a protected page that is not in flight", || {
        time_write(16, |buffer| settle(lend_all(buffer, Until::Completed)), one_byte)
    });
    report("write to an ordinary page", || time_write(16, |_| {}, one_byte));
    // A fault of the kernel's own: the first write to a fresh anonymous page.
    report("native page fault", || {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: mmap(2) without an address hint affects no existing mapping. The mapping is writable, used
        // only here, and unmapped once.
        unsafe {
            let memory = libc::mmap(core::ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0);
            assert!(memory != libc::MAP_FAILED);
            let start = Instant::now();
            memory.cast::<u8>().write_volatile(1);
            let spent = start.elapsed();
            libc::munmap(memory, PAGE_BYTES);
            spent
        }
    });
    for pages in [16, 128] {
        report(&format!("write to all of {} KiB in flight", pages * 4), || {
            time_write(pages, |buffer| drop(lend_all(buffer, Until::Dropped)), |buffer| buffer.fill(1))
        });
        report(&format!("allocate and fill {} KiB, lend, free", pages * 4), || {
            let start = Instant::now();
            let mut buffer = Buffer::zeroed(pages * PAGE_BYTES).expect("memory");
            drop(lend_all(&mut buffer, Until::Dropped));
            drop(buffer);
            start.elapsed()
        });
    }
}

/// Measures waste with the value sizes of memcached's pool ETC (Atikoglu et al., SIGMETRICS 2012: many small
/// ones, a long tail), drawn from a generalised Pareto distribution with the paper's parameters.
fn report_waste(_criterion: &mut Criterion) {
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    // All objects are kept, so that none reuses the free slots of another size.
    let mut objects = Vec::new();
    for (name, least, most) in [("up to a page", 1usize, 4096usize), ("of all sizes", 1, 1 << 20)] {
        let before = statistics().used_bytes;
        let mut asked = 0usize;
        let start = objects.len();
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
            objects.len() - start,
            asked,
            used,
            100.0 * (1.0 - asked as f64 / used as f64)
        );
    }
}

/// Returns the processor time used by the calling thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes to `time`, which outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Measures the processor time of allocating and freeing with several threads at once.
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
                            let start = processor_time();
                            for round in 0..rounds {
                                let slot = &mut kept[round * 7 % 100];
                                // SAFETY: `slot` is null or an object allocated below and not freed since;
                                // nothing else uses the object.
                                unsafe { deallocate(*slot) };
                                *slot = allocate(black_box(size));
                            }
                            let spent = (processor_time() - start) / rounds as u32;
                            // SAFETY: each entry is null or an object that was not freed, and nothing uses
                            // the objects.
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
