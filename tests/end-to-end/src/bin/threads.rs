//! Threads that share buffers with received data, and programs that close or replace descriptors
//! they do not own.
//!
//! ```text
//! threads SCENARIO SEED
//! ```

#![allow(clippy::cast_possible_truncation, reason = "counts and lengths are small, or have 64 bits here")]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::mpsc;

use uncopy_core::stats::Counter;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::counters::Counters;
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::wait;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle;
use uncopy_tests::random::Random;
use uncopy_tests::unwound::Thread;

const MIB: usize = 1 << 20;

/// Four threads hand buffers to one another in a ring.
fn ring(seed: u64) {
    const HOPS: usize = 160;
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (sender, receiver) = mpsc::channel::<(usize, Buffer)>();
        senders.push(sender);
        receivers.push(receiver);
    }
    let mut feeder = Feeder::new(seed);
    for start in &senders {
        start.send((0, feeder.copied_buffer(MIB))).expect("queue");
        start.send((0, feeder.received_buffer(300_000))).expect("queue");
    }
    std::thread::scope(|scope| {
        for (number, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(number + 1) % 4].clone();
            scope.spawn(move || {
                let mut random = Random::new(seed + number as u64);
                let mut feeder = Feeder::new(seed + 50 + number as u64);
                for (hops, mut buffer) in receiver {
                    let (at, len) = random.range(buffer.len());
                    match random.below(6) {
                        0 => buffer.check_all("from the thread before"),
                        1 => buffer.store(at, len.min(100), hops as u64),
                        2 => feeder.receive(random.pick(InputCall::SOCKET), &mut buffer, at, len),
                        3 => feeder.send(random.pick(OutputCall::SOCKET), &buffer, at, len.min(MIB / 2)),
                        4 => {
                            buffer.copy_within(CopyCall::Memmove, (at + 45).min(buffer.len() - len), at, len)
                        }
                        _ => {
                            let copy = Buffer::copy_of(random.pick(CopyCall::ALL), &buffer, 0, buffer.len());
                            buffer.check_sparsely(&mut random, "the original of a copy");
                            buffer = copy;
                        }
                    }
                    if hops == HOPS {
                        buffer.check_all("at the end of the ring");
                    }
                    // The last rounds empty the ring; then every sender is dropped.
                    if hops < HOPS && next.send((hops + 1, buffer)).is_err() {
                        break;
                    }
                    if hops + 1 >= HOPS {
                        break;
                    }
                }
            });
        }
        drop(senders);
    });
}

/// Several threads read the same absent pages at once, while others copy from them.
fn fault_storm(seed: u64) {
    let mut feeder = Feeder::new(seed);
    for round in 0..12 {
        let received = feeder.received_buffer(2 * MIB);
        let mut second = Buffer::copy_of(CopyCall::Memcpy, &received, 1000, 2 * MIB - 1000);
        second.copy_within(CopyCall::Memmove, 0, 45, MIB);
        let barrier = Barrier::new(6);
        std::thread::scope(|scope| {
            for number in 0..6 {
                let (barrier, received, second) = (&barrier, &received, &second);
                scope.spawn(move || {
                    let mut random = Random::new(seed + round * 10 + number);
                    barrier.wait();
                    match number {
                        0 | 1 => received.check_all("read by two threads from the front"),
                        2 => {
                            for page in (0..512).rev() {
                                received.check(page * 4096, 4096, "read from the back");
                            }
                        }
                        3 => second.check_all("a copy, read while it is copied"),
                        4 => {
                            let third = Buffer::copy_of(CopyCall::Mempcpy, second, 0, MIB);
                            third.check_all("a copy made in the storm");
                        }
                        _ => {
                            for _ in 0..300 {
                                received.check_sparsely(&mut random, "read here and there");
                                second.check_sparsely(&mut random, "read here and there");
                            }
                        }
                    }
                });
            }
        });
    }
}

/// Threads write to their own bytes of the same absent pages at once.
fn writes_to_the_same_pages(seed: u64) {
    const THREADS: usize = 4;
    let mut feeder = Feeder::new(seed);
    for _ in 0..12 {
        let mut buffer = feeder.copied_buffer(MIB);
        let keep = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (barrier, buffer) = (&barrier, &buffer);
                scope.spawn(move || {
                    barrier.wait();
                    let mut at = number;
                    while at < MIB {
                        // SAFETY: every thread has its own residue, so no byte is written twice.
                        unsafe { buffer.at(at).write_volatile(oracle::stream_byte(seed, at)) };
                        at += THREADS * 331;
                    }
                });
            }
        });
        for number in 0..THREADS {
            let mut at = number;
            while at < MIB {
                let byte = oracle::stream_byte(seed, at);
                buffer.note_received(at, &[byte]);
                at += THREADS * 331;
            }
        }
        buffer.check_all("written by several threads");
        keep.check_all("a copy made before");
        let len = buffer.len();
        feeder.receive(InputCall::Recv, &mut buffer, 0, len);
    }
}

/// Two threads receive into the two halves of one buffer, which share a page.
fn halves_of_one_buffer(seed: u64) {
    let mut buffer = Feeder::new(seed).copied_buffer(2 * MIB);
    for round in 0..20 {
        let middle = MIB + 1234 + round * 77;
        let (near, far) = (buffer.at(0).addr(), buffer.at(middle).addr());
        let ends = [(near, 0, middle), (far, middle, 2 * MIB - middle)];
        let seeds: Vec<(u64, usize, usize)> = std::thread::scope(|scope| {
            let threads = ends.map(|(address, at, len)| {
                scope.spawn(move || {
                    let mut feeder = Feeder::new(seed + at as u64 + round as u64);
                    let mut done = 0;
                    let mut pieces = Vec::new();
                    while done < len {
                        let (stream, offered) = feeder.offer(len - done);
                        let mut got = 0;
                        while got < offered {
                            let start = std::ptr::with_exposed_provenance_mut(address + done + got);
                            let mut part = [libc::iovec { iov_base: start, iov_len: offered - got }];
                            // SAFETY: the part is this thread's half of the buffer.
                            got += unsafe { InputCall::Recv.input(feeder.near(), &mut part, 0) }
                                .expect("received");
                        }
                        pieces.push((stream, at + done, offered));
                        done += offered;
                    }
                    pieces
                })
            });
            threads.into_iter().flat_map(|thread| thread.join().expect("thread")).collect()
        });
        for (stream, at, len) in seeds {
            buffer.note_received_stream(at, len, stream, 0);
        }
        buffer.check_all("received by two threads");
    }
}

/// A program that closes all descriptors it does not know continues to read and receive.
fn closes_every_descriptor(seed: u64) {
    for round in 0..4 {
        let mut feeder = Feeder::new(seed + round);
        let received = feeder.received_buffer(MIB);
        let mut copy = Buffer::copy_of(CopyCall::Memcpy, &received, 77, MIB - 77);
        copy.check(5000, 10, "a page before");
        // SAFETY: the descriptors that the program itself still needs are 0 to 2 only.
        unsafe {
            match round {
                0 | 1 => {
                    for fd in 3..1024 {
                        libc::close(fd);
                    }
                }
                2 => {
                    libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                }
                _ => {
                    unsafe extern "C" {
                        fn closefrom(lowest: c_int);
                    }
                    closefrom(3);
                }
            }
        }
        // Free descriptor numbers are used again, as programs do.
        let files: Vec<std::fs::File> =
            (0..40).map(|_| std::fs::File::open("/dev/null").expect("/dev/null")).collect();
        received.check_all("received before everything was closed");
        copy.check_all("copied before everything was closed");
        copy.store(100_000, 50, 1);
        let mut later = Feeder::new(seed + 10 + round);
        let len = copy.len();
        later.receive(InputCall::Recv, &mut copy, 0, len);
        let third = Buffer::copy_of(CopyCall::Memmove, &copy, 0, len);
        later.send(OutputCall::Send, &third, 0, len);
        third.check_all("copied after everything was closed");
        copy.check_all("received after everything was closed");
        received.check_all("received before everything was closed, again");
        assert!(files.iter().all(|file| file.as_raw_fd() > 2));
        std::mem::forget(feeder);
    }
}

/// A program that puts its descriptors at numbers of its choice.
fn takes_any_descriptor_number(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let received = feeder.received_buffer(MIB);
    let copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, MIB);
    let mut mapped = Buffer::new(Origin::Mapped, MIB);
    mapped.copy_from(CopyCall::Memcpy, 0, &received, 0, MIB);
    for fd in 100..1000 {
        // A device that root's program keeps for a change of user is as visible as that of `uncopy run`.
        let is_hidden = std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|target| target.to_string_lossy().contains("[userfaultfd]"));
        // SAFETY: fcntl(2) with F_GETFD takes integers and accesses no memory.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        assert!(!is_hidden || flags == -1, "{fd} is not the program's and yet open");
        // SAFETY: dup2 takes integers; none of these numbers is the program's.
        assert_eq!(unsafe { libc::dup2(2, fd) }, fd, "dup2 to {fd}");
    }
    received.check_all("received before every number was taken");
    mapped.check_all("copied to a foreign range before every number was taken");
    let mut third = Buffer::copy_of(CopyCall::Memcpy, &copy, 1, MIB - 1);
    feeder.receive(InputCall::Recv, &mut third, 0, MIB - 1);
    copy.check_all("copied before every number was taken");
    third.check_all("received after every number was taken");
    for fd in 100..1000 {
        // SAFETY: the numbers from 100 to 999 are duplicates made by this function.
        assert_eq!(unsafe { libc::close(fd) }, 0, "close of {fd}");
    }
    let fourth = feeder.copied_buffer(MIB);
    // A new handler thread, for a new namespace if allowed, has the descriptor numbers of this moment.
    // SAFETY: unshare(2) takes an integer and accesses no memory.
    unsafe { libc::unshare(libc::CLONE_NEWIPC) };
    fourth.check_all("received before the namespace was left");
    let mut fifth = Buffer::new(Origin::Mapped, MIB);
    fifth.copy_from(CopyCall::Memcpy, 0, &fourth, 0, MIB);
    fifth.check_all("copied at the end");
}

thread_local! {
    static KEPT: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

/// Short-lived threads whose destructors free and read viewed buffers.
fn threads_that_come_and_go(seed: u64) {
    struct Checked(Buffer);
    impl Drop for Checked {
        fn drop(&mut self) {
            self.0.check_all("in a destructor of a thread");
            let copy = Buffer::copy_of(CopyCall::Memcpy, &self.0, 0, self.0.len());
            copy.check(1000, 100, "copied in a destructor of a thread");
        }
    }
    thread_local! {
        static CHECKED: RefCell<Option<Checked>> = const { RefCell::new(None) };
    }
    for round in 0..60 {
        let threads: Vec<_> = (0..3)
            .map(|number| {
                std::thread::spawn(move || {
                    let mut feeder = Feeder::new(seed + round * 3 + number);
                    CHECKED.set(Some(Checked(feeder.copied_buffer(200_000))));
                    KEPT.set(Some(feeder.received_buffer(100_000)));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("thread");
        }
    }
}

/// Calls `exit` while other threads receive, copy and touch.
fn exit_while_others_work(seed: u64) {
    for number in 0..3 {
        std::thread::spawn(move || {
            let mut feeder = Feeder::new(seed + number);
            loop {
                let mut copy = feeder.copied_buffer(500_000);
                copy.store(1000, 200_000, 1);
                copy.check_all("while the program ends");
            }
        });
    }
    let mut feeder = Feeder::new(seed + 10);
    for _ in 0..20 {
        feeder.copied_buffer(MIB).check_all("in the main thread");
    }
    println!("leaving");
    std::process::exit(0);
}

static BLOCKED_ON: AtomicI32 = AtomicI32::new(-1);
static BLOCKED_BUFFER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static ENTERED: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" {
    fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_exit(result: *mut c_void) -> !;
}

/// Blocks in `recv` of a large buffer until cancelled.
extern "C-unwind" fn receive_forever(_argument: *mut c_void) -> *mut c_void {
    ENTERED.store(true, Ordering::Release);
    loop {
        let buffer = BLOCKED_BUFFER.load(Ordering::Relaxed);
        // SAFETY: the buffer has a megabyte and no other thread uses it.
        unsafe { recv(BLOCKED_ON.load(Ordering::Relaxed), buffer, MIB, 0) };
    }
}

/// A thread cancelled inside a large `recv` holds no lock afterwards.
fn cancelled_receive(seed: u64) {
    for round in 0..20 {
        let mut feeder = Feeder::new(seed + round);
        let keep = feeder.copied_buffer(MIB);
        let buffer = Buffer::copy_of(CopyCall::Memcpy, &keep, 0, MIB);
        let mut ends = [0; 2];
        // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) }, 0);
        BLOCKED_ON.store(ends[0], Ordering::Relaxed);
        BLOCKED_BUFFER.store(buffer.at(0).cast(), Ordering::Relaxed);
        ENTERED.store(false, Ordering::Relaxed);
        // SAFETY: the thread uses statics only and is joined here.
        let thread = unsafe { Thread::start(receive_forever, std::ptr::null_mut()) };
        while !ENTERED.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        if round % 2 == 0 {
            let text = [9u8; 5000];
            // SAFETY: the text has as many bytes.
            unsafe { oracle::raw_write(ends[1], text.as_ptr(), text.len()) }.expect("written");
        }
        thread.cancel();
        for end in ends {
            // SAFETY: the descriptors were made above, and nothing else uses them.
            unsafe { libc::close(end) };
        }
        keep.check_all("not the cancelled thread's");
        feeder.copied_buffer(MIB).check_all("after a cancelled receive");
        let later = Buffer::new(Origin::Calloc, MIB);
        later.check_all("allocated after a cancelled receive");
    }
}

/// Copies a buffer of received bytes, frees the copy, and exits the thread with the length.
extern "C-unwind" fn copy_and_exit(argument: *mut c_void) -> *mut c_void {
    let received: *const Buffer = argument.cast_const().cast();
    // SAFETY: the thread that started this one keeps the buffer and waits.
    let received = unsafe { &*received };
    Buffer::copy_of(CopyCall::Memcpy, received, 0, received.len()).check_all("in a thread that ends itself");
    // SAFETY: no object with a destructor is alive in the frames of this thread.
    unsafe { pthread_exit(received.len() as *mut c_void) }
}

/// Threads that end by `pthread_exit`, which unwinds their stacks.
fn threads_that_end_themselves(seed: u64) {
    let mut feeder = Feeder::new(seed);
    for round in 0..20 {
        let received = feeder.copied_buffer(MIB + round);
        let argument = (&raw const received).cast_mut().cast();
        // SAFETY: the buffer outlives the thread, which is joined here.
        let result = unsafe { Thread::start(copy_and_exit, argument) }.join();
        assert_eq!(result, (MIB + round) as *mut c_void, "the thread's result");
        received.check_all("after the thread that copied it");
    }
}

/// Memory held by calls of cancelled threads is returned when the threads end. Memory held by calls
/// of other threads is not the child's, which has no such threads.
fn cancelled_receives_keep_no_memory(seed: u64) {
    const LARGE_BYTES: usize = 8 * MIB;
    let mut feeder = Feeder::new(seed);
    feeder.copied_buffer(MIB).check_all("before any thread");
    let mut ends = [0; 2];
    // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) }, 0);
    BLOCKED_ON.store(ends[0], Ordering::Relaxed);
    let held = || {
        let counters = Counters::live(std::process::id())?;
        Some(counters.get(Counter::SegmentsBytes) as usize)
    };
    for round in 0..12 {
        let buffer = Buffer::new(Origin::Calloc, LARGE_BYTES);
        BLOCKED_BUFFER.store(buffer.at(0).cast(), Ordering::Relaxed);
        ENTERED.store(false, Ordering::Relaxed);
        // SAFETY: the thread uses statics only and is joined below.
        let thread = unsafe { Thread::start(receive_much, std::ptr::without_provenance_mut(round % 2)) };
        uncopy_tests::scratch::wait_until("the blocked thread", || {
            let is_blocked = held().is_none_or(|held| held >= LARGE_BYTES);
            (ENTERED.load(Ordering::Acquire) && is_blocked).then_some(())
        });
        if round % 4 == 0 {
            // SAFETY: the child only reads counters and ends by _exit.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let kept = held().is_some_and(|held| held >= LARGE_BYTES);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(i32::from(kept)) };
            }
            assert_eq!(wait(pid), 0, "the child holds what a thread of its parent was receiving into");
        }
        thread.cancel();
        let held = held().unwrap_or(0);
        assert!(held < LARGE_BYTES, "{held} bytes are held after {} threads", round + 1);
        buffer.check_all("a buffer that received nothing");
    }
    feeder.copied_buffer(MIB).check_all("after the threads");
}

/// Blocks in `recv` of 8 MiB; every second thread can be cancelled at any point.
extern "C-unwind" fn receive_much(argument: *mut c_void) -> *mut c_void {
    const ASYNCHRONOUS: c_int = 1;
    if !argument.is_null() {
        // SAFETY: the thread does nothing but receive.
        assert_eq!(unsafe { pthread_setcanceltype(ASYNCHRONOUS, std::ptr::null_mut()) }, 0);
    }
    ENTERED.store(true, Ordering::Release);
    loop {
        let buffer = BLOCKED_BUFFER.load(Ordering::Relaxed);
        // SAFETY: the buffer has 8 MiB and no other thread uses it.
        unsafe { recv(BLOCKED_ON.load(Ordering::Relaxed), buffer, 8 * MIB, 0) };
    }
}

/// State of a coroutine and the buffers it works on.
struct Coroutine {
    main: libc::ucontext_t,
    own: libc::ucontext_t,
    feeder: Feeder,
    source: Buffer,
    turn: usize,
}

static COROUTINE: AtomicPtr<Coroutine> = AtomicPtr::new(std::ptr::null_mut());

/// Receives and copies into, from and through its own stack, which lies in a block of malloc.
extern "C" fn coroutine() {
    // SAFETY: set before the coroutine is entered; main waits meanwhile.
    let state = unsafe { &mut *COROUTINE.load(Ordering::Relaxed) };
    let mut array = std::hint::black_box([5u8; 60_000]);
    let len = array.len();
    let copies: [CopyCall; 2] = [CopyCall::Memcpy, CopyCall::Memmove];
    // SAFETY: the ranges are inside the array and the buffers.
    unsafe {
        copies[state.turn % 2].copy(array.as_mut_ptr(), state.source.at(state.turn * 100), len);
        let wrong = oracle::first_difference(array.as_ptr(), state.source.mirror_at(state.turn * 100), len);
        assert_eq!(wrong, None, "copied to a coroutine's stack");
        let (stream, offered) = state.feeder.offer(len);
        let mut got = 0;
        while got < offered {
            let mut part =
                [libc::iovec { iov_base: array.as_mut_ptr().add(got).cast(), iov_len: offered - got }];
            got += InputCall::Recv.input(state.feeder.near(), &mut part, 0).expect("received");
        }
        assert_eq!(oracle::stream_difference(array.as_ptr(), len, stream, 0), None, "received on a stack");
        let target = libc::malloc(len).cast::<u8>();
        CopyCall::Memcpy.copy(target, array.as_ptr(), len);
        assert_eq!(oracle::first_difference(target, array.as_ptr(), len), None, "copied from a stack");
        libc::free(target.cast());
        descend(5, state);
        assert_eq!(oracle::stream_difference(array.as_ptr(), len, stream, 0), None, "still on the stack");
        libc::swapcontext(&raw mut state.own, &raw const state.main);
    }
}

/// Touches stack pages for the first time, while copying.
#[inline(never)]
fn descend(depth: usize, state: &mut Coroutine) {
    let array = std::hint::black_box([depth as u8; 10_000]);
    let from_stack = Buffer::from_bytes(&array);
    let copy = Buffer::copy_of(CopyCall::Memcpy, &state.source, depth, 40_000);
    if depth > 0 {
        descend(depth - 1, state);
    }
    copy.check(depth * 10, 5000, "copied on a coroutine's stack");
    from_stack.check_all("copied from a coroutine's frame");
    assert!(std::hint::black_box(&array).iter().all(|byte| *byte == depth as u8), "a coroutine's frame");
}

/// Coroutines whose stacks held views, and are received into again.
fn coroutines_on_the_heap(seed: u64) {
    const STACK_BYTES: usize = 1 << 20;
    let mut feeder = Feeder::new(seed);
    for turn in 0..40 {
        let source = feeder.copied_buffer(MIB);
        let stack = feeder.copied_buffer(STACK_BYTES);
        // SAFETY: the stack is a buffer's memory, which the coroutine has for itself until it is done.
        unsafe {
            let mut state = Coroutine {
                main: std::mem::zeroed(),
                own: std::mem::zeroed(),
                feeder: Feeder::new(seed + turn as u64),
                source,
                turn,
            };
            COROUTINE.store(&raw mut state, Ordering::Relaxed);
            assert_eq!(libc::getcontext(&raw mut state.own), 0);
            state.own.uc_stack.ss_sp = stack.at(0).cast();
            state.own.uc_stack.ss_size = STACK_BYTES;
            libc::makecontext(&raw mut state.own, coroutine, 0);
            assert_eq!(libc::swapcontext(&raw mut state.main, &raw const state.own), 0);
            state.source.check_all("what coroutines copied from");
        }
        drop(stack);
        feeder.received_buffer(STACK_BYTES).check_all("memory that was a stack");
    }
    if let Some(counters) = Counters::live(std::process::id()) {
        let blocks = counters.get(Counter::BlocksBytes) as usize;
        assert!(blocks < 8 * MIB, "{counters}");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "ring" => ring(seed),
        "fault_storm" => fault_storm(seed),
        "writes_to_the_same_pages" => writes_to_the_same_pages(seed),
        "halves_of_one_buffer" => halves_of_one_buffer(seed),
        "closes_every_descriptor" => closes_every_descriptor(seed),
        "takes_any_descriptor_number" => takes_any_descriptor_number(seed),
        "threads_that_come_and_go" => threads_that_come_and_go(seed),
        "exit_while_others_work" => exit_while_others_work(seed),
        "threads_that_end_themselves" => threads_that_end_themselves(seed),
        "cancelled_receives_keep_no_memory" => cancelled_receives_keep_no_memory(seed),
        "coroutines_on_the_heap" => coroutines_on_the_heap(seed),
        "cancelled_receive" => cancelled_receive(seed),
        other => panic!("unknown scenario {other}"),
    }
}
