//! The packaged memcached with values up to 8 MiB, every one compared.

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::packaged;
use uncopy_tests::memcached::{Memcached, walk};
use uncopy_tests::random::{Random, rounds, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::free_port;
use uncopy_tests::{Mode, Program, Scratch};

fn start(mode: Mode, scratch: &Scratch) -> (Running, u16) {
    let port = free_port();
    let server = Program::new(packaged("/usr/bin/memcached", "memcached"))
        .args(["-l", "127.0.0.1", "-p", &port.to_string(), "-u", "root", "-I", "16m", "-m", "512", "-t", "2"])
        .args(["-U", "0"])
        .mode(mode)
        .start(scratch, "memcached");
    (server, port)
}

fn random_commands(mode: Mode) {
    let scratch = Scratch::new("memcached");
    let (server, port) = start(mode, &scratch);
    let seed = seed(71);
    eprintln!("seed {seed}");
    std::thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let mut client = Memcached::connect(port);
                let mut random = Random::new(seed + number);
                walk(&mut client, &format!("client{number}"), &mut random, rounds(80));
            });
        }
    });
    let done = server.stop(libc::SIGTERM).expect_success();
    let _ = done.expect_counters(&[Counter::InputBytes, Counter::OutputBytes]);
}

#[test]
fn large_values_with_everything_elided() {
    random_commands(Mode::Always);
}

#[test]
fn large_values_with_the_default_policy() {
    random_commands(Mode::Sliced);
}
