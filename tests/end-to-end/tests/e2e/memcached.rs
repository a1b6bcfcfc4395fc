//! The packaged memcached with values up to 8 MiB, all of them compared.

use uncopy_core::stats::Counter;
use uncopy_tests::memcached::{Memcached, SERVER, walk};
use uncopy_tests::packaged_server::PackagedServer;
use uncopy_tests::random::{Random, rounds, seed};
use uncopy_tests::{Mode, Scratch};

fn random_commands(mode: Mode) {
    let scratch = Scratch::new("memcached");
    let server = PackagedServer::start(&SERVER, mode, &scratch, "memcached");
    let address = server.address();
    let seed = seed(71);
    eprintln!("seed {seed}");
    std::thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let mut client = Memcached::open(address).expect("a connection");
                let mut random = Random::new(seed + number);
                walk(&mut client, &format!("client{number}"), &mut random, rounds(80));
            });
        }
    });
    let _ = server.stop(&[Counter::InputBytes, Counter::OutputBytes]);
}

#[test]
fn large_values_with_everything_elided() {
    random_commands(Mode::Always);
}

#[test]
fn large_values_with_the_default_policy() {
    random_commands(Mode::Sliced);
}
