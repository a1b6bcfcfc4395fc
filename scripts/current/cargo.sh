# cargo and rustc 1.85: a crate built and run.
# shellcheck shell=bash
packages="cargo rustc"
drive() {
    export CARGO_HOME=/tmp/cargo CARGO_NET_OFFLINE=true CARGO_TERM_QUIET=true
    client cargo new --vcs none one && cd one || return
    cat >src/main.rs <<'RUST'
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
fn sum(data: &[u8]) -> u64 { data.iter().fold(7, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte as u64)) }
fn main() {
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..20 {
        let sent = data.clone();
        let thread = std::thread::spawn(move || TcpStream::connect(address).unwrap().write_all(&sent).unwrap());
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        thread.join().unwrap();
        std::fs::write("copy", &got).unwrap();
        println!("{} {}", sum(&got), sum(&std::fs::read("copy").unwrap()));
    }
}
RUST
    client cargo build --release && client cargo run --release && client cargo test
}
