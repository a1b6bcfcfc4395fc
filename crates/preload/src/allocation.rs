//! malloc and its family: large blocks from the block heap, the rest from the program's allocator.

use crate::{first, memory};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_engine::call::copy::transfer;
use uncopy_engine::range::directory;
use uncopy_engine::range::heap::Allocation;
use uncopy_engine::range::heap::HEAP;
use uncopy_engine::service::activation;
use uncopy_engine::state::gate::is_in_heap;
use uncopy_engine::state::gate::{FREE_LOOKS, HEAP_MIN_BYTES};
#[cfg(target_arch = "x86_64")]
use uncopy_engine::state::gate::{HEAP_BASE, HEAP_LEN_BYTES};
use uncopy_interpose::{gate, is_filling, slots};
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

/// Whether the block heap serves allocations of `len` bytes, as far as it has room.
fn is_served(len: usize) -> bool {
    len >= HEAP_MIN_BYTES.load(Relaxed) && activation::ensure_heap()
}

/// A block for `len` bytes; `None`: the program's own allocator serves it.
fn block(len: usize, caller: usize) -> Option<Allocation> {
    if is_served(len) { HEAP.allocate(len, caller) } else { None }
}

/// Memory for calls that come while libc's functions are being looked up. Never freed.
mod early {
    use super::*;

    const BYTES: usize = 64 << 10;
    #[repr(align(64))]
    struct Room(core::cell::UnsafeCell<[u8; BYTES]>);
    // SAFETY: each byte is handed out once.
    unsafe impl Sync for Room {}
    static ROOM: Room = Room(core::cell::UnsafeCell::new([0; BYTES]));
    static USED: AtomicUsize = AtomicUsize::new(0);

    pub fn allocate(len: usize) -> Pointer {
        FREE_LOOKS.store(true, Relaxed);
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

    /// Bytes that can be read from `pointer` on.
    pub fn readable(pointer: Pointer) -> usize {
        ROOM.0.get() as usize + BYTES - pointer as usize
    }
}

gate!(malloc, "rdi", "rsi", HEAP_MIN_BYTES, MALLOC, malloc_body);

unsafe extern "C" fn malloc_body(len: usize, caller: usize) -> Pointer {
    match block(len, caller) {
        Some(found) => found.at.start() as Pointer,
        // SAFETY: malloc takes any length.
        None => unsafe { real_malloc(len) },
    }
}

unsafe fn real_malloc(len: usize) -> Pointer {
    if is_filling() {
        return early::allocate(len);
    }
    if MALLOC.get().is_none() {
        // The first allocation, before our constructor: the copies to come are libc's from here on, too. And dlsym, which
        // another library's constructor may be in, finds what it calls itself.
        memory::fill();
        fill();
        first::fill();
    }
    // SAFETY: malloc takes any length.
    or_again(|| unsafe { MALLOC.call()(len) })
}

/// Asks the program's allocator again where it has nothing left and a limit on the address space may be why:
/// what we have reserved and not used then goes back first.
fn or_again(ask: impl Fn() -> Pointer) -> Pointer {
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
        // The length first: it is published last.
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
        early = sym FREE_LOOKS,
        body = sym free_body,
    )
}

#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: Pointer) {
    // SAFETY: the program's own pointer: null, or memory that it may give back.
    unsafe { free_body(pointer) };
}

#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(len: usize) -> Pointer {
    // SAFETY: malloc takes any length.
    unsafe { malloc_body(len, malloc as *const () as usize) }
}

unsafe extern "C" fn free_body(pointer: Pointer) {
    // Not every address of the heap's range is the heap's for ever: unused ones may have been given back.
    if let Some(at) = HEAP.find(pointer as usize) {
        record::forget(Function::Free, at.start(), at.room_bytes());
        HEAP.free(pointer as usize);
    } else if !pointer.is_null() && !early::contains(pointer) {
        // Not known only inside the lookup of `free` itself, in which dlsym frees its last message: that stays where it is.
        let Some(free) = FREE.find() else { return };
        // SAFETY: the program got it from its own allocator.
        unsafe {
            if record::is_on() {
                record::forget(Function::Free, pointer as usize, USABLE.call()(pointer));
            }
            free(pointer);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, each: usize) -> Pointer {
    if is_filling() {
        return count.checked_mul(each).map_or(core::ptr::null_mut(), early::allocate);
    }
    if let Some(len) = count.checked_mul(each)
        && len >= HEAP_MIN_BYTES.load(Relaxed)
        && let Some(found) = block(len, calloc as *const () as usize)
    {
        if !found.is_zero {
            HEAP.zero(found.at, len);
        }
        return found.at.start() as Pointer;
    }
    // SAFETY: calloc takes any numbers.
    or_again(|| unsafe { CALLOC.call()(count, each) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(pointer: Pointer, len: usize) -> Pointer {
    // SAFETY: the program's own pointer: null, or memory that it may give back.
    unsafe { realloc_body(pointer, len, realloc as *const () as usize) }
}

/// Reallocates, and enters in the recording, if one is on, what that moved.
#[inline(always)]
unsafe fn realloc_body(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    let Some(timer) = Timer::begin_any().filter(|_| !pointer.is_null()) else {
        // SAFETY: the program's own arguments, as realloc takes them.
        return unsafe { realloc_now(pointer, len, caller) };
    };
    // SAFETY: `pointer` is the program's and not null; a chunk of its own stays one until `realloc_now`.
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
                timer.relocated(Function::Realloc, new as usize, from, moved_bytes);
            } else {
                timer.copied(Function::Realloc, new as usize, from, moved_bytes, Flags(0));
            }
        }
        record::forget(Function::Realloc, from, old_bytes);
        new
    }
}

/// Whether glibc's malloc has mapped this chunk by itself, and will move it by its pages: the bit IS_MMAPPED in the
/// word before it (malloc/malloc.c; not changed since 2.0). Asked only where the memory before a page's 17th byte is
/// a chunk's head in any allocator, so that it can be read.
unsafe fn is_mapped_chunk(pointer: Pointer, len: usize) -> bool {
    const IS_MMAPPED: usize = 2;
    const HEAD_BYTES: usize = 16;
    if is_in_heap(pointer as usize) || early::contains(pointer) || pointer as usize % PAGE_BYTES != HEAD_BYTES
    {
        return false;
    }
    // SAFETY: on the same page as the block's first byte.
    let head = unsafe { *pointer.cast::<usize>().sub(1) };
    head & IS_MMAPPED != 0 && (head & !7) == len + HEAD_BYTES
}

unsafe fn realloc_now(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    // SAFETY: `pointer` is null or the program's to give up: a block, early memory, or of its own allocator;
    // what it has room for can be read.
    unsafe {
        if pointer.is_null() {
            return malloc_body(len, caller);
        }
        let Some(old) = HEAP.find(pointer as usize) else {
            return realloc_foreign(pointer, len, caller);
        };
        if len == 0 {
            HEAP.free(pointer as usize);
            return core::ptr::null_mut();
        }
        if old.resize(len) {
            return pointer;
        }
        if let Some(new) = block(len, caller) {
            transfer(old, new, len);
            HEAP.free(pointer as usize);
            return new.at.start() as Pointer;
        }
        let new = or_again(|| MALLOC.call()(len));
        if !new.is_null() {
            crate::memory::memmove_from_block(new.cast(), pointer.cast(), len.min(old.room_bytes()));
            HEAP.free(pointer as usize);
        } else if len <= old.room_bytes() {
            return pointer;
        }
        new
    }
}

/// Reallocates what the program's own allocator gave out: into the block heap if it grows large.
unsafe fn realloc_foreign(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    // SAFETY: `pointer` is the program's to give up, early memory or of its own allocator; the new block has
    // room for `len`.
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
            return or_again(|| REALLOC.call()(pointer, len));
        }
        let new = real_malloc(len);
        if !new.is_null() {
            uncopy_sys::bytes::copy(new.cast(), pointer.cast(), early::readable(pointer).min(len));
        }
        new
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(pointer: Pointer, count: usize, each: usize) -> Pointer {
    match count.checked_mul(each) {
        // SAFETY: the program's own arguments; the length did not overflow.
        Some(len) => unsafe {
            match first::realloc() {
                Some(realloc) => realloc(pointer, len),
                None => realloc_body(pointer, len, reallocarray as *const () as usize),
            }
        },
        None => {
            uncopy_sys::errno::set(libc::ENOMEM);
            core::ptr::null_mut()
        }
    }
}

/// A block for an aligned allocation; `None` where only libc can serve it or must report an error.
fn aligned_block(alignment: usize, len: usize, caller: usize) -> Option<Pointer> {
    if !alignment.is_power_of_two() || alignment > PAGE_BYTES || !is_served(len) {
        return None;
    }
    HEAP.allocate_aligned(len, caller).map(|found| found.at.start() as Pointer)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, len: usize) -> Pointer {
    // SAFETY: libc checks its own arguments.
    aligned_block(alignment, len, aligned_alloc as *const () as usize)
        .unwrap_or_else(|| unsafe { ALIGNED_ALLOC.call()(alignment, len) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, len: usize) -> Pointer {
    // SAFETY: libc checks its own arguments.
    aligned_block(alignment, len, memalign as *const () as usize)
        .unwrap_or_else(|| unsafe { MEMALIGN.call()(alignment, len) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(result: *mut Pointer, alignment: usize, len: usize) -> i32 {
    // SAFETY: `result` is a place for a pointer, as posix_memalign demands; libc checks the rest.
    unsafe {
        if alignment.is_multiple_of(size_of::<Pointer>())
            && let Some(pointer) = aligned_block(alignment, len, posix_memalign as *const () as usize)
        {
            *result = pointer;
            return 0;
        }
        POSIX_MEMALIGN.call()(result, alignment, len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(len: usize) -> Pointer {
    // SAFETY: valloc takes any length.
    aligned_block(PAGE_BYTES, len, valloc as *const () as usize)
        .unwrap_or_else(|| unsafe { VALLOC.call()(len) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(len: usize) -> Pointer {
    // SAFETY: pvalloc takes any length.
    aligned_block(PAGE_BYTES, len, pvalloc as *const () as usize)
        .unwrap_or_else(|| unsafe { PVALLOC.call()(len) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: Pointer) -> usize {
    match HEAP.find(pointer as usize) {
        Some(at) if at.start() == pointer as usize => at.room_bytes(),
        Some(_) => 0,
        None if early::contains(pointer) => early::readable(pointer),
        // SAFETY: the program got it from its own allocator.
        None => unsafe { USABLE.call()(pointer) },
    }
}

/// Address of the next `malloc` behind ours.
pub fn next_malloc() -> usize {
    MALLOC.find().map_or(0, |function| function as usize)
}

/// Bytes that a pointer of ours has room for; `None`: it is the program's allocator's.
pub fn own_room(pointer: Pointer) -> Option<usize> {
    match HEAP.find(pointer as usize) {
        Some(at) if at.start() == pointer as usize => Some(at.room_bytes()),
        Some(_) => Some(0),
        None => early::contains(pointer).then(|| early::readable(pointer)),
    }
}

/// Frees any pointer of the program's.
///
/// # Safety
/// The program's own pointer, which it gives back.
pub unsafe fn free_any(pointer: Pointer) {
    // SAFETY: as the caller says.
    unsafe { free_body(pointer) };
}

/// Reallocates any pointer of the program's.
///
/// # Safety
/// The program's own pointer, which it gives up.
pub unsafe fn resize_any(pointer: Pointer, len: usize, caller: usize) -> Pointer {
    // SAFETY: as the caller says.
    unsafe { realloc_body(pointer, len, caller) }
}

/// Moves the bytes of a pointer of ours, which has room for so many, to memory of the program's allocator, and frees it.
///
/// # Safety
/// Both are the program's; it gives `old` back.
pub unsafe fn move_out(new: Pointer, old: Pointer, room_bytes: usize) {
    // SAFETY: as the caller says; what is copied lies within both.
    unsafe {
        let len = room_bytes.min(USABLE.call()(new));
        if early::contains(old) {
            uncopy_sys::bytes::copy(new.cast(), old.cast(), len);
        } else {
            memory::memmove_from_block(new.cast(), old.cast(), len);
        }
        free_body(old);
    }
}
