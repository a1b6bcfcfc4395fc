//! The allocator's promises for blocks that hold received data and copies of it.
//!
//! ```text
//! memory SCENARIO SEED
//! ```

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::mpsc;

use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, errno, set_errno};
use uncopy_tests::random::Random;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

unsafe extern "C" {
    fn pvalloc(len: usize) -> *mut c_void;
    fn valloc(len: usize) -> *mut c_void;
}

#[derive(Clone, Copy, Debug)]
enum Allocation {
    Malloc,
    Calloc,
    Realloc,
    Reallocarray,
    AlignedAlloc(usize),
    PosixMemalign(usize),
    Memalign(usize),
    Valloc,
    Pvalloc,
}

const ALLOCATIONS: &[Allocation] = &[
    Allocation::Malloc,
    Allocation::Calloc,
    Allocation::Realloc,
    Allocation::Reallocarray,
    Allocation::AlignedAlloc(64),
    Allocation::AlignedAlloc(4096),
    Allocation::PosixMemalign(8),
    Allocation::PosixMemalign(16384),
    Allocation::PosixMemalign(MIB),
    Allocation::Memalign(128),
    Allocation::Memalign(65536),
    Allocation::Valloc,
    Allocation::Pvalloc,
];

impl Allocation {
    fn allocate(self, len: usize) -> *mut u8 {
        // SAFETY: each call only allocates fresh memory; posix_memalign(3) writes to a local pointer.
        unsafe {
            match self {
                Self::Malloc => libc::malloc(len),
                Self::Calloc => libc::calloc(1, len),
                Self::Realloc => libc::realloc(null_mut(), len),
                Self::Reallocarray => libc::reallocarray(null_mut(), 1, len),
                Self::AlignedAlloc(alignment) => {
                    libc::aligned_alloc(alignment, len.next_multiple_of(alignment))
                }
                Self::PosixMemalign(alignment) => {
                    let mut start = null_mut();
                    match libc::posix_memalign(&raw mut start, alignment, len) {
                        0 => start,
                        _ => null_mut(),
                    }
                }
                Self::Memalign(alignment) => libc::memalign(alignment, len),
                Self::Valloc => valloc(len),
                Self::Pvalloc => pvalloc(len),
            }
        }
        .cast()
    }

    /// Returns the minimum alignment of a block of `len` bytes, in bytes.
    const fn alignment(self, len: usize) -> usize {
        match self {
            Self::AlignedAlloc(alignment) | Self::PosixMemalign(alignment) | Self::Memalign(alignment) => {
                alignment
            }
            Self::Valloc | Self::Pvalloc => 4096,
            // Smaller blocks hold no value with an alignment of 16, and other allocators make use of that.
            _ if len < 16 => 8,
            _ => 16,
        }
    }
}

/// A block of the allocator, filled with the stream `seed`.
struct Block {
    start: *mut u8,
    len: usize,
    seed: u64,
}

// SAFETY: the block belongs to this value alone.
unsafe impl Send for Block {}

impl Block {
    fn new(allocation: Allocation, len: usize, seed: u64) -> Self {
        let start = allocation.allocate(len);
        assert!(!start.is_null(), "{allocation:?} of {len} bytes: errno {}", errno());
        assert_eq!(
            start.addr() % allocation.alignment(len),
            0,
            "{allocation:?} of {len} bytes is not aligned"
        );
        if matches!(allocation, Allocation::Calloc) {
            expect_zeroes(start, len, "calloc");
        }
        // SAFETY: `start` is a live block of this allocator's.
        let usable = unsafe { libc::malloc_usable_size(start.cast()) };
        assert!(usable >= len, "{allocation:?}: usable {usable} of {len} bytes");
        // SAFETY: every usable byte may be written.
        unsafe { oracle::fill(start, usable, seed, 0) };
        Self { start, len, seed }
    }

    fn check(&self, len: usize) {
        // SAFETY: the block is allocated and has `len` bytes.
        let wrong = unsafe { oracle::stream_difference(self.start, len, self.seed, 0) };
        assert_eq!(wrong, None, "a block of {} bytes at {:p} changed", self.len, self.start);
    }

    fn free(self) {
        self.check(self.len);
        // SAFETY: `self` owns the block, which is freed here only.
        unsafe { libc::free(self.start.cast()) };
    }
}

fn expect_zeroes(start: *const u8, len: usize, what: &str) {
    let zeroes = oracle::OracleBytes::new(len);
    // SAFETY: callers pass a block of `len` bytes; `zeroes` has as many.
    let wrong = unsafe { oracle::first_difference(start, zeroes.pointer(), len) };
    assert_eq!(wrong, None, "{what} of {len} bytes is not zero there");
}

fn sizes() -> Vec<usize> {
    let mut sizes = vec![1, 2, 15, 16, 17, 100, 1000, 4095, 4096, 4097];
    for boundary in [16 * KIB, 32 * KIB, 48 * KIB, 64 * KIB, 128 * KIB, MIB, 3 * MIB, 16 * MIB] {
        sizes.extend([boundary - 1, boundary, boundary + 1, boundary + 4096]);
    }
    sizes
}

/// Every function at every size: alignment, usable size, contents, neighbours.
fn every_function_at_every_size(seed: u64) {
    let mut random = Random::new(seed);
    for allocation in ALLOCATIONS {
        let mut blocks: Vec<Block> =
            sizes().into_iter().map(|len| Block::new(*allocation, len, random.next_u64())).collect();
        while !blocks.is_empty() {
            let index = random.below(blocks.len());
            blocks.swap_remove(index).free();
        }
    }
}

/// `calloc` returns zeroes also where received data, copies and stores were.
fn calloc_after_received_data(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    for _ in 0..60 {
        let len = random.length(2 * MIB).max(40_000);
        let received = feeder.received_buffer(len);
        let copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, len);
        let mut third = Buffer::copy_of(CopyCall::Memmove, &copy, 0, len);
        third.store(len / 2, 1, 1);
        if random.one_in(2) {
            received.check_all("received");
        }
        drop((received, copy, third));
        for _ in 0..4 {
            let zero = Buffer::new(Origin::Calloc, random.pick(&[len, len / 2, len - 1, 40_000]).max(8));
            zero.check_all("calloc");
            let mut kept = zero;
            let whole = kept.len();
            feeder.receive(InputCall::Recv, &mut kept, 0, whole);
        }
    }
}

/// Blocks some of whose pages were touched before the first input: the others read as zeroes, and
/// can be written, as before.
fn blocks_touched_before_input(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let received = feeder.received_buffer(4 * MIB);
    for round in 0..120 {
        let len = random.length(4 * MIB).max(70_000);
        // Not all blocks receive bytes, so the next block of this size is not prepared for input.
        for _ in 0..3 {
            Buffer::new(Origin::Calloc, len).store(random.below(len - 8), 8, 1);
        }
        let mut block = Buffer::new(Origin::Calloc, len);
        for number in 0..random.below(12) {
            block.store(random.below(len - 8), 8, number as u64);
        }
        let start = random.below(len / 2);
        let part = random.between(20_000, len - start);
        if round % 3 == 0 {
            feeder.receive(InputCall::Read, &mut block, start, part);
        } else {
            block.copy_from(CopyCall::Memcpy, start, &received, random.below(received.len() - part), part);
        }
        match round % 4 {
            0 => block.check_sparsely(&mut random, "a block that was touched in part"),
            1 => block.resize(random.between(len / 3, 2 * len)),
            2 => feeder.receive(InputCall::Recv, &mut block, 0, len / 3),
            _ => {}
        }
        let len = block.len();
        for number in 0..8 {
            block.store(random.below(len - 8), 8, number);
        }
        block.check_all("a block that was touched in part");
    }
}

/// `realloc` of blocks that hold received data and copies, across all sizes.
fn realloc_walk(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let mut blocks: Vec<Buffer> = (0..6).map(|_| feeder.copied_buffer(200_000)).collect();
    for _ in 0..400 {
        let index = random.below(blocks.len());
        let other = (index + 1) % blocks.len();
        let len = if random.one_in(3) { random.between(1, 5000) } else { random.length(3 * MIB) };
        blocks[index].resize(len);
        match random.below(4) {
            0 => feeder.receive(InputCall::Read, &mut blocks[index], 0, len),
            1 => {
                let [target, source] = blocks.get_disjoint_mut([index, other]).expect("different");
                let len = len.min(source.len());
                target.copy_from(CopyCall::Memcpy, 0, source, 0, len);
            }
            2 => blocks[other].check_sparsely(&mut random, "a block that was not resized"),
            _ => blocks[index].check_all("a resized block"),
        }
    }
    for block in &blocks {
        block.check_all("a block at the end");
    }
}

/// Requests that must fail, and the smallest ones.
fn impossible_requests(_seed: u64) {
    let huge = black_box(usize::MAX);
    // SAFETY: requests that fail give nothing; the rest is freed.
    unsafe {
        let attempts: [(&str, &dyn Fn() -> *mut c_void); 8] = [
            ("malloc", &|| libc::malloc(huge)),
            ("malloc of half", &|| libc::malloc(huge / 2)),
            ("calloc", &|| libc::calloc(huge / 4, 8)),
            ("realloc of nothing", &|| libc::realloc(null_mut(), huge)),
            ("reallocarray", &|| libc::reallocarray(null_mut(), huge / 2, 3)),
            ("memalign", &|| libc::memalign(64, huge - 100)),
            ("valloc", &|| valloc(huge - 10)),
            ("pvalloc", &|| pvalloc(huge - 10)),
        ];
        for (what, attempt) in attempts {
            set_errno(0);
            let start = attempt();
            println!("{what}: null {} errno {}", start.is_null(), errno());
        }
        let mut untouched: *mut c_void = unset_pointer();
        for (alignment, len) in [(3, 100), (0, 100), (4, 100), (24, 100_000), (64, huge - 64)] {
            set_errno(77);
            let error = libc::posix_memalign(&raw mut untouched, alignment, len);
            println!("posix_memalign {alignment} {len}: {error} errno {}", errno());
            assert_eq!(untouched, unset_pointer(), "posix_memalign that fails must not store");
        }
        let mut feeder = Feeder::new(1);
        let mut kept = feeder.copied_buffer(MIB);
        set_errno(0);
        println!("realloc: null {}", libc::realloc(kept.at(0).cast(), huge).is_null());
        println!("errno {}", errno());
        println!("reallocarray: null {}", libc::reallocarray(kept.at(0).cast(), huge / 2, 4).is_null());
        kept.check_all("a block whose realloc failed");
        kept.resize(MIB + 1);
        kept.check_all("a block that grew afterwards");
        let (first, second) = (libc::malloc(0), libc::malloc(0));
        println!("malloc of nothing: {} {}", first.is_null(), first == second);
        println!("realloc to nothing: {}", libc::realloc(first, 0).is_null());
        libc::free(second);
        libc::free(null_mut());
        println!("usable size of nothing: {}", libc::malloc_usable_size(null_mut()));
        let large = feeder.copied_buffer(MIB);
        let start: *mut c_void = large.at(0).cast();
        std::mem::forget(large);
        println!("realloc of a large block to nothing: {}", libc::realloc(start, 0).is_null());
        set_errno(1234);
        libc::free(libc::malloc(MIB));
        println!("errno after free: {}", errno());
    }
}

/// A pointer that means "not stored to".
const fn unset_pointer() -> *mut c_void {
    std::ptr::without_provenance_mut(0x55)
}

/// Blocks freed and resized by another thread than the one that received them.
fn freed_by_another_thread(seed: u64) {
    let (sender, receiver) = mpsc::sync_channel::<Buffer>(16);
    let (back, returned) = mpsc::sync_channel::<Buffer>(16);
    let other = std::thread::spawn(move || {
        let mut random = Random::new(seed);
        for mut buffer in receiver {
            match random.below(4) {
                0 => buffer.check_all("from another thread"),
                1 => buffer.resize(random.length(MIB)),
                2 => {
                    let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, buffer.len());
                    let _ = back.try_send(copy);
                }
                _ => {}
            }
        }
    });
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed + 1);
    for _ in 0..300 {
        let len = random.length(MIB);
        sender.send(feeder.copied_buffer(len)).expect("the other thread lives");
        while let Ok(buffer) = returned.try_recv() {
            buffer.check_all("back from another thread");
        }
    }
    drop(sender);
    other.join().expect("the other thread");
}

/// A hundred megabytes in one block, received, copied, sent, grown and shrunk.
fn very_large_blocks(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let len = 100 * MIB;
    let received = feeder.received_buffer(len);
    let mut copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, len);
    feeder.send(OutputCall::Send, &copy, 50 * MIB, 20 * MIB);
    drop(received);
    copy.copy_within(CopyCall::Memmove, 45, 90, 60 * MIB);
    copy.resize(120 * MIB);
    copy.check(30 * MIB, 4 * MIB, "a part of a grown block");
    copy.resize(10_000);
    copy.check_all("what is left of it");
    copy.resize(2 * MIB);
    copy.check_all("grown again");
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("maps").lines().count()
}

/// Memory and mappings do not accumulate over thousands of rounds.
fn steady_state(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let mut kept: Vec<Buffer> = (0..8).map(|_| feeder.copied_buffer(100_000)).collect();
    let mut after_warm_up = (0, 0);
    for round in 0..2000 {
        let len = random.length(MIB).max(20_000);
        let index = random.below(kept.len());
        kept[index] = feeder.copied_buffer(len);
        let mut target = Buffer::new(Origin::Malloc, len);
        target.copy_from(CopyCall::Mempcpy, 0, &kept[index], 0, len);
        target.store(random.below(len), 1, 9);
        feeder.send(OutputCall::Writev, &target, 0, len.min(100_000));
        if round == 500 {
            after_warm_up = (resident_kib(), mappings());
        }
    }
    let at_end = (resident_kib(), mappings());
    let growth = at_end.0.saturating_sub(after_warm_up.0);
    assert!(growth < 128 << 10, "resident memory grew by {growth} KiB: {after_warm_up:?} to {at_end:?}");
    let growth = at_end.1.saturating_sub(after_warm_up.1);
    assert!(growth < 2000, "mappings grew by {growth}: {after_warm_up:?} to {at_end:?}");
    for buffer in &kept {
        buffer.check_all("kept");
    }
}

/// A program that changes the protection of buffers that held received data, and continues to use them.
fn protected_and_used_again(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut received = feeder.received_buffer(MIB);
    let mut copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, MIB);
    for buffer in [&received, &copy] {
        // SAFETY: the pages that the buffer lies in are the program's, and stay readable and writable.
        let changed = unsafe {
            let first = buffer.at(0) as usize / 4096 * 4096;
            libc::mprotect(first as *mut c_void, MIB, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(changed, 0, "mprotect: {}", errno());
    }
    received.check_all("received before mprotect");
    copy.check_all("copied before mprotect");
    for _ in 0..3 {
        feeder.receive(InputCall::Recv, &mut received, 0, MIB);
        copy.copy_from(CopyCall::Memcpy, 0, &received, 0, MIB);
        received.check_all("received after mprotect");
        copy.check_all("copied after mprotect");
        let fresh = feeder.received_buffer(MIB);
        copy.copy_from(CopyCall::Memmove, 0, &fresh, 0, MIB);
        copy.check_all("copied from a view after mprotect");
    }
}

/// Signal handlers fork while blocks are freed whose pages are returned to the kernel.
fn forked_while_freeing(_seed: u64) {
    extern "C" fn fork(_signal: i32) {
        // SAFETY: the child ends at once; the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
    }
    let every = |us| libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: us },
        it_value: libc::timeval { tv_sec: 0, tv_usec: us },
    };
    // SAFETY: the handler makes calls that may be made in one.
    unsafe { libc::signal(libc::SIGALRM, fork as *const () as usize) };
    // With so much memory in use, the allocator may retain more than the tens of MiB that it always keeps.
    let kept = black_box(Vec::<u8>::with_capacity(256 * MIB));
    for _ in 0..4 {
        let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![black_box(7u8); MIB]).collect();
        drop(black_box(blocks));
        // SAFETY: the timer value is a temporary that lives through the call; a null old value is allowed.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &every(5000), null_mut()) };
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(400) {
            drop(black_box(vec![black_box(5u8); 64 * KIB]));
        }
        // SAFETY: the timer value is a temporary that lives through the call; a null old value is allowed.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &every(0), null_mut()) };
    }
    drop(kept);
}

/// Whether the allocator is uncopy's, which promises more than glibc's.
fn is_preloaded() -> bool {
    std::env::var_os("LD_PRELOAD").is_some()
}

/// Blocks of one request have one usable size, before and after growth in place, whatever happened before.
fn usable_size_depends_on_the_request_alone(seed: u64) {
    if !is_preloaded() {
        return;
    }
    let mut random = Random::new(seed);
    let mut sizes = std::collections::HashMap::new();
    let mut blocks: Vec<*mut c_void> = Vec::new();
    for _ in 0..4000 {
        let len =
            [40_000, 65_536, 131_072, 131_200, 262_144, 1_000_000][random.below(6)] + random.below(2) * 100;
        // SAFETY: allocation of fresh memory, of which every pointer is kept in one place.
        unsafe {
            let pointer = if random.below(4) == 0 && !blocks.is_empty() {
                libc::realloc(blocks.swap_remove(random.below(blocks.len())), len)
            } else {
                libc::malloc(len)
            };
            assert!(!pointer.is_null());
            let usable = libc::malloc_usable_size(pointer);
            assert!(usable >= len, "{usable} for {len}");
            let first = *sizes.entry(len).or_insert(usable);
            assert_eq!(usable, first, "of blocks of {len} bytes");
            blocks.push(pointer);
            if blocks.len() > 40 {
                libc::free(blocks.swap_remove(random.below(blocks.len())));
            }
        }
    }
    // SAFETY: each was allocated and not freed.
    blocks.into_iter().for_each(|pointer| unsafe { libc::free(pointer) });
}

/// A process without a handler thread frees all blocks, every second one first: the remaining
/// resident memory is bounded.
fn freed_memory_is_not_kept(_seed: u64) {
    if !is_preloaded() {
        return;
    }
    const HELD_BYTES: usize = 600 * MIB;
    const BOUND_BYTES: usize = 64 * MIB;
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("statm");
        4096 * pages
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse::<usize>().ok())
            .expect("a number of pages")
    };
    for len in [32 * KIB, 100 * KIB, MIB, 5 * MIB] {
        let before = resident();
        // SAFETY: fresh memory of `len` bytes each, freed once.
        unsafe {
            let blocks: Vec<_> = (0..HELD_BYTES / len).map(|_| libc::malloc(len)).collect();
            for block in &blocks {
                block.cast::<u8>().write_bytes(1, len);
            }
            blocks.iter().step_by(2).for_each(|block| libc::free(*block));
            blocks.iter().skip(1).step_by(2).for_each(|block| libc::free(*block));
        }
        let kept = resident().saturating_sub(before);
        assert!(kept <= BOUND_BYTES, "of blocks of {len} bytes {} MiB stay", kept / MIB);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "every_function_at_every_size" => every_function_at_every_size(seed),
        "calloc_after_received_data" => calloc_after_received_data(seed),
        "blocks_touched_before_input" => blocks_touched_before_input(seed),
        "realloc_walk" => realloc_walk(seed),
        "impossible_requests" => impossible_requests(seed),
        "freed_by_another_thread" => freed_by_another_thread(seed),
        "very_large_blocks" => very_large_blocks(seed),
        "steady_state" => steady_state(seed),
        "forked_while_freeing" => forked_while_freeing(seed),
        "protected_and_used_again" => protected_and_used_again(seed),
        "usable_size_depends_on_the_request_alone" => usable_size_depends_on_the_request_alone(seed),
        "freed_memory_is_not_kept" => freed_memory_is_not_kept(seed),
        other => panic!("unknown scenario {other}"),
    }
}
