//! Reference unwinder (libgcc), and compiled libraries that call back.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_unwind::{MAX_FRAMES, Registers, capture};

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> i32, data: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// Maximum frames of the reference: ours, the two that are not compared, and some spare.
const MAX: usize = MAX_FRAMES + 8;

struct Found {
    count: usize,
    frames: [usize; MAX],
}

extern "C" fn push_frame(context: *mut c_void, data: *mut c_void) -> i32 {
    // SAFETY: libgcc passes its own valid context, and the `data` given to `_Unwind_Backtrace`, which
    // `compare` points to a live `Found`.
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

#[allow(dead_code, reason = "not every test does")]
pub fn comparisons() -> usize {
    COMPARISONS.get()
}

/// Compares the caller's stack with the reference, and returns its number of frames. Does not allocate, so
/// signal handlers may call this.
#[inline(never)]
pub fn compare() -> usize {
    let mut frames = [0; MAX_FRAMES];
    let count = capture(Registers::here(), &mut frames);
    let mut found = Found { count: 0, frames: [0; MAX] };
    // SAFETY: `push_frame` has the callback's signature and takes `data` as a `Found`; `found` outlives the call.
    unsafe { _Unwind_Backtrace(push_frame, (&raw mut found).cast()) };
    // The first frame is this function's own; the last may be 0, for a function without a caller.
    let expected = &found.frames[1..found.count];
    let end = expected.iter().position(|ip| *ip == 0).unwrap_or(expected.len()).min(MAX_FRAMES);
    assert_eq!(frames[..count], expected[..end], "{:x?}, but {:x?}", &frames[..count], &expected[..end]);
    COMPARISONS.set(comparisons() + 1);
    count
}

extern "C" fn probe() {
    std::hint::black_box(compare());
}

/// A shared library compiled from a source file in this directory.
pub struct Compiled(*mut c_void);

impl Compiled {
    /// Compiles `source` and returns the library's path; `None` if the compiler is not installed.
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

    pub fn load(path: &CStr) -> Self {
        // SAFETY: `path` is NUL-terminated, and the library has no constructors of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        Self(handle)
    }

    #[allow(dead_code, reason = "not every test does")]
    pub fn unload(self) {
        // SAFETY: the handle comes from dlopen(3) and is consumed here; no function of the library is
        // running.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }

    /// Calls the library's function `name` with the probe.
    pub fn call(&self, name: &CStr) {
        // SAFETY: `name` is NUL-terminated, the handle is open while `self` exists, and all exported
        // functions of frames.c and frames.cc that tests call take one callback and return nothing.
        unsafe {
            let function = libc::dlsym(self.0, name.as_ptr());
            assert!(!function.is_null(), "{name:?}");
            std::mem::transmute::<*mut c_void, extern "C-unwind" fn(extern "C" fn())>(function)(probe);
        }
    }
}
