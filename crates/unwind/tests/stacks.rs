//! Stacks as libgcc's unwinder finds them.

use std::ffi::c_void;
use uncopy_unwind::{FRAMES, Registers, begin, capture};

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> i32, data: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C" fn note(context: *mut c_void, data: *mut c_void) -> i32 {
    // SAFETY: libgcc passes its context, and the data that it was given.
    unsafe { (*data.cast::<Vec<usize>>()).push(_Unwind_GetIP(context)) };
    0
}

fn reference() -> Vec<usize> {
    let mut found = Vec::new();
    // SAFETY: the callback gets the vector, which outlives the call.
    unsafe { _Unwind_Backtrace(note, (&raw mut found).cast()) };
    found
}

#[inline(never)]
fn compare() -> usize {
    let mut frames = [0; FRAMES];
    let count = capture(Registers::here(), &mut frames);
    let found = &frames[..count];
    let mut expected = reference();
    // The functions here; the last frame of all, whose caller is nowhere.
    expected.drain(..2);
    expected.retain(|ip| *ip != 0);
    expected.truncate(FRAMES);
    assert_eq!(found, expected, "{found:x?} {expected:x?}");
    count
}

#[inline(never)]
fn deep(levels: usize) -> usize {
    if levels == 0 { compare() } else { std::hint::black_box(deep(levels - 1)) }
}

#[test]
fn rust() {
    begin();
    for levels in 0..100 {
        let first = deep(levels);
        assert!(first >= levels.min(FRAMES));
        assert_eq!(deep(levels), first);
    }
}
