//! Stacks are captured while objects are loaded and unloaded, and while processes fork.

mod reference;

use reference::{Compiled, compare};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use uncopy_unwind::{MAX_FRAMES, Registers, capture, init, invalidate_cache, module_at};

const ROUNDS: usize = 200;

/// Runs `section` in this thread while another thread loads, calls and unloads a library.
fn while_loading(section: impl Fn()) {
    let Some(path) = Compiled::path("/usr/bin/cc", "frames.c", &["-O2"]) else {
        eprintln!("skipped: /usr/bin/cc is not there (package gcc)");
        return;
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let library = Compiled::load(&path);
                library.call(c"shapes");
                library.call(c"sorted");
                library.unload();
                invalidate_cache();
            }
            is_done.store(true, Relaxed);
        });
        while !is_done.load(Relaxed) {
            section();
        }
    });
    std::fs::remove_file(path.to_str().expect("made of letters")).expect("ours");
}

#[test]
fn stacks_are_right_while_objects_come_and_go() {
    init();
    while_loading(|| {
        invalidate_cache();
        compare();
    });
}

static CAPTURED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn capture_and_count(_signal: i32) {
    let mut frames = [0; MAX_FRAMES];
    if capture(Registers::here(), &mut frames) > 0 && module_at(frames[0], &mut [0; 64]).is_some() {
        CAPTURED.fetch_add(1, Relaxed);
    }
}

/// The loader's locks may be held by the interrupted thread, or by a thread that does not exist in the child.
#[test]
fn neither_a_handler_inside_the_loader_nor_a_forked_child_waits() {
    init();
    while_loading(|| {
        // SAFETY: the handler only uses atomics and this crate's async-signal-safe functions; the child calls
        // only those, alarm(2) and _exit(2). `status` outlives waitpid(2).
        unsafe {
            libc::signal(libc::SIGUSR1, capture_and_count as *const () as usize);
            libc::kill(libc::getpid(), libc::SIGUSR1);
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                libc::alarm(20);
                invalidate_cache();
                capture_and_count(0);
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0, "the child was ended");
        }
    });
    assert!(CAPTURED.load(Relaxed) > 0);
}
