//! Operations that alter mappings not owned by the program: malloc's, and those with shared pages.

use std::ffi::{c_int, c_long, c_void};
use std::fs;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::calls::CopyCall;
use uncopy_tests::oracle::errno;

use super::{SLOTS, Verdict, Worker};
use crate::buffer::{Buffer, Origin};
use crate::model::{pool, pool_offset};

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const FRESH_FLAGS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
/// Longest range that is mapped over, in bytes.
const MAX_MAP_OVER_BYTES: usize = 256 << 10;
/// Bytes that one churn allocates in all, and the bytes and mappings that may be left of them.
const CHURNED_BYTES: usize = 96 << 20;
const MAX_LEFT_BYTES: usize = 56 << 20;
const MAX_LEFT_MAPPINGS: usize = 60;

/// Maps memory by the bare system call or by libc's mmap.
fn map(by_syscall: bool, at: *mut c_void, len: usize, flags: c_int, fd: c_int) -> *mut c_void {
    // SAFETY: callers that set MAP_FIXED pass whole pages of a buffer and update its model.
    unsafe {
        if by_syscall {
            let result = libc::syscall(libc::SYS_mmap, at, len, READ_WRITE, flags, fd, 0i64);
            std::ptr::with_exposed_provenance_mut(usize::try_from(result).unwrap_or(usize::MAX))
        } else {
            black_box(libc::mmap as unsafe extern "C" fn(_, _, _, _, _, _) -> *mut c_void)(
                at, len, READ_WRITE, flags, fd, 0i64,
            )
        }
    }
}

/// Maps shared memory over a range.
fn map_shared_over(how: usize, at: *mut c_void, len: usize) -> Verdict {
    // SAFETY: callers pass whole pages of a buffer and update its model; the descriptors and
    // segments are created here.
    let placed = unsafe {
        match how % 4 {
            0 | 1 => {
                let fd = libc::memfd_create(c"over".as_ptr(), libc::MFD_CLOEXEC);
                let size = libc::off_t::try_from(len).expect("small");
                assert!(fd >= 0 && libc::ftruncate(fd, size) == 0, "memfd");
                let placed = if how.is_multiple_of(4) {
                    map(false, at, len, libc::MAP_SHARED | libc::MAP_FIXED, fd)
                } else {
                    let made = map(false, null_mut(), len, libc::MAP_SHARED, fd);
                    let call =
                        black_box(libc::mremap as unsafe extern "C" fn(_, _, _, _, ...) -> *mut c_void);
                    call(made, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at)
                };
                libc::close(fd);
                placed
            }
            2 => {
                let id = libc::shmget(libc::IPC_PRIVATE, len, 0o600 | libc::IPC_CREAT);
                assert!(id >= 0, "shmget: errno {}", errno());
                let call = black_box(libc::shmat as unsafe extern "C" fn(_, _, _) -> *mut c_void);
                let placed = call(id, at.cast_const(), libc::SHM_REMAP);
                libc::shmctl(id, libc::IPC_RMID, null_mut());
                placed
            }
            _ => map(true, at, len, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED, -1),
        }
    };
    if placed == at {
        Ok(())
    } else {
        Err(format!("{how}: mapped over {at:?} at {placed:?}: errno {}", errno()))
    }
}

fn advise(by: usize, at: *mut c_void, len: usize, advice: c_int) -> c_long {
    // SAFETY: callers pass whole pages of their own and update the model where the advice drops bytes.
    unsafe {
        match by % 3 {
            0 => black_box(libc::madvise as unsafe extern "C" fn(_, _, _) -> c_int)(at, len, advice).into(),
            1 => libc::syscall(libc::SYS_madvise, at, len, advice),
            _ => {
                let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
                let range = libc::iovec { iov_base: at, iov_len: len };
                let done = libc::syscall(libc::SYS_process_madvise, own, &raw const range, 1, advice, 0);
                libc::syscall(libc::SYS_close, own);
                done
            }
        }
    }
}

/// Whether the process has ever locked memory, for which some advice is refused.
static HAS_LOCKED: AtomicBool = AtomicBool::new(false);

pub(super) fn has_locked() -> bool {
    HAS_LOCKED.load(Relaxed)
}

fn lock(how: usize, at: *mut c_void, len: usize) {
    HAS_LOCKED.store(true, Relaxed);
    // SAFETY: locking and unlocking change no byte; a refusal is allowed.
    unsafe {
        match how % 4 {
            0 => _ = libc::mlock(at, len),
            1 => _ = libc::syscall(libc::SYS_mlock2, at, len, libc::MLOCK_ONFAULT),
            2 => _ = libc::munlock(at, len),
            _ => _ = libc::mlock(at, len) + libc::munlock(at, len),
        }
    }
}

/// Returns the resident bytes and the number of mappings of this process.
fn footprint() -> (usize, usize) {
    let statm = fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number");
    (pages * PAGE, fs::read_to_string("/proc/self/maps").expect("maps").lines().count())
}

impl Worker<'_> {
    /// Maps shared memory, then fresh private memory, over a range of a buffer.
    pub(super) fn cover(&mut self, how: usize, slot: usize, at: usize, len: usize, seed: usize) -> Verdict {
        let Some(buffer) = &mut self.slots[slot % SLOTS] else { return Ok(()) };
        // The stack has a guard page that may lie anywhere. Shared and file-backed buffers would become
        // private ones.
        if !matches!(buffer.origin(), Origin::Heap | Origin::Mapped | Origin::Static) {
            return Ok(());
        }
        let Some((at, len)) = buffer.whole_pages(at, len.min(MAX_MAP_OVER_BYTES)) else { return Ok(()) };
        let target: *mut c_void = buffer.at(at).cast();
        if !how.is_multiple_of(3) {
            map_shared_over(how / 3, target, len)?;
            let pool_offset = pool_offset(seed, len);
            // SAFETY: the range is inside the buffer, and the pool has `len` bytes from `pool_offset` on.
            unsafe {
                CopyCall::ALL[seed % CopyCall::ALL.len()].copy(target.cast(), pool().at(pool_offset), len);
            }
            buffer.mirror.copy_from_pool(at, pool_offset, len);
            // Copy the whole buffer: the range together with the memory around it.
            let mut copy = vec![0u8; buffer.len()];
            let mut check = crate::model::Mirror::new(buffer.len());
            check.copy_from(0, &buffer.mirror, 0, buffer.len());
            // SAFETY: `copy` and the buffer both have `buffer.len()` bytes.
            unsafe {
                CopyCall::ALL[how % CopyCall::ALL.len()].copy(copy.as_mut_ptr(), buffer.at(0), buffer.len());
            }
            // SAFETY: `copy` is readable for `buffer.len()` bytes.
            if let Some(difference) = unsafe { check.difference(copy.as_ptr(), 0, buffer.len()) } {
                return Err(format!("copied from a buffer with another mapping over it: {difference}"));
            }
        }
        let placed = map(how % 2 == 1, target, len, FRESH_FLAGS, -1);
        if placed != target {
            return Err(format!("mmap over {target:?}: {placed:?} errno {}", errno()));
        }
        buffer.mirror.set(at, len, 0);
        self.check_range(slot, 0, self.buffer(slot).map_or(0, Buffer::len))
    }

    /// Gives advice of kinds that keep bytes or drop whole pages, through each of three calls.
    pub(super) fn advise_otherwise(
        &mut self,
        by: usize,
        advice: usize,
        slot: usize,
        at: usize,
        len: usize,
    ) -> Verdict {
        const ADVICE: &[&[c_int]] = &[
            &[libc::MADV_DONTFORK, libc::MADV_DOFORK],
            &[libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK],
            &[libc::MADV_MERGEABLE],
            &[libc::MADV_UNMERGEABLE],
            &[libc::MADV_DONTDUMP],
            &[libc::MADV_DODUMP],
            &[libc::MADV_RANDOM],
            &[libc::MADV_NORMAL],
            &[libc::MADV_HUGEPAGE],
            &[libc::MADV_COLLAPSE],
            &[libc::MADV_COLD],
            &[libc::MADV_PAGEOUT],
            &[libc::MADV_DONTNEED],
            &[libc::MADV_DONTNEED_LOCKED],
        ];
        let Some(buffer) = &mut self.slots[slot % SLOTS] else { return Ok(()) };
        let Some((at, len)) = buffer.whole_pages(at, len) else { return Ok(()) };
        for advice in ADVICE[advice % ADVICE.len()] {
            let drops_bytes = matches!(*advice, libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED);
            if drops_bytes && matches!(buffer.origin(), Origin::Shared | Origin::FileBacked) {
                return Ok(());
            }
            // Some kernels are built without this advice, none take it for locked memory, and older
            // ones not through process_madvise(2). Advice about children is undone by madvise(2),
            // which always works.
            let restores_inheritance = matches!(*advice, libc::MADV_DOFORK | libc::MADV_KEEPONFORK);
            let done = advise(if restores_inheritance { 0 } else { by }, buffer.at(at).cast(), len, *advice);
            if drops_bytes && done >= 0 {
                buffer.mirror.set(at, len, 0);
            } else if drops_bytes {
                // Fails at the first locked page, with the pages before it dropped.
                buffer.mirror.forget(at, len);
            }
        }
        self.check_range(slot, at, len.min(50_000))
    }

    /// Locks a range into memory, or unlocks it.
    pub(super) fn lock_pages(&mut self, how: usize, slot: usize, at: usize, len: usize) -> Verdict {
        let Some(buffer) = &self.slots[slot % SLOTS] else { return Ok(()) };
        let Some((at, len)) = buffer.whole_pages(at, len) else { return Ok(()) };
        lock(how, buffer.at(at).cast(), len);
        self.check_range(slot, at, len.min(50_000))
    }

    /// Alters and frees blocks repeatedly; in a program with one thread, nothing of them may be left.
    pub(super) fn churn(&self, how: usize, len: usize) -> Verdict {
        const ADVICE: &[c_int] = &[
            libc::MADV_HUGEPAGE,
            libc::MADV_DONTNEED,
            libc::MADV_COLD,
            libc::MADV_MERGEABLE,
            libc::MADV_DONTDUMP,
        ];
        let len = len.clamp(128 << 10, 3 << 20);
        let before = footprint();
        for _ in 0..CHURNED_BYTES / len {
            // SAFETY: the block is allocated and freed in this iteration, and nothing else uses it.
            unsafe {
                let start = black_box(libc::malloc as unsafe extern "C" fn(usize) -> *mut c_void)(len);
                assert!(!start.is_null(), "malloc");
                let first = start.addr().next_multiple_of(PAGE) - start.addr();
                let whole = (len - first) / PAGE * PAGE;
                for at in (0..len).step_by(PAGE) {
                    start.cast::<u8>().add(at).write_volatile(1);
                }
                let at = start.byte_add(first);
                match how % 9 {
                    0 => drop(map(false, at.byte_add(PAGE), whole / 2, FRESH_FLAGS, -1)),
                    1 => lock(how / 9, at, whole),
                    2 => {
                        libc::mprotect(at, whole, libc::PROT_READ);
                        libc::mprotect(at, whole, READ_WRITE);
                    }
                    advice_number => {
                        advise(how / 9, at, whole, ADVICE[advice_number % ADVICE.len()]);
                    }
                }
                black_box(libc::free as unsafe extern "C" fn(*mut c_void))(start);
            }
        }
        let after = footprint();
        let (resident, mappings) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        // Other threads allocate meanwhile, so the figures mean nothing with several workers.
        if self.program.workers() == 1 && (resident > MAX_LEFT_BYTES || mappings > MAX_LEFT_MAPPINGS) {
            return Err(format!(
                "{resident} bytes and {mappings} mappings are left of blocks of {len} bytes"
            ));
        }
        Ok(())
    }
}
