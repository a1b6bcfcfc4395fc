//! Calls that change the credentials of the process: users, groups, capabilities, user namespace and dumpability.
//! Resources shared with other processes of the old user must not remain with the new one, so [`before_change`]
//! notifies each feature that shares some.
//!
//! A vfork child changes only its own credentials and shares this process's memory: nothing is done there, nor for
//! calls that change nothing.

use crate::{exit, files, lanes, net};
use core::ffi::{c_char, c_int, c_long, c_void};
use libc::{gid_t, uid_t};
use uncopy_engine::life::single_threaded::without_handler;
use uncopy_interpose::{before, slots};
use uncopy_sys::errno;
use uncopy_sys::ids::{groups_are, is_only_group, is_only_user};

slots! {
    SETUID = c"setuid": unsafe extern "C" fn(uid_t) -> c_int;
    SETEUID = c"seteuid": unsafe extern "C" fn(uid_t) -> c_int;
    SETREUID = c"setreuid": unsafe extern "C" fn(uid_t, uid_t) -> c_int;
    SETRESUID = c"setresuid": unsafe extern "C" fn(uid_t, uid_t, uid_t) -> c_int;
    SETFSUID = c"setfsuid": unsafe extern "C" fn(uid_t) -> c_int;
    SETGID = c"setgid": unsafe extern "C" fn(gid_t) -> c_int;
    SETEGID = c"setegid": unsafe extern "C" fn(gid_t) -> c_int;
    SETREGID = c"setregid": unsafe extern "C" fn(gid_t, gid_t) -> c_int;
    SETRESGID = c"setresgid": unsafe extern "C" fn(gid_t, gid_t, gid_t) -> c_int;
    SETFSGID = c"setfsgid": unsafe extern "C" fn(gid_t) -> c_int;
    SETGROUPS = c"setgroups": unsafe extern "C" fn(usize, *const gid_t) -> c_int;
    INITGROUPS = c"initgroups": unsafe extern "C" fn(*const c_char, gid_t) -> c_int;
    CAPSET = c"capset": unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
}

/// True if something is shared and system calls are allowed. Otherwise each hook here costs one load.
fn is_needed() -> bool {
    (lanes::is_on() || net::is_on() || files::is_on()) && !exit::is_sealed() && uncopy_sys::owner::is_owner()
}

/// Ends all sharing before the process changes its user or loses rights. Preserves `errno`.
pub fn before_change() {
    if !is_needed() {
        return;
    }
    let _errno = errno::SavedErrno::new();
    lanes::before_privilege_change();
    files::before_privilege_change();
    net::before_change();
}

/// Calls [`before_change`] if these users differ from those of the process.
fn before_users(asked: &[uid_t]) {
    if is_needed() && !is_only_user(asked) {
        before_change();
    }
}

/// Calls [`before_change`] if these groups differ from those of the process.
fn before_groups(asked: &[gid_t]) {
    if is_needed() && !is_only_group(asked) {
        before_change();
    }
}

/// Calls [`before_change`] if the `count` supplementary groups at `groups` differ from those of the process.
fn before_group_list(count: usize, groups: *const gid_t) {
    let _errno = errno::SavedErrno::new();
    // SAFETY: the program passed `count` readable groups to setgroups.
    if is_needed() && !unsafe { groups_are(count, groups) } {
        before_change();
    }
}

before!(setuid SETUID (user: uid_t) -> c_int, { before_users(&[user]); });
before!(seteuid SETEUID (effective: uid_t) -> c_int, { before_users(&[effective]); });
before!(setreuid SETREUID (real: uid_t, effective: uid_t) -> c_int, { before_users(&[real, effective]); });
before!(setresuid SETRESUID (real: uid_t, effective: uid_t, saved: uid_t) -> c_int, {
    before_users(&[real, effective, saved]);
});
before!(setfsuid SETFSUID (user: uid_t) -> c_int, { before_users(&[user]); });
before!(setgid SETGID (group: gid_t) -> c_int, { before_groups(&[group]); });
before!(setegid SETEGID (effective: gid_t) -> c_int, { before_groups(&[effective]); });
before!(setregid SETREGID (real: gid_t, effective: gid_t) -> c_int, { before_groups(&[real, effective]); });
before!(setresgid SETRESGID (real: gid_t, effective: gid_t, saved: gid_t) -> c_int, {
    before_groups(&[real, effective, saved]);
});
before!(setfsgid SETFSGID (group: gid_t) -> c_int, { before_groups(&[group]); });
before!(setgroups SETGROUPS (count: usize, groups: *const gid_t) -> c_int, { before_group_list(count, groups); });
before!(initgroups INITGROUPS (user: *const c_char, group: gid_t) -> c_int, { before_change(); });

/// Makes a call that affects only the calling thread. If that is the program's only thread, this library's threads
/// must not keep what it gives up. (libc ends a process in whose threads setuid and its like return different
/// results.)
fn for_all<T>(call: impl FnOnce() -> T) -> T {
    if exit::is_sealed() || !uncopy_sys::owner::is_owner() { call() } else { without_handler(call) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    let real = CAPSET.call();
    before_change();
    // SAFETY: the program's own arguments; capset reads and writes nothing else.
    for_all(|| unsafe { real(header, data) })
}

/// True if a system call changes credentials.
pub const fn is_change(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setfsuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups
            | libc::SYS_capset
            | libc::SYS_landlock_restrict_self
    )
}

/// Makes a system call that changes credentials, for the hook of `syscall`.
pub fn change<T>(number: c_long, arguments: [usize; 3], call: impl FnOnce() -> T) -> T {
    let [a, b, c] = arguments;
    let [first, second, third] = [a as u32, b as u32, c as u32];
    match number {
        libc::SYS_setuid | libc::SYS_setfsuid => before_users(&[first]),
        libc::SYS_setreuid => before_users(&[first, second]),
        libc::SYS_setresuid => before_users(&[first, second, third]),
        libc::SYS_setgid | libc::SYS_setfsgid => before_groups(&[first]),
        libc::SYS_setregid => before_groups(&[first, second]),
        libc::SYS_setresgid => before_groups(&[first, second, third]),
        libc::SYS_setgroups => before_group_list(a, b as *const gid_t),
        _ => before_change(),
    }
    for_all(call)
}

/// Prepares for prctl(2) with this option.
pub fn before_option(option: c_int, value: usize) {
    // A process that hides from others of the same user is assumed not to share memory with them.
    if option == libc::PR_SET_DUMPABLE && value == 0 {
        before_change();
    }
}

/// Prepares for entering other namespaces of these kinds; 0: any.
pub fn before_namespaces(kinds: c_int) {
    if kinds == 0 || kinds & libc::CLONE_NEWUSER != 0 {
        before_change();
    }
}
