//! Processes that come from one whose buffers hold received data.

use uncopy_core::stats::Counter;
use uncopy_tests::programs::compiled;
use uncopy_tests::{Mode, Program, Scratch};

uncopy_tests::scenarios! { "forks":
    child_overwrites_what_parent_keeps => [ElidedBytes, InputBytes, OutputBytes],
    bare_fork => [ElidedBytes, InputBytes],
    forks_by_number => [ElidedBytes, InputBytes],
    forks_by_number_among_threads => [ElidedBytes, InputBytes],
    clones_with_memory_of_their_own => [ElidedBytes, InputBytes],
    generations => [ElidedBytes, InputBytes],
    daemon => [ElidedBytes, InputBytes],
    fork_among_threads => [ElidedBytes, InputBytes, OutputBytes],
    other_programs => [ElidedBytes, InputBytes],
    child_that_shares_memory => [ElidedBytes, InputBytes],
    fork_handlers_touch_buffers => [ElidedBytes, InputBytes],
    first_thread_ends_early => [ElidedBytes, InputBytes],
    ways_to_end => [ElidedBytes, InputBytes],
}

/// Most of the time one of the threads is inside malloc when another one forks.
#[test]
fn handlers_on_top_of_malloc_copy_while_another_thread_forks() {
    let scratch = Scratch::new("mallocfork");
    let program = Program::new(compiled(&scratch, "mallocfork", &[])).directory(scratch.path());
    let plain = program.clone().run(&scratch, "plain").expect_success();
    for mode in Mode::EVERY {
        let done = program.clone().mode(mode).run(&scratch, "preloaded").expect_success();
        assert!(done.output == plain.output, "mode {mode:?} printed\n{}", done.text());
        let _ = done.expect_counters(&[Counter::ElidedBytes, Counter::InputBytes, Counter::Faults]);
    }
}
