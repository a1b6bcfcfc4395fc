//! Calls of libc and libstdc++ that reach buffers which hold received data by ways of their own.

uncopy_tests::scenarios! { "library":
    wide_and_other_copies => [ElidedBytes, InputBytes, Faults],
    stdio_streams => [ElidedBytes, InputBytes, Faults],
    cxx_operators => [ElidedBytes, InputBytes],
    thread_specific_destructors => [ElidedBytes, InputBytes],
    between_descriptors => [ElidedBytes, InputBytes],
}
