//! Signal handlers that read and copy buffers with received data, or jump out of calls.

use uncopy_core::stats::Counter;
use uncopy_tests::scenario::Scenario;

uncopy_tests::scenarios! { "signals":
    jump_out_of_receive => [ElidedBytes, InputBytes],
    jumps_keep_no_memory => [ElidedBytes, InputBytes],
    interrupted_calls => [ElidedBytes, InputBytes],
    blocked_signals_wait => [ElidedBytes, InputBytes],
    time_stamp_counter_forbidden => [ElidedBytes, InputBytes],
    calls_on_small_stacks => [ElidedBytes, InputBytes],
}

/// Runs a scenario that takes a while and checks itself.
fn run_uncompared(name: &str) {
    let scenario = Scenario::new(env!("CARGO_BIN_EXE_signals"), name).not_compared();
    scenario.in_every_mode(&[Counter::ElidedBytes, Counter::InputBytes]);
}

#[test]
fn copies_in_a_timer_handler() {
    run_uncompared("copies_in_a_timer_handler");
}

#[test]
fn copies_on_an_alternate_stack() {
    run_uncompared("copies_on_an_alternate_stack");
}

#[test]
fn jump_out_of_anything() {
    run_uncompared("jump_out_of_anything");
}
