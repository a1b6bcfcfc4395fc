//! Bad pointers in calls that take vectors and headers, and buffers that may not be read or written.

uncopy_tests::scenarios! { "pointers":
    bad_vectors => [ElidedBytes],
    bad_headers => [ElidedBytes],
    protected_buffers => [ElidedBytes],
}
