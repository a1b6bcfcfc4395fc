//! Hooks of asynchronous I/O: files that are written by it, or read from a mapped log, are not logged.

use crate::leaving::{exclude, exclude_all, is_on};
use core::ffi::{c_int, c_void};
use uncopy_interpose::{alias, entry, slots};
use uncopy_store::program as store;
use uncopy_sys::descriptor::ProgramFd;

slots! {
    AIO_READ = c"aio_read": unsafe extern "C" fn(*mut c_void) -> c_int;
    AIO_WRITE = c"aio_write": unsafe extern "C" fn(*mut c_void) -> c_int;
    AIO_FSYNC = c"aio_fsync": unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
    LIO_LISTIO = c"lio_listio": unsafe extern "C" fn(c_int, *const c_void, c_int, *mut c_void) -> c_int;
}

/// Stops logging the file of an aio(7) request, whose descriptor is the first member.
///
/// # Safety
/// `request` points to a `struct aiocb` of the program's.
unsafe fn refuse_file_of(request: *mut c_void) {
    // SAFETY: the program passes a `struct aiocb`, which libc reads next; `aio_fildes` is its first member.
    exclude(unsafe { request.cast::<ProgramFd>().read() });
}

entry!(aio_read AIO_READ (request: *mut c_void) -> c_int, store::has_mapped_files(), {
    refuse_file_of(request);
    AIO_READ.call()(request)
});

entry!(aio_write AIO_WRITE (request: *mut c_void) -> c_int, is_on(), {
    refuse_file_of(request);
    AIO_WRITE.call()(request)
});

entry!(aio_fsync AIO_FSYNC (how: c_int, request: *mut c_void) -> c_int, is_on(), {
    refuse_file_of(request);
    AIO_FSYNC.call()(how, request)
});

entry!(lio_listio LIO_LISTIO (mode: c_int, list: *const c_void, count: c_int, event: *mut c_void) -> c_int, is_on(), {
    exclude_all();
    LIO_LISTIO.call()(mode, list, count, event)
});

/// Replaces the function of libaio, which a plugin may load privately, where dlsym(3) does not find it. It
/// makes the system call and returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_setup(count: c_int, context: *mut c_void) -> c_int {
    if is_on() {
        exclude_all();
    }
    // SAFETY: io_setup(2) checks `context`, the program's own argument, and writes to it only if it is
    // writable.
    unsafe {
        uncopy_sys::raw::call(libc::SYS_io_setup as usize, [count as usize, context as usize, 0, 0, 0, 0])
            as c_int
    }
}

alias!(aio_read64 = aio_read (request: *mut c_void) -> c_int);
alias!(aio_write64 = aio_write (request: *mut c_void) -> c_int);
alias!(aio_fsync64 = aio_fsync (how: c_int, request: *mut c_void) -> c_int);
alias!(lio_listio64 = lio_listio (mode: c_int, list: *const c_void, count: c_int, event: *mut c_void) -> c_int);
