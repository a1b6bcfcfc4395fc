//! Overwrite in flight: send, do not read, write other bytes to the same addresses, then read. The old bytes arrive,
//! whatever happens in between.
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
            let link = connect(family);
            set_option(link.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
            let mut memory = Lendable::new(pages);
            memory.fill(pattern(1));
            let mut header = *b"a header of some bytes: ";
            let mut trailer = *b"\r\n";
            let len = memory.len() - offset;
            let expected = bytes_of(&header, &memory.bytes()[offset..], &trailer);
            let parts = [copied(&header), memory.part(offset, len), copied(&trailer)];
            let sent = send(link.fd(), &parts, 0).expect("sent");
            assert_eq!(sent.len_bytes, expected.len(), "{family:?}, {pages} pages");
            assert_eq!(sent.hold, Hold::Spliced, "{family:?}, {pages} pages");
            header.fill(b'X');
            trailer.fill(b'Y');
            memory.fill(pattern(2));
            assert_eq!(link.read(expected.len()), expected, "{family:?}, {pages} pages");
        }
    }
}

/// Without replacing the pages the peer gets the new bytes: what the tests here look for does happen.
#[test]
fn changing_a_page_in_place_would_reach_the_peer() {
    set_break_even(Some(1));
    let link = connect(Family::Tcp4);
    let mut memory = Lendable::new(4);
    memory.fill(pattern(1));
    let part = memory.part(0, memory.len());
    assert_eq!(send(link.fd(), &[part], 0).expect("sent").hold, Hold::Spliced);
    // SAFETY: our own memory, changed in place on purpose.
    unsafe { core::ptr::write_bytes(part.address() as *mut u8, b'!', part.len()) };
    assert_eq!(link.read(part.len()), vec![b'!'; part.len()]);
}

#[test]
fn a_datagram_keeps_the_bytes_that_were_sent() {
    set_break_even(Some(1));
    for family in DATAGRAMS {
        for (pages, offset) in [(2, 100), (8, 5), (15, 0)] {
            let link = connect(family);
            let mut memory = Lendable::new(pages);
            let mut expected = Vec::new();
            for round in 0..3 {
                memory.fill(pattern(round));
                let header = [round as u8; 8];
                let len = memory.len() - offset;
                expected.push(bytes_of(&header, &memory.bytes()[offset..], b""));
                let sent = send(link.fd(), &[copied(&header), memory.part(offset, len)], 0).expect("sent");
                // A page that begins at an odd place would spoil the kernel's own checksum.
                let hold = if offset % 2 == 0 { Hold::Spliced } else { Hold::Nothing };
                assert_eq!((sent.len_bytes, sent.hold), (len + 8, hold), "{family:?}");
            }
            memory.fill(pattern(9));
            for expected in expected {
                assert_eq!(link.receive(), expected, "{family:?}, {pages} pages");
            }
        }
    }
}

/// Messages until the buffers are full, each overwritten at once; then a reader that takes a few bytes at a time.
#[test]
fn slow_readers_get_what_was_sent() {
    set_break_even(Some(1));
    for family in STREAMS {
        let link = connect(family);
        set_non_blocking(link.fd());
        let mut memory = Lendable::new(20);
        let mut expected = Vec::new();
        let (mut referred, mut round, mut reading) = (0, 0usize, 0);
        while expected.len() < 8 << 20 && round < 4000 {
            round += 1;
            memory.fill(pattern(round));
            let header = round.to_le_bytes();
            let all = bytes_of(&header, memory.bytes(), &header);
            match send(link.fd(), &[copied(&header), memory.part(0, memory.len()), copied(&header)], 0) {
                Ok(sent) => {
                    referred += usize::from(sent.hold == Hold::Spliced);
                    expected.extend_from_slice(&all[..sent.len_bytes]);
                }
                Err(error) => {
                    assert_eq!(error.0, libc::EAGAIN);
                    let len = 100_003.min(expected.len() - reading);
                    assert_eq!(link.read(len), expected[reading..reading + len], "{family:?}");
                    reading += len;
                }
            }
        }
        memory.fill(pattern(0));
        assert!(referred > 10, "{family:?}: {referred} by reference");
        assert!(link.read(expected.len() - reading) == expected[reading..], "{family:?}");
    }
}

/// A blocking sender waits as long as its reader takes, and its message arrives as a whole.
#[test]
fn a_blocking_sender_waits_for_its_reader() {
    set_break_even(Some(1));
    for family in STREAMS {
        for buffer_bytes in [8 << 10, 64 << 10, 400 << 10] {
            let link = connect(family);
            set_option(link.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, buffer_bytes);
            let mut memory = Lendable::new(300);
            memory.fill(pattern(5));
            let expected = bytes_of(b"<<", memory.bytes(), b">>");
            let len = expected.len();
            let read = std::thread::scope(|scope| {
                let reader = scope.spawn(|| link.read(len));
                let parts = [copied(b"<<"), memory.part(0, memory.len()), copied(b">>")];
                let sent = send(link.fd(), &parts, 0).expect("sent");
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
            let Link { here, there } = connect(family);
            let mut memory = Lendable::new(12);
            memory.fill(pattern(3));
            let expected = memory.bytes().to_vec();
            let sent = send(here.as_raw_fd(), &[memory.part(0, memory.len())], 0).expect("sent");
            assert_eq!((sent.len_bytes, sent.hold), (expected.len(), Hold::Spliced));
            // SAFETY: touches no memory.
            assert_eq!(unsafe { libc::shutdown(here.as_raw_fd(), libc::SHUT_WR) }, 0);
            let link = if closes {
                let link = Link { here: duplicate(there.as_raw_fd()), there };
                drop(here);
                link
            } else {
                Link { here, there }
            };
            memory.fill(pattern(4));
            assert_eq!(link.read(expected.len()), expected, "{family:?}");
        }
    }
}

/// After a fork both processes send with pipes and pages of their own, and neither changes what the other sent.
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

/// Many threads, each with a connection of its own; and some that end in between.
#[test]
fn threads_send_at_once() {
    set_break_even(Some(1));
    std::thread::scope(|scope| {
        for thread in 0..40 {
            scope.spawn(move || {
                let family = STREAMS[thread % STREAMS.len()];
                let link = connect(family);
                let mut memory = Lendable::new(5);
                for round in 0..20 {
                    memory.fill(pattern(thread * 1000 + round));
                    let header = [thread as u8, round as u8];
                    let expected = bytes_of(&header, memory.bytes(), &header);
                    let parts = [copied(&header), memory.part(0, memory.len()), copied(&header)];
                    assert_eq!(send(link.fd(), &parts, 0).expect("sent").len_bytes, expected.len());
                    memory.fill(pattern(0));
                    assert!(link.read(expected.len()) == expected, "{family:?}");
                }
            });
        }
    });
}

/// Datagrams of several threads on one socket: each arrives whole.
#[test]
fn datagrams_of_several_threads_stay_whole() {
    set_break_even(Some(1));
    const THREADS: usize = 4;
    const ROUNDS: usize = 50;
    for family in DATAGRAMS {
        let link = connect(family);
        std::thread::scope(|scope| {
            let (turn, turns) = std::sync::mpsc::sync_channel(1);
            for thread in 0..THREADS {
                let (link, turn) = (&link, turn.clone());
                scope.spawn(move || {
                    let mut memory = Lendable::new(4);
                    for round in 0..ROUNDS {
                        memory.fill(|at| (thread * 50 + round + at / PAGE_BYTES) as u8);
                        let header = [thread as u8, round as u8];
                        let parts = [copied(&header), memory.part(0, memory.len())];
                        let sent = send(link.fd(), &parts, 0).expect("sent");
                        assert_eq!(sent.len_bytes, memory.len() + 2);
                        turn.send(()).expect("the reader is there");
                    }
                });
            }
            drop(turn);
            let mut count = 0;
            while turns.recv().is_ok() {
                let datagram = link.receive();
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

/// A program that closes every descriptor, as daemons do, and opens its own in their place.
#[test]
fn a_program_that_closes_every_descriptor_is_not_disturbed() {
    set_break_even(Some(1));
    in_child(|| {
        let link = connect(Family::Tcp4);
        let memory = {
            let mut memory = Lendable::new(8);
            memory.fill(pattern(1));
            memory
        };
        let exchange = || {
            let sent = send(link.fd(), &[copied(b"head"), memory.part(0, memory.len())], 0);
            let expected = bytes_of(b"head", memory.bytes(), b"");
            sent.is_ok_and(|sent| sent.len_bytes == expected.len()) && link.read(expected.len()) == expected
        };
        let mut fine = exchange();
        let highest = link.fd().max(link.there.as_raw_fd()) + 1;
        // SAFETY: only the link is in use here, and its descriptors stay.
        unsafe { libc::syscall(libc::SYS_close_range, highest, u32::MAX, 0) };
        fine &= exchange();
        // Every number that one of ours could have is now a pipe of the program's.
        let mut ends = [0; 2];
        // SAFETY: room for two; numbers above those in use are replaced.
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
        // SAFETY: room for a byte. Nothing was ever written there.
        let read = unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
        fine && read == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
    });
}
