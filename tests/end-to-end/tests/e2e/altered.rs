//! Programs that alter the mappings of malloc's memory.

use uncopy_core::stats::Counter;
use uncopy_tests::scenario::Scenario;

uncopy_tests::scenarios! { "altered":
    freed_after_every_alteration => [],
    huge_pages_are_whose_who_asked => [ElidedBytes, InputBytes],
    advised_from_outside_and_sealed => [ElidedBytes, InputBytes],
}

/// Runs a scenario under forced eliding: glibc's free unmaps, or reuses, what is mapped over a chunk.
fn in_forced_mode(scenario: &str, expected: &[Counter]) {
    Scenario::new(env!("CARGO_BIN_EXE_altered"), scenario).in_forced_mode(expected);
}

#[test]
fn mapped_over() {
    in_forced_mode("mapped_over", &[Counter::ElidedBytes, Counter::InputBytes]);
}

#[test]
fn unmapped_and_used_by_others() {
    in_forced_mode("unmapped_and_used_by_others", &[Counter::ElidedBytes, Counter::InputBytes]);
}

#[test]
fn not_inherited() {
    in_forced_mode("not_inherited", &[]);
}
