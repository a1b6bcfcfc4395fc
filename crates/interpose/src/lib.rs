//! libc's own functions, and the gates in front of them.
//!
//! A slot holds the address of the next definition of a symbol after ours. All slots of a library are filled
//! when it is loaded; a call that comes earlier (ld.so, another library's constructor) finds a stand-in or
//! fills them itself, by the library's own `crate::start::fill_slots`.
//!
//! A gate is a hook's entry on x86-64: it compares the size with a threshold and jumps on to libc, or
//! passes the return address along, by which call sites are told apart, to the hook's body. An entry is the same
//! without the return address, for any condition. And what our threads mean for the end of a process: [`end`].
#![cfg(target_os = "linux")]

pub mod end;
pub mod environment;

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// RTLD_NEXT: the next object after this one.
const NEXT: *mut c_void = -1isize as *mut c_void;

/// The address of the next definition of `symbol`; 0 if there is none.
#[must_use]
pub fn next(symbol: &CStr) -> usize {
    // SAFETY: the symbol is terminated.
    unsafe { dlsym(NEXT, symbol.as_ptr()) as usize }
}

/// Slots for libc's functions: `NAME = c"symbol": type of the function;`.
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "each library fills its slots in a way of its own")]
macro_rules! slots {
    ($($slot:ident = $symbol:literal: $type:ty;)*) => {
        $(
            pub static $slot: $crate::Slot<$type> = $crate::Slot::new(crate::start::fill_slots);
        )*
        /// Fills every slot.
        pub fn fill() {
            $($slot.fill($symbol);)*
        }
    };
}

/// The address of one of libc's functions of type `F`. The address comes first: gates read it there.
#[repr(C)]
pub struct Slot<F> {
    address: AtomicUsize,
    fill_all: fn(),
    function: core::marker::PhantomData<F>,
}

impl<F: Copy> Slot<F> {
    /// An empty slot; `fill_all` fills this and all others of the library.
    pub const fn new(fill_all: fn()) -> Self {
        Self { address: AtomicUsize::new(0), fill_all, function: core::marker::PhantomData }
    }

    /// Looks up the next definition of `symbol`, which must have the type `F`.
    pub fn fill(&self, symbol: &CStr) {
        let address = next(symbol);
        if address != 0 {
            self.address.store(address, Relaxed);
        }
    }

    /// The function; `None` before the slot is filled, or if libc does not have it.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let address = self.address.load(Relaxed);
        // SAFETY: F is always a function pointer type, and the slot is named for the symbol whose
        // type it has.
        (address != 0).then(|| unsafe { core::mem::transmute_copy::<usize, F>(&address) })
    }

    /// The function; fills all slots if that has not happened yet. `None`: libc does not have it, or there is no
    /// libc to look it up in, because the program is linked statically.
    #[inline]
    pub fn find(&self) -> Option<F> {
        if let Some(function) = self.get() {
            return Some(function);
        }
        (self.fill_all)();
        self.get()
    }

    /// As [`Slot::find`], for functions that every libc has.
    #[inline]
    pub fn call(&self) -> F {
        self.find().unwrap_or_else(|| std::process::abort())
    }
}

/// A hook's entry: calls below the threshold jump to libc (if its slot is filled), the others go to
/// the body with the caller's return address as one more argument.
///
/// `$size` is the register that holds the size, `$extra` the one after the last argument.
#[macro_export]
macro_rules! gate {
    ($name:ident, $size:literal, $extra:literal, $threshold:path, $slot:path, $body:path) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                concat!("cmp ", $size, ", qword ptr [rip + {threshold}]"),
                "jae 2f",
                "mov rax, qword ptr [rip + {slot}]",
                "test rax, rax",
                "je 2f",
                "jmp rax",
                "2:",
                concat!("mov ", $extra, ", qword ptr [rsp]"),
                "jmp {body}",
                threshold = sym $threshold,
                slot = sym $slot,
                body = sym $body,
            )
        }
    };
}

/// A hook's entry where the caller's address is not needed: `entry!(name SLOT (arguments) -> result, CONDITION, BODY)`.
///
/// Where the condition does not hold and the slot is filled, that is a comparison or two, a load and a jump to libc;
/// the body is out of line.
#[macro_export]
macro_rules! entry {
    ($name:ident $slot:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty, $concerned:expr, $body:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn body($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe { $body }
            }
            // SAFETY: the caller's promise.
            unsafe {
                match $slot.get() {
                    Some(real) if !$concerned => real($($argument),*),
                    _ => body($($argument),*),
                }
            }
        }
    };
}
