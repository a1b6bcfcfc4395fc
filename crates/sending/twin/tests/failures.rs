//! System calls may fail from any moment on: no byte is wrong, nothing hangs, and what was sent arrives. A
//! seccomp filter makes them fail for all threads of a child process.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod common;

use common::{Pipe, can_lend, connection, in_child, lend_all, pattern, receive};
use std::os::fd::AsRawFd;
use uncopy_twin::{Buffer, Until};

const LEN: usize = 48 << 10;

/// A system call to be refused, either always or if one argument has a value or a bit.
#[derive(Clone, Copy, Debug)]
struct Refused {
    name: &'static str,
    call: i64,
    argument: Option<(u32, Match)>,
}

#[derive(Clone, Copy, Debug)]
enum Match {
    Equal(u32),
    HasBit(u32),
}

const fn ioctl(name: &'static str, request: u32) -> Refused {
    Refused { name, call: libc::SYS_ioctl, argument: Some((1, Match::Equal(request))) }
}

const fn madvise(name: &'static str, advice: i32) -> Refused {
    Refused { name, call: libc::SYS_madvise, argument: Some((2, Match::Equal(advice as u32))) }
}

const API: Refused = ioctl("UFFDIO_API", 0xC018_AA3F);
const REGISTER: Refused = ioctl("UFFDIO_REGISTER", 0xC020_AA00);
const COPY: Refused = ioctl("UFFDIO_COPY", 0xC028_AA03);
const ZERO: Refused = ioctl("UFFDIO_ZEROPAGE", 0xC020_AA04);
const MOVE: Refused = ioctl("UFFDIO_MOVE", 0xC028_AA05);
const PROTECT: Refused = ioctl("UFFDIO_WRITEPROTECT", 0xC018_AA06);
const DROP: Refused = madvise("MADV_DONTNEED", libc::MADV_DONTNEED);
const WIPE: Refused = madvise("MADV_WIPEONFORK", libc::MADV_WIPEONFORK);
const NO_HUGE: Refused = madvise("MADV_NOHUGEPAGE", libc::MADV_NOHUGEPAGE);
const UFFD: Refused = Refused { name: "userfaultfd", call: libc::SYS_userfaultfd, argument: None };
const OPEN: Refused = Refused { name: "openat", call: libc::SYS_openat, argument: None };
const UNSHARE: Refused = Refused { name: "unshare", call: libc::SYS_unshare, argument: None };
const RESIDENT: Refused = Refused { name: "mincore", call: libc::SYS_mincore, argument: None };
const AFFINITY: Refused =
    Refused { name: "sched_setaffinity", call: libc::SYS_sched_setaffinity, argument: None };
const REMAP: Refused = Refused { name: "mremap", call: libc::SYS_mremap, argument: None };
const COMMIT: Refused = Refused { name: "mprotect", call: libc::SYS_mprotect, argument: None };
const RESERVE: Refused = Refused {
    name: "mmap(MAP_NORESERVE)",
    call: libc::SYS_mmap,
    argument: Some((3, Match::HasBit(libc::MAP_NORESERVE as u32))),
};
const THREAD: Refused = Refused { name: "clone3", call: libc::SYS_clone3, argument: None };
const THREAD_TOO: Refused = Refused {
    name: "clone",
    call: libc::SYS_clone,
    argument: Some((0, Match::HasBit(libc::CLONE_VM as u32))),
};

/// Makes these calls fail with `errno` from now on, in all threads.
fn refuse(calls: &[Refused], errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |code: u32, k: u32, jt: usize, jf: usize| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_K | code) as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let mut program = Vec::new();
    for refused in calls {
        // In `struct seccomp_data` the call's number is at offset 0, the arguments begin at offset 16.
        program.push(load(0));
        match refused.argument {
            None => program.push(jump(libc::BPF_JEQ, refused.call as u32, 0, 1)),
            Some((argument, is)) => {
                program.push(jump(libc::BPF_JEQ, refused.call as u32, 0, 3));
                program.push(load(16 + 8 * argument));
                program.push(match is {
                    Match::Equal(value) => jump(libc::BPF_JEQ, value, 0, 1),
                    Match::HasBit(bit) => jump(libc::BPF_JSET, bit, 0, 1),
                });
            }
        }
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: seccomp(2) reads the filter program, which outlives the call, and which only refuses calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program), 0);
    }
}

/// Moment from which on calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    TheStart,
    TheFirstLoan,
    AfterSending,
}

/// Allocates, sends, overwrites, frees and reallocates, checking every byte.
fn run_scenario(calls: &[Refused], errno: i32, from: Moment) -> bool {
    let refuse_from = |moment| {
        if moment == from {
            refuse(calls, errno);
        }
    };
    refuse_from(Moment::TheStart);
    let Ok(mut large) = Buffer::copy_of(&pattern(1, LEN)) else {
        // Nothing can be allocated, which is reported as such.
        return from == Moment::TheStart
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM);
    };
    let mut other = Buffer::copy_of(&pattern(2, LEN)).expect("memory");
    let mut small: Vec<Buffer> =
        (0..100).map(|seed| Buffer::copy_of(&pattern(seed, 1500)).expect("memory")).collect();
    let (socket, mut receiver) = connection();
    let pipe = Pipe::new();
    refuse_from(Moment::TheFirstLoan);
    let mut expected = Vec::new();
    let all = small.iter().chain([&large, &other]);
    for object in all {
        let loan = lend_all(object, Until::Dropped);
        if loan.is_some() {
            pipe.vmsplice(object);
            pipe.splice_to(socket.as_raw_fd(), object.len());
            expected.extend_from_slice(object);
        }
        drop(loan);
    }
    let settled = lend_all(&other, Until::Completed);
    settled.into_iter().for_each(uncopy_twin::settle);
    refuse_from(Moment::AfterSending);
    // Overwritten by the program and by the kernel.
    large[5000..20_000].fill(0xAA);
    let mut check = pattern(1, LEN);
    check[5000..20_000].fill(0xAA);
    let zeroes = std::fs::File::open("/dev/zero");
    if let Ok(mut zeroes) = zeroes {
        std::io::Read::read_exact(&mut zeroes, &mut other).expect("zeroes");
        assert!(other.iter().all(|byte| *byte == 0));
    }
    other.fill(3);
    assert!(*large == check[..] && other.iter().all(|byte| *byte == 3));
    drop(other);
    small.truncate(40);
    for (seed, object) in small.iter_mut().enumerate() {
        assert!(**object == pattern(seed, 1500)[..]);
        if seed % 3 == 0 {
            object.fill(9);
        }
    }
    let size = |seed: usize| if seed.is_multiple_of(20) { LEN } else { 1500 };
    let again: Vec<(usize, Buffer)> = (0..200usize)
        .filter_map(|seed| Some((seed, Buffer::copy_of(&pattern(seed, size(seed))).ok()?)))
        .collect();
    let zeroed: Vec<Buffer> = (0..10).filter_map(|_| Buffer::zeroed(LEN).ok()).collect();
    assert!(zeroed.iter().all(|object| object.iter().all(|byte| *byte == 0)));
    for (seed, object) in &again {
        assert!(**object == pattern(*seed, size(*seed))[..]);
    }
    assert!(*large == check[..]);
    for (seed, object) in small.iter().enumerate() {
        assert!(if seed % 3 == 0 { **object == [9; 1500] } else { **object == pattern(seed, 1500)[..] });
    }
    let grandchild = in_child(|| {
        large.fill(1);
        drop(lend_all(&large, Until::Dropped));
        large.fill(2);
        large.iter().all(|byte| *byte == 2)
    });
    assert_eq!(grandchild, 0);
    assert!(receive(&mut receiver, expected.len()) == expected, "what was sent arrives");
    true
}

#[test]
fn any_call_may_be_refused_from_any_moment_on() {
    let Some(_guard) = can_lend("any_call_may_be_refused_from_any_moment_on") else { return };
    let groups: &[&[Refused]] = &[
        &[],
        &[API],
        &[REGISTER],
        &[COPY],
        &[ZERO],
        &[COPY, ZERO],
        &[MOVE],
        &[COPY, MOVE],
        &[PROTECT],
        &[PROTECT, COPY],
        &[PROTECT, DROP],
        &[DROP],
        &[DROP, COPY, MOVE],
        &[WIPE],
        &[NO_HUGE],
        &[UFFD],
        &[UFFD, OPEN],
        &[UNSHARE],
        &[RESIDENT],
        &[RESIDENT, OPEN],
        &[AFFINITY],
        &[REMAP],
        &[REMAP, COPY],
        &[COMMIT],
        &[RESERVE],
        &[THREAD, THREAD_TOO],
    ];
    let mut failed = Vec::new();
    for calls in groups {
        for from in [Moment::TheStart, Moment::TheFirstLoan, Moment::AfterSending] {
            for errno in [libc::ENOMEM, libc::EINVAL] {
                if calls.is_empty() && errno != libc::EINVAL {
                    continue;
                }
                // If the test's own children cannot be created any more, nothing is checked.
                let status = in_child(|| run_scenario(calls, errno, from));
                if status != 0 {
                    let names: Vec<&str> = calls.iter().map(|refused| refused.name).collect();
                    failed.push(format!("{names:?} refused with {errno} from {from:?}: status {status}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
