//! malloc and its family: blocks of the heap for sites whose buffers carry data, else the program's allocator.

use crate::{first, memcpy};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_engine::background::activation;
use uncopy_engine::call::copy::transfer;
use uncopy_engine::range::carriers;
use uncopy_engine::range::directory;
use uncopy_engine::range::heap::Allocation;
use uncopy_engine::range::heap::HEAP;
use uncopy_engine::state::gate::is_in_heap;
use uncopy_engine::state::gate::{FREE_CHECKS_POINTERS, HEAP_MIN_BYTES};
#[cfg(target_arch = "x86_64")]
use uncopy_engine::state::gate::{HEAP_BASE, HEAP_LEN_BYTES};
use uncopy_interpose::{gate, is_in_lookup, slots, with_caller};
use uncopy_record::{self as record, Flags, Function, Timer};

type Pointer = *mut c_void;

slots! {
    MALLOC = c"malloc": unsafe extern "C" fn(usize) -> Pointer;
    CALLOC = c"calloc": unsafe extern "C" fn(usize, usize) -> Pointer;
    REALLOC = c"realloc": unsafe extern "C" fn(Pointer, usize) -> Pointer;
    FREE = c"free": unsafe extern "C" fn(Pointer);
    ALIGNED_ALLOC = c"aligned_alloc": unsafe extern "C" fn(usize, usize) -> Pointer;
    POSIX_MEMALIGN = c"posix_memalign": unsafe extern "C" fn(*mut Pointer, usize, usize) -> i32;
    MEMALIGN = c"memalign": unsafe extern "C" fn(usize, usize) -> Pointer;
    VALLOC = c"valloc": unsafe extern "C" fn(usize) -> Pointer;
    PVALLOC = c"pvalloc": unsafe extern "C" fn(usize) -> Pointer;
    USABLE = c"malloc_usable_size": unsafe extern "C" fn(Pointer) -> usize;
}

/// True if the block heap serves an allocation of `len` bytes by this caller, as far as it has room.
fn is_served(len: usize, caller: usize) -> bool {
    len >= HEAP_MIN_BYTES.load(Relaxed) && carriers::is_served(caller, len) && activation::ensure_heap()
}

/// Allocates a block of `len` bytes; `None`: the program's allocator serves the call.
fn block(len: usize, caller: usize) -> Option<Allocation> {
    if is_served(len, caller) { HEAP.allocate(len, caller) } else { None }
}

/// Allocates a block to which a block grows; its site is known to carry data.
fn larger_block(len: usize, caller: usize) -> Option<Allocation> {
    if len >= HEAP_MIN_BYTES.load(Relaxed) { HEAP.allocate(len, caller) } else { None }
}

/// Records a large allocation by the program's own allocator, and returns it.
#[inline]
fn recorded(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    if len >= HEAP_MIN_BYTES.load(Relaxed) && !pointer.is_null() {
        carriers::record_allocation(pointer as usize, len, caller);
    }
    pointer
}

/// Bump allocator for calls during the lookup of libc's functions. Nothing is freed.
mod early {
    use super::*;

    const BYTES: usize = 64 << 10;
    #[repr(align(64))]
    struct Room(core::cell::UnsafeCell<[u8; BYTES]>);
    // SAFETY: `allocate` hands out each byte at most once, by an atomic addition.
    unsafe impl Sync for Room {}
    static ROOM: Room = Room(core::cell::UnsafeCell::new([0; BYTES]));
    static USED: AtomicUsize = AtomicUsize::new(0);

    pub fn allocate(len: usize) -> Pointer {
        FREE_CHECKS_POINTERS.store(true, Relaxed);
        let take = len.next_multiple_of(64);
        let at = USED.fetch_add(take, Relaxed);
        if len > BYTES || at + take > BYTES {
            return core::ptr::null_mut();
        }
        ROOM.0.get().cast::<u8>().wrapping_add(at).cast()
    }

    pub fn contains(pointer: Pointer) -> bool {
        (pointer as usize).wrapping_sub(ROOM.0.get() as usize) < BYTES
    }

    /// Returns the number of bytes from `pointer` to the end of this memory.
    pub fn readable(pointer: Pointer) -> usize {
        ROOM.0.get() as usize + BYTES - pointer as usize
    }
}

gate!(malloc, "rdi", "rsi", HEAP_MIN_BYTES, MALLOC, malloc_body);

unsafe extern "C" fn malloc_body(len: usize, caller: usize) -> Pointer {
    match block(len, caller) {
        Some(found) => found.at.start() as Pointer,
        // SAFETY: malloc takes any length.
        None => recorded(unsafe { real_malloc(len) }, len, caller),
    }
}

/// Looks up the functions that this crate's hooks call: when the library is loaded, or at an earlier allocation.
pub fn fill_all() {
    memcpy::fill();
    fill();
    first::fill();
}

unsafe fn real_malloc(len: usize) -> Pointer {
    if is_in_lookup() {
        return early::allocate(len);
    }
    if MALLOC.get().is_none() {
        // The first allocation may come before this library's constructor. Copies go to libc from here on, too.
        // dlsym, which may be called by another library's constructor, must find the functions that it calls
        // itself.
        fill_all();
    }
    // SAFETY: malloc takes any length.
    retry_with_room(|| unsafe { MALLOC.call()(len) })
}

/// Retries a failed allocation if the address space is limited, after unused address ranges were given back.
fn retry_with_room(ask: impl Fn() -> Pointer) -> Pointer {
    let errno = uncopy_sys::errno::get();
    let found = ask();
    if !found.is_null()
        || uncopy_sys::mem::address_space_limit().is_none()
        || !directory::give_back_addresses()
    {
        return found;
    }
    uncopy_sys::errno::set(errno);
    ask()
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: Pointer) {
    core::arch::naked_asm!(
        // The length is read first, because it is published last.
        "mov rcx, qword ptr [rip + {len}]",
        "mov rax, rdi",
        "sub rax, qword ptr [rip + {base}]",
        "cmp rax, rcx",
        "jb 2f",
        "mov rax, qword ptr [rip + {slot}]",
        "test rax, rax",
        "je 2f",
        "cmp byte ptr [rip + {early}], 0",
        "jne 2f",
        "jmp rax",
        "2:",
        "jmp {body}",
        base = sym HEAP_BASE,
        len = sym HEAP_LEN_BYTES,
        slot = sym FREE,
        early = sym FREE_CHECKS_POINTERS,
        body = sym free_body,
    )
}

#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: Pointer) {
    // SAFETY: the program passed the pointer to free, so it is null or an allocation that nobody uses any more.
    unsafe { free_body(pointer) };
}

#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(len: usize) -> Pointer {
    // SAFETY: malloc takes any length.
    unsafe { malloc_body(len, malloc as *const () as usize) }
}

unsafe extern "C" fn free_body(pointer: Pointer) {
    // An address in the heap's range need not be a block: unused parts of the range may have been given back.
    if let Some(at) = HEAP.owner_of(pointer as usize) {
        record::record_discard(Function::Free, at.start(), at.block.usable_bytes());
        HEAP.free(pointer as usize);
    } else if !pointer.is_null() && !early::contains(pointer) {
        // `free` is unknown only during its own lookup, in which dlsym frees its last message: that is leaked.
        let Some(free) = FREE.find() else { return };
        // SAFETY: the pointer is not a block nor early memory, so the program got it from its own allocator and
        // passes it to free.
        unsafe {
            if record::is_on() {
                record::record_discard(Function::Free, pointer as usize, USABLE.call()(pointer));
            }
            free(pointer);
        }
    }
}

with_caller!(calloc, "rdx", calloc_body, (count: usize, each: usize) -> Pointer);

unsafe extern "C" fn calloc_body(count: usize, each: usize, caller: usize) -> Pointer {
    if is_in_lookup() {
        return count.checked_mul(each).map_or(core::ptr::null_mut(), early::allocate);
    }
    let len = count.checked_mul(each);
    if let Some(found) = len.and_then(|len| block(len, caller)) {
        if !found.is_zero {
            HEAP.zero(found.at, len.unwrap_or(0));
        }
        return found.at.start() as Pointer;
    }
    // SAFETY: calloc takes any numbers, and reports an overflow itself.
    recorded(retry_with_room(|| unsafe { CALLOC.call()(count, each) }), len.unwrap_or(0), caller)
}

with_caller!(realloc, "rdx", realloc_body, (pointer: Pointer, len: usize) -> Pointer);

/// Reallocates, and records the move if a recording is on.
unsafe extern "C" fn realloc_body(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    let Some(timer) = Timer::begin_any().filter(|_| !pointer.is_null()) else {
        // SAFETY: the program passed these arguments to realloc, which has the same contract.
        return unsafe { realloc_now(pointer, len, caller) };
    };
    // SAFETY: `pointer` is an allocation of the program, not null, and stays one until `realloc_now`, so its size
    // can be asked and its bytes read.
    unsafe {
        let (from, old_bytes) = (pointer as usize, malloc_usable_size(pointer));
        let is_moved_by_pages = is_mapped_chunk(pointer, old_bytes);
        let new = realloc_now(pointer, len, caller);
        let moved_bytes = old_bytes.min(len);
        let is_kept = new.is_null() && len != 0;
        if new == pointer || is_kept || old_bytes < record::min_size_bytes() {
            return new;
        }
        if moved_bytes >= record::min_size_bytes() && !new.is_null() {
            let are_blocks = is_in_heap(from) && is_in_heap(new as usize);
            if are_blocks || is_moved_by_pages && !is_in_heap(new as usize) {
                timer.record_relocation(Function::Realloc, new as usize, from, moved_bytes);
            } else {
                timer.record_copy(Function::Realloc, new as usize, from, moved_bytes, Flags(0));
            }
        }
        record::record_discard(Function::Realloc, from, old_bytes);
        new
    }
}

/// True if glibc's malloc mapped this chunk by mmap, so that realloc moves it by its pages: the bit IS_MMAPPED in
/// the word before it (malloc/malloc.c; unchanged since 2.0). Reads that word only if the pointer is 16 bytes into
/// a page, where any allocator has a chunk header.
unsafe fn is_mapped_chunk(pointer: Pointer, len: usize) -> bool {
    const IS_MMAPPED: usize = 2;
    const HEAD_BYTES: usize = 16;
    if is_in_heap(pointer as usize) || early::contains(pointer) || pointer as usize % PAGE_BYTES != HEAD_BYTES
    {
        return false;
    }
    // SAFETY: the word lies on the same page as the allocation's first byte, which is mapped.
    let head = unsafe { *pointer.cast::<usize>().sub(1) };
    head & IS_MMAPPED != 0 && (head & !7) == len + HEAD_BYTES
}

unsafe fn realloc_now(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    // SAFETY: the program passed `pointer` to realloc, so it is null, a block, early memory or of its own
    // allocator, and nobody else uses it; as many bytes as it has room for are readable.
    unsafe {
        if pointer.is_null() {
            return malloc_body(len, caller);
        }
        let Some(old) = HEAP.owner_of(pointer as usize) else {
            return realloc_foreign(pointer, len, caller);
        };
        if len == 0 {
            HEAP.free(pointer as usize);
            return core::ptr::null_mut();
        }
        if old.resize(len) {
            return pointer;
        }
        if let Some(new) = larger_block(len, caller) {
            transfer(old, new, len);
            HEAP.free(pointer as usize);
            return new.at.start() as Pointer;
        }
        let new = retry_with_room(|| MALLOC.call()(len));
        if !new.is_null() {
            memcpy::memmove_from_block(new.cast(), pointer.cast(), len.min(old.room_bytes()));
            HEAP.free(pointer as usize);
        } else if len <= old.room_bytes() {
            return pointer;
        }
        new
    }
}

/// Reallocates an allocation of the program's allocator: into the block heap if it grows large.
unsafe fn realloc_foreign(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    // SAFETY: the program passed `pointer` to realloc, so it is early memory or of its own allocator, and nobody
    // else uses it; the new block has room for `len` bytes.
    unsafe {
        let is_early = early::contains(pointer);
        if let Some(new) = block(len, caller) {
            let old_len = if is_early { early::readable(pointer) } else { USABLE.call()(pointer) };
            uncopy_sys::bytes::copy(new.at.start() as *mut u8, pointer.cast(), old_len.min(len));
            if !is_early {
                FREE.call()(pointer);
            }
            return new.at.start() as Pointer;
        }
        if !is_early {
            return recorded(retry_with_room(|| REALLOC.call()(pointer, len)), len, caller);
        }
        let new = real_malloc(len);
        if !new.is_null() {
            uncopy_sys::bytes::copy(new.cast(), pointer.cast(), early::readable(pointer).min(len));
        }
        new
    }
}

with_caller!(reallocarray, "rcx", reallocarray_body, (pointer: Pointer, count: usize, each: usize) -> Pointer);

unsafe extern "C" fn reallocarray_body(
    pointer: Pointer,
    count: usize,
    each: usize,
    caller: usize,
) -> Pointer {
    match count.checked_mul(each) {
        // SAFETY: the program passed these arguments to reallocarray; the product did not overflow, so realloc has
        // the same contract.
        Some(len) => unsafe {
            match first::realloc() {
                Some(realloc) => realloc(pointer, len),
                None => realloc_body(pointer, len, caller),
            }
        },
        None => {
            uncopy_sys::errno::set(libc::ENOMEM);
            core::ptr::null_mut()
        }
    }
}

/// Allocates an aligned block; `None` if only libc can serve the call, or must report an error.
fn aligned_block(alignment: usize, len: usize, caller: usize) -> Option<Pointer> {
    if !alignment.is_power_of_two() || alignment > PAGE_BYTES || !is_served(len, caller) {
        return None;
    }
    HEAP.allocate_aligned(len, caller).map(|found| found.at.start() as Pointer)
}

/// Defines hooks of functions that return aligned memory, from the alignment, the length, and the usable length.
macro_rules! aligned {
    ($name:ident $body:ident $slot:ident $register:literal ($($argument:ident: $type:ty),*), $alignment:expr, $len:ident, $request:expr) => {
        with_caller!($name, $register, $body, ($($argument: $type),*) -> Pointer);

        unsafe extern "C" fn $body($($argument: $type,)* caller: usize) -> Pointer {
            aligned_block($alignment, $request, caller).unwrap_or_else(|| {
                // SAFETY: the program's own arguments; libc validates alignment and length.
                recorded(unsafe { $slot.call()($($argument),*) }, $len, caller)
            })
        }
    };
}

aligned!(aligned_alloc aligned_alloc_body ALIGNED_ALLOC "rdx" (alignment: usize, len: usize), alignment, len, len);
aligned!(memalign memalign_body MEMALIGN "rdx" (alignment: usize, len: usize), alignment, len, len);
aligned!(valloc valloc_body VALLOC "rsi" (len: usize), PAGE_BYTES, len, len);
aligned!(pvalloc pvalloc_body PVALLOC "rsi" (len: usize), PAGE_BYTES, len, len.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1));

with_caller!(posix_memalign, "rcx", posix_memalign_body, (result: *mut Pointer, alignment: usize, len: usize) -> i32);

unsafe extern "C" fn posix_memalign_body(
    result: *mut Pointer,
    alignment: usize,
    len: usize,
    caller: usize,
) -> i32 {
    // SAFETY: the program passed `result` to posix_memalign, which requires a writable pointer there; libc
    // validates the rest.
    unsafe {
        if alignment.is_multiple_of(size_of::<Pointer>())
            && let Some(pointer) = aligned_block(alignment, len, caller)
        {
            *result = pointer;
            return 0;
        }
        let error = POSIX_MEMALIGN.call()(result, alignment, len);
        if error == 0 {
            recorded(*result, len, caller);
        }
        error
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: Pointer) -> usize {
    // SAFETY: the pointer is not a block, so it is null or from the program's own allocator.
    own_room(pointer).unwrap_or_else(|| unsafe { USABLE.call()(pointer) })
}

/// Returns the address of the `malloc` after this library's in lookup order.
pub fn next_malloc() -> usize {
    MALLOC.find().map_or(0, |function| function as usize)
}

/// Returns the usable bytes of a block or of early memory; `None` for the program's allocator.
pub fn own_room(pointer: Pointer) -> Option<usize> {
    match HEAP.owner_of(pointer as usize) {
        Some(at) if at.start() == pointer as usize => Some(at.block.usable_bytes()),
        Some(_) => Some(0),
        None => early::contains(pointer).then(|| early::readable(pointer)),
    }
}

/// Frees any pointer of the program's.
///
/// # Safety
/// As for free(3).
pub unsafe fn free_any(pointer: Pointer) {
    // SAFETY: the caller guarantees the contract of free(3).
    unsafe { free_body(pointer) };
}

/// Reallocates any pointer of the program's.
///
/// # Safety
/// As for realloc(3).
pub unsafe fn resize_any(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    // SAFETY: the caller guarantees the contract of realloc(3).
    unsafe { realloc_body(pointer, len, caller) }
}

/// Moves the bytes of a block with `room_bytes` usable bytes to memory of the program's allocator, and frees the
/// block.
///
/// # Safety
/// `new` is an allocation of the program's allocator, `old` a block that nobody uses any more.
pub unsafe fn move_out(new: Pointer, old: Pointer, room_bytes: usize) {
    // SAFETY: the caller guarantees that `new` and `old` are allocations; the copied length is at most the usable
    // length of both; `old` is not used after this.
    unsafe {
        let len = room_bytes.min(USABLE.call()(new));
        if early::contains(old) {
            uncopy_sys::bytes::copy(new.cast(), old.cast(), len);
        } else {
            memcpy::memmove_from_block(new.cast(), old.cast(), len);
        }
        free_body(old);
    }
}
