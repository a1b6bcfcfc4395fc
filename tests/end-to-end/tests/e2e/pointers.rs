//! Bad pointers in calls that take vectors and headers, and buffers that are not readable or writable.

uncopy_tests::scenarios! { "pointers":
    bad_vectors => [ElidedBytes],
    bad_headers => [ElidedBytes],
    protected_buffers => [ElidedBytes],
}
