//! Whether a stack is still the one that was taken is told without walking, and told right.

use uncopy_unwind::{FRAMES, Registers, Trace, capture, capture_traced};

/// A stack from one place, with its trace.
struct Taken {
    start: Registers,
    frames: Vec<usize>,
    trace: Trace,
}

#[inline(never)]
fn take(depth: usize) -> Taken {
    if depth > 0 {
        let taken = take(depth - 1);
        return std::hint::black_box(taken);
    }
    let start = Registers::here();
    let mut frames = [0; FRAMES];
    let mut trace = Trace::NONE;
    let count = capture_traced(start, &mut frames, &mut trace);
    assert!(trace.holds(start), "nothing has changed {trace:?}");
    let mut again = [0; FRAMES];
    assert_eq!(capture(start, &mut again), count);
    assert_eq!(frames[..count], again[..count]);
    Taken { start, frames: frames[..count].to_vec(), trace }
}

#[inline(never)]
fn through_another(depth: usize) -> Taken {
    std::hint::black_box(take(depth))
}

#[test]
fn a_trace_holds_for_the_same_stack_and_for_no_other() {
    uncopy_unwind::begin();
    std::thread::spawn(|| {
        let first = take(3);
        let other = through_another(3);
        assert_ne!(first.frames, other.frames);
        assert!(!first.trace.holds(other.start) && !other.trace.holds(first.start), "other stacks");
        let deeper = take(5);
        assert!(!first.trace.holds(deeper.start));
        uncopy_unwind::forget();
        assert!(!deeper.trace.holds(deeper.start), "what was known is forgotten");
        assert!(!Trace::NONE.holds(first.start));
        std::thread::spawn(move || assert!(!first.trace.holds(first.start), "another thread's"))
            .join()
            .expect("ends");
    })
    .join()
    .expect("the thread ends");
}
