//! Operations that change the program's mappings.

use std::ffi::{c_int, c_void};
use std::hint::black_box;

use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::oracle::{self, errno};

use super::{SLOTS, Verdict, Worker};
use crate::buffer::{MAX_BUFFER, Origin};
use crate::channel::pipe;
use crate::handler_buffers::with_signals_blocked;
use crate::model::pool;

fn mprotect(start: *mut u8, len: usize, protection: c_int) -> Verdict {
    // SAFETY: callers pass whole pages of a buffer, and restore the protection before using them.
    let returned = unsafe {
        black_box(libc::mprotect as unsafe extern "C" fn(_, _, _) -> c_int)(
            start.cast::<c_void>(),
            len,
            protection,
        )
    };
    if returned == 0 { Ok(()) } else { Err(format!("mprotect of {len} bytes: errno {}", errno())) }
}

impl Worker<'_> {
    pub(super) fn protect(&mut self, how: usize, slot: usize, at: usize, len: usize) -> Verdict {
        let Some(buffer) = &self.slots[slot % SLOTS] else { return Ok(()) };
        let Some((at, len)) = buffer.whole_pages(at, len) else { return Ok(()) };
        let start = buffer.at(at);
        let result = match how % 4 {
            0 => mprotect(start, len, libc::PROT_NONE),
            1 => {
                mprotect(start, len, libc::PROT_READ)?;
                self.check_range(slot, at, len)
            }
            2 => {
                // A call that would write to the read-only pages fails with EFAULT.
                mprotect(start, len, libc::PROT_READ)?;
                let (reader, writer) = pipe();
                // SAFETY: the pool has 60,000 bytes; read(2) is given whole pages of the buffer,
                // which it may not write; the descriptors are this function's own.
                let got = unsafe {
                    let _ = oracle::raw_write(writer, pool().pointer(), len.min(60_000));
                    let call = black_box(libc::read as unsafe extern "C" fn(_, _, _) -> isize);
                    let got = oracle::call_result(call(reader, start.cast::<c_void>(), len));
                    libc::close(reader);
                    libc::close(writer);
                    got
                };
                if got == Err(libc::EFAULT) {
                    self.check_range(slot, at, len)
                } else {
                    Err(format!("read into {len} bytes that can only be read: {got:?}"))
                }
            }
            _ => {
                // Reads by process_vm_readv(2), and by loads.
                mprotect(start, len, libc::PROT_READ)?;
                let wrong = self.kernel_access(3, slot, at, len, 0);
                wrong.and_then(|()| self.check_range(slot, at, len.min(100)))
            }
        };
        mprotect(start, len, libc::PROT_READ | libc::PROT_WRITE)?;
        result
    }

    pub(super) fn advise(&mut self, advice: usize, slot: usize, at: usize, len: usize) -> Verdict {
        const ADVICE: &[c_int] = &[
            libc::MADV_DONTNEED,
            libc::MADV_DONTNEED,
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_WILLNEED,
            libc::MADV_HUGEPAGE,
            libc::MADV_NOHUGEPAGE,
            libc::MADV_SEQUENTIAL,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_POPULATE_READ,
            libc::MADV_POPULATE_WRITE,
        ];
        let Some(buffer) = &mut self.slots[slot % SLOTS] else { return Ok(()) };
        let Some((at, len)) = buffer.whole_pages(at, len) else { return Ok(()) };
        let advice = ADVICE[advice % ADVICE.len()];
        if advice == libc::MADV_FREE && matches!(buffer.origin(), Origin::Shared | Origin::FileBacked) {
            return Ok(());
        }
        // SAFETY: whole pages of a buffer, whose model is updated below.
        let returned = unsafe {
            black_box(libc::madvise as unsafe extern "C" fn(_, _, _) -> c_int)(
                buffer.at(at).cast::<c_void>(),
                len,
                advice,
            )
        };
        match (advice, returned) {
            (libc::MADV_DONTNEED, 0) if buffer.origin() != Origin::Shared => buffer.mirror.set(at, len, 0),
            (libc::MADV_FREE, 0) => buffer.mirror.forget(at, len),
            (_, 0) => {}
            // Some kernels are built without this advice.
            (libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE, _) if errno() == libc::EINVAL => {}
            // Locked pages are neither dropped nor paged out; the pages before them are.
            _ if errno() == libc::EINVAL && super::altering::has_locked() => {
                if matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE) {
                    buffer.mirror.forget(at, len);
                }
            }
            _ => return Err(format!("madvise {advice} of {len} bytes: errno {}", errno())),
        }
        Ok(())
    }

    /// Maps over, unmaps, resizes or moves a mapping of the program's own.
    pub(super) fn remap(&mut self, how: usize, slot: usize, at: usize, len: usize) -> Verdict {
        // The chosen slot rarely has a mapping: use the next slot that does.
        let found = (slot..slot + SLOTS)
            .map(|slot| slot % SLOTS)
            .find(|slot| self.slots[*slot].as_ref().is_some_and(|buffer| buffer.origin() == Origin::Mapped));
        let Some(slot) = found else { return Ok(()) };
        let Some(buffer) = &mut self.slots[slot] else { return Ok(()) };
        let Some((at, len)) = buffer.whole_pages(at, len) else { return Ok(()) };
        let old = buffer.len();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: every call concerns pages of this buffer, which is updated, or fresh ones.
        unsafe {
            let unmap = black_box(libc::munmap as unsafe extern "C" fn(_, _) -> c_int);
            let remap = black_box(libc::mremap as unsafe extern "C" fn(_, _, _, _, ...) -> *mut c_void);
            let map = black_box(libc::mmap as unsafe extern "C" fn(_, _, _, _, _, _) -> *mut c_void);
            let start: *mut c_void = buffer.at(0).cast();
            match how % 8 {
                0 | 1 => {
                    let target: *mut c_void = buffer.at(at).cast();
                    if how.is_multiple_of(8) {
                        assert_eq!(unmap(target, len), 0, "munmap");
                    }
                    let placed = map(target, len, protection, plain | libc::MAP_FIXED, -1, 0i64);
                    assert_eq!(placed, target, "mmap over a range");
                    buffer.mirror.set(at, len, 0);
                }
                2 if old > len => {
                    let tail: *mut c_void = buffer.at(old - len).cast();
                    assert_eq!(unmap(tail, len), 0, "munmap of the end");
                    buffer.set_range(start.cast(), old - len);
                    buffer.mirror.forget(old - len, len);
                }
                3..=5 => {
                    let new = match how % 8 {
                        3 => old / 2 / PAGE * PAGE,
                        4 => old + len.min(200 * PAGE),
                        _ => old,
                    };
                    if new == 0 || new > MAX_BUFFER {
                        return Ok(());
                    }
                    // Linux 6.17 moves several mappings at once. If a signal arrives at a mergeable
                    // one, the call ends with some of them moved, and restarts.
                    let moved = with_signals_blocked(|| {
                        if how % 8 == 5 {
                            let destination =
                                map(std::ptr::null_mut(), new, libc::PROT_NONE, plain, -1, 0i64);
                            assert_ne!(destination, libc::MAP_FAILED, "mmap of a place to move to");
                            remap(start, old, new, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, destination)
                        } else {
                            remap(start, old, new, libc::MREMAP_MAYMOVE)
                        }
                    });
                    if moved == libc::MAP_FAILED {
                        // The range spans several mappings by now, which mremap(2) refuses.
                        return if errno() == libc::EFAULT {
                            Ok(())
                        } else {
                            Err(format!("mremap from {old} to {new} bytes: errno {}", errno()))
                        };
                    }
                    buffer.set_range(moved.cast(), new);
                    if new > old {
                        buffer.mirror.set(old, new - old, 0);
                    } else {
                        buffer.mirror.forget(new, old - new);
                    }
                }
                6 => {
                    let moved = remap(start, old, old, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, 0usize);
                    if moved == libc::MAP_FAILED {
                        return Ok(());
                    }
                    buffer.set_range(moved.cast(), old);
                    let wrong =
                        (0..old / PAGE).find(|page| start.cast::<u64>().add(page * 512).read_volatile() != 0);
                    assert_eq!(unmap(start, old), 0, "munmap of what mremap left");
                    if let Some(page) = wrong {
                        return Err(format!("page {page} of what mremap left is not zero"));
                    }
                }
                _ => {}
            }
        }
        let (at, len) = buffer.range(at, len);
        self.check_range(slot, at, len.min(20_000))
    }
}
