//! Programs whose threads end by themselves: the process ends with the last of them, with the same status as plain.

uncopy_tests::scenarios! { "ends":
    threads_that_end_alone => [ElidedBytes, InputBytes],
    threads_that_outlive_the_first => [ElidedBytes, InputBytes],
}
