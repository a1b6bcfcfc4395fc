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
use crate::uffd::{Reports, Uffd, wait};

/// Makes each of the calls that the engine needs, in a throw-away process.
///
/// # Errors
/// EPERM if the filter ends processes for one of them; else what making the process says.
pub fn try_out(inherited_device: Option<i32>) -> Result<(), Errno> {
    // SAFETY: a process with a copy of our memory, of which only this thread goes on, and whose end is
    // reported to nobody who does not ask for processes of this kind (__WCLONE).
    let child = check(unsafe { syscall!(libc::SYS_clone, 0, 0, 0, 0, 0) })?;
    if child == 0 {
        make_the_calls(inherited_device);
    }
    let mut status = 0;
    loop {
        // SAFETY: the status is valid; the process is ours.
        let waited = unsafe { syscall!(libc::SYS_wait4, child, &raw mut status, libc::__WCLONE, 0) };
        match check(waited) {
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
            Ok(_) if libc::WIFEXITED(status) => return Ok(()),
            Ok(_) => return Err(Errno(libc::EPERM)),
        }
    }
}

#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);
const _: () = assert!(align_of::<Page>() == PAGE_BYTES);
static ZEROES: Page = Page([0; PAGE_BYTES]);

/// The calls, whatever they say: only whether the process lives on is of interest.
fn make_the_calls(inherited_device: Option<i32>) -> ! {
    const LEN_BYTES: usize = 4 * PAGE_BYTES;
    // SAFETY: this process has nothing but copies, and ends here. SIGSYS, by which a filter may report a call
    // instead, must end it, too.
    unsafe {
        let default = [0usize; 4];
        syscall!(libc::SYS_rt_sigaction, libc::SIGSYS, default.as_ptr(), 0, 8);
        // Its end is no reason for a core dump.
        syscall!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
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
        syscall!(libc::SYS_gettid);
        crate::clock::pause();
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_PROCESS_CPUTIME_ID] {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            syscall!(libc::SYS_clock_gettime, clock, &raw mut time);
        }
        syscall!(libc::SYS_exit_group, 0);
        core::hint::unreachable_unchecked()
    }
}
