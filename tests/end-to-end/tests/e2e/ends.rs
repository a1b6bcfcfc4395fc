//! Programs whose threads exit by themselves: the process ends with the last one, with plain's status.

uncopy_tests::scenarios! { "ends":
    threads_that_end_alone => [ElidedBytes, InputBytes],
    threads_that_outlive_the_first => [ElidedBytes, InputBytes],
}
