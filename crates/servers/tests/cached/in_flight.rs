//! Values that are overwritten while they are on their way: whoever asked first gets the old bytes, however they left.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;

use crate::support::{Cached, TIMEOUT, WAYS};
use uncopy_tests::random;

/// Lengths around those of pages, pageblocks and socket buffers.
const SIZES: [usize; 9] = [1, 1000, 4000, 4096, 10_000, 65_534, 65_536, 300_000, 1_000_000];

fn versions(seed: u64, len: usize) -> [Vec<u8>; 3] {
    [0, 1, 2].map(|version| random::bytes(seed * 3 + version, len))
}

#[test]
fn an_answer_that_nobody_has_read_yet_keeps_its_bytes() {
    for way in WAYS {
        let server =
            Cached::start(&format!("in-flight-{way}"), &["--transmit", way, "-m", "256", "-I", "2m"]);
        let mut writer = server.connect();
        for (number, size) in SIZES.into_iter().enumerate() {
            let [first, second, third] = versions(number as u64, size);
            assert_eq!(writer.set("k", &first), "STORED");
            // Several answers each, so that the accounts of the way see both, and the buffers are full.
            let mut readers: Vec<_> = (0..20).map(|_| server.connect()).collect();
            readers.iter_mut().for_each(|reader| reader.send(b"get k\r\n"));
            // The answer has begun to leave: its first byte can be seen.
            for reader in &readers {
                reader.stream().peek(&mut [0]).expect("an answer");
            }
            assert_eq!(writer.set("k", &second), "STORED");
            assert_eq!(writer.get("k", false).as_ref(), Some(&second), "{way} {size}");
            // Freed, and its memory used again.
            assert_eq!(writer.ask("delete k"), "DELETED");
            for again in 0..8 {
                assert_eq!(writer.set(&format!("other{again}"), &third), "STORED");
            }
            for reader in &mut readers {
                assert_eq!(reader.get("k", true).as_ref(), Some(&first), "{way} {size}");
            }
            for again in 0..8 {
                assert_eq!(writer.get(&format!("other{again}"), false).as_ref(), Some(&third));
            }
        }
        server.stop();
    }
}

#[test]
fn small_values_in_one_pageblock_are_changed_one_by_one() {
    let server = Cached::start("pageblock", &["--transmit", "splice"]);
    let mut writer = server.connect();
    let value = |key: usize, version: usize| random::bytes((key * 100 + version) as u64, 1500);
    for key in 0..200 {
        assert_eq!(writer.set(&format!("k{key}"), &value(key, 0)), "STORED");
    }
    let mut reader = server.connect();
    for version in 1..4 {
        let all: String = (0..100).map(|key| format!(" k{key}")).collect();
        reader.send(format!("get{all}\r\n").as_bytes());
        reader.stream().peek(&mut [0]).expect("an answer");
        for key in (0..200).step_by(3) {
            assert_eq!(writer.set(&format!("k{key}"), &value(key, version)), "STORED");
            assert_eq!(writer.ask(&format!("touch k{key} 0")), "TOUCHED");
        }
        for key in 0..100 {
            assert_eq!(reader.line(), format!("VALUE k{key} 0 1500"));
            let before = if key % 3 == 0 { version - 1 } else { 0 };
            assert!(reader.exactly(1500) == value(key, before), "k{key}, version {version}");
            assert_eq!(reader.exactly(2), b"\r\n");
        }
        assert_eq!(reader.line(), "END");
    }
    server.stop();
}

#[test]
fn datagrams_and_unix_sockets_keep_their_bytes_as_well() {
    for way in WAYS {
        let words = ["--transmit", way, "--datagram-bytes", "65507"];
        let server = Cached::start(&format!("in-flight-other-{way}"), &words);
        let mut writer = server.connect();
        for (number, size) in [3000, 20_000, 61_000].into_iter().enumerate() {
            let [first, second, _] = versions(100 + number as u64, size);
            let head = format!("VALUE k 0 {size}\r\n").into_bytes();
            let expected = [&head[..], &first, b"\r\nEND\r\n"].concat();
            assert_eq!(writer.set("k", &first), "STORED");

            let peer = UdpSocket::bind("127.0.0.1:0").expect("a port");
            peer.set_read_timeout(Some(TIMEOUT)).expect("a socket");
            peer.connect(server.udp).expect("an address");
            peer.send(b"\x12\x34\0\0\0\x01\0\0get k\r\n").expect("sent");
            peer.peek(&mut [0; 8]).expect("an answer");
            let mut unix = UnixStream::connect(server.scratch.join("socket")).expect("it listens");
            unix.set_read_timeout(Some(TIMEOUT)).expect("a socket");
            unix.write_all(b"get k\r\n").expect("it reads");
            // There is no peek on these: the answer has left when the next one's connection is served.
            while server.statistic("get_hits") < 2 * number as u64 + 2 {}

            assert_eq!(writer.set("k", &second), "STORED");
            assert_eq!(writer.ask("delete k"), "DELETED");
            assert_eq!(writer.set("k", &second), "STORED");
            let mut datagram = vec![0; 65_536];
            let got = peer.recv(&mut datagram).expect("one datagram");
            assert_eq!(datagram[..8], *b"\x12\x34\0\0\0\x01\0\0");
            assert!(datagram[8..got] == expected, "{way} {size}: the datagram changed");
            let mut answer = vec![0; expected.len()];
            unix.read_exact(&mut answer).expect("all of it");
            assert!(answer == expected, "{way} {size}: the stream changed");
        }
        server.stop();
    }
}

#[test]
fn readers_and_writers_at_once_see_whole_values() {
    for way in ["copy", "auto", "splice"] {
        let server = Cached::start(&format!("at-once-{way}"), &["--transmit", way, "-m", "128"]);
        // Every value is one byte over and over: a torn one would hold two.
        let size = |key: usize| [900, 5000, 40_000, 200_000][key % 4];
        for key in 0..8 {
            assert_eq!(server.connect().set(&format!("k{key}"), &vec![b'a'; size(key)]), "STORED");
        }
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let server = &server;
                scope.spawn(move || {
                    let mut client = server.connect();
                    let mut random = random::Random::new(thread + 1);
                    for step in 0..400 {
                        let key = random.below(8);
                        let name = format!("k{key}");
                        if random.one_in(3) {
                            let byte = b'a' + u8::try_from(random.below(26)).expect("small");
                            assert_eq!(client.set(&name, &vec![byte; size(key)]), "STORED");
                        } else {
                            let value = client.get(&name, false).expect("never deleted");
                            assert_eq!(value.len(), size(key));
                            assert!(value.iter().all(|byte| *byte == value[0]), "torn at step {step}");
                        }
                    }
                });
            }
        });
        server.stop();
    }
}
