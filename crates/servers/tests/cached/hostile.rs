//! Clients that mean no good: nobody else loses anything, and the server runs out of nothing.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::support::{Cached, Client, TIMEOUT};
use uncopy_tests::random;
use uncopy_tests::scratch::wait_until;

/// A value that must be there whatever others do.
fn keep(server: &Cached) -> (Client, Vec<u8>) {
    let value = random::bytes(5, 100_000);
    let mut client = server.connect();
    assert_eq!(client.set("kept", &value), "STORED");
    (client, value)
}

#[test]
fn ten_thousand_connections_opened_and_dropped_leave_nothing() {
    let server = Cached::start("dropped", &["-c", "300"]);
    let (mut client, value) = keep(&server);
    let before = server.resident_bytes();
    for number in 0..10_000_u32 {
        // All that the local ports in use and the listening queue allow.
        let Ok(mut stream) = TcpStream::connect(server.tcp) else { continue };
        match number % 5 {
            0 => {}
            1 => drop(stream.write_all(b"get kept\r\n")),
            2 => drop(stream.write_all(b"set a 0 0 1000000\r\nxyz")),
            3 => drop(stream.write_all(b"get kept kept kept\r\nget")),
            _ => drop(stream.write_all(&[0xff; 100])),
        }
        if number % 1000 == 0 {
            assert_eq!(client.get("kept", false).as_ref(), Some(&value));
        }
    }
    assert_eq!(client.get("kept", false).as_ref(), Some(&value));
    wait_until("all of them to be gone", || {
        // On a connection that there is: a new one may be refused.
        (client.statistic("curr_connections") <= 3).then_some(())
    });
    assert_eq!(server.statistic("evictions"), 0);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 48 << 20, "{grown} bytes are left");
    server.stop();
}

#[test]
fn more_connections_than_allowed_are_told_so_and_the_others_go_on() {
    let server = Cached::start("too-many", &["-c", "10"]);
    let mut clients: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert!(client.ask("version").starts_with("VERSION "));
    }
    assert_eq!(server.connect().line(), "ERROR Too many open connections");
    clients.pop();
    let mut again = wait_until("room for another one", || {
        let mut client = server.connect();
        client.ask("version").starts_with("VERSION ").then_some(client)
    });
    assert_eq!(again.set("a", b"b"), "STORED");
    drop(clients);
    server.stop();
}

#[test]
fn endless_lines_and_absurd_lengths_are_refused() {
    let server = Cached::start("absurd", &["-m", "16"]);
    let (mut client, value) = keep(&server);
    let before = server.resident_bytes();
    // A line without an end.
    for begin in ["", "set ", "mg ", "gat 0 ", &" ".repeat(150)] {
        let mut hostile = server.connect();
        let _ = hostile.stream().write_all(begin.as_bytes());
        let _ = hostile.stream().write_all(&[b'x'; 20_000]);
        assert_eq!(hostile.rest(), b"", "{begin}");
    }
    // A get of very many keys is answered as it comes, whatever its length, and never kept.
    let mut hostile = server.connect();
    hostile.send(b"get");
    for _ in 0..2000 {
        hostile.send(&b" nothing".repeat(1000));
    }
    hostile.send(b"\r\n");
    assert_eq!(hostile.line(), "END");
    hostile
        .send(&[b"get kept".as_slice(), &b" a".repeat(20_000), b" ", &[b'k'; 5000], b" kept\r\n"].concat());
    assert_eq!(hostile.line(), "VALUE kept 0 100000");
    assert!(hostile.exactly(100_002).starts_with(&value));
    assert_eq!(hostile.line(), "CLIENT_ERROR bad command line format");
    // Lengths that no memory has.
    for length in ["2147483647", "2147483646", "4294967295", "99999999999999999999", "-1", "1e9"] {
        for command in ["set a 0 0 L", "cas a 0 0 L 1", "ms a L", "append a 0 0 L"] {
            let mut hostile = server.connect();
            let answer = hostile.ask(&command.replace('L', length));
            let is_refused = answer.starts_with("CLIENT_ERROR") || answer.starts_with("SERVER_ERROR");
            assert!(is_refused, "{command} {length}: {answer}");
        }
    }
    assert_eq!(client.get("kept", false).as_ref(), Some(&value));
    assert!(server.resident_bytes() < before + (24 << 20));
    server.stop();
}

#[test]
fn values_that_are_announced_and_never_sent_evict_nothing() {
    let server = Cached::start("announced", &["-m", "16"]);
    let (mut client, value) = keep(&server);
    let announce = || {
        let mut hostile = server.connect();
        hostile.send(b"set a 0 0 900000\r\nx");
        hostile
    };
    let hostile: Vec<Client> = (0..60).map(|_| announce()).collect();
    let count = |hostile: &[Client]| {
        let refused = |client: &&Client| {
            client.stream().set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
            client.stream().peek(&mut [0]).is_ok_and(|got| got > 0)
        };
        hostile.iter().filter(refused).count()
    };
    assert!(count(&hostile) > 30, "as much as the limit may arrive, and no more");
    assert_eq!(client.get("kept", false).as_ref(), Some(&value));
    assert_eq!(server.statistic("evictions"), 0);
    drop(hostile);
    wait_until("their memory", || (client.set("b", &[1; 500_000]) == "STORED").then_some(()));
    assert_eq!(client.get("kept", false).as_ref(), Some(&value));
    server.stop();
}

#[test]
fn clients_that_never_read_hold_little_and_are_dropped_when_memory_is_short() {
    let server = Cached::start("never-read", &["-m", "20", "-t", "1", "--transmit", "splice"]);
    let value = random::bytes(9, 1_000_000);
    let mut client = server.connect();
    for key in 0..20 {
        assert_eq!(client.set(&format!("k{key}"), &value), "STORED");
    }
    let before = server.resident_bytes();
    let hostile: Vec<Client> = (0..60)
        .map(|number| {
            let hostile = server.connect();
            // More than fits: it stops being read, and the value stays needed.
            let line = format!("get k{0} k{0}\r\n", number % 20);
            let stream = hostile.stream().try_clone().expect("a descriptor");
            stream.set_nonblocking(true).expect("a socket");
            for _ in 0..200 {
                if (&stream).write_all(line.as_bytes()).is_err() {
                    break;
                }
            }
            stream.set_nonblocking(false).expect("a socket");
            hostile.stream().peek(&mut [0]).expect("an answer begins");
            hostile
        })
        .collect();
    // The values that they hold cannot be evicted, and no room is left; whoever holds memory then has some seconds.
    let begin = Instant::now();
    let mut number = 0;
    while begin.elapsed() < TIMEOUT && server.statistic("stalled_kicks") == 0 {
        number += 1;
        let answer = client.set(&format!("new{number}"), &value);
        assert!(answer == "STORED" || answer.starts_with("SERVER_ERROR out of memory"), "{answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.statistic("stalled_kicks") > 0, "nobody was dropped");
    wait_until("room", || (client.set("last", &value) == "STORED").then_some(()));
    assert_eq!(client.get("last", false).as_ref(), Some(&value));
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    drop(hostile);
    server.stop();
}

#[test]
fn slow_clients_hinder_nobody() {
    let server = Cached::start("slow", &["-t", "1"]);
    let (mut client, value) = keep(&server);
    let mut slow: Vec<Client> = (0..50).map(|_| server.connect()).collect();
    // Byte by byte, all of them at once, and others are served in between.
    let request = b"set slow 0 0 5\r\nhello\r\nget slow\r\n";
    for byte in request {
        for client in &mut slow {
            client.send(&[*byte]);
        }
        assert_eq!(client.get("kept", false).as_ref(), Some(&value));
    }
    for client in &mut slow {
        assert_eq!(client.line(), "STORED");
        assert_eq!(client.get("slow", true).as_deref(), Some(&b"hello"[..]));
    }
    server.stop();
}

#[test]
fn requests_without_end_on_one_connection_starve_no_other() {
    let server = Cached::start("greedy", &["-t", "1"]);
    let (mut client, value) = keep(&server);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let greedy = server.connect();
    std::thread::scope(|scope| {
        let reader = greedy.stream().try_clone().expect("a descriptor");
        scope.spawn(|| {
            let requests = b"get nothing\r\n".repeat(5000);
            let mut stream = greedy.stream();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                if stream.write_all(&requests).is_err() {
                    break;
                }
            }
            let _ = greedy.stream().shutdown(std::net::Shutdown::Both);
        });
        scope.spawn(move || {
            let _ = std::io::copy(&mut &reader, &mut std::io::sink());
        });
        for _ in 0..200 {
            assert_eq!(client.get("kept", false).as_ref(), Some(&value));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    server.stop();
}

#[test]
fn silent_connections_are_closed_after_their_time() {
    let server = Cached::start("idle", &["--idle-timeout", "1"]);
    let mut silent = server.connect();
    assert!(silent.ask("version").starts_with("VERSION "));
    let mut half = server.connect();
    half.send(b"set a 0 0 100\r\nx");
    assert_eq!((silent.rest(), half.rest()), (vec![], vec![]));
    assert!(server.statistic("idle_kicks") >= 2);
    server.stop();
}

#[test]
fn malformed_datagrams_are_ignored_or_refused() {
    let server = Cached::start("datagrams", &[]);
    let (mut client, value) = keep(&server);
    let peer = UdpSocket::bind("127.0.0.1:0").expect("a port");
    peer.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    peer.connect(server.udp).expect("an address");
    let mut random = random::Random::new(3);
    for len in 0..300 {
        let mut bytes = random::bytes(random.word(), len % 40);
        // Never a request of one datagram that could be answered.
        if bytes.len() > 5 {
            bytes[4] = 7;
        }
        peer.send(&bytes).expect("sent");
        // Read at once: what does not fit into the socket would be lost.
        if bytes.len() > 8 {
            let mut answer = [0; 100];
            let got = peer.recv(&mut answer).expect("a refusal");
            assert_eq!(answer[..2], bytes[..2]);
            assert_eq!(&answer[8..got], b"SERVER_ERROR multi-packet request not supported\r\n");
        }
    }
    peer.send(b"\xab\xcd\0\0\0\x01\0\0get kept\r\n").expect("sent");
    let mut answer = std::collections::BTreeMap::new();
    let mut datagram = [0; 65_536];
    loop {
        let got = peer.recv(&mut datagram).expect("an answer");
        let number = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        assert_eq!(number(0), 0xabcd);
        assert!(got <= 1400, "{got} bytes in a datagram");
        answer.insert(number(2), datagram[8..got].to_vec());
        if answer.len() == usize::from(number(4)) {
            break;
        }
    }
    let answer: Vec<u8> = answer.into_values().flatten().collect();
    assert!(answer == [b"VALUE kept 0 100000\r\n", &value[..], b"\r\nEND\r\n"].concat());
    assert_eq!(client.get("kept", false).as_ref(), Some(&value));
    server.stop();
}
