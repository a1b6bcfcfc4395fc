//! Programs with another allocator: behind uncopy in library order (linked or preloaded), in front
//! of it, or defined in the program. Bytes are right in each case. Behind uncopy, large buffers
//! come from uncopy's heap and are elided too.

use std::path::PathBuf;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::packaged;
use uncopy_tests::programs::compile;
use uncopy_tests::{Mode, Program, Scratch};

fn jemalloc() -> PathBuf {
    packaged("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2")
}

fn tcmalloc() -> PathBuf {
    packaged("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")
}

fn mimalloc() -> PathBuf {
    packaged("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "libmimalloc2.0")
}

/// Runs a program plain and in both modes, and expects the same output.
fn compare_with_plain(program: &Program, scratch: &Scratch, expected: &[Counter]) {
    let plain = program.clone().run(scratch, "plain").expect_success();
    assert!(plain.text().contains("done"), "it says that it is done");
    for mode in Mode::FOR_APPLICATIONS {
        let done = program.clone().mode(mode).run(scratch, "preloaded").expect_success();
        let counted = if mode == Mode::Always { expected } else { &[] };
        let done = done.expect_counters(counted);
        assert!(done.output == plain.output, "mode {mode:?} printed\n{}", done.text());
    }
}

/// Counters for buffers that share pages: their ranges are joined and their views materialized.
/// Whether a view is left when a buffer is sent depends on how the input was cut into pieces.
const SHARED_PAGES: &[Counter] = &[Counter::ElidedBytes, Counter::InputBytes];

/// Checks a program linked with the library.
fn check_linked(library: PathBuf) {
    let scratch = Scratch::new("linked");
    let path = library.to_str().expect("UTF-8");
    // With --no-as-needed the linker keeps the library, though it defines nothing that libc lacks.
    let program = compile(&scratch, "allocator", &["-Wl,--no-as-needed", path]);
    compare_with_plain(&Program::new(program).directory(scratch.path()), &scratch, SHARED_PAGES);
}

/// Runs blocks that grow and shrink, `calloc` after received data, and a walk, with the library preloaded.
fn check_preloaded(library: &PathBuf, is_before: bool) {
    let scratch = Scratch::new("preloaded");
    let steps = uncopy_tests::random::rounds(600).to_string();
    let file = scratch.join("file");
    let file = file.to_str().expect("UTF-8");
    let (memory, walk) = (env!("CARGO_BIN_EXE_memory"), env!("CARGO_BIN_EXE_walk"));
    let runs: [(&str, &[&str]); 3] = [
        (memory, &["calloc_after_received_data", "3"]),
        (memory, &["realloc_walk", "3"]),
        (walk, &["31", &steps, file]),
    ];
    for (path, arguments) in runs {
        let program = Program::new(path).args(arguments).mode(Mode::Always);
        let program =
            if is_before { program.preload_before(library) } else { program.preload_after(library) };
        let done = program.run(&scratch, "preloaded").expect_success();
        let _ = done.expect_counters(&[Counter::ElidedBytes, Counter::InputBytes]);
    }
}

#[test]
fn linked_with_jemalloc() {
    check_linked(jemalloc());
}

#[test]
fn linked_with_tcmalloc() {
    check_linked(tcmalloc());
}

#[test]
fn linked_with_mimalloc() {
    check_linked(mimalloc());
}

#[test]
fn jemalloc_preloaded_after_uncopy() {
    check_preloaded(&jemalloc(), false);
}

#[test]
fn tcmalloc_preloaded_after_uncopy() {
    check_preloaded(&tcmalloc(), false);
}

#[test]
fn mimalloc_preloaded_after_uncopy() {
    check_preloaded(&mimalloc(), false);
}

/// Every buffer is then memory that the other allocator mapped itself.
#[test]
fn allocators_preloaded_before_uncopy() {
    for library in [jemalloc(), tcmalloc(), mimalloc()] {
        check_preloaded(&library, true);
    }
}

/// A program that defines malloc: its buffers, static or mapped by itself, hold views.
#[test]
fn allocator_in_the_program_itself() {
    let scratch = Scratch::new("own");
    let program = compile(&scratch, "allocator", &["-DOWN_ALLOCATOR"]);
    compare_with_plain(&Program::new(program).directory(scratch.path()), &scratch, SHARED_PAGES);
}

/// Runs a program that passes pointers from malloc to its allocator's own functions, and looks up
/// which of these exist.
fn check_families(definition: &str, libraries: &[&str]) {
    let scratch = Scratch::new("families");
    let arguments: Vec<&str> = ["-DOTHER", definition].iter().chain(libraries).copied().collect();
    let program = compile(&scratch, "families", &arguments);
    compare_with_plain(&Program::new(program), &scratch, &[Counter::ElidedBytes, Counter::InputBytes]);
}

#[test]
fn own_functions_of_jemalloc() {
    check_families("-DJEMALLOC", &[jemalloc().to_str().expect("UTF-8")]);
}

/// Addresses are resolved at the first call of each function, and code and data are not relocated.
#[test]
fn own_functions_of_jemalloc_bound_late() {
    check_families("-DJEMALLOC", &["-no-pie", "-Wl,-z,lazy,-z,norelro", jemalloc().to_str().expect("UTF-8")]);
}

/// The program's own operator delete, which precedes the allocator's.
#[test]
fn own_functions_of_the_program() {
    check_families("-DJEMALLOC", &["-DOWN_DELETE", jemalloc().to_str().expect("UTF-8")]);
}

#[test]
fn own_functions_of_tcmalloc() {
    check_families("-DTCMALLOC", &[tcmalloc().to_str().expect("UTF-8")]);
}

#[test]
fn own_functions_of_mimalloc() {
    let _ = packaged("/usr/include/mimalloc.h", "libmimalloc-dev");
    check_families("-DMIMALLOC", &[mimalloc().to_str().expect("UTF-8")]);
}

/// Without another allocator none of the functions exists, and glibc's further names accept our blocks.
#[test]
fn own_functions_of_no_other_allocator() {
    let scratch = Scratch::new("families");
    // In a program that is not position-independent, the address of an imported function is that of
    // the program's PLT entry.
    for flags in [[].as_slice(), &["-no-pie", "-fno-pic", "-DTAKES_ADDRESSES"]] {
        let program = compile(&scratch, "families", flags);
        compare_with_plain(&Program::new(program), &scratch, &[Counter::ElidedBytes, Counter::InputBytes]);
    }
}

/// With an allocator in front of ours, functions that only ours has (`reallocarray`, `free_sized`)
/// use the one in front.
#[test]
fn own_functions_with_an_allocator_in_front() {
    let scratch = Scratch::new("in-front");
    let program = compile(&scratch, "families", &["-DOTHER"]);
    for library in [jemalloc(), tcmalloc(), mimalloc()] {
        compare_with_plain(&Program::new(&program).preload_before(&library), &scratch, &[]);
    }
}

/// An allocator with an unknown function serves the program alone, and the counters give the reason.
#[test]
fn an_unknown_allocator_keeps_its_memory() {
    let scratch = Scratch::new("unknown");
    let odd = scratch.join("libodd.so");
    std::fs::rename(compile(&scratch, "starting", &["-shared", "-fPIC", "-DODD"]), &odd).expect("moved");
    let program =
        Program::new(compile(&scratch, "families", &["-DOTHER"])).preload_after(odd).mode(Mode::Always);
    let _ = program.run(&scratch, "preloaded").expect_success();
    let stats = std::fs::read_to_string(scratch.join("preloaded.stats")).expect("counters");
    assert!(stats.contains("memory stays with the program's allocator: libodd.so has odd_free"), "{stats}");
}
