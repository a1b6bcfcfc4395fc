//! Addresses of libc's functions, and the entry points of hooks in front of them.
//!
//! A [`Slot`] holds the address of a symbol's next definition after ours. A library fills all of its slots
//! when it is loaded. A call that comes earlier, from ld.so or another library's constructor, fills the one
//! slot that it needs or uses a stand-in.
//!
//! | macro | entry point |
//! |---|---|
//! | [`gate!`] | (x86-64) compares a size with a threshold: jumps to libc, or passes the caller's address to the hook |
//! | [`with_caller!`] | passes the caller's address to the hook |
//! | [`entry!`] | calls libc unless a condition holds |
//! | [`before!`], [`variadic!`] | run statements, then call libc |
//! | [`alias!`] | second name of a hook |
//!
//! The caller's address tells call sites apart. [`first_thread`] handles the end of the process's first thread.
#![cfg(target_os = "linux")]

pub mod environment;
pub mod first_thread;

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use uncopy_sys::{errno, ids, symbols};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn dlerror() -> *mut c_char;
}

const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;

/// Number of lookups under way in all threads. While 0, which is usual, no thread-local is read.
static LOOKUPS: AtomicU32 = AtomicU32::new(0);

uncopy_sys::locals! {
    /// Number of nested lookups under way in this thread.
    static DEPTH: Cell<usize> = Cell::new(0);
    /// Addresses of the symbol names that this thread is looking up, outermost first.
    static NAMES: Cell<[usize; MAX_DEPTH]> = Cell::new([0; MAX_DEPTH]);
}

/// Maximum number of nested lookups. dlsym calls malloc, calloc and free, each of which may need a lookup.
const MAX_DEPTH: usize = 8;

/// Whether the calling thread is inside dlsym, which may allocate.
#[must_use]
pub fn is_in_lookup() -> bool {
    LOOKUPS.load(Relaxed) != 0 && DEPTH.with(Cell::get) != 0
}

/// Whether a failed lookup has left a message for the program's next dlerror(3).
static HAS_DLERROR: AtomicBool = AtomicBool::new(false);

/// Clears the dlerror(3) message that failed lookups left in the calling thread. Called by a library's
/// constructor after it has filled its slots.
///
/// A lookup cannot do this itself. It may run in an allocation that libc makes under a lock of its own
/// (`newlocale` does), and dlerror takes that lock to translate its message.
pub fn clear_dlerror() {
    if HAS_DLERROR.swap(false, Relaxed) {
        // SAFETY: dlerror(3) takes no arguments, and the message that it returns is not used.
        unsafe { dlerror() };
    }
}

/// Whether an object loaded after this one defines `symbol`. Unlike a failing dlsym, allocates nothing.
fn is_defined_after(symbol: &CStr) -> bool {
    let own_address = is_defined_after as *const () as usize;
    let (mut is_after, mut is_defined) = (false, false);
    symbols::for_each(&mut |object| {
        if is_after {
            is_defined = object.definition(symbol).is_some();
        } else {
            is_after = object.contains(own_address);
        }
        !is_defined
    });
    is_defined
}

/// Returns the address of the next definition of `symbol`, or 0. The result is 0 if nothing defines it, if
/// there is no dynamic linker, and if the calling thread is already looking it up: dlsym has called our own
/// function then.
///
/// Keeps `errno`. A failed lookup leaves a message: see [`clear_dlerror`].
fn next_definition(symbol: &CStr) -> usize {
    if !ids::has_dynamic_linker() {
        return 0;
    }
    let (depth, mut names) = (DEPTH.with(Cell::get), NAMES.with(Cell::get));
    let name = symbol.as_ptr().addr();
    if depth == MAX_DEPTH || names[..depth].contains(&name) {
        return 0;
    }
    let _errno = errno::SavedErrno::new();
    names[depth] = name;
    NAMES.with(|cell| cell.set(names));
    LOOKUPS.fetch_add(1, Relaxed);
    DEPTH.with(|cell| cell.set(depth + 1));
    // SAFETY: RTLD_NEXT is a valid handle, and `symbol` a NUL-terminated string that lives through the call.
    let address = unsafe { dlsym(RTLD_NEXT, symbol.as_ptr()) } as usize;
    if address == 0 {
        HAS_DLERROR.store(true, Relaxed);
    }
    DEPTH.with(|cell| cell.set(depth));
    LOOKUPS.fetch_sub(1, Relaxed);
    address
}

/// Defines slots: `NAME = c"symbol": type of the function;`, with `if defined` after the symbol for a
/// function that libc may lack.
#[macro_export]
macro_rules! slots {
    (@new $symbol:literal) => { $crate::Slot::new($symbol) };
    (@new $symbol:literal defined) => { $crate::Slot::optional($symbol) };
    ($($slot:ident = $symbol:literal $(if $defined:ident)?: $type:ty;)*) => {
        $(
            #[doc = concat!("libc's `", stringify!($symbol), "`.")]
            pub static $slot: $crate::Slot<$type> = $crate::slots!(@new $symbol $($defined)?);
        )*
        /// Fills every slot of the library.
        pub fn fill() {
            $(_ = $slot.find();)*
        }
    };
}

/// Address of a libc function of type `F`. `address` is the first field because gates read it there.
#[repr(C)]
pub struct Slot<F> {
    address: AtomicUsize,
    is_optional: bool,
    symbol: &'static CStr,
    function: core::marker::PhantomData<F>,
}

impl<F: Copy> Slot<F> {
    /// Returns an empty slot for the next definition of `symbol`, whose type must be `F`.
    pub const fn new(symbol: &'static CStr) -> Self {
        Self { address: AtomicUsize::new(0), is_optional: false, symbol, function: core::marker::PhantomData }
    }

    /// Returns an empty slot for a function that libc may lack.
    pub const fn optional(symbol: &'static CStr) -> Self {
        Self { is_optional: true, ..Self::new(symbol) }
    }

    /// Returns the function, or `None` if the slot is not filled or libc lacks the function.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let address = self.address.load(Relaxed);
        // SAFETY: `F` is always a function pointer type, as wide as `usize`. A slot is declared with the
        // type of its symbol, and `address` is that symbol's address.
        (address != 0).then(|| unsafe { core::mem::transmute_copy::<usize, F>(&address) })
    }

    /// Returns the function, looking it up first if necessary. `None` if libc lacks it, if the program is
    /// linked statically, or if the calling thread is already looking it up.
    #[inline]
    pub fn find(&self) -> Option<F> {
        self.get().or_else(|| self.look_up())
    }

    #[cold]
    fn look_up(&self) -> Option<F> {
        if !self.is_optional || is_defined_after(self.symbol) {
            self.address.store(next_definition(self.symbol), Relaxed);
        }
        self.get()
    }

    /// Returns the function as [`Slot::find`] does, and aborts if there is none. For functions that libc
    /// always has.
    #[inline]
    pub fn call(&self) -> F {
        self.find().unwrap_or_else(|| std::process::abort())
    }
}

/// Defines a hook's entry that compares a size with a threshold. A call below the threshold jumps to libc
/// if the slot is filled. Every other call jumps to the body, with the caller's return address as one more
/// argument.
///
/// `$size` is the register that holds the size, `$extra` the register after that of the last argument.
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

/// Defines a hook's entry that passes the caller's return address to its body, in the register after that
/// of the last argument: `with_caller!(name, "register", body, (arguments) -> result)`. On other processors
/// than x86-64 the body gets the hook's own address instead.
#[macro_export]
macro_rules! with_caller {
    ($name:ident, $extra:literal, $body:path, ($($argument:ident: $type:ty),*) -> $result:ty) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            core::arch::naked_asm!(
                concat!("mov ", $extra, ", qword ptr [rsp]"),
                "jmp {body}",
                body = sym $body,
            )
        }

        #[cfg(not(target_arch = "x86_64"))]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller meets the contract of libc's function, and the body gets the same arguments.
            unsafe { $body($($argument,)* $name as *const () as usize) }
        }
    };
}

/// Defines a hook's entry that does not need the caller's address:
/// `entry!(name SLOT (arguments) -> result, CONDITION, BODY)`.
///
/// Where the condition does not hold and the slot is filled, the entry costs the comparisons, a load and a
/// jump to libc. The body is out of line.
#[macro_export]
macro_rules! entry {
    ($name:ident $slot:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty, $is_candidate:expr, $body:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn body($($argument: $type),*) -> $result {
                // SAFETY: the caller meets the contract of libc's function; the body relies on nothing else.
                unsafe { $body }
            }
            // SAFETY: the caller meets the contract of libc's function, whose type and arguments both callees
            // have.
            unsafe {
                match $slot.get() {
                    Some(real) if !$is_candidate => real($($argument),*),
                    _ => body($($argument),*),
                }
            }
        }
    };
}

/// Defines a hook that runs statements, which may return, and then calls libc's function:
/// `before!(name SLOT (arguments) -> result, STATEMENTS)`.
#[macro_export]
macro_rules! before {
    ($name:ident $slot:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty,
        $($before:tt)*) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            $($before)*
            // SAFETY: the caller meets the contract of libc's function, which gets the same arguments.
            unsafe { $slot.call()($($argument),*) }
        }
    };
}

/// Defines a second name of a hook, where libc has two names for one function:
/// `alias!(name = hook (arguments) -> result)`.
#[macro_export]
macro_rules! alias {
    ($name:ident = $hook:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller meets the contract of libc's function, which both of its names share.
            unsafe { $hook($($argument),*) }
        }
    };
}

/// Defines a hook of a variadic function (x86-64): it runs statements, then jumps to libc's function with
/// all arguments in place: `variadic! { name SLOT prepare (first: type) { STATEMENTS } }`.
#[macro_export]
macro_rules! variadic {
    ($($name:ident $slot:ident $prepare:ident ($($argument:ident: $type:ty),*) { $($before:tt)* })*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            extern "C" fn $prepare($($argument: $type),*) -> usize {
                $($before)*;
                $slot.call() as *const () as usize
            }

            /// Saves and restores all argument registers, including those of vectors and `al`, which holds
            /// the number of vector registers in use (System V ABI, AMD64).
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "push rax",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 128",
                    "movups [rsp], xmm0",
                    "movups [rsp + 16], xmm1",
                    "movups [rsp + 32], xmm2",
                    "movups [rsp + 48], xmm3",
                    "movups [rsp + 64], xmm4",
                    "movups [rsp + 80], xmm5",
                    "movups [rsp + 96], xmm6",
                    "movups [rsp + 112], xmm7",
                    "call {prepare}",
                    "mov r11, rax",
                    "movups xmm0, [rsp]",
                    "movups xmm1, [rsp + 16]",
                    "movups xmm2, [rsp + 32]",
                    "movups xmm3, [rsp + 48]",
                    "movups xmm4, [rsp + 64]",
                    "movups xmm5, [rsp + 80]",
                    "movups xmm6, [rsp + 96]",
                    "movups xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "pop rax",
                    "jmp r11",
                    prepare = sym $prepare,
                )
            }
        )*
    };
}
