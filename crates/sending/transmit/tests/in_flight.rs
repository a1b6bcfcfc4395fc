//! Overwriting in flight: sends, does not read, writes other bytes to the same addresses, then reads. The
//! peer must get the old bytes in every case.
#![cfg(target_os = "linux")]
#![allow(clippy::cast_possible_truncation, reason = "bytes of patterns")]

mod common;

use common::*;
use std::os::fd::AsRawFd;
use uncopy_transmit::{Hold, set_break_even};

fn pattern(seed: usize) -> impl Fn(usize) -> u8 {
    move |at| (at.wrapping_mul(31) ^ (at >> 12) ^ seed.wrapping_mul(97)) as u8
}

fn bytes_of(header: &[u8], body: &[u8], trailer: &[u8]) -> Vec<u8> {
    [header, body, trailer].concat()
}

#[test]
fn a_stream_keeps_the_bytes_that_were_sent() {
    set_break_even(Some(1));
    for family in STREAMS {
        for (pages, offset) in [(1, 0), (2, 100), (15, 0), (16, 0), (17, 1), (24, 4000)] {
            let connection = connect(family);
            set_option(connection.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
            let mut memory = Lendable::new(pages);
            memory.fill(pattern(1));
            let mut header = *b"a header of some bytes: ";
            let mut trailer = *b"\r\n";
            let len = memory.len() - offset;
            let expected = bytes_of(&header, &memory.bytes()[offset..], &trailer);
            let parts = [copied(&header), memory.part(offset, len), copied(&trailer)];
            let sent = send(connection.fd(), &parts, 0).expect("sent");
            assert_eq!(sent.len_bytes, expected.len(), "{family:?}, {pages} pages");
            assert_eq!(sent.hold, Hold::Spliced, "{family:?}, {pages} pages");
            header.fill(b'X');
            trailer.fill(b'Y');
            memory.fill(pattern(2));
            assert_eq!(connection.read(expected.len()), expected, "{family:?}, {pages} pages");
        }
    }
}

/// Without replacing pages the peer gets the new bytes, which shows that these tests can fail.
#[test]
fn changing_a_page_in_place_would_reach_the_peer() {
    set_break_even(Some(1));
    let connection = connect(Family::Tcp4);
    let mut memory = Lendable::new(4);
    memory.fill(pattern(1));
    let part = memory.part(0, memory.len());
    assert_eq!(send(connection.fd(), &[part], 0).expect("sent").hold, Hold::Spliced);
    // SAFETY: `part` lies in `memory`, which is writable; nothing else accesses it.
    unsafe { core::ptr::write_bytes(part.address() as *mut u8, b'!', part.len()) };
    assert_eq!(connection.read(part.len()), vec![b'!'; part.len()]);
}

#[test]
fn a_datagram_keeps_the_bytes_that_were_sent() {
    set_break_even(Some(1));
    for family in DATAGRAMS {
        for (pages, offset) in [(2, 100), (8, 5), (15, 0)] {
            let connection = connect(family);
            let mut memory = Lendable::new(pages);
            let mut expected = Vec::new();
            for round in 0..3 {
                memory.fill(pattern(round));
                let header = [round as u8; 8];
                let len = memory.len() - offset;
                expected.push(bytes_of(&header, &memory.bytes()[offset..], b""));
                let sent =
                    send(connection.fd(), &[copied(&header), memory.part(offset, len)], 0).expect("sent");
                // The kernel's own checksum would be wrong for a page that starts at an odd offset.
                let hold = if offset % 2 == 0 { Hold::Spliced } else { Hold::Nothing };
                assert_eq!((sent.len_bytes, sent.hold), (len + 8, hold), "{family:?}");
            }
            memory.fill(pattern(9));
            for expected in expected {
                assert_eq!(connection.receive(), expected, "{family:?}, {pages} pages");
            }
        }
    }
}

/// Sends until the buffers are full, overwriting each message at once; then reads a few bytes at a time.
#[test]
fn slow_readers_get_what_was_sent() {
    set_break_even(Some(1));
    for family in STREAMS {
        let connection = connect(family);
        set_non_blocking(connection.fd());
        let mut memory = Lendable::new(20);
        let mut expected = Vec::new();
        let (mut referred, mut round, mut reading) = (0, 0usize, 0);
        while expected.len() < 8 << 20 && round < 4000 {
            round += 1;
            memory.fill(pattern(round));
            let header = round.to_le_bytes();
            let all = bytes_of(&header, memory.bytes(), &header);
            match send(connection.fd(), &[copied(&header), memory.part(0, memory.len()), copied(&header)], 0)
            {
                Ok(sent) => {
                    referred += usize::from(sent.hold == Hold::Spliced);
                    expected.extend_from_slice(&all[..sent.len_bytes]);
                }
                Err(error) => {
                    assert_eq!(error.0, libc::EAGAIN);
                    let len = 100_003.min(expected.len() - reading);
                    assert_eq!(connection.read(len), expected[reading..reading + len], "{family:?}");
                    reading += len;
                }
            }
        }
        memory.fill(pattern(0));
        assert!(referred > 10, "{family:?}: {referred} by reference");
        assert!(connection.read(expected.len() - reading) == expected[reading..], "{family:?}");
    }
}

#[test]
fn a_blocking_sender_waits_for_its_reader() {
    set_break_even(Some(1));
    for family in STREAMS {
        for buffer_bytes in [8 << 10, 64 << 10, 400 << 10] {
            let connection = connect(family);
            set_option(connection.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, buffer_bytes);
            let mut memory = Lendable::new(300);
            memory.fill(pattern(5));
            let expected = bytes_of(b"<<", memory.bytes(), b">>");
            let len = expected.len();
            let read = std::thread::scope(|scope| {
                let reader = scope.spawn(|| connection.read(len));
                let parts = [copied(b"<<"), memory.part(0, memory.len()), copied(b">>")];
                let sent = send(connection.fd(), &parts, 0).expect("sent");
                assert_eq!(sent.len_bytes, len, "{family:?}");
                memory.fill(pattern(6));
                reader.join().expect("the reader ends")
            });
            assert!(read == expected, "{family:?}, buffer of {buffer_bytes}");
        }
    }
}

#[test]
fn a_shutdown_or_a_close_in_between_takes_nothing_away() {
    set_break_even(Some(1));
    for family in STREAMS {
        for closes in [false, true] {
            let Connection { here, there } = connect(family);
            let mut memory = Lendable::new(12);
            memory.fill(pattern(3));
            let expected = memory.bytes().to_vec();
            let sent = send(here.as_raw_fd(), &[memory.part(0, memory.len())], 0).expect("sent");
            assert_eq!((sent.len_bytes, sent.hold), (expected.len(), Hold::Spliced));
            // SAFETY: shutdown(2) accesses no memory, and `here` is open.
            assert_eq!(unsafe { libc::shutdown(here.as_raw_fd(), libc::SHUT_WR) }, 0);
            let connection = if closes {
                let connection = Connection { here: duplicate(there.as_raw_fd()), there };
                drop(here);
                connection
            } else {
                Connection { here, there }
            };
            memory.fill(pattern(4));
            assert_eq!(connection.read(expected.len()), expected, "{family:?}");
        }
    }
}

/// After a fork both processes send with their own pipes and pages, and neither changes what the other sent.
#[test]
fn a_fork_in_between_changes_nothing() {
    set_break_even(Some(1));
    for family in STREAMS {
        let (parents, childs) = (connect(family), connect(family));
        let mut memory = Lendable::new(6);
        memory.fill(pattern(1));
        let header = *b"from the parent";
        let first = bytes_of(&header, memory.bytes(), b"");
        let parts = [copied(&header), memory.part(0, memory.len())];
        assert_eq!(send(parents.fd(), &parts, 0).expect("sent").hold, Hold::Spliced);
        in_child(|| {
            memory.fill(pattern(2));
            let header = *b"from the child";
            let expected = bytes_of(&header, memory.bytes(), b"");
            let parts = [copied(&header), memory.part(0, memory.len())];
            let sent = send(childs.fd(), &parts, 0);
            memory.fill(pattern(3));
            sent.is_ok_and(|sent| sent.hold == Hold::Spliced) && childs.read(expected.len()) == expected
        });
        let header = *b"from the parent again";
        let second = bytes_of(&header, memory.bytes(), b"");
        let parts = [copied(&header), memory.part(0, memory.len())];
        assert_eq!(send(parents.fd(), &parts, 0).expect("sent").hold, Hold::Spliced);
        memory.fill(pattern(4));
        assert_eq!(parents.read(first.len()), first, "{family:?}");
        assert_eq!(parents.read(second.len()), second, "{family:?}");
    }
}

/// Many threads send, each on a connection of its own; some end while others send.
#[test]
fn threads_send_at_once() {
    set_break_even(Some(1));
    std::thread::scope(|scope| {
        for thread in 0..40 {
            scope.spawn(move || {
                let family = STREAMS[thread % STREAMS.len()];
                let connection = connect(family);
                let mut memory = Lendable::new(5);
                for round in 0..20 {
                    memory.fill(pattern(thread * 1000 + round));
                    let header = [thread as u8, round as u8];
                    let expected = bytes_of(&header, memory.bytes(), &header);
                    let parts = [copied(&header), memory.part(0, memory.len()), copied(&header)];
                    assert_eq!(send(connection.fd(), &parts, 0).expect("sent").len_bytes, expected.len());
                    memory.fill(pattern(0));
                    assert!(connection.read(expected.len()) == expected, "{family:?}");
                }
            });
        }
    });
}

#[test]
fn datagrams_of_several_threads_stay_whole() {
    set_break_even(Some(1));
    const THREADS: usize = 4;
    const ROUNDS: usize = 50;
    for family in DATAGRAMS {
        let connection = connect(family);
        std::thread::scope(|scope| {
            let (turn, turns) = std::sync::mpsc::sync_channel(1);
            for thread in 0..THREADS {
                let (connection, turn) = (&connection, turn.clone());
                scope.spawn(move || {
                    let mut memory = Lendable::new(4);
                    for round in 0..ROUNDS {
                        memory.fill(|at| (thread * 50 + round + at / PAGE_BYTES) as u8);
                        let header = [thread as u8, round as u8];
                        let parts = [copied(&header), memory.part(0, memory.len())];
                        let sent = send(connection.fd(), &parts, 0).expect("sent");
                        assert_eq!(sent.len_bytes, memory.len() + 2);
                        turn.send(()).expect("the reader is there");
                    }
                });
            }
            drop(turn);
            let mut count = 0;
            while turns.recv().is_ok() {
                let datagram = connection.receive();
                assert_eq!(datagram.len(), 4 * PAGE_BYTES + 2);
                let (thread, round) = (usize::from(datagram[0]), usize::from(datagram[1]));
                let is_whole = datagram[2..]
                    .iter()
                    .enumerate()
                    .all(|(at, byte)| *byte == (thread * 50 + round + at / PAGE_BYTES) as u8);
                assert!(is_whole, "{family:?}: datagram {round} of thread {thread}");
                count += 1;
            }
            assert_eq!(count, THREADS * ROUNDS);
        });
    }
}

/// A program may close every descriptor, as daemons do, and open its own in their place.
#[test]
fn a_program_that_closes_every_descriptor_is_not_disturbed() {
    set_break_even(Some(1));
    in_child(|| {
        let connection = connect(Family::Tcp4);
        let memory = {
            let mut memory = Lendable::new(8);
            memory.fill(pattern(1));
            memory
        };
        let exchange = || {
            let sent = send(connection.fd(), &[copied(b"head"), memory.part(0, memory.len())], 0);
            let expected = bytes_of(b"head", memory.bytes(), b"");
            sent.is_ok_and(|sent| sent.len_bytes == expected.len())
                && connection.read(expected.len()) == expected
        };
        let mut fine = exchange();
        let highest = connection.fd().max(connection.there.as_raw_fd()) + 1;
        // SAFETY: close_range(2) accesses no memory; only the descriptors of `connection`, which are below
        // `highest`, are used afterwards.
        unsafe { libc::syscall(libc::SYS_close_range, highest, u32::MAX, 0) };
        fine &= exchange();
        // Occupies every number that a pipe of ours could have had with a pipe of the program's.
        let mut ends = [0; 2];
        // SAFETY: pipe2(2) writes two descriptors to `ends`, which has room for them; dup2(2) accesses no
        // memory and replaces only numbers above those in use.
        unsafe {
            fine &= libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) == 0;
            for number in ends[1] + 1..1000 {
                fine &= libc::dup2(ends[1], number) == number;
            }
        }
        for _ in 0..3 {
            fine &= exchange();
        }
        let mut byte = 0u8;
        // SAFETY: read(2) writes at most one byte to `byte`.
        let read = unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
        fine && read == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
    });
}
