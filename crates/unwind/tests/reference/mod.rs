//! The unwinder of libgcc, and libraries that call back.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_unwind::{FRAMES, Registers, capture};

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> i32, data: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// More than our frames and the two that are not compared.
const MAX: usize = FRAMES + 8;

struct Found {
    count: usize,
    frames: [usize; MAX],
}

extern "C" fn note(context: *mut c_void, data: *mut c_void) -> i32 {
    // SAFETY: libgcc passes its context, and the data that it was given.
    let (found, ip) = unsafe { (&mut *data.cast::<Found>(), _Unwind_GetIP(context)) };
    if let Some(frame) = found.frames.get_mut(found.count) {
        *frame = ip;
        found.count += 1;
    }
    0
}

thread_local! {
    static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

/// Stacks that this thread has compared.
#[allow(dead_code, reason = "not every test does")]
pub fn comparisons() -> usize {
    COMPARISONS.get()
}

/// Compares the stack of the caller's caller, and returns how many frames it has. Nothing is allocated: signal handlers
/// may call it.
#[inline(never)]
pub fn compare() -> usize {
    let mut frames = [0; FRAMES];
    let count = capture(Registers::here(), &mut frames);
    let mut found = Found { count: 0, frames: [0; MAX] };
    // SAFETY: the callback gets the room, which outlives the call.
    unsafe { _Unwind_Backtrace(note, (&raw mut found).cast()) };
    // This function itself is the first of them; the last may be one that nothing has called.
    let expected = &found.frames[1..found.count];
    let end = expected.iter().position(|ip| *ip == 0).unwrap_or(expected.len()).min(FRAMES);
    assert_eq!(frames[..count], expected[..end], "{:x?}, but {:x?}", &frames[..count], &expected[..end]);
    COMPARISONS.set(comparisons() + 1);
    count
}

extern "C" fn probe() {
    std::hint::black_box(compare());
}

/// A library made from one of the sources beside this file.
pub struct Compiled(*mut c_void);

impl Compiled {
    /// Compiles, and returns the library's path; `None` if there is no such compiler.
    pub fn path(compiler: &str, source: &str, flags: &[&str]) -> Option<CString> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let path = format!("{}/frames-{}-{number}.so", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let source = format!("{}/tests/{source}", env!("CARGO_MANIFEST_DIR"));
        if !std::path::Path::new(compiler).exists() {
            return None;
        }
        let status = Command::new(compiler)
            .args(flags)
            .args(["-fPIC", "-shared", "-g0", "-o", &path, &source])
            .status()
            .expect("the compiler starts");
        assert!(status.success(), "{source} {flags:?}");
        Some(CString::new(path).expect("no zero"))
    }

    /// Loads what was compiled.
    pub fn load(path: &CStr) -> Self {
        // SAFETY: a library without constructors of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        Self(handle)
    }

    /// Unloads it.
    #[allow(dead_code, reason = "not every test does")]
    pub fn unload(self) {
        // SAFETY: nothing of it is in use.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }

    /// Calls a function that takes the probe.
    pub fn call(&self, name: &CStr) {
        // SAFETY: the library's functions are of this type.
        unsafe {
            let function = libc::dlsym(self.0, name.as_ptr());
            assert!(!function.is_null(), "{name:?}");
            std::mem::transmute::<*mut c_void, extern "C-unwind" fn(extern "C" fn())>(function)(probe);
        }
    }
}
