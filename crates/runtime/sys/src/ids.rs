//! Identity of the process: users, groups, namespaces, privileges.

use crate::call::{kernel, syscall};
use crate::descriptor::ProgramFd;
use crate::readable::is_readable;

/// The effective user id.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no preconditions and accesses no memory of the caller.
    unsafe { libc::geteuid() }
}

/// Inode of the process's pid namespace (namespaces(7)); `None` if `/proc` does not show it.
#[must_use]
pub fn pid_namespace() -> Option<u64> {
    // SAFETY: `stat` consists of integers, for which all-zero bytes are valid; stat(2) reads the
    // NUL-terminated path and fills `found`.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        let path = c"/proc/self/ns/pid".as_ptr();
        let got = kernel!(
            Stat,
            syscall!(libc::SYS_newfstatat, ProgramFd::CURRENT_DIRECTORY, path, &raw mut found, 0)
        );
        (got == 0).then_some(found.st_ino)
    }
}

/// Whether the real, effective, saved and file system user ids are equal, and so are the ids in
/// `asked`, of which `u32::MAX` is ignored.
#[must_use]
pub fn is_only_user(asked: &[u32]) -> bool {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: getresuid(2) writes three ids to locals that live through the call; setfsuid(2) with
    // an invalid id changes nothing.
    let (got, files) = unsafe {
        (
            libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved),
            syscall!(libc::SYS_setfsuid, u32::MAX),
        )
    };
    got == 0 && is_only([real, effective, saved, files as u32], asked)
}

/// Whether the group ids of the process are equal. See [`is_only_user`].
#[must_use]
pub fn is_only_group(asked: &[u32]) -> bool {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: getresgid(2) writes three ids to locals that live through the call; setfsgid(2) with
    // an invalid id changes nothing.
    let (got, files) = unsafe {
        (
            libc::getresgid(&raw mut real, &raw mut effective, &raw mut saved),
            syscall!(libc::SYS_setfsgid, u32::MAX),
        )
    };
    got == 0 && is_only([real, effective, saved, files as u32], asked)
}

fn is_only(have: [u32; 4], asked: &[u32]) -> bool {
    have.iter().chain(asked).all(|id| *id == have[0] || *id == u32::MAX)
}

const MAX_GROUPS: usize = 64;

/// Whether the supplementary groups are the `count` ones at `groups`, in that order. False above 64.
///
/// # Safety
/// If the list is readable, no thread may write to it during the call.
#[must_use]
pub unsafe fn groups_are(count: usize, groups: *const u32) -> bool {
    let mut have = [0; MAX_GROUPS];
    // SAFETY: getgroups(2) writes at most `MAX_GROUPS` ids, for which `have` has room.
    let got = unsafe { libc::getgroups(MAX_GROUPS as i32, have.as_mut_ptr()) };
    if usize::try_from(got) != Ok(count) || !is_readable(groups as usize, size_of_val(&have[..count])) {
        return false;
    }
    // SAFETY: `is_readable` has found the `count` ids readable, and the caller vouches that they do
    // not change. An empty list is not read.
    count == 0 || have[..count] == unsafe { core::slice::from_raw_parts(groups, count) }[..]
}

/// The parent's process id.
#[must_use]
pub fn parent() -> u32 {
    // SAFETY: getppid has no preconditions and accesses no memory of the caller.
    unsafe { libc::getppid() }.cast_unsigned()
}

/// Processor time that the process has used, nanoseconds.
#[must_use]
pub fn processor_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one value of the type of `time`, which lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Whether the process may read the time stamp counter, which `PR_SET_TSC` can forbid.
#[must_use]
pub fn may_read_tsc() -> bool {
    let mut mode = 0i32;
    // SAFETY: PR_GET_TSC writes one int to `mode`, which lives through the call.
    let asked = unsafe { kernel!(Limit, syscall!(libc::SYS_prctl, libc::PR_GET_TSC, &raw mut mode)) };
    asked == 0 && mode == libc::PR_TSC_ENABLE
}

/// Whether a seccomp filter applies to this process; true if the kernel does not tell.
#[must_use]
pub fn is_filtered() -> bool {
    // SAFETY: PR_GET_SECCOMP takes only integers, and accesses no memory of the process.
    unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) != 0 }
}

/// The program's name as it was started, without directories, cut to 16 bytes.
#[must_use]
pub fn program_name() -> [u8; 16] {
    unsafe extern "C" {
        /// glibc's pointer into the arguments that the kernel put on the stack.
        static program_invocation_short_name: *const core::ffi::c_char;
    }
    let mut name = [0; 16];
    // SAFETY: glibc sets the pointer before any library's code runs, to a NUL-terminated string in
    // memory that is never freed; a program that changes the string keeps it terminated.
    unsafe {
        let start = program_invocation_short_name;
        if start.is_null() {
            return name;
        }
        for (index, byte) in name.iter_mut().enumerate() {
            match *start.add(index) {
                0 => break,
                #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "c_char is i8 or u8")]
                other => *byte = other as u8,
            }
        }
    }
    name
}

/// Returns a random number, or `None` if the kernel has none yet.
#[must_use]
pub fn random() -> Option<u64> {
    let mut number = 0u64;
    let flags = libc::GRND_NONBLOCK;
    // SAFETY: getrandom(2) writes at most 8 bytes to `number`, which lives through the call.
    let got = unsafe {
        crate::call::kernel!(Ask, crate::call::syscall!(libc::SYS_getrandom, &raw mut number, 8, flags))
    };
    (got == 8).then_some(number)
}

/// Whether the program gained privileges when it was started (set-user-ID, set-group-ID, file
/// capabilities), so that the environment must not be trusted.
#[must_use]
pub fn is_privileged_start() -> bool {
    // SAFETY: getauxval has no preconditions and accesses no memory of the caller.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether this process has a dynamic linker, which statically linked programs lack.
///
/// The kernel reports the address of the linker that the program names (AT_BASE), or 0 if the
/// linker itself was started and loaded the program (`ld-linux-x86-64.so.2 PROGRAM`); the linker
/// then passes on the program's headers.
#[must_use]
pub fn has_dynamic_linker() -> bool {
    // SAFETY: getauxval has no preconditions and accesses no memory of the caller.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    base != 0 || is_loaded_by_hand()
}

/// Whether the program names a linker, or this code is not part of the program: either proves a linker.
#[cold]
fn is_loaded_by_hand() -> bool {
    // SAFETY: getauxval has no preconditions and accesses no memory of the caller.
    let (headers, count) =
        unsafe { (libc::getauxval(libc::AT_PHDR) as usize, libc::getauxval(libc::AT_PHNUM) as usize) };
    if headers == 0 {
        return false;
    }
    // SAFETY: AT_PHDR and AT_PHNUM describe the program's headers, which are mapped as long as the program.
    let headers = unsafe { core::slice::from_raw_parts(headers as *const libc::Elf64_Phdr, count) };
    let at = headers.as_ptr() as usize;
    let of_kind = |kind| headers.iter().filter(move |header| header.p_type == kind);
    if of_kind(libc::PT_INTERP).next().is_some() {
        return true;
    }
    // The load bias: from the headers' own entry, else from the first segment, which begins at the headers'
    // page.
    let bias = match (of_kind(libc::PT_PHDR).next(), of_kind(libc::PT_LOAD).next()) {
        (Some(own), _) => at.wrapping_sub(own.p_vaddr as usize),
        (None, Some(first)) => (at - at % crate::PAGE_BYTES).wrapping_sub(first.p_vaddr as usize),
        (None, None) => return false,
    };
    let here = is_loaded_by_hand as *const () as usize;
    let is_own = of_kind(libc::PT_LOAD)
        .any(|part| here.wrapping_sub(bias.wrapping_add(part.p_vaddr as usize)) < part.p_memsz as usize);
    !is_own
}
