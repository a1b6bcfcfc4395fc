//! Functions of libc and libstdc++ that access buffers with received data by paths of their own.

use uncopy_tests::scenario::Scenario;

uncopy_tests::scenarios! { "library":
    wide_and_other_copies => [ElidedBytes, InputBytes, Faults],
    stdio_streams => [ElidedBytes, InputBytes, Faults],
    stdio_beside_glibc => [ElidedBytes, InputBytes, OutputBytes],
    stdio_errors => [],
    stdio_cancelled => [],
    stdio_shared => [],
    cxx_operators => [ElidedBytes, InputBytes],
    thread_specific_destructors => [ElidedBytes, InputBytes],
    between_descriptors => [ElidedBytes, InputBytes],
}

#[test]
fn a_checked_copy_that_has_no_room_ends_the_program() {
    let scenario = Scenario::new(env!("CARGO_BIN_EXE_library"), "checked_copy_without_room");
    scenario.ended_by(libc::SIGABRT).in_every_mode(&[]);
}
