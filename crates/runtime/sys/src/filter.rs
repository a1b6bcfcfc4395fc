//! Detection of the effects of a seccomp filter.
//!
//! A filter may make a call fail, which shows when the call is made, or kill the process for it,
//! which must never happen because of the library. So under a filter a child process of our own,
//! for which only we wait, first makes the calls that the engine needs.

use crate::PAGE_BYTES;
use crate::call::syscall;
use crate::control::Control;
use crate::descriptor::ProgramFd;
use crate::errno::{Errno, check};
pub use crate::ids::is_filtered;
use crate::readable;
use crate::uffd::{Reports, Uffd, wait};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// Makes each of the calls that the engine needs, in a short-lived child process.
///
/// # Errors
/// EPERM if the filter kills the child for one of them; else errors of clone(2).
pub fn probe_calls(inherited_device: Option<ProgramFd>) -> Result<(), Errno> {
    in_child(|| {
        make_the_calls(inherited_device);
        true
    })
}

/// Functions of uncopy that a filter from before the program may forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallGroup {
    /// Time measurement: trials, and the cost of tracking.
    Clock,
    /// Queries of `/proc` about this process: bounds of stacks, list of threads.
    Proc,
    /// Files shared with the command: counters, accounts of `--explain`, recordings.
    Files,
    /// Sockets and memory shared with other processes: lanes, logs, the service of `--net`.
    Ipc,
}

type Call = (i64, [usize; 6]);

const BAD_ADDRESS: usize = -1isize as usize;
const CURRENT_DIRECTORY: usize = libc::AT_FDCWD as isize as usize;
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
    [0, PAGE_BYTES, (libc::PROT_READ | libc::PROT_WRITE) as usize, libc::MAP_SHARED as usize, BAD_ADDRESS, 0];

/// The call that tests whether memory is readable. See [`crate::readable`].
const TEST_READ: Call = (libc::SYS_rt_sigprocmask, [BAD_ADDRESS as u32 as usize, 0, 0, 8, 0, 0]);
const TEST_WRITE: Call =
    (libc::SYS_futex, [0, (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize, 0, 0, 0, 0]);

/// Returns a call on an invalid descriptor, with zeroes for arguments that do not matter to filters.
const fn on_bad_descriptor(number: i64) -> Call {
    (number, [BAD_ADDRESS, 0, 0, 0, 0, 0])
}

/// Returns a call on a null path.
const fn on_null_path(number: i64) -> Call {
    (number, [CURRENT_DIRECTORY, 0, 0, 0, 0, 0])
}

/// System calls of each feature. Arguments look to a filter like real ones, but name nothing.
const FEATURES: [(CallGroup, &[Call]); 4] = [
    (
        CallGroup::Clock,
        &[
            (libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC_COARSE as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_clock_gettime, [libc::CLOCK_PROCESS_CPUTIME_ID as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_futex, [0, libc::FUTEX_WAKE as usize, 0, 0, 0, 0]),
            (libc::SYS_futex, [0, libc::FUTEX_WAIT as usize, 0, 0, 0, 0]),
        ],
    ),
    (
        CallGroup::Proc,
        &[
            (libc::SYS_openat, [CURRENT_DIRECTORY, 0, TO_READ, 0, 0, 0]),
            (libc::SYS_openat, [CURRENT_DIRECTORY, 0, TO_LIST, 0, 0, 0]),
            (libc::SYS_ioctl, [BAD_ADDRESS, crate::procmap::IOCTL_QUERY as usize, 0, 0, 0, 0]),
            on_bad_descriptor(libc::SYS_pread64),
            on_bad_descriptor(libc::SYS_read),
            on_bad_descriptor(libc::SYS_getdents64),
            on_bad_descriptor(libc::SYS_close),
            (libc::SYS_prlimit64, [0, libc::RLIMIT_STACK as usize, 0, 0, 0, 0]),
            (libc::SYS_getpid, [0; 6]),
            (libc::SYS_gettid, [0; 6]),
        ],
    ),
    (
        CallGroup::Files,
        &[
            (libc::SYS_openat, [CURRENT_DIRECTORY, 0, TO_MAKE, 0, 0, 0]),
            (libc::SYS_openat, [CURRENT_DIRECTORY, 0, TO_LIST, 0, 0, 0]),
            (libc::SYS_mmap, SHARED),
            (libc::SYS_munmap, [PAGE_BYTES, 0, 0, 0, 0, 0]),
            on_bad_descriptor(libc::SYS_fstat),
            on_bad_descriptor(libc::SYS_ftruncate),
            on_bad_descriptor(libc::SYS_fallocate),
            on_bad_descriptor(libc::SYS_pread64),
            on_bad_descriptor(libc::SYS_pwrite64),
            on_bad_descriptor(libc::SYS_write),
            on_bad_descriptor(libc::SYS_getdents64),
            on_bad_descriptor(libc::SYS_fcntl),
            on_bad_descriptor(libc::SYS_flock),
            on_bad_descriptor(libc::SYS_close),
            on_null_path(libc::SYS_mkdirat),
            on_null_path(libc::SYS_readlinkat),
            on_null_path(libc::SYS_statx),
            on_null_path(libc::SYS_unlinkat),
            (libc::SYS_renameat2, [CURRENT_DIRECTORY, 0, CURRENT_DIRECTORY, 0, 0, 0]),
            (libc::SYS_process_vm_readv, [0; 6]),
            (libc::SYS_getpid, [0; 6]),
            (libc::SYS_getppid, [0; 6]),
        ],
    ),
    (
        CallGroup::Ipc,
        &[
            (libc::SYS_socket, UNIX_SOCKET),
            (libc::SYS_socket, NETLINK_SOCKET),
            (libc::SYS_socketpair, [UNIX_SOCKET[0], UNIX_SOCKET[1], 0, 0, 0, 0]),
            (libc::SYS_memfd_create, [0; 6]),
            (libc::SYS_mmap, SHARED),
            (libc::SYS_munmap, [PAGE_BYTES, 0, 0, 0, 0, 0]),
            (libc::SYS_fcntl, [BAD_ADDRESS, libc::F_ADD_SEALS as usize, 0, 0, 0, 0]),
            (libc::SYS_openat, [CURRENT_DIRECTORY, 0, TO_READ, 0, 0, 0]),
            on_bad_descriptor(libc::SYS_bind),
            on_bad_descriptor(libc::SYS_listen),
            on_bad_descriptor(libc::SYS_accept4),
            on_bad_descriptor(libc::SYS_connect),
            on_bad_descriptor(libc::SYS_shutdown),
            on_bad_descriptor(libc::SYS_sendmsg),
            on_bad_descriptor(libc::SYS_recvmsg),
            on_bad_descriptor(libc::SYS_sendmmsg),
            on_bad_descriptor(libc::SYS_recvmmsg),
            on_bad_descriptor(libc::SYS_sendto),
            on_bad_descriptor(libc::SYS_recvfrom),
            on_bad_descriptor(libc::SYS_getsockname),
            on_bad_descriptor(libc::SYS_getpeername),
            on_bad_descriptor(libc::SYS_getsockopt),
            on_bad_descriptor(libc::SYS_setsockopt),
            on_bad_descriptor(libc::SYS_read),
            on_bad_descriptor(libc::SYS_write),
            on_bad_descriptor(libc::SYS_readv),
            on_bad_descriptor(libc::SYS_writev),
            on_bad_descriptor(libc::SYS_pwritev),
            on_bad_descriptor(libc::SYS_ioctl),
            on_bad_descriptor(libc::SYS_fstat),
            on_bad_descriptor(libc::SYS_fstatfs),
            on_bad_descriptor(libc::SYS_lseek),
            on_bad_descriptor(libc::SYS_fallocate),
            on_bad_descriptor(libc::SYS_ftruncate),
            on_bad_descriptor(libc::SYS_fsync),
            on_bad_descriptor(libc::SYS_fdatasync),
            on_bad_descriptor(libc::SYS_sync_file_range),
            on_bad_descriptor(libc::SYS_getdents64),
            on_bad_descriptor(libc::SYS_dup3),
            on_bad_descriptor(libc::SYS_close),
            (libc::SYS_poll, [0; 6]),
            (libc::SYS_getrandom, [0; 6]),
            on_null_path(libc::SYS_mkdirat),
            on_null_path(libc::SYS_readlinkat),
            on_null_path(libc::SYS_statx),
            on_null_path(libc::SYS_unlinkat),
            (libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_getuid, [0; 6]),
            (libc::SYS_geteuid, [0; 6]),
            (libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize, 0, 0, 0, 0, 0]),
            // Copies of received data into the program's buffers are tested for writability.
            TEST_READ,
            TEST_WRITE,
            // The lanes' thread, with its own table of descriptors if possible.
            (libc::SYS_clone3, [0; 6]),
            (libc::SYS_set_robust_list, [0; 6]),
            (libc::SYS_rseq, [0; 6]),
            (libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]),
            (libc::SYS_close_range, [900, 900, 0, 0, 0, 0]),
        ],
    ),
];

/// Calls that may fail, because their callers handle the error.
const MAY_BE_REFUSED: [i64; 5] =
    [libc::SYS_clone3, libc::SYS_rseq, libc::SYS_unshare, libc::SYS_close_range, libc::SYS_process_vm_readv];

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

static ANSWERS: [AtomicU8; FEATURES.len()] = [const { AtomicU8::new(UNKNOWN) }; FEATURES.len()];
static HAS_OWN: AtomicBool = AtomicBool::new(false);

/// Notes that the program installs a filter of its own: from here on no call is tried out.
pub fn note_program_filter() {
    HAS_OWN.store(true, Relaxed);
    readable::disable();
}

/// Stops testing whether memory is readable if a filter from before the program forbids the calls. That takes
/// a child process; without `may_try`, any filter stops the tests. Called once, at the start.
pub fn probe_readability_calls(may_try: bool) {
    if is_filtered() && !(may_try && in_child(|| all_pass(&[TEST_READ, TEST_WRITE])).is_ok()) {
        readable::disable();
    }
}

/// Whether the calls of a feature are allowed: no filter is in force, or one from before the
/// program that neither kills a process for them nor makes them fail. False once the program has
/// installed a filter of its own. Under a filter the first call takes a child process.
#[must_use]
pub fn allows(feature: CallGroup) -> bool {
    !HAS_OWN.load(Relaxed) && passes(feature)
}

fn passes(feature: CallGroup) -> bool {
    let answer = &ANSWERS[feature as usize];
    if answer.load(Relaxed) == UNKNOWN {
        let _errno = crate::errno::SavedErrno::new();
        // Tested again, because the program may install a filter by a direct system call.
        if !is_filtered() {
            return true;
        }
        let passes = in_child(|| all_pass(FEATURES[feature as usize].1));
        answer.store(if passes.is_ok() { YES } else { NO }, Relaxed);
    }
    answer.load(Relaxed) == YES
}

/// Makes these calls; returns whether a filter makes none of them fail.
fn all_pass(calls: &[Call]) -> bool {
    calls.iter().all(|(number, arguments)| {
        // SAFETY: the arguments name neither memory nor a descriptor.
        let result = unsafe { crate::raw::call(*number as usize, *arguments) };
        // With such arguments no call gives these errors by itself.
        MAY_BE_REFUSED.contains(number)
            || ![-i64::from(libc::EPERM), -i64::from(libc::ENOSYS)].contains(&result)
    })
}

/// Makes calls in a short-lived child process, which reports whether all were allowed.
///
/// # Errors
/// EPERM if they were not, or if the filter kills the child for one of them; else errors of clone(2).
fn in_child(calls: impl FnOnce() -> bool) -> Result<(), Errno> {
    // SAFETY: clone(2) without CLONE_VM copies the memory, and only this thread continues in the
    // child. The child's end is reported only to waiters with __WCLONE.
    let child = check(unsafe { syscall!(libc::SYS_clone, 0, 0, 0, 0, 0) })?;
    if child == 0 {
        begin_child();
        let status = usize::from(!calls());
        // SAFETY: exit_group(2) ends the child, which has only copies of the memory.
        unsafe {
            syscall!(libc::SYS_exit_group, status);
            core::hint::unreachable_unchecked()
        }
    }
    let mut status = 0;
    loop {
        // SAFETY: wait4(2) writes one int to `status`, which lives through the call; the child is ours.
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

/// Prepares the child: SIGSYS, by which a filter may report a call, ends it, and it leaves no core file.
fn begin_child() {
    // SAFETY: rt_sigaction(2) reads `default`, a kernel sigaction of zeroes that lives through the
    // call; PR_SET_DUMPABLE takes only integers.
    unsafe {
        let default = [0usize; 4];
        syscall!(libc::SYS_rt_sigaction, libc::SIGSYS, default.as_ptr(), 0, 8);
        syscall!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}

/// Makes the calls and ignores their results: only the survival of the process matters.
fn make_the_calls(inherited_device: Option<ProgramFd>) {
    const LEN_BYTES: usize = 4 * PAGE_BYTES;
    // SAFETY: the child has only copies of the memory, and ends after this.
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
                // The source is memory that is not registered, because the child has no handler thread.
                let _ = uffd.copy(at, ZEROES.0.as_ptr() as usize, PAGE_BYTES);
                let _ = uffd.zero_page(at + 3 * PAGE_BYTES);
                uffd.wake(at, PAGE_BYTES);
                wait(uffd, None, Control::NONE, None, 0);
                uffd.read(|_| ());
                let _ = uffd.unregister(at, LEN_BYTES);
                uffd.close();
            }
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
            syscall!(libc::SYS_mremap, at, PAGE_BYTES, PAGE_BYTES, flags, at + PAGE_BYTES);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            syscall!(libc::SYS_mremap, at, PAGE_BYTES, PAGE_BYTES, flags, at + PAGE_BYTES);
        }
        crate::lock::probe_mask_calls();
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

    /// Installs a filter in this process that takes `action` for one system call.
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
        // SAFETY: the filter program is valid and lives through the call, which copies it.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER;
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0), 0);
        }
    }

    /// Whether `check` holds in a process whose filter kills it for one system call.
    fn holds_under(number: i64, check: fn() -> bool) -> bool {
        holds_under_action(number, libc::SECCOMP_RET_KILL_PROCESS, check)
    }

    fn holds_under_action(number: i64, action: u32, check: fn() -> bool) -> bool {
        // SAFETY: the child makes only system calls, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            filter_for(number, action);
            // SAFETY: _exit(2) ends the child without running the parent's destructors.
            unsafe { libc::_exit(i32::from(!check())) };
        }
        let mut status = 0;
        // SAFETY: waitpid(2) writes one int to `status`; the child is the test's own.
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
        assert!(holds_under(libc::SYS_clock_gettime, || !allows(CallGroup::Clock) && allows(CallGroup::Proc)));
        assert!(holds_under(libc::SYS_getdents64, || allows(CallGroup::Clock) && !allows(CallGroup::Proc)));
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let no_links = || allows(CallGroup::Files) && !allows(CallGroup::Ipc);
        assert!(holds_under_action(libc::SYS_sendmsg, refused, no_links));
        let no_files = || allows(CallGroup::Ipc) && !allows(CallGroup::Files);
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
            note_program_filter();
            FEATURES.iter().all(|(feature, _)| !allows(*feature))
        };
        assert!(holds_under(libc::SYS_getpgid, own));
    }
}
