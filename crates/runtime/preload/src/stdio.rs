//! Large `fread` and `fwrite`: the bytes that bypass the stream's buffer.
//!
//! glibc transfers such runs by internal calls, which cannot be hooked. Here they are made as glibc makes them
//! (libio/fileops.c: `_IO_new_file_xsgetn`, `_IO_new_file_xsputn`): in the same order, at the same points, with
//! the same lengths. The buffer's own contents, and every stream that is not an ordinary file's, are left to
//! glibc.

use crate::{reading, writing};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;
use libc::{off64_t, size_t};
use uncopy_engine::state::gate::MIN_HOOK_BYTES;
use uncopy_interpose::{entry, slots};
use uncopy_sys::descriptor::ProgramFd;

type Bytes = *mut u8;

slots! {
    FREAD = c"fread": unsafe extern "C" fn(*mut c_void, size_t, size_t, *mut Stream) -> size_t;
    FREAD_UNLOCKED = c"fread_unlocked": unsafe extern "C" fn(*mut c_void, size_t, size_t, *mut Stream) -> size_t;
    FREAD_CHK = c"__fread_chk": unsafe extern "C" fn(*mut c_void, size_t, size_t, size_t, *mut Stream) -> size_t;
    FREAD_UNLOCKED_CHK = c"__fread_unlocked_chk": unsafe extern "C" fn(*mut c_void, size_t, size_t, size_t, *mut Stream) -> size_t;
    FWRITE = c"fwrite": unsafe extern "C" fn(*const c_void, size_t, size_t, *mut Stream) -> size_t;
    FWRITE_UNLOCKED = c"fwrite_unlocked": unsafe extern "C" fn(*const c_void, size_t, size_t, *mut Stream) -> size_t;
    FLOCKFILE = c"flockfile": unsafe extern "C" fn(*mut Stream);
    FUNLOCKFILE = c"funlockfile": unsafe extern "C" fn(*mut Stream);
    OVERFLOW = c"__overflow": unsafe extern "C" fn(*mut Stream, c_int) -> c_int;
    ALLOCATE = c"_IO_doallocbuf": unsafe extern "C" fn(*mut Stream);
    CLEANUP_PUSH = c"_pthread_cleanup_push": unsafe extern "C" fn(*mut Cleanup, unsafe extern "C" fn(*mut Stream), *mut Stream);
    CLEANUP_POP = c"_pthread_cleanup_pop": unsafe extern "C" fn(*mut Cleanup, c_int);
}

/// Layout of `FILE`: the public fields (bits/types/struct_FILE.h), unchanged since glibc 2.1, followed by the
/// pointer to the stream's functions (libio/libioP.h: `struct _IO_FILE_plus`).
#[repr(C)]
pub struct Stream {
    flags: c_int,
    read_ptr: Bytes,
    read_end: Bytes,
    read_base: Bytes,
    write_base: Bytes,
    write_ptr: Bytes,
    write_end: Bytes,
    buf_base: Bytes,
    buf_end: Bytes,
    save_base: Bytes,
    backup_base: Bytes,
    save_end: Bytes,
    markers: *mut c_void,
    chain: *mut c_void,
    fileno: ProgramFd,
    flags2: c_int,
    old_offset: i64,
    column: u16,
    vtable_offset: i8,
    short_buf: u8,
    lock: *mut c_void,
    offset: off64_t,
    further: [usize; 5],
    mode: c_int,
    unused: [u8; 20],
    vtable: *const c_void,
}

const _: () = assert!(size_of::<Stream>() == 224, "FILE has 216 bytes on x86-64");

/// Bits of `flags` (libio/libio.h).
const NO_READS: c_int = 4;
const NO_WRITES: c_int = 8;
const EOF_SEEN: c_int = 0x10;
const ERR_SEEN: c_int = 0x20;
const UNBUFFERED: c_int = 2;
const IN_BACKUP: c_int = 0x100;
const LINE_BUF: c_int = 0x200;
const CURRENTLY_PUTTING: c_int = 0x800;
const IS_APPENDING: c_int = 0x1000;
const USER_LOCK: c_int = 0x8000;
/// Bits of `flags2`: mapped; no cancellation point; may be used by several threads (from glibc 2.27 on).
const MMAP: c_int = 1;
const NOT_CANCEL: c_int = 2;
const NEED_LOCK: c_int = 128;
/// Value of `offset` when the position of the file is unknown (`_IO_pos_BAD`).
const UNKNOWN: off64_t = -1;
const EOF: c_int = -1;
/// Minimum buffer size, bytes, for which glibc rounds its calls to multiples of the buffer.
const MIN_BLOCK_BYTES: usize = 128;

#[repr(C)]
struct Cleanup([usize; 4]);

unsafe extern "C" {
    /// Original stdin of glibc, whatever `stdin` points to.
    #[link_name = "_IO_2_1_stdin_"]
    static STANDARD: Stream;
}

impl Stream {
    /// True for a byte-oriented stream of a file, with the usual functions and nothing pushed back.
    fn is_ordinary(&self) -> bool {
        // SAFETY: the standard stream is static, and its vtable pointer is never changed.
        let usual = unsafe { (&raw const STANDARD.vtable).read() };
        usual == self.vtable
            && self.vtable_offset == 0
            && self.mode <= 0
            && self.fileno.is_valid()
            && self.column == 0
            && self.flags & IN_BACKUP == 0
            && self.flags2 & (MMAP | NOT_CANCEL) == 0
            && self.save_base.is_null()
    }

    fn buffer_bytes(&self) -> usize {
        self.buf_end as usize - self.buf_base as usize
    }

    /// Returns the part of `len` bytes, in whole blocks, that bypasses the buffer.
    fn whole_blocks(&self, len: usize) -> usize {
        let block = self.buffer_bytes();
        if block >= MIN_BLOCK_BYTES { len - len % block } else { len }
    }

    /// Sets the buffer to have neither contents nor room.
    fn empty(&mut self) {
        let base = self.buf_base;
        (self.read_base, self.read_ptr, self.read_end) = (base, base, base);
        (self.write_base, self.write_ptr, self.write_end) = (base, base, base);
    }

    fn advance(&mut self, len: usize) {
        if self.offset >= 0 {
            self.offset += len as off64_t;
        }
    }
}

/// Runs `section` with the stream's lock held, unless the program does its own locking or has never had a second
/// thread. If the thread is cancelled meanwhile, the lock is released.
///
/// # Safety
/// `stream` is open, and is not closed during the call.
unsafe fn with_lock<R>(stream: *mut Stream, section: impl FnOnce() -> R) -> R {
    // SAFETY: the stream stays open, by contract; the cleanup buffer outlives its registration.
    unsafe {
        if (*stream).flags & USER_LOCK != 0 || (*stream).flags2 & NEED_LOCK == 0 {
            return section();
        }
        FLOCKFILE.call()(stream);
        let mut cleanup = MaybeUninit::<Cleanup>::uninit();
        let unlock = FUNLOCKFILE.call();
        // Before glibc 2.34 a program may be linked without libpthread, and then lacks these functions.
        let cancellable = CLEANUP_PUSH.find().zip(CLEANUP_POP.find());
        if let Some((push, _)) = cancellable {
            push(cleanup.as_mut_ptr(), unlock, stream);
        }
        let result = section();
        if let Some((_, pop)) = cancellable {
            pop(cleanup.as_mut_ptr(), 0);
        }
        unlock(stream);
        result
    }
}

/// Makes an `fread` of `len` bytes; `None`: glibc is to do it. The caller holds the stream's lock.
unsafe fn read(to: Bytes, len: usize, stream: *mut Stream, caller: usize) -> Option<usize> {
    // SAFETY: the program passed the stream and a buffer of `len` bytes, and the stream's lock is held. Calls of
    // glibc change the stream, so no reference to it lives across one.
    unsafe {
        let ordinary = (*stream).is_ordinary() && (*stream).flags & (CURRENTLY_PUTTING | NO_READS) == 0;
        if !ordinary {
            return None;
        }
        if (*stream).buf_base.is_null() {
            ALLOCATE.find()?(stream);
        }
        let mut got = 0;
        while got < len {
            let (next, want) = (to.add(got), len - got);
            let have = (*stream).read_end as usize - (*stream).read_ptr as usize;
            if have > 0 && want > have {
                got += FREAD_UNLOCKED.call()(next.cast(), 1, have, stream);
                continue;
            }
            if have > 0 || want < (*stream).buffer_bytes() {
                got += FREAD_UNLOCKED.call()(next.cast(), 1, want, stream);
                break;
            }
            (*stream).empty();
            let count = (*stream).whole_blocks(want);
            match reading::by_stdio((*stream).fileno, next.cast(), count, caller) {
                0 => (*stream).flags |= EOF_SEEN,
                ..0 => (*stream).flags |= ERR_SEEN,
                arrived @ 1.. => {
                    got += arrived.cast_unsigned();
                    (*stream).advance(arrived.cast_unsigned());
                    continue;
                }
            }
            break;
        }
        Some(got)
    }
}

/// Makes an `fwrite` of `len` bytes; `None`: glibc is to do it. The caller holds the stream's lock.
unsafe fn write(from: *const u8, len: usize, stream: *mut Stream) -> Option<usize> {
    // SAFETY: the program passed the stream and a buffer of `len` bytes, and the stream's lock is held; no
    // reference to the stream lives across a call of glibc.
    unsafe {
        let unusual = LINE_BUF | NO_WRITES | ERR_SEEN;
        if !(*stream).is_ordinary() || (*stream).flags & unusual != 0 {
            return None;
        }
        let is_putting = (*stream).flags & CURRENTLY_PUTTING != 0;
        // Input that was read ahead must be discarded first.
        if !is_putting && (*stream).read_ptr != (*stream).read_end {
            return None;
        }
        let overflow = OVERFLOW.find()?;
        let room = ((*stream).write_end as usize).saturating_sub((*stream).write_ptr as usize);
        let room = if is_putting { room } else { 0 };
        if len <= room {
            return None;
        }
        let mut done = 0;
        if room > 0 {
            done = FWRITE_UNLOCKED.call()(from.cast(), 1, room, stream);
        }
        if overflow(stream, EOF) == EOF {
            return Some(done);
        }
        let count = (*stream).whole_blocks(len - done);
        let is_plain = (*stream).write_ptr == (*stream).write_base
            && ((*stream).flags & IS_APPENDING != 0 || (*stream).read_end == (*stream).write_base);
        if count > 0 && is_plain {
            if (*stream).flags & IS_APPENDING != 0 {
                (*stream).offset = UNKNOWN;
            }
            let wrote = write_all(from.add(done), count, stream);
            done += wrote;
            (*stream).empty();
            if (*stream).flags & (LINE_BUF | UNBUFFERED) == 0 {
                (*stream).write_end = (*stream).buf_end;
            }
            if wrote < count {
                return Some(done);
            }
        }
        if done < len {
            done += FWRITE_UNLOCKED.call()(from.add(done).cast(), 1, len - done, stream);
        }
        Some(done)
    }
}

/// Writes until everything is written or a call fails, as glibc's `_IO_new_file_write` does.
unsafe fn write_all(from: *const u8, len: usize, stream: *mut Stream) -> usize {
    let mut done = 0;
    // SAFETY: as `read` requires: the stream's lock is held, and no reference lives across a call of glibc.
    unsafe {
        while done < len {
            let wrote = writing::by_stdio((*stream).fileno, from.add(done).cast(), len - done);
            let Ok(wrote) = usize::try_from(wrote) else {
                (*stream).flags |= ERR_SEEN;
                break;
            };
            done += wrote;
        }
        (*stream).advance(done);
    }
    done
}

#[inline(always)]
fn is_large(size: size_t, count: size_t) -> bool {
    size.wrapping_mul(count) >= MIN_HOOK_BYTES.load(Relaxed)
}

/// Runs an fread or fwrite and converts the bytes transferred into items; `None`: glibc is to do it, or to handle
/// a product that overflows.
unsafe fn items(
    size: size_t,
    count: size_t,
    stream: *mut Stream,
    perform: impl FnOnce(usize) -> Option<usize>,
) -> Option<size_t> {
    let len = size.checked_mul(count).filter(|_| !stream.is_null())?;
    let done = perform(len)?;
    Some(if done == len { count } else { done / size })
}

entry!(fread FREAD (to: *mut c_void, size: size_t, count: size_t, stream: *mut Stream) -> size_t, is_large(size, count), {
    let caller = fread as *const () as usize;
    items(size, count, stream, |len| with_lock(stream, || read(to.cast(), len, stream, caller)))
        .unwrap_or_else(|| FREAD.call()(to, size, count, stream))
});

entry!(fread_unlocked FREAD_UNLOCKED (to: *mut c_void, size: size_t, count: size_t, stream: *mut Stream) -> size_t,
is_large(size, count), {
    let caller = fread_unlocked as *const () as usize;
    items(size, count, stream, |len| read(to.cast(), len, stream, caller))
        .unwrap_or_else(|| FREAD_UNLOCKED.call()(to, size, count, stream))
});

// If the buffer is too small, libc reports that.
entry!(__fread_chk FREAD_CHK (to: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut Stream) -> size_t,
is_large(size, count), {
    let fits = size.checked_mul(count).is_some_and(|len| len <= room);
    if fits { fread(to, size, count, stream) } else { FREAD_CHK.call()(to, room, size, count, stream) }
});

entry!(__fread_unlocked_chk FREAD_UNLOCKED_CHK (to: *mut c_void, room: size_t, size: size_t, count: size_t,
stream: *mut Stream) -> size_t, is_large(size, count), {
    let fits = size.checked_mul(count).is_some_and(|len| len <= room);
    if fits { fread_unlocked(to, size, count, stream) } else { FREAD_UNLOCKED_CHK.call()(to, room, size, count, stream) }
});

entry!(fwrite FWRITE (from: *const c_void, size: size_t, count: size_t, stream: *mut Stream) -> size_t, is_large(size, count), {
    items(size, count, stream, |len| with_lock(stream, || write(from.cast(), len, stream)))
        .unwrap_or_else(|| FWRITE.call()(from, size, count, stream))
});

entry!(fwrite_unlocked FWRITE_UNLOCKED (from: *const c_void, size: size_t, count: size_t, stream: *mut Stream) -> size_t,
is_large(size, count), {
    items(size, count, stream, |len| write(from.cast(), len, stream))
        .unwrap_or_else(|| FWRITE_UNLOCKED.call()(from, size, count, stream))
});

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_sys::descriptor::Descriptor as _;

    /// Checks the assumptions of the hooks about glibc's streams.
    #[test]
    fn the_fields_are_where_glibc_has_them() {
        // SAFETY: the streams are opened and closed by this test, and no other thread uses them.
        unsafe {
            let stream: *mut Stream = libc::fopen(c"/proc/self/exe".as_ptr(), c"r".as_ptr()).cast();
            assert!(!stream.is_null());
            assert_eq!((*stream).fileno.number(), libc::fileno(stream.cast()));
            // After a seek, glibc knows the position of the file.
            assert_eq!(libc::fseek(stream.cast(), 10, libc::SEEK_SET), 0);
            let mut some = [0u8; 100];
            assert_eq!(libc::fread(some.as_mut_ptr().cast(), 1, 100, stream.cast()), 100);
            assert!((*stream).is_ordinary());
            assert_eq!((*stream).read_ptr as usize - (*stream).read_base as usize, 100);
            assert_eq!((*stream).offset, libc::lseek((*stream).fileno.number(), 0, libc::SEEK_CUR));
            assert!((*stream).offset > 110);
            libc::ungetc(7, stream.cast());
            libc::ungetc(8, stream.cast());
            assert!((*stream).flags & IN_BACKUP != 0 && !(*stream).is_ordinary(), "pushed back");
            libc::fclose(stream.cast());
            let memory: *mut Stream = libc::fmemopen(core::ptr::null_mut(), 100, c"w+".as_ptr()).cast();
            assert!(!(*memory).is_ordinary(), "a stream in memory");
            libc::fclose(memory.cast());
        }
    }
}
