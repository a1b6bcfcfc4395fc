//! Signals whose handlers read and copy buffers with received data, or jump out.
//!
//! ```text
//! signals SCENARIO SEED
//! ```

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uncopy_core::stats::Counter;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall, set_nonblocking};
use uncopy_tests::counters::Counters;
use uncopy_tests::feeder::Feeder;
use uncopy_tests::jump::JumpPoint;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, errno};
use uncopy_tests::random::Random;

const MIB: usize = 1 << 20;
/// Bytes that the timer's handler copies each time.
const HANDLER_BYTES: usize = 64 << 10;

fn install_handler(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: the handlers here call async-signal-safe functions only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0, "sigaction");
    }
}

/// Sends SIGALRM every `interval_us` microseconds from now on; stops if that is 0.
fn set_timer(interval_us: i64) {
    let interval = libc::timeval { tv_sec: 0, tv_usec: interval_us };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the value is valid through the call.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut()) }, 0, "setitimer");
}

fn block_alarm(block: bool) {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGALRM);
        let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        libc::pthread_sigmask(how, &raw const set, null_mut());
    }
}

static HANDLER_SOURCE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static HANDLER_TARGET: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static HANDLER_MIRROR: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicBool = AtomicBool::new(false);

/// Reads a page of the viewed source, copies some of it, compares the copy.
extern "C" fn on_alarm_copy(_signal: c_int) {
    let saved = errno();
    let turn = HANDLED.fetch_add(1, Ordering::Relaxed);
    let at = (turn * 4096 + turn % 4096) % (MIB - HANDLER_BYTES);
    let to = (turn * 777) % (MIB - HANDLER_BYTES);
    // SAFETY: the three have a megabyte each, and the main program changes none of them while the
    // signal is not blocked.
    unsafe {
        let source = HANDLER_SOURCE.load(Ordering::Relaxed);
        let target = HANDLER_TARGET.load(Ordering::Relaxed);
        let mirror = HANDLER_MIRROR.load(Ordering::Relaxed);
        let byte = source.add(MIB - 1 - at).read_volatile() == mirror.add(MIB - 1 - at).read_volatile();
        CopyCall::Memcpy.copy(target.add(to), source.add(at), HANDLER_BYTES);
        let same = oracle::first_difference(target.add(to), mirror.add(at), HANDLER_BYTES).is_none();
        if !byte || !same {
            WRONG.store(true, Ordering::Relaxed);
        }
    }
    oracle::set_errno(saved);
}

/// Gives the handler new buffers.
fn renew_handler_buffers(feeder: &mut Feeder) -> (Buffer, Buffer) {
    let source = feeder.copied_buffer(MIB);
    let target = feeder.copied_buffer(MIB);
    HANDLER_SOURCE.store(source.at(0), Ordering::Relaxed);
    HANDLER_TARGET.store(target.at(0), Ordering::Relaxed);
    HANDLER_MIRROR.store(source.mirror_at(0), Ordering::Relaxed);
    (source, target)
}

/// For two seconds, and until both have done enough work, a timer's handler and the program copy buffers.
fn copies_in_a_timer_handler(seed: u64, flags: c_int) {
    let mut own = Feeder::new(seed + 1);
    let mut handlers = renew_handler_buffers(&mut own);
    install_handler(libc::SIGALRM, on_alarm_copy, libc::SA_RESTART | flags);
    set_timer(1000);
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let mut buffers: Vec<Buffer> = (0..4).map(|_| feeder.copied_buffer(MIB)).collect();
    let start = Instant::now();
    let mut rounds = 0usize;
    let is_enough = |rounds: usize| rounds > 100 && HANDLED.load(Ordering::Relaxed) > 100;
    let min_duration = Duration::from_secs(2);
    while start.elapsed() < min_duration || (!is_enough(rounds) && start.elapsed() < 20 * min_duration) {
        rounds += 1;
        let index = random.below(4);
        let len = random.length(MIB);
        match random.below(6) {
            0 => feeder.receive(random.pick(InputCall::SOCKET), &mut buffers[index], 0, len),
            1 => {
                let [target, source] = buffers.get_disjoint_mut([(index + 1) % 4, index]).expect("different");
                target.copy_from(random.pick(CopyCall::ALL), 0, source, 0, len);
            }
            2 => feeder.send(random.pick(OutputCall::SOCKET), &buffers[index], 0, len),
            3 => buffers[index] = Buffer::copy_of(CopyCall::Memmove, &buffers[(index + 1) % 4], 0, MIB),
            4 => buffers[index].check(0, len, "while signals arrive"),
            _ => {
                block_alarm(true);
                handlers = renew_handler_buffers(&mut own);
                block_alarm(false);
            }
        }
    }
    set_timer(0);
    for buffer in &buffers {
        buffer.check_all("after the signals");
    }
    handlers.0.check_all("what the handler read");
    let handled = HANDLED.load(Ordering::Relaxed);
    assert!(!WRONG.load(Ordering::Relaxed), "the handler read wrong bytes");
    assert!(is_enough(rounds), "{handled} signals in {rounds} rounds");
}

/// Copies in a timer handler that runs on an alternate stack of 16 KiB.
fn copies_on_an_alternate_stack(seed: u64) {
    let stack = oracle::OracleBytes::new(16 << 10);
    let stack = libc::stack_t { ss_sp: stack.pointer().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the stack stays mapped until the program ends, because its owner is forgotten.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, null_mut()) }, 0);
    copies_in_a_timer_handler(seed, libc::SA_ONSTACK);
}

/// Action of a handler that runs on a painted stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum SmallStackCall {
    Nothing,
    Memcpy,
    Write,
    Writev,
    Send,
    Pread,
    Read,
    Readv,
    Recv,
}

impl SmallStackCall {
    const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Memcpy,
        Self::Write,
        Self::Writev,
        Self::Send,
        Self::Pread,
        Self::Read,
        Self::Readv,
        Self::Recv,
    ];

    /// Performs the action with a megabyte of `from` or `to`; `fds` are a file, and the two ends of a stream.
    ///
    /// # Safety
    /// Both pointers must be valid for a megabyte.
    unsafe fn call(self, from: *mut c_void, to: *mut c_void, [file, near, far]: [c_int; 3]) {
        let halves = |at: *mut c_void| {
            // SAFETY: the second half of the megabyte.
            let second = unsafe { at.byte_add(MIB / 2) };
            [at, second].map(|iov_base| libc::iovec { iov_base, iov_len: MIB / 2 })
        };
        // SAFETY: the caller promises that `from` and `to` have `MIB` bytes and that the descriptors are open.
        unsafe {
            match self {
                Self::Nothing => {}
                Self::Memcpy => _ = libc::memcpy(to, from, MIB),
                Self::Write => _ = libc::write(file, from, MIB),
                Self::Writev => _ = libc::writev(file, halves(from).as_ptr(), 2),
                Self::Send => _ = libc::send(near, from, MIB, libc::MSG_DONTWAIT),
                Self::Pread => _ = libc::pread(file, to, MIB, 0),
                Self::Read => _ = libc::read(far, to, MIB),
                Self::Readv => _ = libc::readv(far, halves(to).as_ptr(), 2),
                Self::Recv => _ = libc::recv(far, to, MIB, libc::MSG_DONTWAIT),
            }
        }
    }
}

static ON_SMALL_STACK: AtomicUsize = AtomicUsize::new(0);
static SMALL_STACK_FDS: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];

extern "C" fn on_small_stack(_signal: c_int) {
    let fds = [0, 1, 2].map(|at| SMALL_STACK_FDS[at].load(Ordering::Relaxed));
    let what = SmallStackCall::ALL[ON_SMALL_STACK.load(Ordering::Relaxed)];
    let (from, to) = (HANDLER_SOURCE.load(Ordering::Relaxed), HANDLER_TARGET.load(Ordering::Relaxed));
    // SAFETY: both have a megabyte, and nobody else uses them while the signal is handled.
    unsafe { what.call(from.cast(), to.cast(), fds) };
}

/// Calls on an alternate stack with little more room than libc's functions need use no more of it than that.
fn calls_on_small_stacks(seed: u64) {
    /// Maximum stack use above that of libc's functions, without the kernel's frame.
    const MAX_MORE_BYTES: usize = 3 << 10;
    const STACK_BYTES: usize = 16 << 10;
    const PAINT: u8 = 0xA5;
    let mut feeder = Feeder::new(seed);
    let stack = oracle::OracleBytes::new(STACK_BYTES);
    let alternate = libc::stack_t { ss_sp: stack.pointer().cast(), ss_flags: 0, ss_size: STACK_BYTES };
    // SAFETY: the stack is mapped until the end of this function, after which no signal comes.
    assert_eq!(unsafe { libc::sigaltstack(&raw const alternate, null_mut()) }, 0);
    install_handler(libc::SIGUSR1, on_small_stack, libc::SA_ONSTACK);
    // SAFETY: memfd_create(2) reads the name, a NUL-terminated literal.
    let file = unsafe { libc::memfd_create(c"uncopy-test".as_ptr(), 0) };
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    far.set_nonblocking(true).expect("fcntl");
    let fds = [file, std::os::fd::AsRawFd::as_raw_fd(&near), std::os::fd::AsRawFd::as_raw_fd(&far)];
    for (slot, fd) in SMALL_STACK_FDS.iter().zip(fds) {
        slot.store(fd, Ordering::Relaxed);
    }
    let mut baseline = 0;
    for (number, what) in SmallStackCall::ALL.into_iter().enumerate() {
        ON_SMALL_STACK.store(number, Ordering::Relaxed);
        for turn in 0..4 {
            let source = feeder.copied_buffer(MIB);
            let target = feeder.copied_buffer(MIB);
            HANDLER_SOURCE.store(source.at(0), Ordering::Relaxed);
            HANDLER_TARGET.store(target.at(0), Ordering::Relaxed);
            // SAFETY: the stack's bytes, while no handler runs.
            unsafe { oracle::set(stack.pointer(), STACK_BYTES, PAINT) };
            // SAFETY: raise(3) takes an integer; the handler for SIGUSR1 was installed above.
            assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0, "raise");
            let untouched = stack.slice(0, STACK_BYTES).iter().take_while(|byte| **byte == PAINT).count();
            let used = STACK_BYTES - untouched;
            if what == SmallStackCall::Nothing {
                baseline = baseline.max(used);
            }
            assert!(
                used <= baseline + MAX_MORE_BYTES,
                "{what:?}, turn {turn}: {used} bytes, and {baseline} for nothing"
            );
            source.check_all("read by a handler");
            if what == SmallStackCall::Memcpy {
                // SAFETY: `target` and the mirror of `source` have `MIB` bytes each.
                let wrong = unsafe { oracle::first_difference(target.at(0), source.mirror_at(0), MIB) };
                assert_eq!(wrong, None, "copied by a handler");
            }
        }
    }
}

static POINT: JumpPoint = JumpPoint::new();
static ARMED: AtomicBool = AtomicBool::new(false);
static JUMPS: AtomicU64 = AtomicU64::new(0);
static FD: AtomicI32 = AtomicI32::new(-1);

/// Jumps out if the interrupted program requested that.
extern "C" fn on_alarm_jump(_signal: c_int) {
    if ARMED.swap(false, Ordering::Relaxed) {
        JUMPS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: ARMED is set only while the point's catch runs in the one thread that there is.
        unsafe { POINT.jump() };
    }
}

extern "C" fn receive_nothing(buffer: *mut c_void) {
    ARMED.store(true, Ordering::Relaxed);
    let mut part = [libc::iovec { iov_base: buffer, iov_len: MIB }];
    // SAFETY: the caller passes a buffer of `MIB` bytes.
    let _ = unsafe { InputCall::Recv.input(FD.load(Ordering::Relaxed), &mut part, 0) };
    ARMED.store(false, Ordering::Relaxed);
}

/// `siglongjmp` out of a handler that interrupted `recv`.
fn jump_out_of_receive(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let empty = Feeder::new(seed);
    set_nonblocking(empty.near(), false);
    FD.store(empty.near(), Ordering::Relaxed);
    install_handler(libc::SIGALRM, on_alarm_jump, 0);
    let keep = feeder.copied_buffer(MIB);
    for _ in 0..200 {
        let buffer = Buffer::copy_of(CopyCall::Memcpy, &keep, 0, MIB);
        set_timer(2000);
        // SAFETY: the frames between hold nothing that must be dropped.
        let jumped = unsafe { POINT.catch(receive_nothing, buffer.at(0).cast()) };
        set_timer(0);
        assert!(jumped, "recv on an empty socket came back");
        buffer.check_all("a buffer that received nothing");
        keep.check(0, 100_000, "another buffer");
        feeder.copied_buffer(100_000).check_all("received after a jump");
    }
    keep.check_all("another buffer");
}

/// The buffer of `receive_large`.
const LARGE_BYTES: usize = 8 * MIB;

/// Blocks in `recv` of much more than arrives, `depth` frames further down.
extern "C" fn receive_large(buffer: *mut c_void) {
    ARMED.store(true, Ordering::Relaxed);
    let mut part = [libc::iovec { iov_base: buffer, iov_len: LARGE_BYTES }];
    // SAFETY: the caller passes a buffer of `LARGE_BYTES` bytes.
    let _ = unsafe { InputCall::Recv.input(FD.load(Ordering::Relaxed), &mut part, 0) };
    ARMED.store(false, Ordering::Relaxed);
}

/// Memory held by calls that a jump left is returned: fifty such calls would hold 400 MiB.
fn jumps_keep_no_memory(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let empty = Feeder::new(seed);
    set_nonblocking(empty.near(), false);
    FD.store(empty.near(), Ordering::Relaxed);
    install_handler(libc::SIGALRM, on_alarm_jump, 0);
    let buffer = Buffer::new(Origin::Malloc, LARGE_BYTES);
    feeder.copied_buffer(MIB).check_all("before any jump");
    for _ in 0..50 {
        set_timer(2000);
        // SAFETY: the frames between hold nothing that must be dropped.
        assert!(
            // SAFETY: nothing between the call and the jump has anything to drop.
            unsafe { POINT.catch(receive_large, buffer.at(0).cast()) },
            "recv on an empty socket came back"
        );
        set_timer(0);
    }
    buffer.check_all("a buffer that received nothing");
    feeder.copied_buffer(MIB).check_all("received after the jumps");
    if let Some(counters) = Counters::live(std::process::id()) {
        let held = counters.get(Counter::SegmentsBytes);
        assert!(held <= 3 * LARGE_BYTES as u64, "{held} bytes are held: {counters}");
        assert!(counters.get(Counter::SegmentsPeakBytes) >= LARGE_BYTES as u64, "nothing was received into");
    }
}

/// Buffers and sockets of the endless loop.
struct Work {
    source: *mut u8,
    target: *mut u8,
    near: c_int,
    far: c_int,
    wire: *mut u8,
}

/// Copies, sends and receives until the handler jumps out.
extern "C" fn work_forever(work: *mut c_void) {
    // SAFETY: the caller passes a pointer to a `Work` that outlives the loop.
    let work = unsafe { &*work.cast::<Work>() };
    ARMED.store(true, Ordering::Relaxed);
    loop {
        // SAFETY: all three memories have a megabyte.
        unsafe {
            CopyCall::Memcpy.copy(work.target, work.source, MIB);
            CopyCall::Memmove.copy(work.target, work.target.add(45), MIB - 45);
            let mut part = [libc::iovec { iov_base: work.target.cast(), iov_len: 200_000 }];
            let _ = OutputCall::Send.output(work.near, &mut part, libc::MSG_DONTWAIT);
            let _ = oracle::raw_read(work.far, work.wire, MIB);
            let _ = oracle::raw_write(work.far, work.wire, 150_000);
            let mut part = [libc::iovec { iov_base: work.target.add(5).cast(), iov_len: MIB - 5 }];
            let _ = InputCall::Recv.input(work.near, &mut part, libc::MSG_DONTWAIT);
            let _ = work.target.add(500_000).read_volatile();
        }
    }
}

/// `siglongjmp` out of a handler that interrupted a copy, a fault or a transfer anywhere.
fn jump_out_of_anything(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    install_handler(libc::SIGALRM, on_alarm_jump, 0);
    for _ in 0..400 {
        let source = feeder.copied_buffer(MIB);
        let target = Buffer::new(Origin::Malloc, MIB);
        let scratch = Feeder::new(seed);
        let wire = oracle::OracleBytes::new(MIB);
        let mut work = Work {
            source: source.at(0),
            target: target.at(0),
            near: scratch.near(),
            far: scratch.far(),
            wire: wire.pointer(),
        };
        set_timer(i64::try_from(random.between(50, 900)).expect("small"));
        // SAFETY: the frames between hold nothing that must be dropped.
        let jumped = unsafe { POINT.catch(work_forever, (&raw mut work).cast()) };
        set_timer(0);
        assert!(jumped);
        source.check_all("what was only read");
        feeder.copied_buffer(50_000).check_all("received after a jump");
        drop(target);
    }
    assert_eq!(JUMPS.load(Ordering::Relaxed), 400);
}

extern "C" fn on_alarm_nothing(_signal: c_int) {}

/// Calls that a signal interrupts return the same as without uncopy.
fn interrupted_calls(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffer = feeder.copied_buffer(MIB);
    set_nonblocking(feeder.near(), false);
    install_handler(libc::SIGALRM, on_alarm_nothing, 0);
    for call in InputCall::SOCKET {
        set_timer(3000);
        let mut part = [buffer.part(0, MIB)];
        // SAFETY: the part is inside the buffer.
        println!("{call:?}: {:?}", unsafe { call.input(feeder.near(), &mut part, 0) });
        set_timer(0);
        buffer.check_all("after an interrupted receive");
    }
    for call in InputCall::WITH_FLAGS {
        let (stream, offered) = feeder.offer(100_000);
        set_timer(3000);
        let mut part = [buffer.part(0, MIB)];
        // SAFETY: the part is inside the buffer.
        println!("{call:?} of all: {:?}", unsafe { call.input(feeder.near(), &mut part, libc::MSG_WAITALL) });
        set_timer(0);
        buffer.note_received_stream(0, offered, stream, 0);
        buffer.check_all("after an interrupted receive of all");
    }
    // The pipe is full: the bytes written before the signal count.
    let (_reader, writer) = std::io::pipe().expect("pipe");
    set_timer(3000);
    let mut part = [buffer.part(0, MIB)];
    let fd = std::os::fd::AsRawFd::as_raw_fd(&writer);
    // SAFETY: the part is inside the buffer.
    println!("write to a pipe: {:?}", unsafe { OutputCall::Write.output(fd, &mut part, 0) });
    // SAFETY: the part is inside the buffer.
    println!("write to a full pipe: {:?}", unsafe { OutputCall::Write.output(fd, &mut part, 0) });
    set_timer(0);
}

/// A signal that every thread of the program blocks waits for `sigwait`, whatever threads uncopy has.
fn blocked_signals_wait(seed: u64) {
    // SAFETY: the set is filled before it is used; signals go to this process only.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGALRM, libc::SIGHUP, libc::SIGINT] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut());
        let mut feeder = Feeder::new(seed);
        let copy = feeder.copied_buffer(MIB);
        for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
            copy.check(4096, 9000, "before a signal");
            libc::kill(libc::getpid(), signal);
            let mut got = 0;
            assert_eq!(libc::sigwait(&raw const set, &raw mut got), 0);
            println!("signal {got}");
        }
        copy.check_all("after the signals");
    }
}

/// Sets by prctl(2), or by the bare system call, whether this thread may read the time stamp
/// counter. Returns whether the kernel accepted that.
fn set_tsc_mode(mode: c_int, is_bare: bool) -> bool {
    // SAFETY: nothing in this thread reads the counter while that is a fault.
    unsafe {
        if is_bare {
            libc::syscall(libc::SYS_prctl, libc::PR_SET_TSC, mode, 0, 0, 0) == 0
        } else {
            libc::prctl(libc::PR_SET_TSC, mode, 0, 0, 0) == 0
        }
    }
}

/// A thread for which reading the time stamp counter is a fault continues as before, whichever call it made.
fn time_stamp_counter_forbidden(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut receive = |what: &str| {
        for _ in 0..20 {
            let copy = feeder.copied_buffer(MIB);
            feeder.send(OutputCall::Send, &copy, 0, 200_000);
            copy.check_all(what);
        }
    };
    receive("before");
    for is_bare in [false, true] {
        let how = if is_bare { "syscall" } else { "prctl" };
        println!("{how}: {}", set_tsc_mode(libc::PR_TSC_SIGSEGV, is_bare));
        receive("while the counter is forbidden");
        println!("{how}: {}", set_tsc_mode(libc::PR_TSC_ENABLE, is_bare));
        receive("later");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "copies_in_a_timer_handler" => copies_in_a_timer_handler(seed, 0),
        "copies_on_an_alternate_stack" => copies_on_an_alternate_stack(seed),
        "jump_out_of_receive" => jump_out_of_receive(seed),
        "jumps_keep_no_memory" => jumps_keep_no_memory(seed),
        "jump_out_of_anything" => jump_out_of_anything(seed),
        "interrupted_calls" => interrupted_calls(seed),
        "time_stamp_counter_forbidden" => time_stamp_counter_forbidden(seed),
        "calls_on_small_stacks" => calls_on_small_stacks(seed),
        "blocked_signals_wait" => blocked_signals_wait(seed),
        other => panic!("unknown scenario {other}"),
    }
}
