//! Functions of other allocators than glibc's that take a pointer from `malloc`: jemalloc's `sdallocx`, tcmalloc's
//! `tc_free`, mimalloc's `mi_realloc`, C++'s operators delete if the allocator has its own, and their like.
//!
//! These functions are not exported as hooks, because a program that tests for one must find what it would find
//! without this library. Instead, they are replaced in the objects that define them ([`uncopy_sys::symbols`]).
//! [`uncopy_core::allocators`] lists the known names; an allocator with unknown functions keeps all of the
//! program's memory.
//!
//! ```text
//! a block is given out  =>  whatever takes a pointer and is not glibc's knows blocks
//! ```
//!
//! An allocator loaded later (dlopen) does not serve the program's `malloc`, so it gets no pointer from there. An
//! object loaded later with RTLD_DEEPBIND calls libc's `free` directly: then libc's symbol table is redirected to
//! the hooks.

use crate::first::{self, FREE_ALIGNED_SIZED, FREE_SIZED, LIBC_FREE, LIBC_REALLOC};
use crate::malloc;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use uncopy_core::allocators::{Treatment, family, treatment};
use uncopy_engine::state::counters;
use uncopy_engine::state::gate::{self, is_in_heap};
use uncopy_sys::symbols::{self, Function, Object};

/// Argument registers (System V ABI); no function here has further arguments.
type Arguments = [usize; 6];
type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

struct Hook {
    name: &'static str,
    address: Any,
    real: &'static Real,
}

/// Address of the allocator's own function; 0: there is none.
struct Real(AtomicUsize);

impl Real {
    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Calls the allocator's own function.
    ///
    /// # Safety
    /// As the function of that name requires.
    #[inline(always)]
    unsafe fn call(&self, [a, b, c, d, e, f]: Arguments) -> usize {
        // SAFETY: the address is that of the allocator's function, stored before the replacement could be called;
        // it reads at most six argument registers, all of which are passed.
        unsafe {
            let function = core::mem::transmute::<usize, Any>(self.0.load(Relaxed));
            function(a, b, c, d, e, f)
        }
    }
}

/// Function `mallocx` of jemalloc, with which `rallocx` of a block is implemented.
static MALLOCX: Real = Real::new();

macro_rules! hooks {
    ($($kind:ident: [$($name:ident),* $(,)?];)*) => {
        static HOOKS: &[Hook] = &[$($({
            static REAL: Real = Real::new();
            unsafe extern "C" fn hook(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
                // SAFETY: the program's own arguments for the function of this name, whose kind is `$kind`.
                unsafe { kinds::$kind(&REAL, [a, b, c, d, e, f]) }
            }
            Hook { name: stringify!($name), address: hook, real: &REAL }
        }),*),*];
    };
}

uncopy_core::allocator_functions!(hooks);

/// Replacements by kind, see [`uncopy_core::allocator_functions`], called with a function's arguments.
mod kinds {
    use super::*;

    /// Returns the usable bytes of a block or of early memory; `None` for the allocator's own pointers.
    #[inline(always)]
    fn room(pointer: usize) -> Option<usize> {
        // Both conditions are rare, and cheap to check.
        if is_in_heap(pointer) || gate::FREE_CHECKS_POINTERS.load(Relaxed) {
            malloc::own_room(pointer as _)
        } else {
            None
        }
    }

    /// Moves a block to a new allocation and frees the block. Returns the new address; 0 if there is none.
    unsafe fn move_block(new: usize, block: usize, room_bytes: usize) -> usize {
        if new != 0 {
            // SAFETY: the program gave up the block; `new` is an allocation of its allocator.
            unsafe { malloc::move_out(new as _, block as _, room_bytes) };
        }
        new
    }

    #[inline(always)]
    pub unsafe fn free(real: &Real, arguments: Arguments) -> usize {
        // SAFETY: the program passed the pointer to be freed, as `real` requires.
        unsafe {
            if room(arguments[0]).is_none() {
                return real.call(arguments);
            }
            malloc::free_any(arguments[0] as _);
        }
        0
    }

    #[inline(always)]
    pub unsafe fn size(real: &Real, arguments: Arguments) -> usize {
        // SAFETY: the program passed the pointer to a function of this kind, as `real` requires.
        room(arguments[0]).unwrap_or_else(|| unsafe { real.call(arguments) })
    }

    pub unsafe fn resize(real: &Real, arguments: Arguments) -> usize {
        let [block, rest @ ..] = arguments;
        // SAFETY: the program's own arguments, as `real` requires; with a null pointer it allocates.
        unsafe {
            let Some(room_bytes) = room(block) else { return real.call(arguments) };
            let [b, c, d, e, f] = rest;
            move_block(real.call([0, b, c, d, e, f]), block, room_bytes)
        }
    }

    pub unsafe fn resize_or_free(real: &Real, arguments: Arguments) -> usize {
        // SAFETY: the program's own arguments for `real`; a block that could not be moved is still allocated.
        unsafe {
            let new = resize(real, arguments);
            if new == 0 && room(arguments[0]).is_some() {
                malloc::free_any(arguments[0] as _);
            }
            new
        }
    }

    pub unsafe fn resize_zero_frees(real: &Real, arguments: Arguments) -> usize {
        // SAFETY: the program's own arguments, as `real` requires.
        unsafe { if arguments[1] == 0 { free(real, arguments) } else { resize(real, arguments) } }
    }

    pub unsafe fn heap_resize(real: &Real, arguments: Arguments) -> usize {
        let [heap, block, c, d, e, f] = arguments;
        // SAFETY: the program's own arguments, as `real` requires; with a null pointer it allocates.
        unsafe {
            let Some(room_bytes) = room(block) else { return real.call(arguments) };
            move_block(real.call([heap, 0, c, d, e, f]), block, room_bytes)
        }
    }

    pub unsafe fn heap_resize_or_free(real: &Real, arguments: Arguments) -> usize {
        // SAFETY: the program's own arguments for `real`; a block that could not be moved is still allocated.
        unsafe {
            let new = heap_resize(real, arguments);
            if new == 0 && room(arguments[1]).is_some() {
                malloc::free_any(arguments[1] as _);
            }
            new
        }
    }

    pub unsafe fn resize_place(real: &Real, arguments: Arguments) -> usize {
        let [slot, b, c, d, e, f] = arguments;
        // SAFETY: the program's own arguments for `real`: the first is null or points to its pointer.
        unsafe {
            let block = if slot == 0 { 0 } else { (slot as *const usize).read_unaligned() };
            let Some(room_bytes) = room(block) else { return real.call(arguments) };
            let mut new = 0usize;
            let result = real.call([&raw mut new as usize, b, c, d, e, f]);
            // The result is an `int`, 0 for success.
            if result as u32 == 0 {
                (slot as *mut usize).write_unaligned(move_block(new, block, room_bytes));
            }
            result
        }
    }

    pub unsafe fn resize_with_flags(real: &Real, arguments: Arguments) -> usize {
        let [block, len, flags, ..] = arguments;
        // SAFETY: the program's own arguments, as `real` requires; mallocx takes the same length and flags, and
        // every allocator with rallocx has mallocx.
        unsafe {
            let Some(room_bytes) = room(block) else { return real.call(arguments) };
            move_block(MALLOCX.call([len, flags, 0, 0, 0, 0]), block, room_bytes)
        }
    }

    pub unsafe fn expand(real: &Real, arguments: Arguments) -> usize {
        let [block, len, ..] = arguments;
        match room(block) {
            // SAFETY: the program's own arguments, as `real` requires.
            None => unsafe { real.call(arguments) },
            Some(room_bytes) if len <= room_bytes => block,
            Some(_) => {
                uncopy_sys::errno::set(libc::ENOMEM);
                0
            }
        }
    }

    /// Returns 1 for a block: true, or tcmalloc's `kOwned`.
    pub unsafe fn own(real: &Real, arguments: Arguments) -> usize {
        // SAFETY: the program's own arguments, as `real` requires.
        room(arguments[0]).map_or_else(|| unsafe { real.call(arguments) }, |_| 1)
    }

    pub unsafe fn heap_own(real: &Real, arguments: Arguments) -> usize {
        // SAFETY: the program's own arguments, as `real` requires.
        room(arguments[1]).map_or_else(|| unsafe { real.call(arguments) }, |_| 1)
    }

    pub unsafe fn any(real: &Real, arguments: Arguments) -> usize {
        if !gate::HEAP_IS_DISABLED.load(Relaxed) {
            leave(format_args!("the program asks its allocator by an object"));
        }
        // SAFETY: the program's own arguments, as `real` requires.
        unsafe { real.call(arguments) }
    }
}

/// Leaves all allocations to the program's allocator from here on.
fn leave(why: core::fmt::Arguments<'_>) {
    gate::disable_heap();
    // uncopy's own allocator is used here: a signal handler must not interrupt and use it too.
    let _critical = uncopy_sys::lock::Critical::enter();
    counters::set_reason(&format!("memory stays with the program's allocator: {why}"));
}

/// Functions of which the program must find this library's first, since a block from one is passed to another.
const FAMILY: [&CStr; 6] =
    [c"malloc", c"calloc", c"realloc", c"free", c"malloc_usable_size", c"posix_memalign"];

fn file_name(object: &Object<'_>) -> String {
    let path = object.name().to_string_lossy();
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.is_empty() { "the program".to_owned() } else { name.to_owned() }
}

/// Returns the addresses of the definitions that calls of these functions reach; 0 if there is none. dlsym may
/// instead return an entry of the program's procedure linkage table: that is the function's address for all
/// objects if a program that is not position-independent takes it (psABI, "Function Addresses").
fn definitions<const N: usize>(names: [&CStr; N]) -> [usize; N] {
    let mut found = [None; N];
    symbols::for_each(&mut |object| {
        for (name, found) in names.into_iter().zip(&mut found) {
            *found = found.or_else(|| object.definition(name).map(|function| function.address.unwrap_or(0)));
        }
        found.iter().any(Option::is_none)
    });
    found.map(|address| address.unwrap_or(0))
}

/// Replaces the functions of other allocators when the library is loaded, before any block is given out.
pub fn begin() {
    let here = begin as *const () as usize;
    let (found, [of_libc]) = (definitions(FAMILY), definitions([c"gnu_get_libc_version"]));
    let next = malloc::next_malloc();
    let (mut is_first, mut is_libcs) = (false, false);
    symbols::for_each(&mut |object| {
        is_first |= object.contains(here) && found.iter().all(|address| object.contains(*address));
        is_libcs |= object.contains(next) && object.contains(of_libc);
        true
    });
    if !is_first {
        return stay_behind(here, &found);
    }
    if is_libcs {
        IS_LIBCS.store(true, Relaxed);
    } else if let Err(why) = take_over(here) {
        leave(format_args!("{why}"));
    }
}

/// True if libc's allocator is the one after this library's.
static IS_LIBCS: AtomicBool = AtomicBool::new(false);

/// Redirects libc's own functions to the hooks, before an object is loaded whose calls bypass this library.
pub fn before_deep_binding() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_LIBCS.load(Relaxed) || IS_DONE.swap(true, Relaxed) {
        return;
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let next = malloc::next_malloc();
    symbols::for_each(&mut |object| {
        if !object.contains(next) {
            return true;
        }
        for function in object.defined() {
            let ours = match function.name.to_bytes() {
                b"free" | b"cfree" => malloc::free as *const (),
                b"realloc" => malloc::realloc as *const (),
                b"reallocarray" => malloc::reallocarray as *const (),
                b"malloc_usable_size" => malloc::malloc_usable_size as *const (),
                b"free_sized" => free_sized as *const (),
                b"free_aligned_sized" => free_aligned_sized as *const (),
                b"__libc_free" => __libc_free as *const (),
                b"__libc_realloc" => __libc_realloc as *const (),
                _ => continue,
            };
            // SAFETY: `ours` has the contract of libc's function, and the addresses that it calls are known.
            if unsafe { object.redefine(function, ours as usize) }.is_err() {
                leave(format_args!("{} of libc cannot be replaced", function.name.to_string_lossy()));
            }
        }
        false
    });
}

/// Handles functions of the family that a library, or the program, defines ahead of this library.
#[cold]
fn stay_behind(here: usize, found: &[usize; FAMILY.len()]) {
    let mut why = String::new();
    symbols::for_each(&mut |object| {
        for (name, address) in FAMILY.into_iter().zip(found) {
            if object.contains(*address) && !object.contains(here) {
                first::found(name, *address);
                if why.is_empty() {
                    why = format!("{} has its own {}", file_name(object), name.to_string_lossy());
                }
            }
        }
        true
    });
    leave(format_args!("{why}"));
}

/// True if the object is glibc or its loader, whose functions beyond C and POSIX are known.
fn is_libc(object: &Object<'_>) -> bool {
    [c"gnu_get_libc_version", c"__tls_get_addr"].iter().any(|name| object.definition(name).is_some())
}

struct Index(Vec<&'static Hook>);

impl Index {
    fn new() -> Self {
        let mut hooks: Vec<&Hook> = HOOKS.iter().collect();
        hooks.sort_unstable_by_key(|hook| hook.name);
        Self(hooks)
    }

    fn find(&self, name: &CStr) -> Option<usize> {
        self.0.binary_search_by(|hook| hook.name.as_bytes().cmp(name.to_bytes())).ok()
    }
}

/// Replaces the known functions in every object that defines a `malloc`.
fn take_over(here: usize) -> Result<(), String> {
    let index = Index::new();
    // Functions defined ahead of the first allocator, which callers find, and which call malloc and free.
    let mut has_other = vec![false; HOOKS.len()];
    let mut is_behind = false;
    let mut unknown: Vec<(String, Vec<Vec<u8>>)> = Vec::new();
    let mut result = Ok(());
    let mut refuse = |why: String| result = core::mem::replace(&mut result, Ok(())).and(Err(why));
    symbols::for_each(&mut |object| {
        if object.contains(here) || is_libc(object) {
            return true;
        }
        let functions: Vec<Function<'_>> = object.defined().collect();
        if !functions.iter().any(|function| function.name == c"malloc") {
            let others =
                functions.iter().filter(|_| !is_behind).filter_map(|function| index.find(function.name));
            others.for_each(|at| has_other[at] = true);
            return true;
        }
        is_behind = true;
        let is_known = functions.iter().any(|function| family(function.name.to_bytes()).is_some());
        let mut others = Vec::new();
        for function in functions {
            match treatment(function.name.to_bytes()) {
                Treatment::Interposed => {
                    if let Some(at) = index.find(function.name).filter(|at| !has_other[*at])
                        && let Err(why) = interpose(object, function, index.0[at])
                    {
                        refuse(why);
                    }
                }
                Treatment::Harmless if matches!(function.name.to_bytes(), b"mallocx" | b"je_mallocx") => {
                    _ = MALLOCX.0.compare_exchange(0, function.address.unwrap_or(0), Relaxed, Relaxed);
                }
                Treatment::Harmless => {}
                Treatment::Unknown if is_known => others.push(function.name.to_bytes().to_vec()),
                Treatment::Unknown => {
                    refuse(format!("{} has {}", file_name(object), function.name.to_string_lossy()));
                }
            }
        }
        others.sort_unstable();
        unknown.push((file_name(object), others));
        true
    });
    symbols::for_each(&mut |object| {
        let name = file_name(object);
        let others = unknown.iter().filter(|(library, _)| *library != name);
        for (library, names) in others {
            let called = object
                .imported()
                .find(|name| names.binary_search_by(|other| other[..].cmp(name.to_bytes())).is_ok());
            if let Some(called) = called {
                refuse(format!("{name} calls {} of {library}", called.to_string_lossy()));
            }
        }
        if object.contains(here) {
            return true;
        }
        // SAFETY: the replacements have the contracts of the functions whose addresses they replace.
        let bound = unsafe {
            object.rebind(&mut |called, kept| {
                let hook = index.0[index.find(called)?];
                let real = hook.real.0.load(Relaxed);
                // Lazily bound: the object's slot holds the address of its own stub until the first call.
                let is_it = real != 0 && (kept == real || object.contains(kept));
                // The allocator's calls of its own functions are not redirected.
                is_it.then_some(if object.contains(real) { real } else { hook.address as usize })
            })
        };
        if bound.is_err() {
            refuse(format!("the functions that {name} calls cannot be replaced"));
        }
        true
    });
    result
}

fn interpose(object: &Object<'_>, function: Function<'_>, hook: &Hook) -> Result<(), String> {
    let refused =
        || format!("{} of {} cannot be replaced", function.name.to_string_lossy(), file_name(object));
    let address = function.address.ok_or_else(refused)?;
    // Callers find the definition of the first object only.
    if hook.real.0.compare_exchange(0, address, Relaxed, Relaxed).is_err() {
        return Ok(());
    }
    // SAFETY: `function` is defined by that object; the replacement has its contract.
    unsafe { object.redefine(function, hook.address as usize) }.map_err(|_| refused())
}

// Functions from here on are in the C standard or glibc's own, so any program may find them.

type Pointer = *mut c_void;

/// Frees a pointer as the program's `free` does.
unsafe fn free_plainly(pointer: Pointer) {
    // SAFETY: the program passed the pointer to be freed; its own `free`, or this library's, accepts it.
    unsafe {
        match first::free() {
            Some(free) => free(pointer),
            None => malloc::free_any(pointer),
        }
    }
}

/// Hooks free_sized (C23; glibc 2.43 and others). If libc has none, acts as `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(pointer: Pointer, len: usize) {
    // SAFETY: the program passed the pointer to be freed, with the size that it was allocated with.
    unsafe {
        match FREE_SIZED.get() {
            Some(real) if malloc::own_room(pointer).is_none() => real(pointer, len),
            _ => free_plainly(pointer),
        }
    }
}

/// Hooks free_aligned_sized as [`free_sized`] is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(pointer: Pointer, alignment: usize, len: usize) {
    // SAFETY: the program passed the pointer to be freed, with the alignment and size that it was allocated with.
    unsafe {
        match FREE_ALIGNED_SIZED.get() {
            Some(real) if malloc::own_room(pointer).is_none() => real(pointer, alignment, len),
            _ => free_plainly(pointer),
        }
    }
}

/// Hooks `__libc_free`, which wrappers of `malloc` call. While glibc's is being looked up by this thread, leaks
/// what dlsym frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_free(pointer: Pointer) {
    // SAFETY: the program passed the pointer to be freed.
    unsafe {
        if malloc::own_room(pointer).is_some() {
            malloc::free_any(pointer);
        } else if let Some(real) = LIBC_FREE.find() {
            real(pointer);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_realloc(pointer: Pointer, len: usize) -> Pointer {
    // SAFETY: the program passed the pointer to be freed.
    unsafe {
        if malloc::own_room(pointer).is_some() {
            return malloc::resize_any(pointer, len, __libc_realloc as *const () as usize);
        }
        LIBC_REALLOC.call()(pointer, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_that_is_taken_over_has_its_hook() {
        let names: Vec<&str> = HOOKS.iter().map(|hook| hook.name).collect();
        assert_eq!(names, uncopy_core::allocators::INTERPOSED);
    }
}
