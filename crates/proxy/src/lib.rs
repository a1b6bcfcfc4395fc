//! The proxy (ZCopy §3.2.2): the send family, with the parts of a message that lie in twin memory passed by reference.
