//! Forks of processes whose buffers hold received data: each process sees its own memory.
//!
//! ```text
//! forks SCENARIO SEED
//! ```

use std::ffi::{CString, c_int, c_void};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::{fork_child, fork_child_by, wait};
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle;
use uncopy_tests::random::Random;
use uncopy_tests::unwound::Thread;

const MIB: usize = 1 << 20;

unsafe extern "C" {
    fn _Fork() -> libc::pid_t;
    fn pthread_exit(result: *mut c_void) -> !;
}

/// Waits for a child, which must succeed in time.
fn join(pid: libc::pid_t) {
    join_with(pid, 0);
}

/// Waits for a child, which must end in time with this exit status.
fn join_with(pid: libc::pid_t, expected: c_int) {
    let status = wait(pid);
    assert_eq!(status, expected << 8, "child {pid} ended with wait status {status:#x}");
}

/// A received megabyte and three copies of it, one shifted.
fn four_buffers(feeder: &mut Feeder) -> Vec<Buffer> {
    let received = feeder.received_buffer(MIB);
    let mut buffers = vec![
        Buffer::copy_of(CopyCall::Memcpy, &received, 0, MIB),
        Buffer::copy_of(CopyCall::Memmove, &received, 45, MIB - 45),
        Buffer::new(Origin::Mapped, MIB),
    ];
    buffers[2].copy_from(CopyCall::MemcpyChk, 0, &received, 0, MIB);
    buffers.push(received);
    buffers
}

fn check(buffers: &[Buffer], what: &str) {
    for (index, buffer) in buffers.iter().enumerate() {
        buffer.check_all(&format!("{what}, buffer {index}"));
    }
}

/// Work of a child: verifies, overwrites, receives and sends on sockets of its own.
fn work_in_child(buffers: &mut [Buffer], seed: u64) {
    check(buffers, "in the child");
    buffers[0].store(0, 300_000, seed);
    buffers[1].set(100_000, 500_000, 7);
    let [target, source] = buffers.get_disjoint_mut([2, 3]).expect("different");
    target.copy_from(CopyCall::Memcpy, 4096, source, 100, 700_000);
    let mut feeder = Feeder::new(seed);
    feeder.receive(InputCall::Recv, &mut buffers[3], 0, MIB);
    let copy = Buffer::copy_of(CopyCall::Mempcpy, &buffers[3], 0, MIB);
    feeder.send(OutputCall::Send, &copy, 0, MIB);
    feeder.send(OutputCall::Writev, &buffers[2], 0, MIB);
    copy.check_all("copied in the child");
    check(buffers, "in the child, later");
}

/// The parent continues while children live: each has memory of its own.
fn child_overwrites_what_parent_keeps(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    for round in 0..5 {
        let (mut gate, mut opener) = std::io::pipe().expect("pipe");
        let pid = fork_child(|| {
            gate.read_exact(&mut [0]).expect("the parent opens");
            work_in_child(&mut buffers, seed + round);
        });
        // The child waits while the parent receives, copies, frees and sends.
        feeder.receive(InputCall::Read, &mut buffers[0], 0, MIB);
        let [target, source] = buffers.get_disjoint_mut([1, 0]).expect("different");
        target.copy_from(CopyCall::Memcpy, 0, source, 0, 600_000);
        feeder.send(OutputCall::Send, &buffers[1], 0, MIB - 45);
        let extra = four_buffers(&mut feeder);
        check(&extra, "new in the parent");
        drop(extra);
        opener.write_all(&[1]).expect("the child reads");
        feeder.receive(InputCall::Recv, &mut buffers[3], 0, MIB);
        check(&buffers, "in the parent while the child lives");
        join(pid);
        check(&buffers, "in the parent after the child");
    }
}

/// Forks by `_Fork`, which runs no handlers.
fn bare_fork(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    for round in 0..3 {
        let pid = fork_child_by(_Fork, || work_in_child(&mut buffers, seed + round));
        feeder.receive(InputCall::Recv, &mut buffers[0], 0, MIB);
        join(pid);
        check(&buffers, "in the parent");
    }
}

fn to_pid(result: libc::c_long) -> libc::pid_t {
    libc::pid_t::try_from(result).expect("a process id")
}

unsafe extern "C" fn fork_by_number() -> libc::pid_t {
    // SAFETY: fork(2) takes no arguments; callers let the child work on its copy and end by _exit.
    to_pid(unsafe { libc::syscall(libc::SYS_fork) })
}

unsafe extern "C" fn clone_by_number() -> libc::pid_t {
    // SAFETY: clone(2) with no flag but the signal is fork(2); callers let the child end by _exit.
    to_pid(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })
}

/// The child shares the table of descriptors with its parent.
unsafe extern "C" fn clone_with_shared_descriptors() -> libc::pid_t {
    let flags = libc::SIGCHLD | libc::CLONE_FILES | libc::CLONE_FS;
    // SAFETY: the child has its own memory and a copy of this stack.
    to_pid(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })
}

unsafe extern "C" fn clone3_by_number() -> libc::pid_t {
    // The fifth word of the structure is the signal; the others may be zero.
    let mut arguments = [0u64; 8];
    arguments[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    // SAFETY: the structure has the size that is passed.
    to_pid(unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) })
}

const FORKS_BY_NUMBER: [unsafe extern "C" fn() -> libc::pid_t; 4] =
    [fork_by_number, clone_by_number, clone_with_shared_descriptors, clone3_by_number];

/// Forks by system calls made through `syscall`.
fn forks_by_number(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    for (round, fork) in FORKS_BY_NUMBER.into_iter().enumerate() {
        let pid = fork_child_by(fork, || work_in_child(&mut buffers, seed + round as u64));
        feeder.receive(InputCall::Recv, &mut buffers[0], 0, MIB);
        check(&buffers, "in the parent while the child lives");
        join(pid);
        let copy = feeder.copied_buffer(MIB);
        copy.check_all("copied after the child");
        check(&buffers, "in the parent");
    }
    // A fork that must fail, with an errno.
    oracle::set_errno(0);
    // SAFETY: the kernel refuses CLONE_NEWNS with CLONE_FS (clone(2)), so no child is made.
    let refused = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_NEWNS | libc::CLONE_FS, 0, 0, 0, 0) };
    println!("refused: {refused} errno {}", oracle::errno());
    check(&buffers, "after a clone that was refused");
}

/// Forks by system calls while other threads receive and copy: the child must hold none of their locks.
fn forks_by_number_among_threads(seed: u64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                let mut feeder = Feeder::new(seed + 50 + number);
                let mut random = Random::new(seed + number);
                while !stop.load(Ordering::Relaxed) {
                    let copy = feeder.copied_buffer(random.length(MIB).max(50_000));
                    let small = vec![1u8; random.between(1, 30_000)];
                    copy.check_sparsely(&mut random, "in a thread");
                    drop(std::hint::black_box(small));
                }
            });
        }
        let mut feeder = Feeder::new(seed);
        let mut buffers = four_buffers(&mut feeder);
        let mut forks = FORKS_BY_NUMBER.to_vec();
        forks.push(_Fork);
        for (round, fork) in forks.iter().cycle().take(20).enumerate() {
            // SAFETY: such a child may only make system calls and use its own memory.
            let pid = unsafe { std::hint::black_box(*fork)() };
            assert!(pid >= 0, "fork: errno {}", oracle::errno());
            if pid == 0 {
                let mut status = 0;
                for buffer in &buffers {
                    // SAFETY: the buffer and its mirror have `buffer.len()` bytes each.
                    let wrong = unsafe {
                        oracle::first_difference(buffer.at(0), buffer.mirror_at(0), buffer.len()).is_some()
                    };
                    status |= i32::from(wrong);
                }
                // SAFETY: a copy between two live buffers of a megabyte at least.
                unsafe {
                    CopyCall::Memcpy.copy(buffers[0].at(0), buffers[3].at(0), MIB - 45);
                    let same = oracle::first_difference(buffers[0].at(0), buffers[3].mirror_at(0), MIB - 45);
                    status |= i32::from(same.is_some()) << 1;
                    libc::syscall(libc::SYS_exit_group, status);
                }
            }
            feeder.receive(InputCall::Recv, &mut buffers[round % 3], 0, MIB - 45);
            join(pid);
            check(&buffers, "in the forking thread");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Arguments of a child made by `clone`.
struct CloneArguments<'a> {
    buffers: &'a mut Vec<Buffer>,
    seed: u64,
    ending: u64,
    parent_stack: *const u8,
}

/// Function of a child made by `clone`: checks and changes the child's memory and ends in one of three ways.
extern "C" fn clone_main(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passes one, of which this process has a copy.
    let arguments = unsafe { &mut *argument.cast::<CloneArguments>() };
    let local = 0u8;
    let on_own_stack = (&raw const local).addr().abs_diff(arguments.parent_stack.addr()) > MIB / 2;
    let work = || work_in_child(arguments.buffers, arguments.seed);
    let wrong = catch_unwind(AssertUnwindSafe(work)).is_err() || !on_own_stack;
    let status = if wrong { 1 } else { 40 + c_int::try_from(arguments.ending).expect("small") };
    // SAFETY: both calls take a status and end this process; nothing of its memory is used afterwards.
    unsafe {
        match arguments.ending {
            0 => {}
            1 => libc::_exit(status),
            _ => {
                libc::syscall(libc::SYS_exit, status);
            }
        }
    }
    status
}

/// `clone` with a function, a stack and memory of its own.
fn clones_with_memory_of_their_own(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    let stack = oracle::OracleBytes::new(2 * MIB);
    for ending in 0..3 {
        for extra in [0, libc::CLONE_FILES, libc::CLONE_PARENT_SETTID] {
            let local = 0u8;
            let mut tid: libc::pid_t = 0;
            let mut arguments =
                CloneArguments { buffers: &mut buffers, seed, ending, parent_stack: &raw const local };
            let argument = (&raw mut arguments).cast();
            // SAFETY: the child has the upper half of the stack and a copy of everything else.
            let pid = unsafe {
                libc::clone(
                    clone_main,
                    stack.at(2 * MIB).cast(),
                    libc::SIGCHLD | extra,
                    argument,
                    &raw mut tid,
                )
            };
            assert!(pid > 0, "clone: errno {}", oracle::errno());
            assert_eq!(tid, if extra == libc::CLONE_PARENT_SETTID { pid } else { 0 });
            feeder.receive(InputCall::Recv, &mut buffers[0], 0, MIB);
            join_with(pid, 40 + c_int::try_from(ending).expect("small"));
            check(&buffers, "in the parent of a clone");
        }
    }
    // SAFETY: clone(2) of glibc refuses a null stack with EINVAL, so no child is made.
    let refused =
        unsafe { libc::clone(clone_main, std::ptr::null_mut(), libc::SIGCHLD, std::ptr::null_mut()) };
    println!("without a stack: {refused} errno {}", oracle::errno());
}

/// Children of children, each with more changes.
fn generations(seed: u64) {
    fn descend(buffers: &mut [Buffer], seed: u64, depth: usize) {
        let pid = fork_child(|| {
            check(buffers, "in a descendant");
            let mut feeder = Feeder::new(seed + depth as u64);
            feeder.receive(InputCall::Recvmsg, &mut buffers[depth % 4], 0, 500_000);
            if depth < 4 {
                descend(buffers, seed, depth + 1);
            }
            check(buffers, "in a descendant, later");
        });
        buffers[3].store(depth * 70_000, 50_000, seed);
        join(pid);
        check(buffers, "in an ancestor");
    }
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    descend(&mut buffers, seed, 0);
}

/// A daemon that detaches by forking twice and continues with data received before.
fn daemon(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    let (mut result, mut report) = std::io::pipe().expect("pipe");
    let pid = fork_child(|| {
        // SAFETY: setsid and alarm take integers; the alarm ends a daemon that hangs.
        unsafe {
            libc::setsid();
            libc::alarm(30);
        }
        fork_child(|| {
            work_in_child(&mut buffers, seed);
            report.write_all(b"done").expect("report");
        });
    });
    join(pid);
    drop(report);
    let mut text = String::new();
    result.read_to_string(&mut text).expect("report");
    assert_eq!(text, "done", "the daemon did not finish its work");
    check(&buffers, "in the program that started the daemon");
}

/// Threads receive, copy and send while the main thread forks.
fn fork_among_threads(seed: u64) {
    let stop = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || {
                let mut feeder = Feeder::new(seed + number);
                let mut random = Random::new(seed + number);
                let mut buffers = four_buffers(&mut feeder);
                while !stop.load(Ordering::Relaxed) {
                    let len = random.length(MIB - 45);
                    let index = random.below(4);
                    feeder.receive(random.pick(InputCall::SOCKET), &mut buffers[index], 0, len);
                    let [target, source] =
                        buffers.get_disjoint_mut([(index + 1) % 4, index]).expect("different");
                    target.copy_from(random.pick(CopyCall::ALL), 0, source, 0, len);
                    feeder.send(OutputCall::Send, target, 0, len.min(200_000));
                    target.store(random.below(len), 1, 1);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                check(&buffers, "in a thread");
            });
        }
        let mut feeder = Feeder::new(seed + 100);
        let mut buffers = four_buffers(&mut feeder);
        for round in 0..25 {
            let before = rounds.load(Ordering::Relaxed);
            let pid = fork_child(|| work_in_child(&mut buffers, seed + round));
            feeder.receive(InputCall::Recv, &mut buffers[0], 0, MIB);
            join(pid);
            check(&buffers, "in the forking thread");
            uncopy_tests::scratch::wait_until("the other threads", || {
                (rounds.load(Ordering::Relaxed) > before).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The ways to start another program leave the buffers unchanged.
fn other_programs(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    for _ in 0..3 {
        let status = std::process::Command::new("/bin/true").status().expect("posix_spawn");
        assert!(status.success());
        // SAFETY: the command is a C string.
        assert_eq!(unsafe { libc::system(c"exit 3".as_ptr()) }, 3 << 8, "system");
        // SAFETY: the stream is closed by pclose; the buffer has room.
        unsafe {
            let stream = libc::popen(c"head -c 300000 /dev/zero".as_ptr(), c"r".as_ptr());
            assert!(!stream.is_null(), "popen");
            let got = libc::fread(buffers[0].at(5).cast(), 1, 300_000, stream);
            assert_eq!((got, libc::pclose(stream)), (300_000, 0), "popen");
        }
        let zeroes = oracle::OracleBytes::new(300_000);
        buffers[0].note_received(5, zeroes.slice(0, 300_000));
        let mut cat = std::process::Command::new("/bin/cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("cat");
        let mut input = cat.stdin.take().expect("piped");
        let mut output = cat.stdout.take().expect("piped");
        let [target, source] = buffers.get_disjoint_mut([2, 1]).expect("different");
        let source = &*source;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut done = 0;
                while done < 700_000 {
                    let mut part = [source.part(done, 700_000 - done)];
                    // SAFETY: the part is inside the buffer.
                    done += unsafe { OutputCall::Write.output(input.as_raw_fd(), &mut part, 0) }
                        .expect("written");
                }
                input.flush().expect("flush");
            });
            let mut done = 0;
            while done < 700_000 {
                let mut part = [target.part(done, MIB - done)];
                // SAFETY: the part is inside the buffer.
                done += unsafe { InputCall::Read.input(output.as_raw_fd(), &mut part, 0) }.expect("read");
            }
            assert_eq!(output.read(&mut [0; 16]).expect("end"), 0, "more than was written");
        });
        assert!(cat.wait().expect("cat").success());
        target.note_received(0, source.mirror(0, 700_000));
        check(&buffers, "after other programs");
        feeder.receive(InputCall::Recv, &mut buffers[3], 0, MIB);
    }
}

static SHARED_SOURCE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static SHARED_TARGET: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Reads and copies a viewed buffer in a child that shares the parent's memory.
extern "C" fn copy_in_shared_memory(_argument: *mut c_void) -> c_int {
    let source = SHARED_SOURCE.load(Ordering::Relaxed);
    let target = SHARED_TARGET.load(Ordering::Relaxed);
    // SAFETY: both point to a megabyte that nobody else uses while the parent is suspended.
    unsafe {
        CopyCall::Memcpy.copy(target, source, MIB);
        source.add(500_000).read_volatile();
    }
    0
}

/// A child made with `CLONE_VM | CLONE_VFORK` works in the parent's memory.
fn child_that_shares_memory(seed: u64) {
    let mut feeder = Feeder::new(seed);
    for _ in 0..5 {
        let source = feeder.copied_buffer(MIB);
        let mut target = feeder.copied_buffer(MIB);
        let stack = oracle::OracleBytes::new(MIB);
        SHARED_SOURCE.store(source.at(0), Ordering::Relaxed);
        SHARED_TARGET.store(target.at(0), Ordering::Relaxed);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own and the parent waits until it ends.
        let pid =
            unsafe { libc::clone(copy_in_shared_memory, stack.at(MIB).cast(), flags, std::ptr::null_mut()) };
        assert!(pid > 0, "clone: errno {}", oracle::errno());
        join(pid);
        target.note_received(0, source.mirror(0, MIB));
        source.check_all("read by a child in shared memory");
        target.check_all("copied by a child in shared memory");
    }
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// A fork handler that reads and copies viewed buffers.
extern "C" fn copy_in_fork_handler() {
    let source = SHARED_SOURCE.load(Ordering::Relaxed);
    let target = SHARED_TARGET.load(Ordering::Relaxed);
    if source.is_null() {
        return;
    }
    // SAFETY: both point to a megabyte; the forking thread is the only one that uses them.
    unsafe {
        CopyCall::Memmove.copy(target, source, MIB / 2);
        let _ = std::hint::black_box(source.add(MIB - 5000).read_volatile());
        libc::free(std::hint::black_box(libc::malloc(MIB)));
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Handlers registered with `pthread_atfork` may touch, copy and allocate.
fn fork_handlers_touch_buffers(seed: u64) {
    let handler = copy_in_fork_handler as unsafe extern "C" fn();
    // SAFETY: the handlers are functions of this program, which is never unloaded.
    let registered = unsafe { libc::pthread_atfork(Some(handler), Some(handler), Some(handler)) };
    assert_eq!(registered, 0, "pthread_atfork");
    let mut feeder = Feeder::new(seed);
    for round in 0..5 {
        let source = feeder.copied_buffer(MIB);
        let mut target = feeder.copied_buffer(MIB);
        SHARED_SOURCE.store(source.at(0), Ordering::Relaxed);
        SHARED_TARGET.store(target.at(0), Ordering::Relaxed);
        target.note_received(0, source.mirror(0, MIB / 2));
        let pid = fork_child(|| {
            source.check_all("source in the child");
            target.check_all("target in the child");
            let mut buffers = four_buffers(&mut Feeder::new(seed + 1));
            work_in_child(&mut buffers, seed + round);
        });
        source.check_all("source in the parent");
        target.check_all("target in the parent");
        join(pid);
    }
    assert_eq!(HANDLED.load(Ordering::Relaxed), 10, "handlers that ran in the parent");
    SHARED_SOURCE.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// A child that ends by `exit` runs exit handlers, and one that is killed runs none.
fn ways_to_end(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut buffers = four_buffers(&mut feeder);
    for ending in 0..3 {
        // SAFETY: the child ends below in one of three ways.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            check(&buffers, "in a child");
            feeder.receive(InputCall::Recv, &mut buffers[0], 0, 400_000);
            // SAFETY: the first two calls take integers; execl(3) gets NUL-terminated strings and a null.
            unsafe {
                match ending {
                    0 => libc::exit(0),
                    1 => {
                        libc::raise(libc::SIGKILL);
                    }
                    _ => {
                        let program = CString::new("/bin/true").expect("no NUL");
                        libc::execl(program.as_ptr(), program.as_ptr(), std::ptr::null::<libc::c_char>());
                    }
                }
                libc::_exit(9);
            }
        }
        assert_eq!(wait(pid), if ending == 1 { libc::SIGKILL } else { 0 }, "way {ending}");
        let mut own = Feeder::new(seed + ending);
        own.receive(InputCall::Recv, &mut buffers[1], 0, MIB - 45);
        check(&buffers, "in the parent");
    }
}

/// Forks; the child's one thread starts another and ends, by `pthread_exit` if the argument is not null.
extern "C-unwind" fn fork_and_end(by_exit: *mut c_void) -> *mut c_void {
    // SAFETY: parent and child each use their own copy of the memory.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: errno {}", oracle::errno());
    if pid == 0 {
        let mut feeder = Feeder::new(77);
        let received = feeder.copied_buffer(MIB);
        std::thread::spawn(move || {
            received.check_all("behind the first thread");
            feeder.copied_buffer(MIB).check_all("received behind the first thread");
        });
        if !by_exit.is_null() {
            // SAFETY: no object with a destructor is alive in this thread.
            unsafe { pthread_exit(std::ptr::null_mut()) };
        }
    }
    std::ptr::without_provenance_mut(pid.cast_unsigned() as usize)
}

/// A first thread that ends leaves the end of the process to the others. In the child of a thread's
/// fork that thread is the first.
fn first_thread_ends_early(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let buffers = four_buffers(&mut feeder);
    for by_exit in [0, 1, 0, 1] {
        // SAFETY: the thread is joined here and uses nothing of this one's.
        let pid = unsafe { Thread::start(fork_and_end, std::ptr::without_provenance_mut(by_exit)) }.join();
        join(libc::pid_t::try_from(pid.addr()).expect("pid"));
        check(&buffers, "after the child");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "child_overwrites_what_parent_keeps" => child_overwrites_what_parent_keeps(seed),
        "bare_fork" => bare_fork(seed),
        "forks_by_number" => forks_by_number(seed),
        "forks_by_number_among_threads" => forks_by_number_among_threads(seed),
        "clones_with_memory_of_their_own" => clones_with_memory_of_their_own(seed),
        "generations" => generations(seed),
        "daemon" => daemon(seed),
        "fork_among_threads" => fork_among_threads(seed),
        "other_programs" => other_programs(seed),
        "child_that_shares_memory" => child_that_shares_memory(seed),
        "fork_handlers_touch_buffers" => fork_handlers_touch_buffers(seed),
        "first_thread_ends_early" => first_thread_ends_early(seed),
        "ways_to_end" => ways_to_end(seed),
        other => panic!("unknown scenario {other}"),
    }
}
