//! Memory that holds views, read and written by other means: `process_vm_readv` and its relatives,
//! `/proc`, a tracer; from this process, a child, and the parent.
//!
//! ```text
//! observers SCENARIO SEED
//! ```

use std::ffi::{c_int, c_void};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use libc::{iovec, pid_t};
use uncopy_tests::calls::{CopyCall, InputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::wait;
use uncopy_tests::mirror::Buffer;
use uncopy_tests::oracle::{OracleBytes, errno};

const MIB: usize = 1 << 20;

fn remote(start: *mut u8, len: usize) -> iovec {
    iovec { iov_base: start.cast(), iov_len: len }
}

/// Reads the memory of a process, a few parts at a time.
fn read_memory(pid: pid_t, from: *mut u8, to: *mut u8, len: usize) -> isize {
    let half = len / 2;
    let local = [remote(to, len)];
    let parts = [remote(from, half), remote(from.wrapping_add(half), len - half)];
    // SAFETY: the local part is a live buffer's.
    unsafe { libc::process_vm_readv(pid, local.as_ptr(), 1, parts.as_ptr(), 2, 0) }
}

fn write_memory(pid: pid_t, to: *mut u8, from: *const u8, len: usize) -> isize {
    let (local, parts) = ([remote(from.cast_mut(), len)], [remote(to, len)]);
    // SAFETY: the local part is a live buffer's.
    unsafe { libc::process_vm_writev(pid, local.as_ptr(), 1, parts.as_ptr(), 1, 0) }
}

fn expect_same(found: &OracleBytes, buffer: &Buffer, at: usize, len: usize, what: &str) {
    assert!(found.slice(0, len) == buffer.mirror(at, len), "{what}");
}

/// A process that accesses its own memory by calls meant for other processes.
fn its_own_memory(seed: u64) {
    let mut feeder = Feeder::new(seed);
    // SAFETY: getpid(2) takes no arguments and cannot fail.
    let me = unsafe { libc::getpid() };
    let memory = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").expect("mem");
    let (found, bytes) = (OracleBytes::new(MIB), vec![7u8; 300_000]);
    for round in 0..4 {
        let mut source = feeder.copied_buffer(MIB);
        let mut target = feeder.copied_buffer(MIB);
        // From a view to plain memory, from a view to a view, and into the middle of a view.
        assert_eq!(read_memory(me, source.at(0), found.pointer(), MIB), 1 << 20, "errno {}", errno());
        expect_same(&found, &source, 0, MIB, "process_vm_readv of a view");
        let source_again = Buffer::copy_of(CopyCall::Memcpy, &source, 0, MIB);
        assert_eq!(read_memory(me, source_again.at(5), target.at(77), 700_000), 700_000);
        target.note_received(77, source.mirror(5, 700_000));
        target.check_all("process_vm_readv into a view");
        assert_eq!(write_memory(me, source.at(100_000), bytes.as_ptr(), 300_000), 300_000);
        source.note_received(100_000, &bytes);
        source.check_all("process_vm_writev into a view");
        source_again.check_all("a copy from before");
        let fresh = feeder.copied_buffer(MIB);
        let mut through_file = vec![0; 500_000];
        let got = memory
            .read_at(&mut through_file, fresh.at(33_333).addr() as u64)
            .map_err(|error| error.raw_os_error());
        // The kernel serves no faults there: absent pages are an error, and never a wrong byte.
        assert!(matches!(got, Ok(500_000) | Err(Some(libc::EIO))), "round {round}: /proc/self/mem: {got:?}");
        if got.is_ok() {
            assert!(through_file == fresh.mirror(33_333, 500_000), "/proc/self/mem of a view");
        }
        fresh.check_all("read through /proc/self/mem");
        feeder.receive(InputCall::Recv, &mut target, 0, MIB);
        target.check_all("received into what was written by other ways");
    }
}

/// A child whose memory its parent reads and writes.
fn the_memory_of_a_child(seed: u64) {
    let mut feeder = Feeder::new(seed);
    for round in 0..3 {
        let mut kept = feeder.copied_buffer(MIB);
        let (mut to_parent, mut from_child) =
            (std::io::pipe().expect("pipe"), std::io::pipe().expect("pipe"));
        // SAFETY: the child works on its copy of everything and ends by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut own = Feeder::new(seed + 1);
            let received = own.copied_buffer(MIB);
            to_parent.1.write_all(&received.at(0).addr().to_ne_bytes()).expect("told");
            from_child.0.read_exact(&mut [0]).expect("parent is done");
            kept.note_received(50_000, &[9; 200_000]);
            kept.check_all("what the parent wrote");
            received.check_all("what the parent read");
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut address = [0; 8];
        to_parent.0.read_exact(&mut address).expect("address");
        let received = std::ptr::without_provenance_mut(usize::from_ne_bytes(address));
        let found = OracleBytes::new(MIB);
        // The buffer from before the fork, one that the child received later, and a write.
        assert_eq!(read_memory(pid, kept.at(0), found.pointer(), MIB), 1 << 20, "errno {}", errno());
        expect_same(&found, &kept, 0, MIB, "a buffer that the child has from its parent");
        assert_eq!(read_memory(pid, received, found.pointer(), MIB), 1 << 20, "errno {}", errno());
        let expected = Feeder::new(seed + 1).copied_buffer(MIB);
        expect_same(&found, &expected, 0, MIB, "a buffer that the child received");
        assert_eq!(write_memory(pid, kept.at(50_000), [9; 200_000].as_ptr(), 200_000), 200_000);
        from_child.1.write_all(&[1]).expect("told");
        assert_eq!(wait(pid), 0, "round {round}");
        kept.check_all("in the parent");
    }
}

/// A child that reads its parent's memory while the parent continues.
fn the_memory_of_the_parent(seed: u64) {
    let mut feeder = Feeder::new(seed);
    // SAFETY: getpid(2) takes no arguments and cannot fail.
    let parent = unsafe { libc::getpid() };
    for _ in 0..3 {
        let kept = feeder.copied_buffer(MIB);
        // SAFETY: the child works on its copy of everything and ends by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let found = OracleBytes::new(MIB);
            let got = read_memory(parent, kept.at(0), found.pointer(), MIB);
            let same = got == 1 << 20 && found.slice(0, MIB) == kept.mirror(0, MIB);
            // SAFETY: _exit(2) ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(c_int::from(!same)) };
        }
        feeder.copied_buffer(MIB).check_all("received meanwhile");
        assert_eq!(wait(pid), 0);
        kept.check_all("read by a child");
    }
}

/// Words read by a tracer: PTRACE_PEEKDATA of a stopped child's memory. Viewed pages cannot be placed while the
/// child's threads are stopped: present pages are read, the others are an error, and never a wrong byte.
fn a_traced_child(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let kept = feeder.copied_buffer(MIB);
    // SAFETY: the child stops itself until its parent is done and ends by _exit.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            let _ = std::hint::black_box(kept.at(MIB / 2).read_volatile());
            libc::raise(libc::SIGSTOP);
            kept.check_all("after tracing");
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        let (mut right, mut refused) = (0, 0);
        for at in (0..MIB).step_by(4096).chain([MIB / 2 + 8]) {
            *libc::__errno_location() = 0;
            let word = libc::ptrace(libc::PTRACE_PEEKDATA, pid, kept.at(at).cast::<c_void>(), 0);
            if errno() == 0 {
                assert_eq!(word.to_ne_bytes(), kept.mirror(at, 8), "a word at {at} of a stopped process");
                right += 1;
            } else {
                refused += 1;
            }
        }
        eprintln!("{right} words read, {refused} refused");
        assert!(right > 0, "the page that was touched can be read");
        libc::ptrace(libc::PTRACE_CONT, pid, 0, 0);
        assert_eq!(wait(pid), 0, "a traced child");
    }
    kept.check_all("in the tracer");
}

/// Holds views until the harness, which looks from outside, sends a line.
fn hold_views(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let received = feeder.received_buffer(MIB);
    let copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, MIB);
    std::fs::write("expected", copy.mirror(0, MIB)).expect("file");
    println!("ready {} {}", copy.at(0).addr(), MIB);
    uncopy_tests::scratch::wait_until("the harness", || std::path::Path::new("done").exists().then_some(()));
    received.check_all("received");
    copy.check_all("copied");
    let fresh = feeder.copied_buffer(MIB);
    fresh.check_all("afterwards");
    println!("fine");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "its_own_memory" => its_own_memory(seed),
        "the_memory_of_a_child" => the_memory_of_a_child(seed),
        "the_memory_of_the_parent" => the_memory_of_the_parent(seed),
        "a_traced_child" => a_traced_child(seed),
        "hold_views" => hold_views(seed),
        other => panic!("unknown scenario {other}"),
    }
}
