//! io_uring and Linux asynchronous I/O, through their own libraries, on buffers that hold views.

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::packaged;
use uncopy_tests::programs::compile;
use uncopy_tests::{Mode, Program, Scratch};

const WORKED: &[Counter] = &[Counter::ElidedBytes, Counter::InputBytes, Counter::Faults];

fn compare_with_plain(name: &str, library: &str, arguments: &[&str]) {
    let scratch = Scratch::new(name);
    let program = compile(&scratch, name, &[library]);
    let program = Program::new(program).args(arguments).directory(scratch.path());
    let plain = program.clone().run(&scratch, "plain").expect_success();
    for mode in Mode::FOR_SCENARIOS {
        let done = program.clone().mode(mode).run(&scratch, "preloaded").expect_success();
        assert!(done.output == plain.output, "mode {mode:?} printed\n{}", done.text());
        if done.output.ends_with(b"done\n") {
            let _ = done.expect_counters(WORKED);
        } else {
            let why = String::from_utf8_lossy(&done.output);
            eprintln!("skipped: asynchronous::{name}: {}", why.trim_end());
        }
    }
}

fn io_uring(part: &str) {
    let _ = packaged("/usr/include/liburing.h", "liburing-dev");
    compare_with_plain("uring", "-luring", &[part]);
}

#[test]
fn io_uring_on_files() {
    io_uring("files");
}

#[test]
fn io_uring_on_sockets() {
    io_uring("sockets");
}

/// The kernel keeps using the pages that a buffer had when it was registered.
#[test]
fn io_uring_with_registered_buffers() {
    io_uring("registered");
}

#[test]
fn linux_aio_and_direct_io() {
    let _ = packaged("/usr/include/libaio.h", "libaio-dev");
    compare_with_plain("aio", "-laio", &[]);
}
