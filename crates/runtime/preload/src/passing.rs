//! sendfile, splice and copy_file_range, which transfer bytes between descriptors inside the kernel. They are
//! passed on to libc, and recorded if a recording is on.

use crate::files;
use crate::lanes;
use crate::net;
use core::ffi::c_uint;
use libc::{loff_t, off_t, size_t, ssize_t};
use uncopy_engine::state::gate::MIN_STREAM_BYTES;
use uncopy_interpose::{entry, slots};
use uncopy_record::{Function, Timer};
use uncopy_sys::descriptor::ProgramFd;

slots! {
    SENDFILE = c"sendfile": unsafe extern "C" fn(ProgramFd, ProgramFd, *mut off_t, size_t) -> ssize_t;
    SPLICE = c"splice": unsafe extern "C" fn(ProgramFd, *mut loff_t, ProgramFd, *mut loff_t, size_t, c_uint) -> ssize_t;
    COPY_FILE_RANGE = c"copy_file_range":
        unsafe extern "C" fn(ProgramFd, *mut loff_t, ProgramFd, *mut loff_t, size_t, c_uint) -> ssize_t;
}

#[inline(always)]
fn passed(
    function: Function,
    from: ProgramFd,
    to: ProgramFd,
    len: size_t,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let _outside = (files::stop_logging_for(to), files::before_read_by_kernel(from));
    let timer = Timer::begin(len);
    let done = if lanes::is_on() { lanes::transfer(from, to, call) } else { call() };
    let done = net::send_result(to, done);
    if let Some(timer) = timer {
        timer.record_fd_transfer(function, from, to, done);
    }
    done
}

fn is_candidate(from: ProgramFd, to: ProgramFd, len: size_t) -> bool {
    len >= MIN_STREAM_BYTES.load(core::sync::atomic::Ordering::Relaxed)
        || files::is_tracked(to)
        || files::is_tracked(from)
}

entry!(sendfile SENDFILE (to: ProgramFd, from: ProgramFd, offset: *mut off_t, len: size_t) -> ssize_t, is_candidate(from, to, len), {
    passed(Function::Sendfile, from, to, len, || SENDFILE.call()(to, from, offset, len))
});

entry!(sendfile64 SENDFILE (to: ProgramFd, from: ProgramFd, offset: *mut off_t, len: size_t) -> ssize_t, is_candidate(from, to, len), {
    passed(Function::Sendfile, from, to, len, || SENDFILE.call()(to, from, offset, len))
});

entry!(splice SPLICE
(from: ProgramFd, from_offset: *mut loff_t, to: ProgramFd, to_offset: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t,
is_candidate(from, to, len), {
    passed(Function::Splice, from, to, len, || SPLICE.call()(from, from_offset, to, to_offset, len, flags))
});

entry!(copy_file_range COPY_FILE_RANGE
(from: ProgramFd, from_offset: *mut loff_t, to: ProgramFd, to_offset: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t,
is_candidate(from, to, len), {
    let call = || COPY_FILE_RANGE.call()(from, from_offset, to, to_offset, len, flags);
    passed(Function::CopyFileRange, from, to, len, call)
});
