//! Many threads that pass buffers to one another, and storms of signals, for a given amount of work.
//!
//! ```text
//! stress SCENARIO SEED AMOUNT
//! ```

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::{fork_child, wait};
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, errno};
use uncopy_tests::random::Random;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const WORKERS: usize = 8;
/// Number of packages in circulation.
const PACKAGES: usize = 24;
/// Number of packages that a thread handles before another replaces it.
const PACKAGES_PER_THREAD: usize = 30;

/// A parcel that threads pass to one another.
enum Package {
    /// A buffer that its holder may change, and the number of threads that must still get it.
    Own(Buffer, usize),
    /// A buffer that several threads read at once.
    Shared(Arc<Buffer>),
    /// The end of the stream of packages.
    End,
}

/// One of the eight positions, which successive threads fill.
struct Worker {
    inbox: mpsc::Receiver<Package>,
    others: Vec<mpsc::Sender<Package>>,
    random: Random,
    seed: u64,
    /// Number of packages that have completed their way.
    arrived: Arc<AtomicUsize>,
}

thread_local! {
    /// A block freed by a destructor when its thread ends.
    static LAST: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

impl Worker {
    /// Handles packages; another thread takes over after a while. The last one returns.
    fn run(mut self) {
        let mut feeder = Feeder::new(self.seed);
        let mut kept: Option<Buffer> = None;
        for _ in 0..PACKAGES_PER_THREAD {
            match self.inbox.recv().expect("the others live") {
                Package::End => return,
                Package::Shared(buffer) => self.read(&buffer),
                Package::Own(buffer, hops) => {
                    let buffer = self.handle(buffer, &mut kept, &mut feeder);
                    if hops == 0 {
                        buffer.check_all("at the end of its way");
                        self.arrived.fetch_add(1, Ordering::Release);
                    } else {
                        let _ = self.next().send(Package::Own(buffer, hops - 1));
                    }
                }
            }
        }
        LAST.set(kept);
        self.seed += 1000;
        let thread = std::thread::spawn(move || self.run());
        // Half of the threads are not joined, as in many programs.
        if feeder.near() % 2 == 0 {
            drop(feeder);
            let _ = thread.join();
        }
    }

    fn next(&mut self) -> &mpsc::Sender<Package> {
        let index = self.random.below(self.others.len());
        &self.others[index]
    }

    /// Reads a buffer that other threads read too.
    fn read(&mut self, buffer: &Buffer) {
        buffer.check_sparsely(&mut self.random, "read by several threads");
        let (at, len) = self.random.range(buffer.len());
        let copy = Buffer::copy_of(self.random.pick(CopyCall::ALL), buffer, at, len);
        copy.check_all("copied by several threads");
    }

    /// Performs a random operation on a buffer; returns the buffer to pass on.
    fn handle(&mut self, mut buffer: Buffer, kept: &mut Option<Buffer>, feeder: &mut Feeder) -> Buffer {
        let (at, len) = self.random.range(buffer.len());
        match self.random.below(12) {
            0 => buffer.check_all("from another thread"),
            1 => buffer.store(at, len.min(20 * KIB), self.seed),
            2 | 3 => feeder.receive(self.random.pick(InputCall::SOCKET), &mut buffer, at, len),
            4 => feeder.send(self.random.pick(OutputCall::SOCKET), &buffer, at, len),
            5 => {
                let to = self.random.below(buffer.len() - len + 1);
                buffer.copy_within(self.random.pick(CopyCall::OVERLAPPING), to, at, len);
            }
            6 => {
                let shift = self.random.between(1, 100).min(buffer.len() - 1);
                buffer.copy_within(CopyCall::Memmove, 0, shift, buffer.len() - shift);
            }
            7 => {
                let len = self.random.between(20 * KIB, MIB);
                buffer.resize(len);
            }
            8 => {
                let copy = Buffer::copy_of(self.random.pick(CopyCall::ALL), &buffer, 0, buffer.len());
                *kept = Some(std::mem::replace(&mut buffer, copy));
            }
            9 => {
                if let Some(kept) = kept {
                    let len = len.min(kept.len());
                    kept.copy_from(self.random.pick(CopyCall::ALL), 0, &buffer, at, len);
                    kept.check(0, len, "what a thread keeps");
                }
            }
            10 => {
                // Several threads get a copy; the last to finish frees it.
                let shared = Arc::new(Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, buffer.len()));
                for _ in 0..3 {
                    let _ = self.next().send(Package::Shared(Arc::clone(&shared)));
                }
                self.read(&shared);
            }
            _ => {
                // Freed by another thread than the one that allocated the block.
                let len = self.random.between(20 * KIB, MIB);
                buffer = if self.random.one_in(2) {
                    feeder.copied_buffer(len)
                } else {
                    Buffer::new(Origin::Calloc, len)
                };
            }
        }
        buffer
    }
}

/// Eight threads pass buffers on while the process forks; threads start and end.
fn passing(seed: u64, hops: usize) {
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| mpsc::channel()).unzip();
    let arrived = Arc::new(AtomicUsize::new(0));
    for (number, inbox) in (0u64..).zip(inboxes) {
        let seed = seed + number;
        let random = Random::new(seed);
        let worker = Worker { inbox, others: senders.clone(), random, seed, arrived: Arc::clone(&arrived) };
        std::thread::spawn(move || worker.run());
    }
    let mut feeder = Feeder::new(seed + 500);
    let mut random = Random::new(seed + 500);
    for number in 0..PACKAGES {
        let buffer = feeder.copied_buffer(random.between(40 * KIB, MIB));
        senders[number % WORKERS].send(Package::Own(buffer, hops)).expect("queue");
    }
    let mut own = feeder.copied_buffer(MIB);
    let shared = Arc::new(feeder.copied_buffer(300 * KIB));
    while arrived.load(Ordering::Acquire) < PACKAGES {
        let pid = fork_child(|| {
            own.store(random.below(MIB - 9000), 9000, 5);
            own.check_all("in a child");
            shared.check_all("shared, in a child");
            let mut later = Feeder::new(seed + 600);
            later.receive(InputCall::Recv, &mut own, 0, MIB);
            Buffer::copy_of(CopyCall::Memcpy, &own, 77, 500 * KIB).check_all("copied in a child");
        });
        for sender in &senders {
            let _ = sender.send(Package::Shared(Arc::clone(&shared)));
        }
        feeder.receive(InputCall::Recv, &mut own, 0, MIB);
        own.check_all("while a child works");
        let status = wait(pid);
        assert_eq!(status, 0, "a child ended with wait status {status:#x}");
        shared.check_all("shared with the threads");
    }
    for sender in &senders {
        let _ = sender.send(Package::End);
    }
    own.check_all("at the end");
    println!("{} passed {WORKERS} threads", PACKAGES * hops);
}

/// Buffers of a thread's handler for one signal, which nothing else uses.
#[derive(Clone, Copy)]
struct Task {
    source: *const u8,
    target: *mut u8,
    mirror: *const u8,
    turn: usize,
}

/// Number of bytes that a handler copies at a time.
const HANDLER_BYTES: usize = 16 * KIB;
/// Length of the buffers that handlers work on.
const TASK_BYTES: usize = 256 * KIB;
const NO_TASK: Task =
    Task { source: std::ptr::null(), target: null_mut(), mirror: std::ptr::null(), turn: 0 };

thread_local! {
    static TASKS: [Cell<Task>; 2] = const { [const { Cell::new(NO_TASK) }; 2] };
}
static WRONG: AtomicBool = AtomicBool::new(false);
static HANDLED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Number of handlers that interrupted another one.
static NESTED: AtomicUsize = AtomicUsize::new(0);

/// Touches and copies buffers that hold views.
fn storm_task(which: usize) {
    let saved = errno();
    HANDLED[which].fetch_add(1, Ordering::Relaxed);
    TASKS.with(|tasks| {
        let mut task = tasks[which].get();
        if task.source.is_null() {
            return;
        }
        task.turn += 1;
        tasks[which].set(task);
        let at = (task.turn * 5003) % (TASK_BYTES - HANDLER_BYTES);
        let to = (task.turn * 777) % (TASK_BYTES - HANDLER_BYTES);
        // SAFETY: the three have TASK_BYTES each and belong to this handler in this thread.
        let same = unsafe {
            let byte = task.source.add(at).read_volatile() == task.mirror.add(at).read_volatile();
            // Doing this every time would leave no time for the interrupted code.
            byte && (!task.turn.is_multiple_of(4) || {
                CopyCall::Memcpy.copy(task.target.add(to), task.source.add(at), HANDLER_BYTES);
                let touched = to + task.turn % HANDLER_BYTES;
                let expected = task.mirror.add(at + task.turn % HANDLER_BYTES).read_volatile();
                task.target.add(touched).read_volatile() == expected
                    && (!task.turn.is_multiple_of(64)
                        || oracle::first_difference(task.target.add(to), task.mirror.add(at), HANDLER_BYTES)
                            .is_none())
            })
        };
        if !same {
            WRONG.store(true, Ordering::Relaxed);
        }
    });
    oracle::set_errno(saved);
}

thread_local! {
    static IN_ALARM_HANDLER: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn on_alarm(_signal: c_int) {
    IN_ALARM_HANDLER.set(true);
    storm_task(0);
    IN_ALARM_HANDLER.set(false);
}

extern "C" fn on_timer(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if IN_ALARM_HANDLER.get() {
        NESTED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler, and null is checked first.
    if info.is_null() || context.is_null() || unsafe { (*info).si_code } != libc::SI_TIMER {
        WRONG.store(true, Ordering::Relaxed);
    }
    storm_task(1);
}

/// A thread's storm of signals, stopped on drop.
struct Storm {
    timer: libc::timer_t,
    buffers: Vec<Buffer>,
    stack: oracle::OracleBytes,
}

fn block_signals(how: c_int) {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGALRM);
        libc::sigaddset(&raw mut set, libc::SIGRTMIN() + 3);
        libc::pthread_sigmask(how, &raw const set, null_mut());
    }
}

impl Storm {
    /// Creates a timer for the calling thread, with an alternate stack for its handler.
    fn begin(seed: u64, interval_us: i64) -> Self {
        block_signals(libc::SIG_BLOCK);
        let mut feeder = Feeder::new(seed);
        let stack = oracle::OracleBytes::new(64 * KIB);
        let signal_stack = libc::stack_t { ss_sp: stack.pointer().cast(), ss_flags: 0, ss_size: stack.len() };
        let mut buffers = Vec::new();
        TASKS.with(|tasks| {
            for task in tasks {
                let (source, target) = (feeder.copied_buffer(TASK_BYTES), feeder.copied_buffer(TASK_BYTES));
                let mirror = source.mirror_at(0);
                task.set(Task { source: source.at(0), target: target.at(0), mirror, turn: 0 });
                buffers.extend([source, target]);
            }
        });
        let interval = libc::timespec { tv_sec: 0, tv_nsec: interval_us * 1000 };
        let every = libc::itimerspec { it_interval: interval, it_value: interval };
        let mut timer = null_mut();
        // SAFETY: all structures are valid for their calls; the stack lives as long as this value.
        unsafe {
            assert_eq!(libc::sigaltstack(&raw const signal_stack, null_mut()), 0, "sigaltstack");
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGRTMIN() + 3;
            event.sigev_notify_thread_id = libc::gettid();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
            assert_eq!(libc::timer_settime(timer, 0, &raw const every, null_mut()), 0, "timer_settime");
        }
        block_signals(libc::SIG_UNBLOCK);
        Self { timer, buffers, stack }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        block_signals(libc::SIG_BLOCK);
        let none = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: self.stack.len() };
        // SAFETY: the timer is this value's; nothing runs on the stack while the signals are blocked.
        unsafe {
            libc::timer_delete(self.timer);
            libc::sigaltstack(&raw const none, null_mut());
        }
        TASKS.with(|tasks| tasks.iter().for_each(|task| task.set(NO_TASK)));
        for source in self.buffers.iter().step_by(2) {
            source.check_all("what a handler read");
        }
    }
}

fn install_handler(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: the handlers here call async-signal-safe functions only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0, "sigaction");
    }
}

/// One step of the main program's work on its buffers during a storm.
fn work(random: &mut Random, feeder: &mut Feeder, buffers: &mut [Buffer]) {
    let index = random.below(buffers.len());
    let other = (index + 1) % buffers.len();
    let len = random.length(256 * KIB);
    match random.below(6) {
        0 => feeder.receive(random.pick(InputCall::SOCKET), &mut buffers[index], 0, len),
        1 => {
            let [target, source] = buffers.get_disjoint_mut([other, index]).expect("different");
            target.copy_from(random.pick(CopyCall::ALL), 0, source, 0, len);
        }
        2 => feeder.send(random.pick(OutputCall::SOCKET), &buffers[index], 0, len),
        3 => buffers[index] = Buffer::copy_of(CopyCall::Memmove, &buffers[other], 0, 256 * KIB),
        4 => buffers[index].store(0, len.min(5000), 3),
        _ => buffers[index].check(0, len, "while signals arrive"),
    }
}

/// Receives in blocking calls what another thread sends in pieces: signals interrupt them.
fn receive_blocking(seed: u64, stop: &AtomicBool) -> usize {
    let mut ends = [0; 2];
    // SAFETY: socketpair(2) writes two descriptors, for which `ends` has room.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) }, 0);
    let mut interrupted = 0;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            block_signals(libc::SIG_BLOCK);
            let mut wire = oracle::OracleBytes::new(64 * KIB);
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                wire.fill(0, 50_000, seed, sent);
                let mut at = 0;
                while at < 50_000 {
                    // SAFETY: the wire holds 50,000 bytes, and `at` is below that.
                    at += unsafe { oracle::raw_write(ends[1], wire.at(at), 50_000 - at) }.expect("written");
                }
                sent += at;
                std::thread::yield_now();
            }
            // SAFETY: shutdown(2) takes integers and accesses no memory.
            unsafe { libc::shutdown(ends[1], libc::SHUT_WR) };
        });
        let _storm = Storm::begin(seed, 300);
        let mut buffer = Buffer::new(Origin::Malloc, 200_000);
        let mut got = 0;
        loop {
            let mut part = [buffer.part(0, 200_000)];
            // SAFETY: the part is the whole of `buffer`, which has 200,000 bytes.
            match unsafe { InputCall::Recv.input(ends[0], &mut part, libc::MSG_WAITALL) } {
                Ok(0) => break,
                Ok(now) => {
                    interrupted += usize::from(now < 200_000);
                    buffer.note_received_stream(0, now, seed, got);
                    buffer.check(0, now, "received in interrupted calls");
                    got += now;
                }
                Err(error) => {
                    assert_eq!(error, libc::EINTR, "recv");
                    interrupted += 1;
                }
            }
        }
    });
    // SAFETY: both descriptors were opened by this function, and the thread that used them has ended.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    interrupted
}

/// SIGALRM every 100 µs, and a timer for each thread whose handler runs on an alternate stack and
/// interrupts the other handler too.
fn storm(seed: u64, seconds: usize) {
    block_signals(libc::SIG_BLOCK);
    install_handler(libc::SIGALRM, on_alarm as *const () as usize, libc::SA_RESTART);
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    install_handler(libc::SIGRTMIN() + 3, on_timer as *const () as usize, flags);
    let stop = AtomicBool::new(false);
    let length = Duration::from_secs(seconds as u64);
    let mut rounds = 0usize;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let stop = &stop;
                scope.spawn(move || {
                    let _storm = Storm::begin(seed + 10 + number, 400);
                    let mut random = Random::new(seed + 20 + number);
                    let mut feeder = Feeder::new(seed + 30 + number);
                    let mut buffers: Vec<Buffer> = (0..3).map(|_| feeder.copied_buffer(256 * KIB)).collect();
                    let mut rounds = 0usize;
                    while !stop.load(Ordering::Relaxed) {
                        work(&mut random, &mut feeder, &mut buffers);
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let blocking = {
            let stop = &stop;
            scope.spawn(move || receive_blocking(seed + 40, stop))
        };
        let storm = Storm::begin(seed, 700);
        let interval = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        // SAFETY: the value is valid through the call.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut()) }, 0);
        let mut random = Random::new(seed);
        let mut feeder = Feeder::new(seed + 1);
        let mut buffers: Vec<Buffer> = (0..3).map(|_| feeder.copied_buffer(256 * KIB)).collect();
        let start = Instant::now();
        while start.elapsed() < length {
            work(&mut random, &mut feeder, &mut buffers);
            rounds += 1;
        }
        // SAFETY: an all-zero value stops the timer.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &std::mem::zeroed(), null_mut()) };
        stop.store(true, Ordering::Relaxed);
        drop(storm);
        buffers.iter().for_each(|buffer| buffer.check_all("after the storm"));
        let others: Vec<usize> = workers.into_iter().map(|worker| worker.join().expect("thread")).collect();
        let interrupted = blocking.join().expect("thread");
        let handled = HANDLED.each_ref().map(|count| count.load(Ordering::Relaxed));
        let nested = NESTED.load(Ordering::Relaxed);
        eprintln!(
            "{handled:?} signals, {nested} nested, {interrupted} calls interrupted, {rounds} {others:?} rounds"
        );
        assert!(!WRONG.load(Ordering::Relaxed), "a handler read wrong bytes");
        assert!(handled.iter().all(|count| *count > 100) && rounds > 10, "nothing happened");
        assert!(others.iter().all(|rounds| *rounds > 10) && interrupted > 0, "nothing happened");
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    let amount = arguments[2].parse().expect("amount");
    match arguments[0].as_str() {
        "passing" => passing(seed, amount),
        "storm" => storm(seed, amount),
        other => panic!("unknown scenario {other}"),
    }
}
