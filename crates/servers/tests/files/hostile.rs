//! Clients that mean no good: slow ones, those that never end, those that come in thousands. They lose
//! nothing for anybody else, and exhaust nothing.

use std::io::Read;
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::support::{Client, Files, bytes, for_each_way};
use uncopy_tests::Scratch;
use uncopy_tests::http::expect_same;

/// The bytes of the large file.
fn large() -> &'static [u8] {
    static LARGE: OnceLock<Vec<u8>> = OnceLock::new();
    LARGE.get_or_init(|| bytes(1, 8 << 20))
}

fn fill(scratch: &Scratch) {
    scratch.write("root/page", b"page");
    scratch.write("root/large", large());
}

/// Sockets and files that the server has open, and its resident memory. What it keeps for later, such as pipes,
/// does not count.
fn usage(files: &Files) -> (usize, u64) {
    let pid = files.running().pid();
    let of_clients = |entry: std::io::Result<std::fs::DirEntry>| {
        let link = entry.ok().and_then(|entry| std::fs::read_link(entry.path()).ok());
        link.is_some_and(|link| {
            link.starts_with(files.path("")) || link.to_string_lossy().starts_with("socket:")
        })
    };
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let descriptors = entries.map(of_clients).filter(|counts| *counts).count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kib = line.trim().trim_end_matches(" kB").parse().expect("a number");
    (descriptors, kib)
}

/// Waits until the server has as few descriptors as that, for ten seconds.
fn expect_descriptors(files: &Files, most: usize) {
    uncopy_tests::scratch::wait_until("descriptors to be closed", || (usage(files).0 <= most).then_some(()));
}

fn expect_served(files: &Files) {
    assert_eq!(files.get("/page", "").body, b"page");
}

#[test]
fn ten_thousand_connections_opened_and_dropped_cost_nothing() {
    for way in ["sendfile", "twin --reference-from=1"] {
        let files = Files::start("thousands", &["--way", way, "--threads", "2"], fill);
        expect_served(&files);
        let (descriptors, kib) = usage(&files);
        for round in 0..100u32 {
            let mut crowd: Vec<TcpStream> =
                (0..100).map(|_| TcpStream::connect(files.address).expect("a place")).collect();
            for (number, stream) in crowd.iter_mut().enumerate() {
                // Nothing, half a request, a request that nobody waits for, a large one.
                let text: &[u8] = match (round as usize + number) % 4 {
                    0 => b"",
                    1 => b"GET /page HTTP/1.1\r\nHost:",
                    2 => b"GET /page HTTP/1.1\r\nHost: h\r\n\r\n",
                    _ => b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n",
                };
                let _ = std::io::Write::write_all(stream, text);
            }
        }
        expect_served(&files);
        expect_descriptors(&files, descriptors);
        let (_, kib_after) = usage(&files);
        assert!(kib_after < kib + 60_000, "{way}: {kib} KiB became {kib_after}");
        let stats = files.stop();
        assert!(stats.get("connections") >= 10_000);
    }
}

#[test]
fn hundreds_of_idle_connections_keep_nobody_out() {
    let files =
        Files::start("idle", &["--threads", "1", "--idle-timeout", "600", "--head-timeout", "600"], fill);
    let crowd: Vec<TcpStream> =
        (0..400).map(|_| TcpStream::connect(files.address).expect("a place")).collect();
    expect_served(&files);
    drop(crowd);
    drop(files.stop());
}

#[test]
fn one_connection_too_many_is_told_so_and_room_is_made_again() {
    let files = Files::start("limit", &["--threads", "2", "--connections", "8"], fill);
    let mut crowd: Vec<Client> = (0..8).map(|_| files.connect()).collect();
    for client in &mut crowd {
        client.say("GET /page HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.answer(true).body, b"page");
    }
    let mut more = files.connect();
    let text = more.rest();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("Retry-After: "), "{text}");
    drop(crowd.pop());
    let mut asked = 0;
    uncopy_tests::scratch::wait_until("room", || {
        asked += 1;
        let mut client = files.connect();
        client.say("GET /page HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        client.rest().ends_with("page").then_some(())
    });
    // Those that were there first are still served.
    for client in &mut crowd {
        client.say("GET /page HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.answer(true).body, b"page");
    }
    assert_eq!(files.stop().get("turned_away"), asked);
}

#[test]
fn a_client_that_does_not_finish_its_request_is_told_and_left() {
    let files = Files::start("unfinished", &["--threads", "1", "--head-timeout", "1"], fill);
    let mut slow = files.connect();
    let mut silent = files.connect();
    slow.say("GET /page HTTP/1.1\r\nHost: ");
    let begin = Instant::now();
    assert!(slow.rest().starts_with("HTTP/1.1 408 "));
    assert_eq!(silent.rest(), "");
    assert!(begin.elapsed() < Duration::from_secs(10), "their time was one second");
    // One byte now and then does not help.
    let mut dripping = files.connect();
    let mut stream = dripping.stream().try_clone().expect("a second handle");
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let mut told = Vec::new();
    while told.is_empty() {
        dripping.say("x");
        let mut some = [0; 1024];
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(got) => told.extend_from_slice(&some[..got]),
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "it is read for ever: {error}"),
        }
    }
    assert!(told.starts_with(b"HTTP/1.1 408 ") || told.is_empty(), "{}", told.escape_ascii());
    assert!(files.stop().get("timed_out") >= 3);
}

#[test]
fn a_client_that_does_not_read_is_left_by_every_way() {
    for_each_way(|way| {
        let words = ["--way", way, "--threads", "1", "--send-timeout", "1", "--idle-timeout", "1"];
        let files = Files::start("unread", &words, fill);
        expect_served(&files);
        let (descriptors, _) = usage(&files);
        let mut crowd: Vec<Client> = (0..4).map(|_| files.connect()).collect();
        for client in &mut crowd {
            client.say("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        // Meanwhile others are served.
        for _ in 0..20 {
            expect_served(&files);
        }
        for client in &mut crowd {
            assert_eq!(client.head().status, 200);
        }
        expect_descriptors(&files, descriptors);
        for mut client in crowd {
            assert!(client.rest_bytes().len() < 8 << 20, "{way}: it was left");
        }
        assert_eq!(files.stop().get("timed_out"), 4, "{way}");
    });
}

#[test]
fn what_never_ends_is_ended() {
    let files = Files::start("endless", &["--threads", "1"], fill);
    let (_, kib) = usage(&files);
    for beginning in [
        "GET /page HTTP/1.1\r\nHost: h\r\nA: ",
        "GET /",
        "",
        "GET /page HTTP/1.1\r\n",
        "GET /page HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551615\r\n\r\n",
        "POST /page HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ] {
        let mut client = files.connect();
        client.say(beginning);
        let filler =
            if beginning.ends_with("HTTP/1.1\r\n") { "A: b\r\n".repeat(10_000) } else { "x".repeat(60_000) };
        // At most 60 MB, until the server wants no more.
        for _ in 0..1000 {
            if std::io::Write::write_all(client.stream(), filler.as_bytes()).is_err() {
                break;
            }
        }
        let told = client.rest();
        assert!(told.is_empty() || told.starts_with("HTTP/1.1 4"), "{beginning}: {told}");
        expect_served(&files);
    }
    let (_, kib_after) = usage(&files);
    assert!(kib_after < kib + 20_000, "{kib} KiB became {kib_after}");
    drop(files.stop());
}

#[test]
fn many_pieces_of_one_large_file_cost_no_more_than_the_file() {
    let files = Files::start("pieces", &["--threads", "1"], fill);
    let ranges: Vec<String> = (0..800).map(|at| format!("{at}-")).collect();
    let answer = files.get("/large", &format!("Range: bytes={}\r\n", ranges.join(",")));
    assert_eq!((answer.status, answer.body.len()), (200, 8 << 20));
    drop(files.stop());
}

#[test]
fn errors_reach_a_client_that_is_still_sending() {
    let files = Files::start("sending", &["--threads", "1"], fill);
    for _ in 0..20 {
        let mut client = files.connect();
        client.say("POST /page HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n");
        client.send(&vec![b'x'; 900_000]);
        assert!(client.rest().starts_with("HTTP/1.1 413 "));
    }
    drop(files.stop());
}

#[test]
fn a_server_out_of_descriptors_goes_on_once_there_are_some() {
    let scratch = Scratch::new("files-descriptors");
    let page = scratch.write("page", b"page");
    let root = page.parent().expect("a directory").to_str().expect("UTF-8");
    let script = format!(
        "ulimit -n 100; exec {} --listen 0 --threads 1 --stats --connections 1000 {root}",
        env!("CARGO_BIN_EXE_uncopy-files")
    );
    let running =
        uncopy_tests::Program::shell(&script).mode(uncopy_tests::Mode::Plain).start(&scratch, "server");
    let line = running.wait_for_line("uncopy-files: listening on http://");
    assert!(running.errors().contains("at most 18 connections, not 1000"), "{}", running.errors());
    let address: std::net::SocketAddr = line.trim_end_matches('/').parse().expect("an address");
    let crowd: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(address).expect("a place")).collect();
    drop(crowd);
    uncopy_tests::scratch::wait_until("an answer", || {
        let mut client = Client::of(TcpStream::connect(address).ok()?);
        client.say("GET /page HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        client.rest().ends_with("page").then_some(())
    });
    drop(running.stop(libc::SIGTERM).expect_success());
}

#[test]
fn the_end_waits_for_answers_and_for_nobody_else() {
    for_each_way(|way| {
        let files = Files::start("end", &["--way", way, "--threads", "2"], fill);
        let mut busy = files.connect();
        busy.say("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(busy.head().status, 200);
        let mut idle = files.connect();
        idle.say("GET /page HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(idle.answer(true).body, b"page");
        files.running().signal(libc::SIGTERM);
        assert_eq!(idle.rest(), "", "{way}: an idle connection is closed");
        uncopy_tests::scratch::wait_until("the listener to be closed", || {
            let Ok(stream) = TcpStream::connect(files.address) else { return Some(()) };
            // Accepted by the kernel, and by nobody.
            drop(stream);
            None
        });
        drop(busy);
        drop(files.stop());
    });
}

#[test]
fn an_answer_under_way_is_completed_after_the_signal() {
    for_each_way(|way| {
        let files = Files::start("complete", &["--way", way, "--threads", "1"], fill);
        let mut busy = files.connect();
        busy.say("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(busy.head().status, 200);
        files.running().signal(libc::SIGTERM);
        expect_same(&busy.bytes(8 << 20), large(), way);
        assert_eq!(busy.rest(), "", "{way}: closed after the answer");
        drop(files.stop());
    });
}
