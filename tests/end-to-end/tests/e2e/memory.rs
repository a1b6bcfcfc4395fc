//! The allocator's guarantees for blocks that hold received data, or copies of it.

uncopy_tests::scenarios! { "memory":
    every_function_at_every_size => [],
    calloc_after_received_data => [ElidedBytes, InputBytes, MaterializedBytes],
    blocks_touched_before_input => [ElidedBytes, InputBytes],
    realloc_walk => [ElidedBytes, InputBytes],
    impossible_requests => [],
    freed_by_another_thread => [ElidedBytes, InputBytes],
    very_large_blocks => [ElidedBytes, InputBytes, OutputBytes],
    steady_state => [ElidedBytes, InputBytes, OutputBytes],
    forked_while_freeing => [],
    protected_and_used_again => [ElidedBytes, InputBytes],
    usable_size_depends_on_the_request_alone => [],
    freed_memory_is_not_kept => [],
}
