//! Programs whose received data lies outside malloc's memory.

uncopy_tests::scenarios! { "foreign":
    static_buffers => [ElidedBytes, InputBytes, ForeignRanges],
    mapped_buffers => [ElidedBytes, InputBytes, ForeignRanges],
    given_back_by_instruction => [ElidedBytes, InputBytes],
    moved_by_instruction => [ElidedBytes, InputBytes],
    unmapped_and_mapped_again => [ElidedBytes, InputBytes],
    protected => [ElidedBytes, InputBytes],
    forked => [ElidedBytes, InputBytes, ForeignRanges],
    many_ranges => [ElidedBytes, InputBytes, ForeignRanges],
    changed_while_others_copy => [ElidedBytes, InputBytes],
    side_by_side => [ElidedBytes, InputBytes],
    stack_buffers => [ElidedBytes, InputBytes],
}
