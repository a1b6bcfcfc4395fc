//! `libuncopy_send`: the C interface to the twin allocator, and the send family interposed on.
