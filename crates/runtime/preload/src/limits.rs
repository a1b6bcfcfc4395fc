//! Calls that restrict the process: seccomp filters, setrlimit, mlockall.
//!
//! A filter of the program must not end it for uncopy's system calls, and its limits must not count uncopy's
//! address ranges. So before such a call every view becomes plain memory, and uncopy does nothing from then on.

use core::ffi::{c_int, c_long, c_ulong};
use libc::{pid_t, rlimit};
use uncopy_engine::background::release::release_all;
use uncopy_engine::background::shutdown;
use uncopy_engine::range::directory;
use uncopy_interpose::{alias, before, slots};
use uncopy_sys::descriptor::ProgramFd;

slots! {
    PRCTL = c"prctl": unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    SETRLIMIT = c"setrlimit": unsafe extern "C" fn(c_int, *const rlimit) -> c_int;
    PRLIMIT = c"prlimit": unsafe extern "C" fn(pid_t, c_int, *const rlimit, *mut rlimit) -> c_int;
    MLOCKALL = c"mlockall": unsafe extern "C" fn(c_int) -> c_int;
}

fn before_filter() {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    crate::lanes::end_all();
    crate::files::disable();
    crate::net::disable();
    if release_all("the program installed a seccomp filter") {
        shutdown::end_handler();
    }
    // A filter may end the process even for reading a clock.
    uncopy_trials::end();
    crate::exit::seal();
    uncopy_sys::filter::note_program_filter();
}

/// Prepares for a limit that counts uncopy's reservations too.
fn before_limit(resource: c_int, limit: *const rlimit) {
    if resource == libc::RLIMIT_FSIZE as c_int && !limit.is_null() {
        // A mapped log does not know limits on the size of files.
        crate::files::stop_logging_mapped();
    }
    let is_counted = resource == libc::RLIMIT_AS as c_int || resource == libc::RLIMIT_DATA as c_int;
    // SAFETY: `limit` is not null, and the program passed it to setrlimit, which reads it.
    if !is_counted || limit.is_null() || unsafe { (*limit).rlim_cur } == libc::RLIM_INFINITY {
        return;
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    release_all("the program limited its memory");
    directory::give_back_addresses();
}

fn before_lock() {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    release_all("the program locked its memory");
    directory::give_back_addresses();
}

/// Prepares for a system call that the program makes by `syscall`.
pub extern "C" fn before_call(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize) {
    if crate::mapping::CALLS.contains(&number) {
        return crate::mapping::before_call(number, [a, b, c, d, e]);
    }
    match number {
        libc::SYS_seccomp if a <= libc::SECCOMP_SET_MODE_FILTER as usize => before_filter(),
        libc::SYS_prctl if a == libc::PR_SET_SECCOMP as usize => before_filter(),
        libc::SYS_prctl if a == libc::PR_SET_TSC as usize => uncopy_sys::clock::disable_counter(),
        libc::SYS_prctl if a == libc::PR_SET_DUMPABLE as usize => {
            crate::credentials::before_option(libc::PR_SET_DUMPABLE, b);
        }
        libc::SYS_mlockall => before_lock(),
        // SAFETY: the program's own arguments of that system call, as `before_call` requires.
        libc::SYS_execve | libc::SYS_execveat => unsafe {
            crate::exec::before_call(number, [a, b, c, d, e]);
        },
        // Transfers by io_uring cannot be observed.
        libc::SYS_io_uring_setup => {
            crate::lanes::end_all();
            crate::files::before_call(number, a, c);
        }
        libc::SYS_ioctl => {
            uncopy_sys::pins::note_ioctl(b as u64);
            crate::requests::before_ioctl(b as c_ulong, c);
            if crate::files::is_on() {
                crate::files::before_ioctl(ProgramFd::of_argument(a), b as c_ulong);
            }
        }
        libc::SYS_setrlimit => before_limit(a as c_int, b as *const rlimit),
        libc::SYS_prlimit64 if is_own(a as pid_t) => before_limit(b as c_int, c as *const rlimit),
        _ if crate::files::is_on() => crate::files::before_call(number, a, c),
        _ => {}
    }
}

fn is_own(pid: pid_t) -> bool {
    pid == 0 || u32::try_from(pid) == Ok(std::process::id())
}

// prctl has further arguments for some options only; every libc takes them in any case.
before!(prctl PRCTL (option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int, {
    match option {
        libc::PR_SET_SECCOMP => before_filter(),
        libc::PR_SET_TSC => uncopy_sys::clock::disable_counter(),
        _ => crate::credentials::before_option(option, a as usize),
    }
});

before!(setrlimit SETRLIMIT (resource: c_int, limit: *const rlimit) -> c_int, {
    before_limit(resource, limit);
});

alias!(setrlimit64 = setrlimit (resource: c_int, limit: *const rlimit) -> c_int);

before!(prlimit PRLIMIT (pid: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int, {
    if is_own(pid) {
        before_limit(resource, limit);
    }
});

alias!(prlimit64 = prlimit
(pid: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int);

before!(mlockall MLOCKALL (flags: c_int) -> c_int, {
    before_lock();
});
