//! `uncopy-files`: an HTTP/1.1 server of static files that serves in many ways.

fn main() {}
