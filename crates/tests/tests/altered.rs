//! Programs that alter the mappings of malloc's memory.

uncopy_tests::scenarios! { "altered":
    freed_after_every_alteration => [],
    huge_pages_are_whose_who_asked => [ElidedBytes, InputBytes],
    mapped_over => [ElidedBytes, InputBytes],
    unmapped_and_used_by_others => [ElidedBytes, InputBytes],
    advised_from_outside_and_sealed => [ElidedBytes, InputBytes],
    not_inherited => [],
}
