//! Children that read what their parent received and does not use. They get no memory of their own for it.
//!
//! ```text
//! inherited SCENARIO SEED
//! ```

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use uncopy_core::stats::Counter;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::counters::Counters;
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::{fork_child, wait};
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::random::Random;
use uncopy_tests::scratch::HANG_LIMIT;

const MIB: usize = 1 << 20;
/// Memory of its own that a child may get by reading shared buffers.
const FEW: usize = MIB;

/// Bytes that this process does not share with another.
fn private_bytes() -> usize {
    let map = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let line = map.lines().find(|line| line.starts_with("Private_Dirty:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") << 10
}

/// Uses buffers in a child as it would use its own: changes them, receives over them, resizes and frees them.
fn use_all(buffers: &mut [Buffer], seed: u64) {
    let (mut feeder, mut random) = (Feeder::new(seed), Random::new(seed));
    for index in 0..buffers.len() {
        let other = (index + 1) % buffers.len();
        let [buffer, from] = buffers.get_disjoint_mut([index, other]).expect("different");
        let at = random.below(buffer.len() / 2);
        match index % 5 {
            0 => buffer.store(at, 100_000, seed),
            1 => buffer.copy_from(CopyCall::Memmove, at, from, 45, 300_000),
            2 => feeder.receive(InputCall::Read, buffer, at, 400_000),
            3 => buffer.resize(2 * MIB + at),
            _ => *buffer = feeder.copied_buffer(MIB),
        }
        feeder.send(OutputCall::Send, buffer, 0, MIB);
    }
    let pid = fork_child(|| buffers.iter().for_each(|buffer| buffer.check_all("in the child's child")));
    assert_eq!(wait(pid), 0, "the child's child failed");
    let fresh: Vec<Buffer> = (0..4).map(|_| feeder.copied_buffer(MIB)).collect();
    buffers.iter().chain(&fresh).for_each(|buffer| buffer.check_all("used in the child"));
}

/// Forks a child that reads all of `buffers`, and returns the memory that this cost it.
fn cost_of_reading(buffers: &mut [Buffer]) -> usize {
    let (mut result, mut end) = std::io::pipe().expect("a pipe");
    let seed = buffers.len() as u64;
    let pid = fork_child(|| {
        let before = private_bytes();
        buffers.iter().for_each(|buffer| buffer.check_all("in the child"));
        let cost = private_bytes().saturating_sub(before);
        end.write_all(&cost.to_ne_bytes()).expect("the parent reads");
        use_all(buffers, seed);
    });
    drop(end);
    let mut cost = [0; size_of::<usize>()];
    let read = result.read_exact(&mut cost);
    assert_eq!(wait(pid), 0, "the child failed");
    read.expect("a cost");
    usize::from_ne_bytes(cost)
}

/// Checks that children soon get no memory of their own by reading.
fn expect_shared(buffers: &mut [Buffer]) {
    let end = Instant::now() + HANG_LIMIT;
    loop {
        let cost = cost_of_reading(buffers);
        if cost < FEW {
            break;
        }
        assert!(Instant::now() < end, "children still get {cost} bytes of their own");
        std::thread::sleep(Duration::from_millis(100));
    }
    buffers.iter().for_each(|buffer| buffer.check_all("in the parent"));
}

/// Received data is put in place in the parent, once a child has read it.
fn received_data(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers: Vec<Buffer> = (0..8).map(|_| feeder.received_buffer(MIB)).collect();
    expect_shared(&mut buffers);
}

/// Copies whose bytes lie elsewhere in their pages are, too.
fn shifted_copies(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let shifted = |_| {
        let received = feeder.received_buffer(MIB);
        let mut copy = Buffer::new(Origin::Malloc, MIB);
        copy.copy_from(CopyCall::Memcpy, 100, &received, 0, MIB - 100);
        copy
    };
    let mut buffers: Vec<Buffer> = (0..8).map(shifted).collect();
    expect_shared(&mut buffers);
}

/// Children that read nothing leave the views as they are.
fn unread_data(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let buffers: Vec<Buffer> = (0..8).map(|_| feeder.copied_buffer(MIB)).collect();
    let placed =
        || Counters::live(std::process::id()).map(|counters| counters.get(Counter::MaterializedBytes));
    let before = placed();
    for _ in 0..30 {
        assert_eq!(wait(fork_child(|| ())), 0, "the child failed");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(placed(), before, "bytes put in place");
    buffers.iter().for_each(|buffer| buffer.check_all("in the parent"));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "received_data" => received_data(seed),
        "shifted_copies" => shifted_copies(seed),
        "unread_data" => unread_data(seed),
        other => panic!("unknown scenario {other}"),
    }
}
