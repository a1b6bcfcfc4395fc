//! Memory that uncopy keeps is bounded, and returned when unused.

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::plain_only;
use uncopy_tests::launch::{Mode, Program};
use uncopy_tests::scratch::Scratch;

const BOUNDS: &str = env!("CARGO_BIN_EXE_bounds");
const MIB: u64 = 1 << 20;

uncopy_tests::scenarios! { "bounds":
    rests_after_work => [ElidedBytes, InputBytes, TrimmedBytes],
    small_parts_of_large_messages => [ElidedBytes, InputBytes, CompactedBytes],
    forks_meanwhile => [ElidedBytes, InputBytes, CompactedBytes],
    mixed_sizes_overwritten => [ElidedBytes, InputBytes],
}

/// Runs a program that keeps 32 MiB of received data, and checks that segments stayed below `max_bytes`.
fn keeps_more_than(max_bytes: u64, title: &str, program: &Program) {
    let scratch = Scratch::new(title);
    let done = program.clone().mode(Mode::Always).directory(scratch.path()).run(&scratch, title);
    let done = done.expect_success().expect_counters(&[Counter::InputBytes, Counter::RefusedBytes]);
    if plain_only() {
        return;
    }
    let counters = done.counters.as_ref().expect("counters");
    for counter in [Counter::SegmentsPeakBytes, Counter::ReservoirBytes] {
        assert!(counters.get(counter) <= max_bytes, "{title}: {} is too much: {counters}", counter.name());
    }
}

#[test]
fn the_option_caps_what_is_kept() {
    for cap_bytes in [MIB, 8 * MIB] {
        let program = Program::new(BOUNDS).args(["more_data_than_the_cap", "1"]);
        keeps_more_than(cap_bytes, "cap", &program.env("UNCOPY_MEMORY", cap_bytes.to_string()));
    }
}
