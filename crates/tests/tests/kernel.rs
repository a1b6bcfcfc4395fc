//! The kernel reading and writing viewed buffers by ways that nothing interposes on, or later than
//! the call that asked for it.

uncopy_tests::scenarios! { "kernel":
    posix_aio => [ElidedBytes, InputBytes],
    io_uring => [ElidedBytes, InputBytes],
    vmsplice => [ElidedBytes, InputBytes],
    zero_copy_sends => [ElidedBytes, InputBytes],
    appending_threads => [ElidedBytes, InputBytes],
    terminal => [ElidedBytes, InputBytes],
    own_userfaultfd => [ElidedBytes, InputBytes],
}
