//! What `libuncopy.so` and `libuncopy_send` have in common: the C interface to the twin allocator, whose names both
//! export by linking this crate, and libc's send family with twin memory lent ([`sending`]). `uncopy.h` is made from
//! this file (`scripts/header`), so its comments speak to C programmers.
//!
//! Nothing here has a decision of its own: memory, protection and `errno` are the twin allocator's.
#![cfg(target_os = "linux")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what C programmers are told is what makes a call safe; uncopy.h has no headings"
)]

pub mod sending;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Acquire};
use std::ffi::CString;
use uncopy_sys::errno;
use uncopy_twin::{self as twin, Status};

/// What the twin allocator may be told, by uncopy_options. 0 stands for the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct uncopy_settings {
    /// Pages of 4096 bytes in a pageblock, 1 to 64. Default: 16.
    pub pageblock_pages: usize,
    /// Objects of more bytes have pages of their own; 16 to 32768, at most half a pageblock. Default: 4096.
    pub large_threshold: usize,
    /// Most bytes of pages that objects may take; beyond, allocation fails. Default: no limit.
    pub memory_cap: usize,
    /// To be zero.
    pub reserved: [usize; 5],
}

/// Sets errno for an allocation that failed.
fn checked(pointer: *mut u8) -> *mut c_void {
    if pointer.is_null() {
        errno::set(libc::ENOMEM);
    }
    pointer.cast()
}

/// Allocates `size` bytes whose pages the kernel can be given by reference: what send, sendto, sendmsg, sendmmsg,
/// write and writev take from here to a socket or a pipe is not copied where that is faster. The contents are
/// indeterminate, the address is a multiple of 16. Otherwise as malloc; to be freed by uncopy_free.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_alloc(size: usize) -> *mut c_void {
    checked(twin::allocate(size))
}

/// As uncopy_alloc, at an address that is a multiple of `alignment`, a power of two. Otherwise as aligned_alloc;
/// any size will do.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        errno::set(libc::EINVAL);
        return core::ptr::null_mut();
    }
    checked(twin::allocate_aligned(size, alignment))
}

/// As uncopy_alloc, for `count` objects of `size` bytes that are all zero. Otherwise as calloc.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_calloc(count: usize, size: usize) -> *mut c_void {
    checked(count.checked_mul(size).map_or(core::ptr::null_mut(), twin::allocate_zeroed))
}

/// Changes the size of memory that came from here. Otherwise as realloc: the memory may move, the contents stay, and
/// on failure the old memory is as it was. A size of 0 gives memory of the smallest size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    if pointer.is_null() {
        return uncopy_alloc(size);
    }
    // SAFETY: not null, so memory that came from here, which is the caller's to give up.
    checked(unsafe { twin::reallocate(pointer.cast(), size) })
}

/// Frees memory that came from here; null is allowed. What is still on its way to a peer arrives as it was. errno is
/// kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_free(pointer: *mut c_void) {
    if !pointer.is_null() {
        let _errno = errno::Keep::new();
        // SAFETY: not null, so memory that came from here, which nobody uses any more.
        unsafe { twin::deallocate(pointer.cast()) };
    }
}

/// Bytes that can be used from `pointer` on, which came from here: at least as many as were asked for. 0 for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_usable_size(pointer: *const c_void) -> usize {
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: not null, so memory that came from here.
    unsafe { twin::usable_size(pointer.cast_mut().cast()) }
}

/// Whether `pointer` points into memory of this allocator (1) or not (0): for programs that free memory of both kinds
/// in one place.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_owns(pointer: *const c_void) -> c_int {
    c_int::from(twin::contains(pointer as usize))
}

/// Sets options. To be called before the first allocation. Returns 0; or -1 with errno set to EINVAL (a value that is
/// not legal, and nothing was changed) or EBUSY (memory was allocated before).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_options(settings: *const uncopy_settings) -> c_int {
    // SAFETY: null, or settings that can be read.
    let Some(settings) = (unsafe { settings.as_ref() }) else { return refused(libc::EINVAL) };
    let uncopy_settings { pageblock_pages, large_threshold, memory_cap, reserved } = *settings;
    if reserved != [0; 5] {
        return refused(libc::EINVAL);
    }
    let mut options = twin::Options::new();
    if pageblock_pages != 0 {
        options.pageblock_pages = pageblock_pages;
    }
    if large_threshold != 0 {
        options.large_threshold = large_threshold;
    }
    options.memory_cap = memory_cap;
    match twin::configure(options) {
        Ok(()) => 0,
        Err(twin::ConfigureError::InUse) => refused(libc::EBUSY),
        Err(_) => refused(libc::EINVAL),
    }
}

fn refused(number: c_int) -> c_int {
    errno::set(number);
    -1
}

/// Whether memory from here is sent by reference (1) or copied (0). `why`, if it is not null, is set to a sentence that
/// says so, or what is missing. Asks the kernel if nothing was allocated so far. The sentence is never freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_status(why: *mut *const c_char) -> c_int {
    let _errno = errno::Keep::new();
    twin::probe();
    let status = twin::status();
    // SAFETY: null, or a place for a pointer.
    if let Some(why) = unsafe { why.as_mut() } {
        *why = sentence(status).as_ptr();
    }
    c_int::from(status == Status::Active)
}

/// What a status means, for good: the first sentence made for a reason stays.
fn sentence(status: Status) -> &'static CStr {
    static SENTENCES: [AtomicPtr<c_char>; 16] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 16];
    let (why, errno) = match status {
        Status::Active => return c"memory is sent by reference",
        Status::Dormant => return c"memory is copied by the kernel: there is none left",
        Status::Inactive { why, errno } => (why, errno),
    };
    let place = &SENTENCES[why as usize % SENTENCES.len()];
    let known = place.load(Acquire);
    if !known.is_null() {
        // SAFETY: a terminated string that is never freed.
        return unsafe { CStr::from_ptr(known) };
    }
    let text = format!("memory is copied by the kernel: {}", Status::Inactive { why, errno });
    let Ok(text) = CString::new(text) else { return c"memory is copied by the kernel" };
    let made = text.into_raw();
    match place.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire) {
        // SAFETY: a terminated string that is never freed from here on.
        Ok(_) => unsafe { CStr::from_ptr(made) },
        // SAFETY: made above, and nobody else's.
        Err(other) => unsafe {
            drop(CString::from_raw(made));
            CStr::from_ptr(other)
        },
    }
}
