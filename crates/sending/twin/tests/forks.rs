//! Forks while memory is in use: parents with threads, children that continue to run, children that send.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod common;

use common::{Pipe, can_lend, connection, in_child, lend_all, pattern, receive};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_twin::{Buffer, Status, Until, is_valid, statistics, status};

const LEN: usize = 64 << 10;

#[test]
fn a_child_reads_and_writes_its_own_copy_and_the_parent_keeps_its_own() {
    let Some(_guard) = can_lend("a_child_reads_and_writes_its_own_copy_and_the_parent_keeps_its_own") else {
        return;
    };
    let mut buffer = Buffer::copy_of(&pattern(1, LEN)).expect("memory");
    drop(lend_all(&buffer, Until::Dropped));
    let status = in_child(|| {
        let ok = *buffer == pattern(1, LEN)[..] && status() == Status::Dormant;
        buffer.fill(9);
        let more: Vec<Buffer> =
            (0..50).map(|_| Buffer::copy_of(&pattern(4, 5000)).expect("memory")).collect();
        ok && buffer.iter().all(|byte| *byte == 9)
            && more.iter().all(|object| **object == pattern(4, 5000)[..])
            && is_valid()
    });
    assert_eq!(status, 0);
    assert!(*buffer == pattern(1, LEN)[..]);
    buffer.fill(3);
    assert!(buffer.iter().all(|byte| *byte == 3));
}

#[test]
fn what_the_parent_sent_before_a_fork_arrives_whoever_writes_afterwards() {
    let Some(_guard) = can_lend("what_the_parent_sent_before_a_fork_arrives_whoever_writes_afterwards")
    else {
        return;
    };
    for parent_writes in [false, true] {
        let mut buffer = Buffer::copy_of(&pattern(2, LEN)).expect("memory");
        let (socket, mut receiver) = connection();
        let pipe = Pipe::new();
        let loan = lend_all(&buffer, Until::Dropped).expect("lent");
        pipe.vmsplice(&buffer);
        pipe.splice_to(socket.as_raw_fd(), LEN);
        drop(loan);
        let status = in_child(|| {
            buffer.fill(7);
            drop(buffer);
            let others: Vec<Buffer> = (0..20).map(|_| Buffer::copy_of(&[8; LEN]).expect("memory")).collect();
            others.iter().all(|other| other[LEN - 1] == 8)
        });
        assert_eq!(status, 0);
        if parent_writes {
            buffer = Buffer::copy_of(&[5; LEN]).expect("memory");
            buffer.fill(6);
        }
        assert!(receive(&mut receiver, LEN) == pattern(2, LEN));
    }
}

#[test]
fn a_child_that_sends_protects_its_own_pages() {
    let Some(_guard) = can_lend("a_child_that_sends_protects_its_own_pages") else { return };
    let mut buffer = Buffer::copy_of(&pattern(3, LEN)).expect("memory");
    drop(lend_all(&buffer, Until::Dropped));
    let status = in_child(|| {
        let (socket, mut receiver) = connection();
        let pipe = Pipe::new();
        let before = statistics().replaced_pages;
        let loan = lend_all(&buffer, Until::Dropped).expect("lent in the child");
        assert_eq!(status(), Status::Active);
        pipe.vmsplice(&buffer);
        pipe.splice_to(socket.as_raw_fd(), LEN);
        drop(loan);
        buffer.fill(1);
        let arrived = receive(&mut receiver, LEN) == pattern(3, LEN);
        // A grandchild is forked while this process protects pages.
        let grandchild = in_child(|| {
            buffer.fill(2);
            drop(lend_all(&buffer, Until::Dropped).expect("lent in the grandchild"));
            buffer.fill(3);
            buffer.iter().all(|byte| *byte == 3)
        });
        arrived
            && grandchild == 0
            && statistics().replaced_pages > before
            && buffer.iter().all(|byte| *byte == 1)
    });
    assert_eq!(status, 0);
    assert!(*buffer == pattern(3, LEN)[..]);
}

#[test]
fn a_program_whose_threads_allocate_write_and_send_forks_children_that_go_on() {
    let Some(_guard) = can_lend("a_program_whose_threads_allocate_write_and_send_forks_children_that_go_on")
    else {
        return;
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let is_done = &is_done;
            scope.spawn(move || {
                let mut kept: Vec<(Buffer, usize)> = Vec::new();
                let mut round = thread * 1000;
                while !is_done.load(Relaxed) {
                    round += 1;
                    let size = [100, 1000, 4000, 20_000, LEN][round % 5];
                    kept.push((Buffer::copy_of(&pattern(round, size)).expect("memory"), round));
                    let (object, seed) = &mut kept[round % 7 % (round % 7 + 1).min(1)];
                    assert!(**object == pattern(*seed, object.len())[..]);
                    drop(lend_all(object, Until::Dropped));
                    *seed = round + 1;
                    let new = pattern(*seed, object.len());
                    object.copy_from_slice(&new);
                    if kept.len() > 20 {
                        kept.swap_remove(round % 20);
                    }
                }
            });
        }
        let mine = Buffer::copy_of(&pattern(5, LEN)).expect("memory");
        let small: Vec<Buffer> =
            (0..100).map(|seed| Buffer::copy_of(&pattern(seed, 700)).expect("memory")).collect();
        for round in 0..30usize {
            drop(lend_all(&mine, Until::Dropped));
            let status = in_child(|| {
                let mut ok = *mine == pattern(5, LEN)[..];
                for (seed, object) in small.iter().enumerate() {
                    ok &= **object == pattern(seed, 700)[..];
                }
                let more: Vec<Buffer> = (0..100)
                    .map(|seed| Buffer::copy_of(&pattern(seed, 100 * seed)).expect("memory"))
                    .collect();
                if round % 3 == 0 {
                    drop(lend_all(&mine, Until::Dropped));
                }
                for (seed, object) in more.iter().enumerate() {
                    ok &= **object == pattern(seed, 100 * seed)[..];
                }
                ok
            });
            assert_eq!(status, 0, "round {round}");
        }
        is_done.store(true, Relaxed);
    });
}

#[test]
fn a_child_without_fork_handlers_reads_its_memory_and_lends_nothing_of_the_parents() {
    let Some(_guard) =
        can_lend("a_child_without_fork_handlers_reads_its_memory_and_lends_nothing_of_the_parents")
    else {
        return;
    };
    let mut buffer = Buffer::copy_of(&pattern(6, LEN)).expect("memory");
    drop(lend_all(&buffer, Until::Dropped));
    // SAFETY: clone(2) without CLONE_VM behaves like fork(2). The child only accesses its copy of `buffer`
    // and calls alarm(2) and _exit(2). `status` outlives waitpid(2).
    unsafe {
        let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(30);
            let ok = *buffer == pattern(6, LEN)[..];
            buffer.fill(1);
            libc::_exit(i32::from(!ok));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
    assert!(*buffer == pattern(6, LEN)[..]);
    buffer.fill(2);
}
