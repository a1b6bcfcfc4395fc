//! `uncopy-cached`: a cache that speaks memcached's protocol, its values in twin memory.

fn main() {}
