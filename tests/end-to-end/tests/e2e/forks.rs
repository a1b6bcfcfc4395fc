//! Children of a process whose buffers hold received data.

use std::path::Path;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::skipped;
use uncopy_tests::programs::compile;
use uncopy_tests::random::bytes;
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

/// Some thread is nearly always inside malloc when another one forks.
#[test]
fn handlers_on_top_of_malloc_copy_while_another_thread_forks() {
    let scratch = Scratch::new("mallocfork");
    let program = Program::new(compile(&scratch, "mallocfork", &[])).directory(scratch.path());
    let plain = program.clone().run(&scratch, "plain").expect_success();
    for mode in Mode::FOR_SCENARIOS {
        let done = program.clone().mode(mode).run(&scratch, "preloaded").expect_success();
        assert!(done.output == plain.output, "mode {mode:?} printed\n{}", done.text());
        let _ = done.expect_counters(&[Counter::ElidedBytes, Counter::InputBytes, Counter::Faults]);
    }
}

/// Runs `forwarding` on an input of `len_bytes`, and returns how many bytes were received into segments.
fn bytes_in_segments(forwarding: &Path, mode: &str, len_bytes: usize, first_bytes: Option<&str>) -> u64 {
    let scratch = Scratch::new("early-input");
    let file = scratch.join("input");
    let content = bytes(7, len_bytes);
    std::fs::write(&file, &content).expect("file");
    let mut program =
        Program::new(forwarding).args([mode]).input(&file).mode(Mode::Default).env("UNCOPY_HEAP", "on");
    if let Some(first_bytes) = first_bytes {
        program = program.env("UNCOPY_BEGIN_AFTER", first_bytes);
    }
    let done = program.run(&scratch, "passed-on").expect_success();
    assert!(done.output == content, "{mode} passed on something else");
    done.counters.map_or(0, |counters| counters.get(Counter::InputBytes))
}

#[test]
fn eliding_starts_after_some_received_mebibytes_or_an_accept() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("early");
    let forwarding = compile(&scratch, "forwarding", &[]);
    let segments =
        |mode, len_bytes, first_bytes| bytes_in_segments(&forwarding, mode, len_bytes, first_bytes);
    for mode in ["own", "forked"] {
        assert_eq!(segments(mode, 8 << 20, None), 0, "{mode}");
        assert_eq!(segments(mode, 3 << 20, Some("4M")), 0, "{mode}");
        assert!(segments(mode, 6 << 20, Some("4M")) > 0, "{mode}");
        assert!(segments(mode, 1 << 20, Some("0")) > 0, "{mode}");
    }
    assert!(segments("accepting", 1 << 20, None) > 0);
    assert_eq!(segments("forked-by-accepting", 1 << 20, None), 0);
}
