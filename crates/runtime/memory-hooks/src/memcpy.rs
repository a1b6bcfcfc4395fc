//! Hooks of memcpy, memmove and their like.

use core::sync::atomic::Ordering::Relaxed;
use uncopy_engine::call::copy::copy;
use uncopy_engine::state::gate::{MIN_ENGINE_BYTES, MIN_HOOK_BYTES};
use uncopy_interpose::{gate, slots};
use uncopy_record::{Flags, Function, Timer};

type Move = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;
type MoveChecked = unsafe extern "C" fn(*mut u8, *const u8, usize, usize) -> *mut u8;

slots! {
    MEMCPY = c"memcpy": Move;
    MEMMOVE = c"memmove": Move;
    MEMPCPY = c"mempcpy": Move;
    MEMCPY_CHK = c"__memcpy_chk": MoveChecked;
    MEMMOVE_CHK = c"__memmove_chk": MoveChecked;
    MEMPCPY_CHK = c"__mempcpy_chk": MoveChecked;
}

/// Copies byte by byte, forwards or backwards, until libc's functions are known.
unsafe fn move_early(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: both buffers have `len` bytes, as memmove requires. Volatile, lest the loop become a memmove call.
    unsafe {
        if (to as usize).wrapping_sub(from as usize) >= len {
            for at in 0..len {
                to.add(at).write_volatile(from.add(at).read_volatile());
            }
        } else {
            for at in (0..len).rev() {
                to.add(at).write_volatile(from.add(at).read_volatile());
            }
        }
    }
}

/// Copies by the engine or by libc, and records the copy if a recording is on.
#[inline(always)]
unsafe fn copy_or_move(to: *mut u8, from: *const u8, len: usize, caller: usize, function: Function) {
    let timer = Timer::begin(len);
    // SAFETY: both buffers have `len` bytes, as memcpy and memmove require.
    let was_elided = unsafe { copy_or_move_now(to, from, len, caller) };
    if let Some(timer) = timer {
        let flags = if was_elided { Flags::SAMPLED } else { Flags(0) };
        timer.record_copy(function, to as usize, from as usize, len, flags);
    }
}

/// Copies by the engine or by libc; returns true if by the engine.
#[inline(always)]
unsafe fn copy_or_move_now(to: *mut u8, from: *const u8, len: usize, caller: usize) -> bool {
    // SAFETY: both buffers have `len` bytes, as memmove requires; memcpy requires more.
    unsafe {
        if len >= MIN_ENGINE_BYTES.load(Relaxed) && copy(to as usize, from as usize, len, caller) {
            return true;
        }
        match MEMMOVE.get() {
            Some(memmove) => {
                memmove(to, from, len);
            }
            None => move_early(to, from, len),
        }
        false
    }
}

unsafe extern "C" fn memcpy_body(to: *mut u8, from: *const u8, len: usize, caller: usize) -> *mut u8 {
    // SAFETY: the program's own arguments of memcpy, whose requirements include those of memmove.
    unsafe { copy_or_move(to, from, len, caller, Function::Memcpy) };
    to
}

unsafe extern "C" fn memmove_body(to: *mut u8, from: *const u8, len: usize, caller: usize) -> *mut u8 {
    // SAFETY: the program's own arguments of memmove.
    unsafe { copy_or_move(to, from, len, caller, Function::Memmove) };
    to
}

unsafe extern "C" fn mempcpy_body(to: *mut u8, from: *const u8, len: usize, caller: usize) -> *mut u8 {
    // SAFETY: the program's own arguments; `to` has `len` bytes, so the result is at most one past its end.
    unsafe {
        copy_or_move(to, from, len, caller, Function::Mempcpy);
        to.add(len)
    }
}

unsafe extern "C" fn bcopy_body(from: *const u8, to: *mut u8, len: usize, caller: usize) {
    // SAFETY: the program's own arguments of bcopy, in memmove's order.
    unsafe { copy_or_move(to, from, len, caller, Function::Bcopy) };
}

gate!(memcpy, "rdx", "rcx", MIN_HOOK_BYTES, MEMCPY, memcpy_body);
gate!(memmove, "rdx", "rcx", MIN_HOOK_BYTES, MEMMOVE, memmove_body);
gate!(mempcpy, "rdx", "rcx", MIN_HOOK_BYTES, MEMPCPY, mempcpy_body);
gate!(__memcpy_chk, "rdx", "r8", MIN_HOOK_BYTES, MEMCPY_CHK, memcpy_chk_body);
gate!(__memmove_chk, "rdx", "r8", MIN_HOOK_BYTES, MEMMOVE_CHK, memmove_chk_body);
gate!(__mempcpy_chk, "rdx", "r8", MIN_HOOK_BYTES, MEMPCPY_CHK, mempcpy_chk_body);

/// Hooks bcopy, without a gate, since the order of arguments differs from memmove's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcopy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the program's own arguments of bcopy.
    unsafe { bcopy_body(from, to, len, bcopy as *const () as usize) };
}

/// Defines the FORTIFY variants. If the destination is too small, libc reports that.
macro_rules! checked {
    ($body:ident, $slot:ident, $unchecked:ident) => {
        unsafe extern "C" fn $body(
            to: *mut u8,
            from: *const u8,
            len: usize,
            room: usize,
            caller: usize,
        ) -> *mut u8 {
            // SAFETY: the program's own arguments; `len` is at most `room`, or libc's function reports that.
            unsafe {
                if room < len { $slot.call()(to, from, len, room) } else { $unchecked(to, from, len, caller) }
            }
        }
    };
}

checked!(memcpy_chk_body, MEMCPY_CHK, memcpy_body);
checked!(memmove_chk_body, MEMMOVE_CHK, memmove_body);
checked!(mempcpy_chk_body, MEMPCPY_CHK, mempcpy_body);

#[cfg(not(target_arch = "x86_64"))]
mod portable {
    use super::*;

    macro_rules! entry {
        ($name:ident, $body:ident) => {
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
                // SAFETY: the program's own arguments, passed on unchanged.
                unsafe { $body(to, from, len, $name as *const () as usize) }
            }
        };
        ($name:ident, $body:ident, checked) => {
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut u8, from: *const u8, len: usize, room: usize) -> *mut u8 {
                // SAFETY: the program's own arguments, passed on unchanged.
                unsafe { $body(to, from, len, room, $name as *const () as usize) }
            }
        };
    }
    entry!(memcpy, memcpy_body);
    entry!(memmove, memmove_body);
    entry!(mempcpy, mempcpy_body);
    entry!(__memcpy_chk, memcpy_chk_body, checked);
    entry!(__memmove_chk, memmove_chk_body, checked);
    entry!(__mempcpy_chk, mempcpy_chk_body, checked);
}

/// Copies out of a block, including views; the caller records the copy.
pub unsafe fn memmove_from_block(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller guarantees that `to` has room for `len` bytes, and that the block at `from` has as many.
    let _ = unsafe { copy_or_move_now(to, from, len, memmove_from_block as *const () as usize) };
}
