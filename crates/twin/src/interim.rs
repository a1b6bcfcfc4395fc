//! The interface, on a simple allocator; nothing is lent yet.

use crate::{ALIGNMENT, ConfigureError, Options};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_sys::bytes;
use uncopy_sys::lock::Lock;
use uncopy_sys::mem::Reservation;

const RANGE_BYTES: usize = 64 << 30;
/// Before each object: its size.
const HEADER_BYTES: usize = 16;
const CLASSES: usize = 48;

static BASE: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOCK: Lock = Lock::new();
static FREE: [AtomicUsize; CLASSES] = [const { AtomicUsize::new(0) }; CLASSES];

/// When the kernel is done with pages that are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Nobody says when: they are dropped when they are released, never written.
    Dropped,
    /// A completion tells: [`settle`] is called then.
    Completed,
}

/// Pages that the kernel may be given by reference. Dropping it says that it may hold them for good.
#[derive(Debug)]
#[must_use]
pub struct Loan(());

impl Loan {
    /// To be called after the system calls and before the program's call returns, if the loan is kept any longer.
    pub fn confirm(&self) {}
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.confirm();
    }
}

/// Takes the options. Before the first allocation only.
///
/// # Errors
/// [`ConfigureError`]; nothing has changed then.
pub fn configure(_options: Options) -> Result<(), ConfigureError> {
    if BASE.load(Relaxed) == 0 { Ok(()) } else { Err(ConfigureError::InUse) }
}

/// Whether an address lies in twin memory.
#[inline]
#[must_use]
pub fn contains(address: usize) -> bool {
    let base = BASE.load(Relaxed);
    base != 0 && address.wrapping_sub(base) < RANGE_BYTES
}

/// Memory for `size` bytes, aligned to [`ALIGNMENT`]; null, and `errno` ENOMEM, where there is none.
#[must_use]
pub fn allocate(size: usize) -> *mut u8 {
    allocate_aligned(size, ALIGNMENT)
}

/// The same at a multiple of `align`, a power of two.
#[must_use]
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    let align = align.max(ALIGNMENT);
    let whole = size.saturating_add(HEADER_BYTES + align).checked_next_power_of_two();
    let Some(whole) = whole.filter(|whole| *whole < RANGE_BYTES) else { return none() };
    let class = whole.trailing_zeros() as usize;
    let _guard = LOCK.guard();
    if BASE.load(Relaxed) == 0 {
        let Ok(range) = Reservation::new(RANGE_BYTES) else { return none() };
        NEXT.store(range.base(), Relaxed);
        if range.commit(range.base(), RANGE_BYTES).is_err() {
            return none();
        }
        BASE.store(range.base(), Relaxed);
    }
    let mut start = FREE[class].load(Relaxed);
    if start == 0 {
        start = NEXT.load(Relaxed);
        if start + whole > BASE.load(Relaxed) + RANGE_BYTES {
            return none();
        }
        NEXT.store(start + whole, Relaxed);
    } else {
        // SAFETY: a free object, whose first word is the next one's address.
        FREE[class].store(unsafe { *(start as *const usize) }, Relaxed);
    }
    let object = (start + HEADER_BYTES).next_multiple_of(align);
    // SAFETY: inside the object, before what the caller gets.
    unsafe { ((object - HEADER_BYTES) as *mut [usize; 2]).write([start, start + whole]) };
    object as *mut u8
}

fn none() -> *mut u8 {
    uncopy_sys::errno::set(libc::ENOMEM);
    core::ptr::null_mut()
}

/// The same as [`allocate`], zeroes.
#[must_use]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    let object = allocate(size);
    if !object.is_null() {
        // SAFETY: a fresh object of so many bytes.
        unsafe { bytes::zero(object, size) };
    }
    object
}

unsafe fn header(object: *mut u8) -> [usize; 2] {
    // SAFETY: the caller's promise: an object that `allocate_aligned` made.
    unsafe { *object.sub(HEADER_BYTES).cast() }
}

/// What `realloc` does; null leaves the object as it was.
///
/// # Safety
/// `object` is null or an object of this allocator, and the caller's.
#[must_use]
pub unsafe fn reallocate(object: *mut u8, size: usize) -> *mut u8 {
    if object.is_null() {
        return allocate(size);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let old = usable_size(object);
        if size <= old {
            return object;
        }
        let new = allocate(size);
        if !new.is_null() {
            bytes::copy(new, object, old);
            deallocate(object);
        }
        new
    }
}

/// Gives an object back. Null is nothing.
///
/// # Safety
/// `object` is null or an object of this allocator, and nobody uses it any more.
pub unsafe fn deallocate(object: *mut u8) {
    if object.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let [start, end] = unsafe { header(object) };
    let class = (end - start).trailing_zeros() as usize;
    let _guard = LOCK.guard();
    // SAFETY: nobody uses the object.
    unsafe { *(start as *mut usize) = FREE[class].load(Relaxed) };
    FREE[class].store(start, Relaxed);
}

/// Bytes that the object has room for.
///
/// # Safety
/// `object` is an object of this allocator.
#[must_use]
pub unsafe fn usable_size(object: *mut u8) -> usize {
    // SAFETY: the caller's promise.
    unsafe { header(object)[1] - object as usize }
}

/// Whether `len` bytes at `address` may be handed to the kernel by reference now; then they are protected against
/// writes until the kernel is done with them. `None`: copy them.
pub fn lend(_address: usize, _len: usize, _until: Until) -> Option<Loan> {
    None
}

/// The kernel does not hold the pages of this loan: it has completed, or never got them.
pub fn settle(loan: Loan) {
    core::mem::forget(loan);
}
