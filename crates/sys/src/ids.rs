//! Who the process is.

use crate::call::{kernel, syscall};

/// The effective user id.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no requirements.
    unsafe { libc::geteuid() }
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

/// Whether a dynamic linker is in this process: not so if the program is linked statically, also as a position-independent
/// executable.
///
/// The kernel says where it put the linker that the program names (AT_BASE). It put none there if the linker was started as
/// a program and loaded the other one itself (`ld-linux-x86-64.so.2 PROGRAM`); the linker then passes that one's headers on.
#[must_use]
pub fn has_dynamic_linker() -> bool {
    // SAFETY: getauxval has no requirements.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    base != 0 || is_loaded_by_hand()
}

/// Whether the program names a linker, or this code is not the program's: both say that a linker loaded it.
#[cold]
fn is_loaded_by_hand() -> bool {
    // SAFETY: getauxval has no requirements.
    let (headers, count) =
        unsafe { (libc::getauxval(libc::AT_PHDR) as usize, libc::getauxval(libc::AT_PHNUM) as usize) };
    if headers == 0 {
        return false;
    }
    // SAFETY: the program's headers, where the kernel or the linker says that they are; they stay as long as the program.
    let headers = unsafe { core::slice::from_raw_parts(headers as *const libc::Elf64_Phdr, count) };
    let at = headers.as_ptr() as usize;
    let of_kind = |kind| headers.iter().filter(move |header| header.p_type == kind);
    if of_kind(libc::PT_INTERP).next().is_some() {
        return true;
    }
    // What addresses are off by: known from the headers' own entry, else the first segment begins with the page that they are on.
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
