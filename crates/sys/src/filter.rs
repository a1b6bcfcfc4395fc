//! What a seccomp filter would do to us.
//!
//! A filter may refuse a call, which shows when the call is made, or end the process for it, which must
//! never happen because of us. So where a filter is in force, the calls that the engine makes are first
//! made by a child process of our own that nobody waits for but us.

use crate::PAGE_BYTES;
use crate::call::syscall;
use crate::control::Control;
use crate::errno::{Errno, check};
pub use crate::ids::is_filtered;
use crate::readable;
use crate::uffd::{Reports, Uffd, wait};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// Makes each of the calls that the engine needs, in a throw-away process.
///
/// # Errors
/// EPERM if the filter ends processes for one of them; else what making the process says.
pub fn try_out(inherited_device: Option<i32>) -> Result<(), Errno> {
    in_child(|| {
        make_the_calls(inherited_device);
        true
    })
}

/// What uncopy does under a filter that was there before the program, as far as that filter lets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Time is measured: trials, and what tracking takes.
    Clock,
    /// `/proc` is asked about this process: where stacks end, which threads there are.
    Proc,
    /// Files are shared with the command: counters, accounts of `--explain`, recordings.
    Files,
    /// Sockets and memory are shared with other processes: lanes, logs, the service of `--net`.
    Links,
}

type Call = (i64, [usize; 6]);

const NOWHERE: usize = -1isize as usize;
const FROM_HERE: usize = libc::AT_FDCWD as isize as usize;
const TO_READ: usize = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
const TO_LIST: usize = TO_READ | libc::O_DIRECTORY as usize;
const TO_MAKE: usize = (libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC) as usize;
const UNIX_SOCKET: [usize; 6] = [
    libc::AF_UNIX as usize,
    (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize,
    0,
    0,
    0,
    0,
];
const NETLINK_SOCKET: [usize; 6] =
    [libc::AF_NETLINK as usize, (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as usize, NETLINK_SOCK_DIAG, 0, 0, 0];
const NETLINK_SOCK_DIAG: usize = 4;
const SHARED: [usize; 6] =
    [0, PAGE_BYTES, (libc::PROT_READ | libc::PROT_WRITE) as usize, libc::MAP_SHARED as usize, NOWHERE, 0];

/// See [`crate::readable`].
const LOOK_TO_READ: Call = (libc::SYS_rt_sigprocmask, [NOWHERE as u32 as usize, 0, 0, 8, 0, 0]);
const LOOK_TO_WRITE: Call =
    (libc::SYS_futex, [0, (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize, 0, 0, 0, 0]);

/// A call on no descriptor whose other arguments do not matter to filters.
const fn on_nothing(number: i64) -> Call {
    (number, [NOWHERE, 0, 0, 0, 0, 0])
}

/// The same with names that are nowhere.
const fn at_no_name(number: i64) -> Call {
    (number, [FROM_HERE, 0, 0, 0, 0, 0])
}

/// The system calls of each feature, with arguments of which a filter sees what it sees of the real ones, and which name
/// nothing that is there.
const FEATURES: [(Feature, &[Call]); 4] = [
    (
        Feature::Clock,
        &[
            (libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC_COARSE as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_clock_gettime, [libc::CLOCK_PROCESS_CPUTIME_ID as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_futex, [0, libc::FUTEX_WAKE as usize, 0, 0, 0, 0]),
            (libc::SYS_futex, [0, libc::FUTEX_WAIT as usize, 0, 0, 0, 0]),
        ],
    ),
    (
        Feature::Proc,
        &[
            (libc::SYS_openat, [FROM_HERE, 0, TO_READ, 0, 0, 0]),
            (libc::SYS_openat, [FROM_HERE, 0, TO_LIST, 0, 0, 0]),
            (libc::SYS_ioctl, [NOWHERE, crate::procmap::IOCTL_QUERY as usize, 0, 0, 0, 0]),
            on_nothing(libc::SYS_pread64),
            on_nothing(libc::SYS_read),
            on_nothing(libc::SYS_getdents64),
            on_nothing(libc::SYS_close),
            (libc::SYS_prlimit64, [0, libc::RLIMIT_STACK as usize, 0, 0, 0, 0]),
            (libc::SYS_getpid, [0; 6]),
            (libc::SYS_gettid, [0; 6]),
        ],
    ),
    (
        Feature::Files,
        &[
            (libc::SYS_openat, [FROM_HERE, 0, TO_MAKE, 0, 0, 0]),
            (libc::SYS_openat, [FROM_HERE, 0, TO_LIST, 0, 0, 0]),
            (libc::SYS_mmap, SHARED),
            (libc::SYS_munmap, [PAGE_BYTES, 0, 0, 0, 0, 0]),
            on_nothing(libc::SYS_fstat),
            on_nothing(libc::SYS_ftruncate),
            on_nothing(libc::SYS_fallocate),
            on_nothing(libc::SYS_pread64),
            on_nothing(libc::SYS_pwrite64),
            on_nothing(libc::SYS_write),
            on_nothing(libc::SYS_getdents64),
            on_nothing(libc::SYS_fcntl),
            on_nothing(libc::SYS_flock),
            on_nothing(libc::SYS_close),
            at_no_name(libc::SYS_mkdirat),
            at_no_name(libc::SYS_readlinkat),
            at_no_name(libc::SYS_statx),
            at_no_name(libc::SYS_unlinkat),
            (libc::SYS_renameat2, [FROM_HERE, 0, FROM_HERE, 0, 0, 0]),
            (libc::SYS_process_vm_readv, [0; 6]),
            (libc::SYS_getpid, [0; 6]),
            (libc::SYS_getppid, [0; 6]),
        ],
    ),
    (
        Feature::Links,
        &[
            (libc::SYS_socket, UNIX_SOCKET),
            (libc::SYS_socket, NETLINK_SOCKET),
            (libc::SYS_socketpair, [UNIX_SOCKET[0], UNIX_SOCKET[1], 0, 0, 0, 0]),
            (libc::SYS_memfd_create, [0; 6]),
            (libc::SYS_mmap, SHARED),
            (libc::SYS_munmap, [PAGE_BYTES, 0, 0, 0, 0, 0]),
            (libc::SYS_fcntl, [NOWHERE, libc::F_ADD_SEALS as usize, 0, 0, 0, 0]),
            (libc::SYS_openat, [FROM_HERE, 0, TO_READ, 0, 0, 0]),
            on_nothing(libc::SYS_bind),
            on_nothing(libc::SYS_listen),
            on_nothing(libc::SYS_accept4),
            on_nothing(libc::SYS_connect),
            on_nothing(libc::SYS_shutdown),
            on_nothing(libc::SYS_sendmsg),
            on_nothing(libc::SYS_recvmsg),
            on_nothing(libc::SYS_sendmmsg),
            on_nothing(libc::SYS_recvmmsg),
            on_nothing(libc::SYS_sendto),
            on_nothing(libc::SYS_recvfrom),
            on_nothing(libc::SYS_getsockname),
            on_nothing(libc::SYS_getpeername),
            on_nothing(libc::SYS_getsockopt),
            on_nothing(libc::SYS_setsockopt),
            on_nothing(libc::SYS_read),
            on_nothing(libc::SYS_write),
            on_nothing(libc::SYS_readv),
            on_nothing(libc::SYS_writev),
            on_nothing(libc::SYS_pwritev),
            on_nothing(libc::SYS_ioctl),
            on_nothing(libc::SYS_fstat),
            on_nothing(libc::SYS_fstatfs),
            on_nothing(libc::SYS_lseek),
            on_nothing(libc::SYS_fallocate),
            on_nothing(libc::SYS_ftruncate),
            on_nothing(libc::SYS_fsync),
            on_nothing(libc::SYS_fdatasync),
            on_nothing(libc::SYS_sync_file_range),
            on_nothing(libc::SYS_getdents64),
            on_nothing(libc::SYS_dup3),
            on_nothing(libc::SYS_close),
            (libc::SYS_poll, [0; 6]),
            (libc::SYS_getrandom, [0; 6]),
            at_no_name(libc::SYS_mkdirat),
            at_no_name(libc::SYS_readlinkat),
            at_no_name(libc::SYS_statx),
            at_no_name(libc::SYS_unlinkat),
            (libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_getuid, [0; 6]),
            (libc::SYS_geteuid, [0; 6]),
            (libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize, 0, 0, 0, 0, 0]),
            // What peers send is put where the program wants it.
            LOOK_TO_READ,
            LOOK_TO_WRITE,
            // Their thread, with a table of descriptors of its own where it can have one.
            (libc::SYS_clone3, [0; 6]),
            (libc::SYS_set_robust_list, [0; 6]),
            (libc::SYS_rseq, [0; 6]),
            (libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_close_range, [900, 900, 0, 0, 0, 0]),
        ],
    ),
];

/// Calls that may be refused, which is known where they are made.
const MAY_BE_REFUSED: [i64; 5] =
    [libc::SYS_clone3, libc::SYS_rseq, libc::SYS_unshare, libc::SYS_close_range, libc::SYS_process_vm_readv];

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

static ANSWERS: [AtomicU8; FEATURES.len()] = [const { AtomicU8::new(UNKNOWN) }; FEATURES.len()];
static HAS_OWN: AtomicBool = AtomicBool::new(false);

/// Notes that the program installs a filter of its own: nothing is tried out from here on, and nothing asked of the kernel.
pub fn note_own() {
    HAS_OWN.store(true, Relaxed);
    readable::leave();
}

/// Where a filter that was there before the program does not let the kernel be asked what can be read, it is not. That takes a
/// throw-away process; without `may_try` it is not asked under any filter. Once, at the start.
pub fn settle(may_try: bool) {
    if is_filtered() && !(may_try && in_child(|| all_pass(&[LOOK_TO_READ, LOOK_TO_WRITE])).is_ok()) {
        readable::leave();
    }
}

/// Whether no filter is in force, or one that was there before the program and neither ends a process for a call of this
/// feature nor refuses one. Under one of the program's own nothing is asked. Where a filter was there before, the first time takes a
/// throw-away process.
#[must_use]
pub fn allows(feature: Feature) -> bool {
    !HAS_OWN.load(Relaxed) && passes(feature)
}

fn passes(feature: Feature) -> bool {
    let answer = &ANSWERS[feature as usize];
    if answer.load(Relaxed) == UNKNOWN {
        let _errno = crate::errno::Keep::new();
        // Asked again: the program may install one by an instruction of its own.
        if !is_filtered() {
            return true;
        }
        let passes = in_child(|| all_pass(FEATURES[feature as usize].1));
        answer.store(if passes.is_ok() { YES } else { NO }, Relaxed);
    }
    answer.load(Relaxed) == YES
}

/// Makes these calls; whether a filter refuses none of them.
fn all_pass(calls: &[Call]) -> bool {
    calls.iter().all(|(number, arguments)| {
        // SAFETY: the arguments name no memory and no descriptor.
        let result = unsafe { crate::raw::call(*number as usize, *arguments) };
        // No call says so of what is not there.
        MAY_BE_REFUSED.contains(number)
            || ![-i64::from(libc::EPERM), -i64::from(libc::ENOSYS)].contains(&result)
    })
}

/// Makes calls in a throw-away process, which says whether they were all let through.
///
/// # Errors
/// EPERM if they were not, or if the filter ends processes for one of them; else what making the process says.
fn in_child(calls: impl FnOnce() -> bool) -> Result<(), Errno> {
    // SAFETY: a process with a copy of our memory, of which only this thread goes on, and whose end is
    // reported to nobody who does not ask for processes of this kind (__WCLONE).
    let child = check(unsafe { syscall!(libc::SYS_clone, 0, 0, 0, 0, 0) })?;
    if child == 0 {
        begin_child();
        let status = usize::from(!calls());
        // SAFETY: ends this process, which has nothing but copies.
        unsafe {
            syscall!(libc::SYS_exit_group, status);
            core::hint::unreachable_unchecked()
        }
    }
    let mut status = 0;
    loop {
        // SAFETY: the status is valid; the process is ours.
        let waited = unsafe { syscall!(libc::SYS_wait4, child, &raw mut status, libc::__WCLONE, 0) };
        match check(waited) {
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
            Ok(_) if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 => return Ok(()),
            Ok(_) => return Err(Errno(libc::EPERM)),
        }
    }
}

#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);
const _: () = assert!(align_of::<Page>() == PAGE_BYTES);
static ZEROES: Page = Page([0; PAGE_BYTES]);

/// In the throw-away process: SIGSYS, by which a filter may report a call, ends it, and leaves no core file.
fn begin_child() {
    // SAFETY: this process has nothing but copies.
    unsafe {
        let default = [0usize; 4];
        syscall!(libc::SYS_rt_sigaction, libc::SIGSYS, default.as_ptr(), 0, 8);
        syscall!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}

/// The calls, whatever they say: only whether the process lives on is of interest.
fn make_the_calls(inherited_device: Option<i32>) {
    const LEN_BYTES: usize = 4 * PAGE_BYTES;
    // SAFETY: this process has nothing but copies, and ends after this.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(core::ptr::null_mut(), LEN_BYTES, protection, flags, -1, 0);
        if memory != libc::MAP_FAILED {
            let at = memory as usize;
            syscall!(libc::SYS_mprotect, at, LEN_BYTES, protection);
            syscall!(libc::SYS_madvise, at, 2 * PAGE_BYTES, libc::MADV_POPULATE_WRITE);
            syscall!(libc::SYS_madvise, at + PAGE_BYTES, PAGE_BYTES, libc::MADV_DONTNEED);
            if let Ok(uffd) = Uffd::open(inherited_device, Reports::Faults) {
                let _ = uffd.register(at, LEN_BYTES);
                let _ = uffd.move_pages(at + 2 * PAGE_BYTES, at, PAGE_BYTES);
                // From memory that is not registered: nobody serves faults here.
                let _ = uffd.copy(at, ZEROES.0.as_ptr() as usize, PAGE_BYTES);
                let _ = uffd.zero_page(at + 3 * PAGE_BYTES);
                uffd.wake(at, PAGE_BYTES);
                wait(uffd, None, Control::NONE, -1, 0);
                uffd.read(|_| ());
                let _ = uffd.unregister(at, LEN_BYTES);
                uffd.close();
            }
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
            syscall!(libc::SYS_mremap, at, PAGE_BYTES, PAGE_BYTES, flags, at + PAGE_BYTES);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            syscall!(libc::SYS_mremap, at, PAGE_BYTES, PAGE_BYTES, flags, at + PAGE_BYTES);
        }
        crate::lock::try_mask();
        syscall!(libc::SYS_unshare, libc::CLONE_FILES);
        syscall!(libc::SYS_close_range, 900, 900, 0);
        syscall!(libc::SYS_clone3, 0, 0);
        syscall!(libc::SYS_gettid);
        crate::clock::pause();
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_PROCESS_CPUTIME_ID] {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            syscall!(libc::SYS_clock_gettime, clock, &raw mut time);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Installs a filter in this process that does this for one system call.
    fn filter_for(number: i64, action: u32) {
        let code = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let give = libc::BPF_RET | libc::BPF_K;
        let mut program = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            code(equal, 0, 1, number as u32),
            code(give, 0, 0, action),
            code(give, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
        // SAFETY: a valid program, which the kernel copies.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER;
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0), 0);
        }
    }

    /// Whether `check` holds in a process under a filter that ends it for one system call.
    fn holds_under(number: i64, check: fn() -> bool) -> bool {
        holds_under_action(number, libc::SECCOMP_RET_KILL_PROCESS, check)
    }

    fn holds_under_action(number: i64, action: u32, check: fn() -> bool) -> bool {
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            filter_for(number, action);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!check())) };
        }
        let mut status = 0;
        // SAFETY: the test's own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn the_table_has_each_feature_in_its_place() {
        for (index, (feature, calls)) in FEATURES.iter().enumerate() {
            assert_eq!(*feature as usize, index);
            assert!(!calls.is_empty());
        }
    }

    #[test]
    fn a_filter_switches_off_what_it_does_not_let_through() {
        let all = || FEATURES.iter().all(|(feature, _)| allows(*feature));
        assert!(all(), "without a filter");
        assert!(holds_under(libc::SYS_getpgid, all), "a filter of something else");
        assert!(holds_under(libc::SYS_clock_gettime, || !allows(Feature::Clock) && allows(Feature::Proc)));
        assert!(holds_under(libc::SYS_getdents64, || allows(Feature::Clock) && !allows(Feature::Proc)));
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let no_links = || allows(Feature::Files) && !allows(Feature::Links);
        assert!(holds_under_action(libc::SYS_sendmsg, refused, no_links));
        let no_files = || allows(Feature::Links) && !allows(Feature::Files);
        assert!(holds_under_action(libc::SYS_unshare, refused, all), "which may be refused");
        assert!(holds_under(libc::SYS_unshare, no_links));
        assert!(holds_under_action(
            libc::SYS_renameat2,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
            no_files
        ));
    }

    #[test]
    fn a_filter_of_the_programs_own_switches_everything_off() {
        let own = || {
            note_own();
            FEATURES.iter().all(|(feature, _)| !allows(*feature))
        };
        assert!(holds_under(libc::SYS_getpgid, own));
    }
}
