//! memcpy, memmove and their like.

use core::sync::atomic::Ordering::Relaxed;
use uncopy_engine::call::copy::copy;
use uncopy_engine::state::gate::{MIN_BYTES, MIN_SIZE_BYTES};
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

/// Copies forwards or backwards, byte by byte: before libc's functions are known.
unsafe fn move_early(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the program's memcpy or memmove: both have `len` bytes; volatile, so that the loop is not turned
    // into a call of memmove.
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

/// Copies by the engine or by libc, and enters that in the recording if one is on.
#[inline(always)]
unsafe fn copy_or_move(to: *mut u8, from: *const u8, len: usize, caller: usize, function: Function) {
    let timer = Timer::begin(len);
    // SAFETY: the program's own memcpy or memmove: both have `len` bytes.
    let is_engines = unsafe { copy_or_move_now(to, from, len, caller) };
    if let Some(timer) = timer {
        let flags = if is_engines { Flags::SAMPLED } else { Flags(0) };
        timer.copied(function, to as usize, from as usize, len, flags);
    }
}

/// Whether the engine did it.
#[inline(always)]
unsafe fn copy_or_move_now(to: *mut u8, from: *const u8, len: usize, caller: usize) -> bool {
    // SAFETY: both have `len` bytes, as memmove demands, or memcpy, which demands more.
    unsafe {
        if len >= MIN_SIZE_BYTES.load(Relaxed) && copy(to as usize, from as usize, len, caller) {
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
    // SAFETY: the program's own arguments; what memcpy takes memmove does.
    unsafe { copy_or_move(to, from, len, caller, Function::Memcpy) };
    to
}

unsafe extern "C" fn memmove_body(to: *mut u8, from: *const u8, len: usize, caller: usize) -> *mut u8 {
    // SAFETY: the program's own arguments, as memmove takes them.
    unsafe { copy_or_move(to, from, len, caller, Function::Memmove) };
    to
}

unsafe extern "C" fn mempcpy_body(to: *mut u8, from: *const u8, len: usize, caller: usize) -> *mut u8 {
    // SAFETY: the program's own arguments; `to` has `len` bytes, so its end is within or one past the object.
    unsafe {
        copy_or_move(to, from, len, caller, Function::Mempcpy);
        to.add(len)
    }
}

unsafe extern "C" fn bcopy_body(from: *const u8, to: *mut u8, len: usize, caller: usize) {
    // SAFETY: the program's own arguments, in memmove's order.
    unsafe { copy_or_move(to, from, len, caller, Function::Bcopy) };
}

gate!(memcpy, "rdx", "rcx", MIN_BYTES, MEMCPY, memcpy_body);
gate!(memmove, "rdx", "rcx", MIN_BYTES, MEMMOVE, memmove_body);
gate!(mempcpy, "rdx", "rcx", MIN_BYTES, MEMPCPY, mempcpy_body);
gate!(__memcpy_chk, "rdx", "r8", MIN_BYTES, MEMCPY_CHK, memcpy_chk_body);
gate!(__memmove_chk, "rdx", "r8", MIN_BYTES, MEMMOVE_CHK, memmove_chk_body);
gate!(__mempcpy_chk, "rdx", "r8", MIN_BYTES, MEMPCPY_CHK, mempcpy_chk_body);

/// bcopy has no gate of its own: libc's takes its arguments in another order than memmove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcopy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the program's own arguments, in bcopy's order.
    unsafe { bcopy_body(from, to, len, bcopy as *const () as usize) };
}

/// The FORTIFY variants: a destination that is too small is libc's to report.
macro_rules! checked {
    ($body:ident, $slot:ident, $unchecked:ident) => {
        unsafe extern "C" fn $body(
            to: *mut u8,
            from: *const u8,
            len: usize,
            room: usize,
            caller: usize,
        ) -> *mut u8 {
            // SAFETY: the program's own arguments; `len` is checked against `room` as libc does.
            unsafe {
                if room < len { $slot.call()(to, from, len, room) } else { $unchecked(to, from, len, caller) }
            }
        }
    };
}

checked!(memcpy_chk_body, MEMCPY_CHK, memcpy_body);
checked!(memmove_chk_body, MEMMOVE_CHK, memmove_body);
checked!(mempcpy_chk_body, MEMPCPY_CHK, mempcpy_body);

/// Portable entries where there is no gate.
#[cfg(not(target_arch = "x86_64"))]
mod portable {
    use super::*;

    macro_rules! entry {
        ($name:ident, $body:ident) => {
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
                // SAFETY: the program's own arguments, handed on as they are.
                unsafe { $body(to, from, len, $name as *const () as usize) }
            }
        };
        ($name:ident, $body:ident, checked) => {
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut u8, from: *const u8, len: usize, room: usize) -> *mut u8 {
                // SAFETY: the program's own arguments, handed on as they are.
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

/// Copies out of a block, views and all; who calls it enters that.
pub unsafe fn memmove_from_block(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: `to` has room for `len` bytes, and the block at `from` has as many.
    let _ = unsafe { copy_or_move_now(to, from, len, memmove_from_block as *const () as usize) };
}
