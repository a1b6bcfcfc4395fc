//! Many threads and many signals at once; `UNCOPY_TEST_SIZE=100` runs for longer.

use std::time::Duration;

use uncopy_core::stats::Counter;
use uncopy_tests::launch::{Mode, Program};
use uncopy_tests::random::{seed, test_size};
use uncopy_tests::scratch::Scratch;

/// Runs a scenario of `stress` in a mode, and expects counters that show elided copies.
fn run_stress(name: &str, mode: Mode, amount: u64, limit: Duration) {
    let seed = seed(1);
    println!("seed {seed}");
    let scratch = Scratch::new(name);
    let program = Program::new(env!("CARGO_BIN_EXE_stress"))
        .args([name, &seed.to_string(), &amount.to_string()])
        .mode(mode)
        .directory(scratch.path())
        .limit(limit);
    let done = program.run(&scratch, name).expect_success();
    println!("{}", done.errors);
    let _ = done.expect_counters(&[
        Counter::ElidedBytes,
        Counter::InputBytes,
        Counter::OutputBytes,
        Counter::Faults,
    ]);
}

fn pass_buffers(mode: Mode) {
    let hops = 10 * test_size();
    run_stress("passing", mode, hops, Duration::from_secs(60 + hops));
}

#[test]
fn eight_threads_pass_buffers_to_one_another() {
    pass_buffers(Mode::Always);
}

#[test]
fn eight_threads_pass_buffers_to_one_another_under_the_default_policy() {
    pass_buffers(Mode::Sliced);
}

#[test]
fn signal_storm_with_handlers_that_copy_and_touch_views() {
    let seconds = (8 * test_size()).div_ceil(10);
    run_stress("storm", Mode::Always, seconds, Duration::from_secs(60 + 2 * seconds));
}
