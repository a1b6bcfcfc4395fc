//! Objects that come and go, and processes that are forked, while stacks are taken.

mod reference;

use reference::{Compiled, compare};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use uncopy_unwind::{FRAMES, Registers, begin, capture, forget, module_at};

/// Rounds of loading and unloading.
const ROUNDS: usize = 200;

/// Loads, calls and unloads a library, again and again, while `section` runs in this thread.
fn while_loading(section: impl Fn()) {
    let Some(path) = Compiled::path("/usr/bin/cc", "frames.c", &["-O2"]) else {
        eprintln!("skipped: /usr/bin/cc is not there (package gcc)");
        return;
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let library = Compiled::load(&path);
                library.call(c"shapes");
                library.call(c"sorted");
                library.unload();
                forget();
            }
            is_over.store(true, Relaxed);
        });
        while !is_over.load(Relaxed) {
            section();
        }
    });
    std::fs::remove_file(path.to_str().expect("made of letters")).expect("ours");
}

#[test]
fn stacks_are_right_while_objects_come_and_go() {
    begin();
    while_loading(|| {
        forget();
        compare();
    });
}

static TAKEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn take(_signal: i32) {
    let mut frames = [0; FRAMES];
    if capture(Registers::here(), &mut frames) > 0 && module_at(frames[0], &mut [0; 64]).is_some() {
        TAKEN.fetch_add(1, Relaxed);
    }
}

/// The loader's locks are held by the thread that is interrupted, or by one that does not exist in the child.
#[test]
fn neither_a_handler_inside_the_loader_nor_a_forked_child_waits() {
    begin();
    while_loading(|| {
        // SAFETY: a handler that touches nothing but atomics; a child that does so, too, and ends.
        unsafe {
            libc::signal(libc::SIGUSR1, take as *const () as usize);
            libc::kill(libc::getpid(), libc::SIGUSR1);
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                libc::alarm(20);
                forget();
                take(0);
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0, "the child was ended");
        }
    });
    assert!(TAKEN.load(Relaxed) > 0);
}
