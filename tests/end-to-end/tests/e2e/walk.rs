//! Long random walks over buffers, sockets, pipes and a file, with every byte known to an oracle.

use uncopy_core::stats::Counter;
use uncopy_tests::random::{rounds, seed, test_size};
use uncopy_tests::{Mode, Program, Scratch};

const WORKED: &[Counter] =
    &[Counter::ElidedBytes, Counter::InputBytes, Counter::OutputBytes, Counter::Faults];

/// Runs a walk for each of several seeds from `first_seed` on: `walks` seeds in tests of size 10.
fn walk(mode: Mode, first_seed: u64, walks: u64, extra: &[&str], variables: &[(&str, &str)]) {
    let scratch = Scratch::new("walk");
    let steps = rounds(2500).to_string();
    for walk in 0..(walks * test_size().min(10)).div_ceil(10) {
        let seed = (seed(first_seed) + walk).to_string();
        let file = scratch.join(&format!("file-{walk}"));
        let mut program = Program::new(env!("CARGO_BIN_EXE_walk"))
            .args([&seed, &steps])
            .args([file])
            .args(extra)
            .mode(mode);
        for (name, value) in variables {
            program = program.env(name, value);
        }
        let done = program.run(&scratch, &format!("walk-{seed}")).expect_success();
        if variables.is_empty() {
            let _ = done.expect_counters(WORKED);
        }
    }
}

#[test]
fn eliding_everything_keeps_every_byte() {
    walk(Mode::Always, 100, 10, &[], &[]);
}

#[test]
fn the_default_policy_keeps_every_byte() {
    walk(Mode::Auto, 200, 6, &[], &[]);
}

#[test]
fn the_default_threshold_keeps_every_byte() {
    walk(Mode::Always, 300, 4, &[], &[("UNCOPY_MIN_SIZE", "16384")]);
}

#[test]
fn mappings_that_the_program_moves_discards_and_protects() {
    walk(Mode::Always, 400, 6, &["foreign"], &[]);
    walk(Mode::Auto, 450, 2, &["foreign"], &[]);
}

#[test]
fn recorded_with_every_input_sampled() {
    walk(Mode::Recorded, 600, 1, &[], &[]);
}

#[test]
fn without_the_block_heap_or_without_eliding() {
    walk(Mode::Always, 500, 1, &[], &[("UNCOPY_HEAP", "off")]);
    walk(Mode::Never, 510, 1, &[], &[]);
    walk(Mode::Off, 520, 1, &[], &[]);
}
