//! libc's own functions, and the gates in front of them.
//!
//! A slot holds the address of the next definition of a symbol after ours. A library fills all of its slots when it
//! is loaded; a call that comes earlier (ld.so, another library's constructor) finds a stand-in, or fills the one slot
//! that it needs.
//!
//! A gate is a hook's entry on x86-64: it compares the size with a threshold and jumps on to libc, or
//! passes the return address along, by which call sites are told apart, to the hook's body. An entry is the same
//! without the return address, for any condition. [`before`] and [`variadic`] make the hooks that only watch, [`alias`] second names. And
//! what our threads mean for the end of a process: [`end`].
#![cfg(target_os = "linux")]

pub mod end;
pub mod environment;

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use uncopy_sys::{errno, ids, symbols};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn dlerror() -> *mut c_char;
}

/// RTLD_NEXT: the next object after this one.
const NEXT: *mut c_void = -1isize as *mut c_void;

/// Lookups under way in all threads: mostly none, and then nobody asks further.
static LOOKUPS: AtomicU32 = AtomicU32::new(0);

uncopy_sys::locals! {
    /// Lookups under way in this thread, one inside the other.
    static DEPTH: Cell<usize> = Cell::new(0);
    /// Addresses of the names that these lookups look for, the outermost first.
    static NAMES: Cell<[usize; MAX_DEPTH]> = Cell::new([0; MAX_DEPTH]);
}

/// Lookups inside one another, at most: dlsym calls malloc, calloc and free, which may each be looked up then.
const MAX_DEPTH: usize = 8;

/// Whether the calling thread is looking up one of libc's functions right now: dlsym may allocate.
#[must_use]
pub fn is_filling() -> bool {
    LOOKUPS.load(Relaxed) != 0 && DEPTH.with(Cell::get) != 0
}

/// Whether a failed lookup has left a message for the program's next dlerror.
static HAS_MESSAGE: AtomicBool = AtomicBool::new(false);

/// Takes back what failed lookups of the calling thread left for the program's next dlerror. For a library's own constructor, after
/// it has filled its slots.
///
/// A lookup cannot do it: it may come from an allocation that libc makes under a lock of its own (`newlocale`'s is one), and dlerror
/// translates its message, for which it takes that lock.
pub fn forget_messages() {
    if HAS_MESSAGE.swap(false, Relaxed) {
        // SAFETY: no requirements.
        unsafe { dlerror() };
    }
}

/// Whether an object that was loaded behind this one defines `symbol`. Unlike dlsym this allocates nothing where none does: what
/// dlsym's message takes would lie in the program's heap, whose layout it changes.
fn is_defined_behind(symbol: &CStr) -> bool {
    let here = is_defined_behind as *const () as usize;
    let (mut is_behind, mut is_defined) = (false, false);
    symbols::for_each(&mut |object| {
        if is_behind {
            is_defined = object.definition(symbol).is_some();
        } else {
            is_behind = object.contains(here);
        }
        !is_defined
    });
    is_defined
}

/// The address of the next definition of `symbol`; 0 if there is none, or no dynamic linker that knows it, or if the
/// calling thread is looking for it already: dlsym itself has called our function then.
///
/// Keeps `errno`. A failed lookup leaves its message: [`forget_messages`].
fn next(symbol: &CStr) -> usize {
    if !ids::has_dynamic_linker() {
        return 0;
    }
    let (depth, mut names) = (DEPTH.with(Cell::get), NAMES.with(Cell::get));
    let name = symbol.as_ptr().addr();
    if depth == MAX_DEPTH || names[..depth].contains(&name) {
        return 0;
    }
    let _errno = errno::Keep::new();
    names[depth] = name;
    NAMES.with(|kept| kept.set(names));
    LOOKUPS.fetch_add(1, Relaxed);
    DEPTH.with(|kept| kept.set(depth + 1));
    // SAFETY: dlsym takes RTLD_NEXT and a terminated string.
    let address = unsafe { dlsym(NEXT, symbol.as_ptr()) } as usize;
    if address == 0 {
        HAS_MESSAGE.store(true, Relaxed);
    }
    DEPTH.with(|kept| kept.set(depth));
    LOOKUPS.fetch_sub(1, Relaxed);
    address
}

/// Slots for libc's functions: `NAME = c"symbol": type of the function;`, and for those that may not be there
/// `NAME = c"symbol" if defined: type of the function;`.
#[macro_export]
macro_rules! slots {
    (@new $symbol:literal) => { $crate::Slot::new($symbol) };
    (@new $symbol:literal defined) => { $crate::Slot::optional($symbol) };
    ($($slot:ident = $symbol:literal $(if $defined:ident)?: $type:ty;)*) => {
        $(
            #[doc = concat!("libc's `", stringify!($symbol), "`.")]
            pub static $slot: $crate::Slot<$type> = $crate::slots!(@new $symbol $($defined)?);
        )*
        /// Fills every slot.
        pub fn fill() {
            $(_ = $slot.find();)*
        }
    };
}

/// The address of one of libc's functions of type `F`. The address comes first: gates read it there.
#[repr(C)]
pub struct Slot<F> {
    address: AtomicUsize,
    is_optional: bool,
    symbol: &'static CStr,
    function: core::marker::PhantomData<F>,
}

impl<F: Copy> Slot<F> {
    /// An empty slot for the next definition of `symbol`, which must have the type `F`.
    pub const fn new(symbol: &'static CStr) -> Self {
        Self { address: AtomicUsize::new(0), is_optional: false, symbol, function: core::marker::PhantomData }
    }

    /// The same for a function that may not be there.
    pub const fn optional(symbol: &'static CStr) -> Self {
        Self { is_optional: true, ..Self::new(symbol) }
    }

    /// The function; `None` before the slot is filled, or if libc does not have it.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let address = self.address.load(Relaxed);
        // SAFETY: F is always a function pointer type, and the slot is named for the symbol whose
        // type it has.
        (address != 0).then(|| unsafe { core::mem::transmute_copy::<usize, F>(&address) })
    }

    /// The function; looks it up if that has not happened yet. `None`: libc does not have it, or there is no
    /// libc to look it up in, because the program is linked statically, or the calling thread is inside that lookup.
    #[inline]
    pub fn find(&self) -> Option<F> {
        self.get().or_else(|| self.look_up())
    }

    #[cold]
    fn look_up(&self) -> Option<F> {
        if !self.is_optional || is_defined_behind(self.symbol) {
            self.address.store(next(self.symbol), Relaxed);
        }
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

/// A hook's entry that passes the caller's return address to its body as one more argument, in the register after the last
/// argument: `with_caller!(name, "register", body, (arguments) -> result)`. Elsewhere than on x86-64 the hook's own address stands
/// for it.
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
            // SAFETY: the program's own arguments, handed on as they are.
            unsafe { $body($($argument,)* $name as *const () as usize) }
        }
    };
}

/// A hook's entry where the caller's address is not needed: `entry!(name SLOT (arguments) -> result, CONDITION, BODY)`.
///
/// Where the condition does not hold and the slot is filled, that is a comparison or two, a load and a jump to libc;
/// the body is out of line.
#[macro_export]
macro_rules! entry {
    ($name:ident $slot:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty, $is_candidate:expr, $body:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn body($($argument: $type),*) -> $result {
                // SAFETY: the program's own arguments, which libc's contract allows the body to use as libc would.
                unsafe { $body }
            }
            // SAFETY: the program's own arguments, handed on to libc's function of this name or to the body as they are.
            unsafe {
                match $slot.get() {
                    Some(real) if !$is_candidate => real($($argument),*),
                    _ => body($($argument),*),
                }
            }
        }
    };
}

/// A hook that does something before libc's function is called, or returns without that:
/// `before!(name SLOT (arguments) -> result, STATEMENTS)`.
#[macro_export]
macro_rules! before {
    ($name:ident $slot:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty,
        $($before:tt)*) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            $($before)*
            // SAFETY: the program's own arguments, handed on to libc's function of this name as they are.
            unsafe { $slot.call()($($argument),*) }
        }
    };
}

/// Another name of a hook, where libc has one function with two names: `alias!(name = hook (arguments) -> result)`.
#[macro_export]
macro_rules! alias {
    ($name:ident = $hook:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the program's own arguments; both names have the same contract and the same structures.
            unsafe { $hook($($argument),*) }
        }
    };
}

/// A hook of a function with arguments that only libc counts, which does something first and goes on to libc's with every argument
/// where it was: `variadic! { name SLOT prepare (first: type) { STATEMENTS } }`. On x86-64.
#[macro_export]
macro_rules! variadic {
    ($($name:ident $slot:ident $prepare:ident ($($argument:ident: $type:ty),*) { $($before:tt)* })*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            extern "C" fn $prepare($($argument: $type),*) -> usize {
                $($before)*;
                $slot.call() as *const () as usize
            }

            /// The registers of arguments are kept, those of vectors too, and `al`, which counts them (System V ABI, AMD64).
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
