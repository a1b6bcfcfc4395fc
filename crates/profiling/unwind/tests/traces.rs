//! Traces tell without unwinding whether a stack is unchanged.

use uncopy_unwind::{MAX_FRAMES, Registers, Trace, capture, capture_traced};

struct Captured {
    start: Registers,
    frames: Vec<usize>,
    trace: Trace,
}

#[inline(never)]
fn capture_at_depth(depth: usize) -> Captured {
    if depth > 0 {
        let captured = capture_at_depth(depth - 1);
        return std::hint::black_box(captured);
    }
    let start = Registers::here();
    let mut frames = [0; MAX_FRAMES];
    let mut trace = Trace::NONE;
    let count = capture_traced(start, &mut frames, &mut trace);
    assert!(trace.matches(start), "nothing has changed {trace:?}");
    let mut again = [0; MAX_FRAMES];
    assert_eq!(capture(start, &mut again), count);
    assert_eq!(frames[..count], again[..count]);
    Captured { start, frames: frames[..count].to_vec(), trace }
}

#[inline(never)]
fn through_another(depth: usize) -> Captured {
    std::hint::black_box(capture_at_depth(depth))
}

#[test]
fn a_trace_holds_for_the_same_stack_and_for_no_other() {
    uncopy_unwind::init();
    std::thread::spawn(|| {
        let first = capture_at_depth(3);
        let other = through_another(3);
        assert_ne!(first.frames, other.frames);
        assert!(!first.trace.matches(other.start) && !other.trace.matches(first.start), "other stacks");
        let deeper = capture_at_depth(5);
        assert!(!first.trace.matches(deeper.start));
        uncopy_unwind::invalidate_cache();
        assert!(!deeper.trace.matches(deeper.start), "what was known is forgotten");
        assert!(!Trace::NONE.matches(first.start));
        std::thread::spawn(move || assert!(!first.trace.matches(first.start), "another thread's"))
            .join()
            .expect("ends");
    })
    .join()
    .expect("the thread ends");
}
