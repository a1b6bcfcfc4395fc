//! Who the process is.

use crate::call::{kernel, syscall};
use crate::readable::is_readable;

/// The effective user id.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no requirements.
    unsafe { libc::geteuid() }
}

/// Whether the real, effective and saved user, and that of file systems, are one, and every one that is `asked` for is that one;
/// `u32::MAX` asks for none.
#[must_use]
pub fn is_only_user(asked: &[u32]) -> bool {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: room for three users; setfsuid changes nothing for a user that there is not.
    let (got, files) = unsafe {
        (
            libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved),
            syscall!(libc::SYS_setfsuid, u32::MAX),
        )
    };
    got == 0 && is_only([real, effective, saved, files as u32], asked)
}

/// The same of groups.
#[must_use]
pub fn is_only_group(asked: &[u32]) -> bool {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: as above.
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

/// Supplementary groups that are compared, at most.
const MAX_GROUPS: usize = 64;

/// Whether the supplementary groups are the `count` ones at `groups`, in that order; false also where they are too many to be
/// compared.
///
/// # Safety
/// Whatever can be read there is a list of groups, which nobody writes to meanwhile.
#[must_use]
pub unsafe fn groups_are(count: usize, groups: *const u32) -> bool {
    let mut have = [0; MAX_GROUPS];
    // SAFETY: room for so many.
    let got = unsafe { libc::getgroups(MAX_GROUPS as i32, have.as_mut_ptr()) };
    if usize::try_from(got) != Ok(count) || !is_readable(groups as usize, size_of_val(&have[..count])) {
        return false;
    }
    // SAFETY: readable, as was just found; there is at least one group where they are looked at.
    count == 0 || have[..count] == unsafe { core::slice::from_raw_parts(groups, count) }[..]
}

/// The parent's process id.
#[must_use]
pub fn parent() -> u32 {
    // SAFETY: getppid has no requirements.
    unsafe { libc::getppid() }.cast_unsigned()
}

/// Processor time that the process has used, ns.
#[must_use]
pub fn processor_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Whether the process may read the time stamp counter: it can have that forbidden (`PR_SET_TSC`).
#[must_use]
pub fn may_read_counter() -> bool {
    let mut mode = 0i32;
    // SAFETY: the kernel writes the mode.
    let asked = unsafe { kernel!(Limit, syscall!(libc::SYS_prctl, libc::PR_GET_TSC, &raw mut mode)) };
    asked == 0 && mode == libc::PR_TSC_ENABLE
}

/// Whether system calls of this process are filtered; also where that cannot be told.
#[must_use]
pub fn is_filtered() -> bool {
    // SAFETY: returns a number, touches no memory.
    unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) != 0 }
}

/// The program's name as it was started, without directories, cut to what fits.
#[must_use]
pub fn program_name() -> [u8; 16] {
    unsafe extern "C" {
        /// glibc's; points into the arguments that the kernel put on the stack.
        static program_invocation_short_name: *const core::ffi::c_char;
    }
    let mut name = [0; 16];
    // SAFETY: glibc sets the pointer before any library's code runs, to a terminated string in memory that
    // stays; a program that writes there ends what it writes.
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

/// A random number; `None`: the kernel gives none now.
#[must_use]
pub fn random() -> Option<u64> {
    let mut number = 0u64;
    let flags = libc::GRND_NONBLOCK;
    // SAFETY: room for eight bytes.
    let got = unsafe {
        crate::call::kernel!(Ask, crate::call::syscall!(libc::SYS_getrandom, &raw mut number, 8, flags))
    };
    (got == 8).then_some(number)
}

/// Whether the program gained privileges when it was started (set-user-ID, set-group-ID, file
/// capabilities): the environment must then not be believed.
#[must_use]
pub fn is_privileged_start() -> bool {
    // SAFETY: getauxval has no requirements.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a dynamic linker started the program: not so if it is linked statically, also as a position-independent
/// executable. The kernel says where it put the linker (AT_BASE).
#[must_use]
pub fn has_dynamic_linker() -> bool {
    // SAFETY: getauxval has no requirements.
    unsafe { libc::getauxval(libc::AT_BASE) != 0 }
}
