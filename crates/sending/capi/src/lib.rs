//! Shared by `libuncopy.so` and `libuncopy_send`: the C interface to the twin allocator, whose functions both
//! libraries export by linking this crate, and libc's send family with twin memory lent ([`sending`]).
//! `scripts/header` generates `uncopy.h` from this file, so its doc comments address C programmers.
//!
//! This crate only adapts types: memory, protection and `errno` values are the twin allocator's.
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

/// Settings of the twin allocator, passed to uncopy_options. 0 selects the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct uncopy_settings {
    /// Pages of 4096 bytes per pageblock, 1 to 64. Default: 16.
    pub pageblock_pages: usize,
    /// Objects larger than this many bytes get pages of their own; 16 to 32768, at most half a pageblock.
    /// Default: 4096.
    pub large_threshold: usize,
    /// Maximum bytes of pages that objects may occupy; allocation fails beyond that. Default: no limit.
    pub memory_cap: usize,
    /// Reserved for extensions, must be zero.
    pub reserved: [usize; 5],
}

/// Sets errno if an allocation failed.
fn or_enomem(pointer: *mut u8) -> *mut c_void {
    if pointer.is_null() {
        errno::set(libc::ENOMEM);
    }
    pointer.cast()
}

/// Allocates `size` bytes that the kernel can send by reference: where that is faster, send, sendto, sendmsg,
/// sendmmsg, write and writev to a socket do not copy them. The contents are uninitialized, and the
/// address is a multiple of 16. Otherwise like malloc; must be freed by uncopy_free.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_alloc(size: usize) -> *mut c_void {
    or_enomem(twin::allocate(size))
}

/// Like uncopy_alloc, but the address is a multiple of `alignment`, which must be a power of two. Otherwise
/// like aligned_alloc, without restrictions on `size`.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        errno::set(libc::EINVAL);
        return core::ptr::null_mut();
    }
    or_enomem(twin::allocate_aligned(size, alignment))
}

/// Like uncopy_alloc, for `count` objects of `size` bytes each, initialized to zero. Otherwise like calloc.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_calloc(count: usize, size: usize) -> *mut c_void {
    or_enomem(count.checked_mul(size).map_or(core::ptr::null_mut(), twin::allocate_zeroed))
}

/// Changes the size of memory allocated by this allocator, like realloc: the memory may move, its contents
/// are preserved, and on failure the old memory is unchanged. Size 0 returns memory of the minimum size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    if pointer.is_null() {
        return uncopy_alloc(size);
    }
    // SAFETY: `pointer` is not null, so the caller guarantees that this allocator returned it and that only
    // the caller uses it, as twin::reallocate requires.
    or_enomem(unsafe { twin::reallocate(pointer.cast(), size) })
}

/// Frees memory allocated by this allocator; null is allowed. Data still in flight to a peer arrives
/// unchanged. Preserves errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_free(pointer: *mut c_void) {
    if !pointer.is_null() {
        let _errno = errno::SavedErrno::new();
        // SAFETY: `pointer` is not null, so the caller guarantees that this allocator returned it and that
        // the memory is no longer in use, as twin::deallocate requires.
        unsafe { twin::deallocate(pointer.cast()) };
    }
}

/// Returns the number of usable bytes at `pointer`, which must come from this allocator: at least as many as
/// were requested. Returns 0 for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_usable_size(pointer: *const c_void) -> usize {
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: `pointer` is not null, so the caller guarantees that this allocator returned it.
    unsafe { twin::usable_size(pointer.cast_mut().cast()) }
}

/// Returns 1 if `pointer` points into memory of this allocator, 0 if not. For programs that free memory of
/// several allocators in one place.
#[unsafe(no_mangle)]
pub extern "C" fn uncopy_owns(pointer: *const c_void) -> c_int {
    c_int::from(twin::contains(pointer as usize))
}

/// Sets options. Must be called before the first allocation. Returns 0, or -1 with errno set to EINVAL
/// (invalid value; nothing is changed) or EBUSY (memory was already allocated).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_options(settings: *const uncopy_settings) -> c_int {
    // SAFETY: the caller passes null or a pointer to readable settings, which live through this call.
    let Some(settings) = (unsafe { settings.as_ref() }) else { return fail(libc::EINVAL) };
    let uncopy_settings { pageblock_pages, large_threshold, memory_cap, reserved } = *settings;
    if reserved != [0; 5] {
        return fail(libc::EINVAL);
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
        Err(twin::ConfigureError::InUse) => fail(libc::EBUSY),
        Err(_) => fail(libc::EINVAL),
    }
}

fn fail(code: c_int) -> c_int {
    errno::set(code);
    -1
}

/// Returns 1 if memory of this allocator is sent by reference, 0 if the kernel copies it. If `why` is not
/// null, sets it to a sentence with the reason, which is never freed. Probes the kernel if nothing was
/// allocated so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncopy_status(why: *mut *const c_char) -> c_int {
    let _errno = errno::SavedErrno::new();
    twin::probe();
    let status = twin::status();
    // SAFETY: the caller passes null or a pointer to a writable pointer, which nothing else accesses
    // meanwhile.
    if let Some(why) = unsafe { why.as_mut() } {
        *why = status_text(status).as_ptr();
    }
    c_int::from(status == Status::Active)
}

/// Returns the sentence for a status. The first sentence for each reason is cached forever.
fn status_text(status: Status) -> &'static CStr {
    static SENTENCES: [AtomicPtr<c_char>; 16] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 16];
    let (why, errno) = match status {
        Status::Active => return c"memory is sent by reference",
        Status::Dormant => return c"memory is copied by the kernel: there is none left",
        Status::Inactive { why, errno } => (why, errno),
    };
    let slot = &SENTENCES[why as usize % SENTENCES.len()];
    let cached = slot.load(Acquire);
    if !cached.is_null() {
        // SAFETY: SENTENCES only holds pointers from `CString::into_raw`, whose strings never change or go
        // away.
        return unsafe { CStr::from_ptr(cached) };
    }
    let text = format!("memory is copied by the kernel: {}", Status::Inactive { why, errno });
    let Ok(text) = CString::new(text) else { return c"memory is copied by the kernel" };
    let raw = text.into_raw();
    match slot.compare_exchange(core::ptr::null_mut(), raw, AcqRel, Acquire) {
        // SAFETY: `raw` is NUL-terminated, and now that SENTENCES holds it, never freed or changed.
        Ok(_) => unsafe { CStr::from_ptr(raw) },
        // SAFETY: `raw` comes from `CString::into_raw` above and was not shared. `other` was stored by
        // another thread: NUL-terminated, never freed.
        Err(other) => unsafe {
            drop(CString::from_raw(raw));
            CStr::from_ptr(other)
        },
    }
}
