//! Guarantees of the calls beyond moving bytes: results, errno, flags, messages, signals.

use uncopy_tests::scenario::Scenario;

uncopy_tests::scenarios! { "semantics":
    bad_descriptors => [ElidedBytes],
    ends_of_streams => [ElidedBytes],
    bad_addresses => [ElidedBytes],
    errno_is_kept => [ElidedBytes, InputBytes, OutputBytes],
    cut_datagrams => [ElidedBytes],
    many_messages => [ElidedBytes],
    control_messages => [ElidedBytes],
    vector_limits => [ElidedBytes],
    files_and_devices => [ElidedBytes, InputBytes],
    own_fault_handler => [],
}

#[test]
fn a_copy_to_nowhere_ends_the_program() {
    let scenario = Scenario::new(env!("CARGO_BIN_EXE_semantics"), "copy_to_nowhere");
    scenario.ended_by(libc::SIGSEGV).in_every_mode(&[]);
}

#[test]
fn a_write_to_a_broken_pipe_raises_its_signal() {
    let scenario = Scenario::new(env!("CARGO_BIN_EXE_semantics"), "broken_pipe_signal");
    scenario.ended_by(libc::SIGPIPE).in_every_mode(&[]);
}
