//! Every way sends the file, byte for byte: in one piece and in parts, to slow readers and to many at once.

use std::path::PathBuf;

use crate::support::{Client, Files, bytes, for_each_way, keeps, settle};
use uncopy_tests::http::{ab, expect_same, wrk};
use uncopy_tests::{Mode, Scratch};

const SIZES: [usize; 9] = [0, 1, 4095, 4096, 16_384, 65_537, 350_000, (1 << 20) + 1, (5 << 20) + 3];

fn fill(scratch: &Scratch) {
    for size in SIZES {
        scratch.write(&format!("root/{size}"), bytes(size as u64, size));
    }
}

fn start(way: &str, words: &[&str]) -> Files {
    let files = Files::start(way, &[&["--way", way], words].concat(), fill);
    settle();
    files
}

#[test]
fn every_way_sends_every_file_whole_and_in_parts() {
    for_each_way(|way| {
        let files = start(way, &["--threads", "1"]);
        let mut client = files.connect();
        for size in SIZES {
            let whole = bytes(size as u64, size);
            for _ in 0..2 {
                client.say(&format!("GET /{size} HTTP/1.1\r\nHost: h\r\n\r\n"));
                let answer = client.answer(true);
                assert_eq!(answer.status, 200);
                expect_same(&answer.body, &whole, &format!("{way} {size}"));
            }
            for (from, to) in [(0, size / 2), (size / 3, size), (size.saturating_sub(7), size)] {
                if from >= to {
                    continue;
                }
                client.say(&format!(
                    "GET /{size} HTTP/1.1\r\nHost: h\r\nRange: bytes={from}-{}\r\n\r\n",
                    to - 1
                ));
                let answer = client.answer(true);
                assert_eq!(answer.status, 206);
                expect_same(&answer.body, &whole[from..to], &format!("{way} {size} {from}..{to}"));
            }
            if size > 10_000 {
                let (middle, end) = (size / 2, size - 1);
                client.say(&format!(
                    "GET /{size} HTTP/1.1\r\nHost: h\r\nRange: bytes={middle}-{end},0-9\r\n\r\n"
                ));
                let body = client.answer(true).body;
                let found = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
                let start = body.windows(4).position(|four| four == b"\r\n\r\n").expect("a part") + 4;
                expect_same(
                    &body[start..start + size - middle],
                    &whole[middle..],
                    &format!("{way} {size} parts"),
                );
                assert!(found(&whole[..10]), "{way} {size}: the second part");
            }
        }
        let stats = files.stop();
        let taken = |size: usize| if size > 4096 { size.next_multiple_of(4096) } else { size };
        let kept: usize = SIZES.into_iter().map(taken).sum();
        assert_eq!(stats.get("cached_bytes"), if keeps(way) { kept as u64 } else { 0 }, "{way}");
    });
}

#[test]
fn every_way_reaches_the_end_of_a_file_of_five_gibibytes() {
    const END: u64 = 5 << 30;
    let marks: [u64; 3] = [(1 << 31) - 3, (1 << 32) - 3, END - 6];
    for_each_way(|way| {
        let files = Files::start(way, &["--way", way, "--threads", "1"], |scratch| {
            let file = std::fs::File::create(scratch.join("root/huge")).expect("a file");
            file.set_len(END).expect("a sparse file");
            for mark in marks {
                std::os::unix::fs::FileExt::write_all_at(&file, b"marked", mark).expect("written");
            }
        });
        let mut client = files.connect();
        client.say("HEAD /huge HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.answer(false).field("Content-Length"), Some("5368709120"));
        for mark in marks {
            let last = mark + 5;
            client.say(&format!("GET /huge HTTP/1.1\r\nHost: h\r\nRange: bytes={mark}-{last}\r\n\r\n"));
            assert_eq!(client.answer(true).body, b"marked", "{way}");
        }
        drop(files.stop());
    });
}

/// A client whose window is small and who waits now and then.
fn read_slowly(files: &Files, size: usize) -> Vec<u8> {
    let socket = socket_with_small_buffer(files);
    let mut client = Client::of(socket);
    client.say(&format!("GET /{size} HTTP/1.1\r\nHost: h\r\n\r\n"));
    let len: usize =
        client.head().field("Content-Length").and_then(|len| len.parse().ok()).expect("a length");
    let mut body = Vec::new();
    let mut step = 1;
    while body.len() < len {
        body.extend(client.bytes(step.min(len - body.len())));
        step = (step * 3 + 1) % 100_003;
    }
    body
}

fn socket_with_small_buffer(files: &Files) -> std::net::TcpStream {
    use std::os::fd::AsRawFd;
    let stream = std::net::TcpStream::connect(files.address).expect("it listens");
    let len_bytes: libc::c_int = 100_000;
    // SAFETY: the option takes an int, which this is.
    let done = unsafe {
        let value = (&raw const len_bytes).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, value, 4)
    };
    assert_eq!(done, 0, "a smaller buffer");
    stream
}

#[test]
fn every_way_serves_several_slow_readers_at_once() {
    for_each_way(|way| {
        let files = start(way, &["--threads", "1"]);
        std::thread::scope(|scope| {
            for size in [65_537, 350_000, (1 << 20) + 1] {
                let files = &files;
                scope.spawn(move || {
                    let body = read_slowly(files, size);
                    expect_same(&body, &bytes(size as u64, size), &format!("{way} {size}"));
                });
            }
        });
        drop(files.stop());
    });
}

#[test]
fn every_way_answers_a_pipeline_that_is_read_late() {
    for_each_way(|way| {
        let files = start(way, &["--threads", "1"]);
        let mut client = files.connect();
        for _ in 0..10 {
            client.say("GET /350000 HTTP/1.1\r\nHost: h\r\n\r\nGET /4095 HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        for round in 0..10 {
            expect_same(&client.answer(true).body, &bytes(350_000, 350_000), &format!("{way} {round}"));
            expect_same(&client.answer(true).body, &bytes(4095, 4095), &format!("{way} {round}"));
        }
        drop(files.stop());
    });
}

#[test]
fn readers_that_go_away_leave_nothing_behind_for_the_next() {
    for_each_way(|way| {
        let files = start(way, &["--threads", "1"]);
        let whole = bytes(350_000, 350_000);
        for round in 0..20 {
            let mut gone = Client::of(socket_with_small_buffer(&files));
            gone.say("GET /5242883 HTTP/1.1\r\nHost: h\r\n\r\n");
            let _ = gone.bytes(1000 * (round + 1));
            drop(gone);
            expect_same(&files.get("/350000", "").body, &whole, &format!("{way}, round {round}"));
        }
        drop(files.stop());
    });
}

#[test]
fn wrk_and_ab_are_satisfied_with_every_way() {
    for_each_way(|way| {
        let files = start(way, &["--threads", "2"]);
        let asked = ["4095", "65537", "1048577"];
        let paths: Vec<(String, PathBuf)> =
            asked.iter().map(|name| (format!("/{name}"), files.path(name))).collect();
        let paths: Vec<_> = paths.iter().map(|(path, file)| (path.as_str(), file.as_path())).collect();
        let answers = wrk(Mode::Plain, &files.scratch, &files.url(""), &paths, 1);
        eprintln!("{way}: {answers} answers compared");
        ab(Mode::Plain, &files.scratch, &files.url("/65537"), 65_537, 200, 8);
        drop(files.stop());
    });
}

#[test]
fn read_and_send_under_uncopy_sends_the_same_bytes() {
    for mode in [Mode::Always, Mode::Auto] {
        let files = Files::start_under(mode, "elided", &["--way", "read-send", "--threads", "2"], fill);
        std::thread::scope(|scope| {
            for size in SIZES {
                let files = &files;
                scope.spawn(move || {
                    for _ in 0..4 {
                        let body = files.get(&format!("/{size}"), "").body;
                        expect_same(&body, &bytes(size as u64, size), &format!("{mode:?} {size}"));
                    }
                });
            }
        });
        drop(files.stop());
    }
}
