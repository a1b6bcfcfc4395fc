//! Concurrency: objects passed between threads, threads that end, sends during writes of one object.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod common;

use common::{Pipe, can_lend, connection, exclusive, lend_all, pattern};
use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use uncopy_twin::{Buffer, Until, is_valid, statistics};

#[test]
fn objects_that_other_threads_free_are_nobody_elses_before() {
    let _guard = exclusive();
    let (send, receive) = mpsc::sync_channel::<(Buffer, usize)>(64);
    let receive = std::sync::Arc::new(std::sync::Mutex::new(receive));
    let writers: Vec<_> = (0..3usize)
        .map(|writer| {
            let send = send.clone();
            std::thread::spawn(move || {
                for round in 0..3000usize {
                    let seed = writer * 100_000 + round;
                    let size = 1 + (seed * 7919) % 9000;
                    let bytes = Buffer::copy_of(&pattern(seed, size)).expect("memory");
                    if round % 5 == 0 {
                        drop(lend_all(&bytes, Until::Dropped));
                    }
                    send.send((bytes, seed)).expect("a reader");
                }
            })
        })
        .collect();
    drop(send);
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let receive = receive.clone();
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                while let Some((bytes, seed)) = { receive.lock().expect("not poisoned").recv().ok() } {
                    assert!(*bytes == pattern(seed, bytes.len())[..]);
                    kept.push((bytes, seed));
                    if kept.len() > 100 {
                        let (mut bytes, seed) = kept.swap_remove(seed % 100);
                        assert!(*bytes == pattern(seed, bytes.len())[..]);
                        bytes.fill(0);
                    }
                }
            })
        })
        .collect();
    writers.into_iter().chain(readers).for_each(|thread| thread.join().expect("a thread ends well"));
    assert!(is_valid());
}

#[test]
fn threads_that_end_leave_their_pageblocks_to_the_next() {
    let _guard = exclusive();
    let round = || {
        std::thread::spawn(|| drop(Buffer::copy_of(&[1; 1000]).expect("memory")))
            .join()
            .expect("a thread ends well");
    };
    (0..10).for_each(|_| round());
    let before = statistics().used_bytes;
    (0..500).for_each(|_| round());
    assert_eq!(statistics().used_bytes, before);
}

#[test]
fn more_threads_than_lanes_all_get_memory() {
    let _guard = exclusive();
    let barrier = std::sync::Arc::new(std::sync::Barrier::new(150));
    let threads: Vec<_> = (0..150usize)
        .map(|index| {
            let barrier = barrier.clone();
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(move || {
                    let objects: Vec<Buffer> = (0..20)
                        .map(|more| Buffer::copy_of(&pattern(index + more, 300)).expect("memory"))
                        .collect();
                    barrier.wait();
                    for (more, object) in objects.iter().enumerate() {
                        assert!(**object == pattern(index + more, 300)[..]);
                    }
                    objects.iter().map(|object| object.as_ptr() as usize).collect::<Vec<_>>()
                })
                .expect("a thread")
        })
        .collect();
    // Up to here all objects were allocated at the same time.
    let addresses: Vec<usize> =
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread ends well")).collect();
    assert_eq!(addresses.len(), 3000);
    let different: HashSet<usize> = addresses.into_iter().collect();
    assert!(different.len() >= 300, "{}", different.len());
}

#[test]
fn while_threads_write_to_it_a_page_that_was_sent_keeps_what_it_had_when_the_call_returned() {
    let Some(_guard) =
        can_lend("while_threads_write_to_it_a_page_that_was_sent_keeps_what_it_had_when_the_call_returned")
    else {
        return;
    };
    const PAGES: usize = 4;
    const ROUNDS: usize = 300;
    // One thread per page writes increasing numbers to the page's first word; another thread sends the pages.
    let buffer = Buffer::zeroed(PAGES * 4096).expect("memory");
    let address = buffer.as_ptr() as usize;
    let is_done = AtomicBool::new(false);
    let counters: Vec<std::sync::atomic::AtomicU64> = (0..PAGES).map(|_| 0.into()).collect();
    let (socket, mut receiver) = connection();
    let pipe = Pipe::new();
    std::thread::scope(|scope| {
        for (page, counter) in counters.iter().enumerate() {
            let is_done = &is_done;
            scope.spawn(move || {
                let mut value = 0u64;
                while !is_done.load(Relaxed) {
                    value += 1;
                    // Stored before the write, so that no page contains a larger number than this.
                    counter.store(value, Relaxed);
                    // SAFETY: the word is aligned and within the buffer; only this thread writes to it, and
                    // the kernel reads it concurrently.
                    unsafe { ((address + page * 4096) as *mut u64).write_volatile(value) };
                    if value.is_multiple_of(64) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut by_reference = 0;
        for _ in 0..ROUNDS {
            // Retries, because writes make the allocator back off; each round should send by reference.
            let loan = (0..1_000_000).find_map(|_| lend_all(&buffer, Until::Dropped));
            let Some(loan) = loan else { break };
            by_reference += 1;
            pipe.vmsplice(&buffer);
            pipe.splice_to(socket.as_raw_fd(), PAGES * 4096);
            drop(loan);
            // Upper bounds of the numbers that may arrive.
            let most: Vec<u64> = counters.iter().map(|counter| counter.load(Relaxed)).collect();
            std::thread::yield_now();
            let got = common::receive(&mut receiver, PAGES * 4096);
            for (page, most) in most.iter().enumerate() {
                let sent = u64::from_ne_bytes(got[page * 4096..][..8].try_into().expect("8 bytes"));
                assert!(
                    sent <= *most,
                    "page {page}: {sent} arrived, {most} had been written when the call returned"
                );
            }
        }
        is_done.store(true, Relaxed);
        assert!(by_reference > 10, "{by_reference}");
    });
}
