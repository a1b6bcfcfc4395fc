//! Memory that uncopy keeps, and returns, in programs that know all their bytes.
//!
//! ```text
//! bounds SCENARIO SEED
//! ```

use std::time::{Duration, Instant};

use uncopy_core::stats::Counter;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::counters::Counters;
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::wait;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::random::Random;
use uncopy_tests::scratch::HANG_LIMIT;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Waits until the program's own counters are as wanted; returns at once where there are none (plain).
fn wait_until(what: &str, condition: impl Fn(&Counters) -> bool) {
    let end = Instant::now() + HANG_LIMIT;
    while let Some(counters) = Counters::live(std::process::id()) {
        if condition(&counters) {
            return;
        }
        assert!(Instant::now() < end, "{what} does not come to pass: {counters}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn work(feeder: &mut Feeder) {
    for _ in 0..2 {
        let copy = feeder.copied_buffer(MIB);
        feeder.send(OutputCall::Send, &copy, 0, 100_000);
        copy.check(0, 10_000, "copied");
    }
}

/// A program that works, rests, and works again: uncopy keeps no memory while it rests.
fn rests_after_work(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let kept = feeder.copied_buffer(MIB);
    for _ in 0..2 {
        work(&mut feeder);
        wait_until("an empty reservoir", |counters| counters.get(Counter::ReservoirBytes) == 0);
    }
    kept.check_all("kept");
}

/// Small parts of large messages, each copied out at an odd offset.
fn parts_of_messages(feeder: &mut Feeder, count: usize) -> Vec<Buffer> {
    (0..count)
        .map(|index| {
            let message = feeder.received_buffer(MIB);
            let mut part = Buffer::new(Origin::Malloc, 64 * KIB);
            part.copy_from(CopyCall::Memcpy, 0, &message, 100_000 + 1_117 * index, 64 * KIB);
            part
        })
        .collect()
}

fn wait_for_small_segments() {
    wait_until("segments as small as what is needed of them", |counters| {
        counters.get(Counter::SegmentsBytes) < 16 << 20
    });
}

/// Small parts that a program keeps of many messages must not keep whole messages in memory.
fn small_parts_of_large_messages(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let mut parts = parts_of_messages(&mut feeder, 64);
    wait_for_small_segments();
    work(&mut feeder);
    // Views that remain are split, copied, sent, touched and resized as usual.
    let copies: Vec<Buffer> =
        parts.iter().map(|part| Buffer::copy_of(CopyCall::Memmove, part, 0, part.len())).collect();
    for (index, part) in parts.iter_mut().enumerate() {
        match index % 4 {
            0 => part.store(random.below(part.len()), 1, seed),
            1 => part.copy_within(CopyCall::Memmove, 45, 0, 50_000),
            2 => part.resize(200_000),
            _ => feeder.send(OutputCall::Write, part, 0, part.len()),
        }
        part.check_all("part");
    }
    for copy in &copies {
        copy.check_all("copy of a part");
    }
}

/// A program that forks while pages of its segments are returned.
fn forks_meanwhile(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let parts = parts_of_messages(&mut feeder, 48);
    let end = Instant::now() + HANG_LIMIT;
    let mut is_done = false;
    for round in 0usize.. {
        // SAFETY: the program has one thread; the child checks and leaves.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            let mut feeder = Feeder::new(seed + round as u64);
            work(&mut feeder);
            // Reading makes the parent put the bytes in place, which leaves no segment to return pages of.
            if is_done {
                parts.iter().for_each(|part| part.check_all("in the child"));
            }
            // SAFETY: nothing is to run after this.
            unsafe { libc::_exit(0) };
        }
        let status = wait(pid);
        assert_eq!(status, 0, "the child of round {round} ended with status {status:#x}");
        if is_done && round > 4 {
            break;
        }
        let counters = Counters::live(std::process::id());
        is_done = counters.is_none_or(|counters| counters.get(Counter::SegmentsBytes) < 16 << 20);
        assert!(Instant::now() < end, "segments stay as large as they were");
    }
    parts.iter().for_each(|part| part.check_all("in the parent"));
}

/// Keeps more received data than segments may hold.
fn more_data_than_the_cap(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let mut kept: Vec<Buffer> = (0..32).map(|_| feeder.received_buffer(MIB)).collect();
    for round in 0..200 {
        let from = random.below(kept.len());
        let at = random.below(kept.len());
        if round % 2 == 0 {
            kept[at] = Buffer::copy_of(CopyCall::Memcpy, &kept[from], 0, MIB);
        } else {
            let len = random.length(MIB).max(20_000);
            feeder.receive(InputCall::Recv, &mut kept[at], 0, len.min(MIB));
        }
        feeder.send(OutputCall::Writev, &kept[from], 0, 100_000);
    }
    kept.iter().for_each(|buffer| buffer.check_all("kept"));
}

/// Values of mixed sizes, overwritten again and again.
fn mixed_sizes_overwritten(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let mut values: Vec<Option<Buffer>> = (0..100).map(|_| None).collect();
    for round in 0..1500 {
        // Spread evenly over the powers of two from 16 KiB to 2 MiB.
        let len = ((16 * KIB) << random.below(7)) + random.below(16 * KIB);
        let index = random.below(values.len());
        values[index] =
            Some(if round % 3 == 0 { feeder.copied_buffer(len) } else { feeder.received_buffer(len) });
        let used: usize = values.iter().flatten().map(Buffer::len).sum();
        if let Some(counters) = Counters::live(std::process::id()) {
            // Doubled: blocks are longer than requested, and a value exists while it is being replaced.
            let max_bytes = 2 * used as u64 + (80 << 20);
            let (segments, reservoir) =
                (counters.get(Counter::SegmentsBytes), counters.get(Counter::ReservoirBytes));
            assert!(segments + reservoir <= max_bytes, "{used} bytes are used: {counters}");
        }
    }
    values.iter().flatten().for_each(|value| value.check_all("value"));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "rests_after_work" => rests_after_work(seed),
        "small_parts_of_large_messages" => small_parts_of_large_messages(seed),
        "forks_meanwhile" => forks_meanwhile(seed),
        "more_data_than_the_cap" => more_data_than_the_cap(seed),
        "mixed_sizes_overwritten" => mixed_sizes_overwritten(seed),
        other => panic!("unknown scenario {other}"),
    }
}
