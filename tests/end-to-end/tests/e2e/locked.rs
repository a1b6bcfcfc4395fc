//! Programs that change the mappings of memory that holds received data.

uncopy_tests::scenarios! { "locked":
    locked_buffers => [ElidedBytes, InputBytes],
    all_memory_locked => [ElidedBytes, InputBytes],
    locked_before_anything_else => [],
    discarded_pages => [ElidedBytes, InputBytes],
    moved_and_unmapped_pages => [ElidedBytes, InputBytes],
    huge_pages => [ElidedBytes, InputBytes],
}
