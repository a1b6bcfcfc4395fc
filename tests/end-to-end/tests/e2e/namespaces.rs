//! Programs that leave their namespaces while buffers hold received data.

uncopy_tests::scenarios! { "namespaces":
    new_user_namespace => [ElidedBytes, InputBytes],
    mount_namespaces_back_and_forth => [ElidedBytes, InputBytes],
    namespaces_by_number => [ElidedBytes, InputBytes],
    new_process_namespace => [ElidedBytes, InputBytes],
    refused_to_a_program_with_threads => [ElidedBytes, InputBytes],
}
