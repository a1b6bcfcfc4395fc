//! Memory of children that read what their parent received.

uncopy_tests::scenarios! { "inherited":
    received_data => [InputBytes],
    shifted_copies => [ElidedBytes, InputBytes],
    unread_data => [ElidedBytes, InputBytes],
}
