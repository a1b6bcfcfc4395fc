//! The kernel accesses viewed buffers by calls that are not interposed, or after a call.

uncopy_tests::scenarios! { "kernel":
    posix_aio => [ElidedBytes, InputBytes],
    io_uring => [ElidedBytes, InputBytes],
    vmsplice => [ElidedBytes, InputBytes],
    zero_copy_sends => [ElidedBytes, InputBytes],
    appending_threads => [ElidedBytes, InputBytes],
    terminal => [ElidedBytes, InputBytes],
    own_userfaultfd => [ElidedBytes, InputBytes],
}
