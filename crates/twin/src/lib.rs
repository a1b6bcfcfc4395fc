//! The twin allocator (ZCopy §3.2): memory that can be handed to the kernel by reference, because a write to it
//! after it was sent replaces the page instead of changing it.
//!
//! One allocator for the process. Every function may be called from any thread and in any state of the process: where
//! userfaultfd is refused, and in a forked child that has not lent anything yet, its memory is ordinary memory and
//! [`lend`] may say `None`, which means: copy. [`status()`] says which it is, and why.
//!
//! How to send: [`lend`] the parts in twin memory; make the system calls; then, before the program's call returns,
//! drop the loan if the kernel may hold the pages for good ([`Until::Dropped`]), or call [`Loan::confirm`] and keep it
//! until the completion arrives, when [`settle`] takes it ([`Until::Completed`]). Pages that were never handed over
//! are settled as well.
//!
//! Not protected are bytes that a device or io_uring writes to pages it pinned *before* they were sent: do not register
//! twin memory as a fixed buffer for reading.
//!
//! | module | one line |
//! |---|---|
//! | [`options`] | what can be set before the first allocation |
//! | [`classes`] | size classes of small objects, and what they waste |
//! | [`table`] | the allocator's own data, apart from the pages; some of it wiped in children |
//! | [`mod@unit`] | runs of pages with one purpose, and the states of pages |
//! | [`pages`] | the reserved range; free runs |
//! | [`process`] | what is true of this process only: phase, descriptor, locks |
//! | [`mod@status`] | whether memory is lent, and if not, why |
//! | [`mod@start`] | what is reserved before the first allocation, and opened before the first loan |
//! | [`small`], [`large`] | objects |
//! | [`loan`] | lending |
//! | [`handler`] | the fault service |
//! | [`mod@replace`] | putting pages in place |
//! | [`fork`] | what a fork needs |
//! | [`send`] | the send family, with the parts of a message that lie in twin memory passed by reference |
//! | [`bytes`], [`traits`] | a buffer, and the standard traits |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures; the range has fewer than 2^32 pages"
)]

mod bytes;
mod classes;
mod counters;
pub mod fork;
mod handler;
mod large;
mod loan;
mod options;
mod pages;
mod process;
mod replace;
pub mod send;
mod small;
mod start;
mod status;
mod table;
mod traits;
mod unit;

pub use bytes::Bytes;
pub use counters::Statistics;
pub use loan::{Loan, Until, lend, settle, worth_lending};
pub use options::{ALIGNMENT, ConfigureError, Options};
pub use process::{has_handler, statistics, status, switch_off};
pub use status::{Status, Why};
pub use traits::Twin;

use pages::{PAGE_BYTES, PAGES, page_of};
use unit::{Id, Kind};

/// Takes the options. Before the first allocation only.
///
/// # Errors
/// [`ConfigureError`]; nothing has changed then.
pub fn configure(options: Options) -> Result<(), ConfigureError> {
    start::configure(options)
}

/// Whether an address lies in twin memory: two comparisons.
#[inline]
#[must_use]
pub fn contains(address: usize) -> bool {
    pages::contains(address)
}

/// Whether anything was ever allocated: before that, no address lies in twin memory.
#[inline]
#[must_use]
pub fn is_used() -> bool {
    pages::is_used()
}

#[cold]
fn none() -> *mut u8 {
    uncopy_sys::errno::set(libc::ENOMEM);
    core::ptr::null_mut()
}

#[inline]
fn or_none(object: *mut u8) -> *mut u8 {
    if object.is_null() { none() } else { object }
}

#[inline]
fn is_ready() -> bool {
    process::is_ready() || start::make_ready()
}

/// Memory for `size` bytes, aligned to [`ALIGNMENT`]; null, and `errno` ENOMEM, where there is none. No bytes are one.
#[must_use]
pub fn allocate(size: usize) -> *mut u8 {
    if !is_ready() {
        return none();
    }
    or_none(match small::classes().for_size(size) {
        Some(class) => small::allocate(class),
        None => large::allocate(size, ALIGNMENT, false),
    })
}

/// The same at a multiple of `align`, a power of two (null if it is none).
#[must_use]
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    if align <= ALIGNMENT {
        return allocate(size);
    }
    if !align.is_power_of_two() || !is_ready() {
        return none();
    }
    or_none(match small::classes().for_aligned(size, align) {
        Some(class) => small::allocate(class),
        None => large::allocate(size, align, false),
    })
}

/// The same as [`allocate`], zeroes.
#[must_use]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    if !is_ready() {
        return none();
    }
    match small::classes().for_size(size) {
        Some(class) => {
            let object = small::allocate(class);
            if object.is_null() {
                return none();
            }
            // SAFETY: a fresh object of at least so many bytes.
            unsafe { uncopy_sys::bytes::zero(object, size) };
            object
        }
        None => or_none(large::allocate(size, ALIGNMENT, true)),
    }
}

/// The unit of an object.
///
/// # Safety
/// `object` is an object of this allocator.
#[inline]
unsafe fn unit_of(object: *mut u8) -> Id {
    let found = PAGES.unit_at(page_of(object as usize));
    debug_assert!(found.is_some_and(|id| matches!(PAGES.unit(id).kind(), Kind::Small | Kind::Large)));
    // SAFETY: the pages of an object have a unit.
    unsafe { found.unwrap_unchecked() }
}

/// What `realloc` does: null is an object of no bytes, and a null result leaves the object as it was.
///
/// # Safety
/// `object` is null or an object of this allocator, and the caller's.
#[must_use]
pub unsafe fn reallocate(object: *mut u8, size: usize) -> *mut u8 {
    if object.is_null() {
        return allocate(size);
    }
    // SAFETY: `object` is one of this allocator and the caller's, who gives it up where it moves.
    unsafe {
        let old = usable_size(object);
        let id = unit_of(object);
        let stays = match (PAGES.unit(id).kind(), small::classes().for_size(size)) {
            (Kind::Small, Some(class)) => small::classes().bytes(class) as usize == old,
            (Kind::Large, None) => {
                let pages = size.div_ceil(PAGE_BYTES);
                pages == old / PAGE_BYTES || (pages < old / PAGE_BYTES && large::shorten(id, size))
            }
            _ => false,
        };
        if stays {
            return object;
        }
        let new = allocate(size);
        if !new.is_null() {
            uncopy_sys::bytes::copy(new, object, old.min(size));
            deallocate(object);
        }
        new
    }
}

/// Gives an object back. Null is nothing. What the kernel still holds of it stays as it is.
///
/// # Safety
/// `object` is null or an object of this allocator, and nobody uses it any more.
pub unsafe fn deallocate(object: *mut u8) {
    if object.is_null() {
        return;
    }
    // SAFETY: `object` is one of this allocator, and nobody uses it any more.
    unsafe {
        let id = unit_of(object);
        if PAGES.unit(id).kind() == Kind::Small {
            small::deallocate(id, object as usize);
        } else {
            large::deallocate(id);
        }
    }
}

/// Bytes that the object has room for.
///
/// # Safety
/// `object` is an object of this allocator.
#[must_use]
pub unsafe fn usable_size(object: *mut u8) -> usize {
    // SAFETY: `object` is one of this allocator.
    let unit = PAGES.unit(unsafe { unit_of(object) });
    let of_unit = match unit.kind() {
        Kind::Small => unit.size_bytes.load(core::sync::atomic::Ordering::Relaxed) as usize,
        _ => unit.pages.load(core::sync::atomic::Ordering::Relaxed) as usize * PAGE_BYTES,
    };
    debug_assert!(of_unit > 0);
    of_unit
}

/// Whether the allocator's own data agree. For tests, while no other thread allocates.
#[doc(hidden)]
#[must_use]
pub fn is_valid() -> bool {
    !process::is_ready() || PAGES.is_valid()
}
