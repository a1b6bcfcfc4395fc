//! Processes that come from one whose buffers hold received data.

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
