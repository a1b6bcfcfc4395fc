//! Many threads and many signals at once. For longer: `UNCOPY_TEST_HOPS=5000`, `UNCOPY_TEST_SECONDS=60`.

use std::time::Duration;

use uncopy_core::stats::Counter;
use uncopy_tests::launch::{Mode, Program};
use uncopy_tests::random::seed;
use uncopy_tests::scratch::Scratch;

/// A number from the environment, or this one.
fn amount(variable: &str, usual: u64) -> u64 {
    std::env::var(variable)
        .map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Runs a scenario of `stress` in a mode; the counters must show that something was elided.
fn stress(name: &str, mode: Mode, amount: u64, limit: Duration) {
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

fn passing(mode: Mode) {
    let hops = amount("UNCOPY_TEST_HOPS", 100);
    stress("passing", mode, hops, Duration::from_secs(60 + hops));
}

#[test]
fn eight_threads_pass_buffers_to_one_another() {
    passing(Mode::Always);
}

#[test]
fn eight_threads_pass_buffers_to_one_another_when_it_pays() {
    passing(Mode::Sliced);
}

#[test]
fn a_storm_of_signals_whose_handlers_copy_and_touch_views() {
    let seconds = amount("UNCOPY_TEST_SECONDS", 8);
    stress("storm", Mode::Always, seconds, Duration::from_secs(60 + 2 * seconds));
}
