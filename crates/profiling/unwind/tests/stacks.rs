//! Captured stacks equal those of libgcc's unwinder, for all kinds of frames.

mod reference;

use reference::{Compiled, compare, comparisons};
use std::ffi::CStr;
use uncopy_unwind::{MAX_FRAMES, init};

#[inline(never)]
fn deep(levels: usize) -> usize {
    if levels == 0 { compare() } else { std::hint::black_box(deep(levels - 1)) }
}

#[test]
fn rust() {
    init();
    for levels in 0..100 {
        let first = deep(levels);
        assert!(first >= levels.min(MAX_FRAMES));
        assert_eq!(deep(levels), first);
    }
}

/// Compiler options that produce frames of different shapes.
const FLAGS: &[&[&str]] = &[
    &["-O2", "-fomit-frame-pointer"],
    &["-O0"],
    &["-O1", "-fno-omit-frame-pointer"],
    &["-Os"],
    &["-O3", "-march=x86-64-v3"],
    &["-O2", "-fstack-protector-all", "-fcf-protection=full", "-fstack-clash-protection"],
];

fn in_each(compiler: &str, package: &str, source: &str, functions: &[&CStr]) {
    init();
    for flags in FLAGS {
        let Some(path) = Compiled::path(compiler, source, flags) else {
            eprintln!("skipped: {source}: {compiler} is not there (package {package})");
            return;
        };
        let compiled = Compiled::load(&path);
        std::fs::remove_file(path.to_str().expect("made of letters")).expect("ours");
        for function in functions {
            let before = comparisons();
            compiled.call(function);
            // Once more, now from cached rules.
            compiled.call(function);
            assert!(comparisons() > before + 1, "{function:?} {flags:?}");
        }
    }
}

#[test]
fn c() {
    in_each(
        "/usr/bin/cc",
        "gcc",
        "frames.c",
        &[
            c"shapes",
            c"noreturn",
            c"sorted",
            c"signalled",
            c"signalled_elsewhere",
            c"interrupted",
            c"switched",
        ],
    );
}

#[test]
fn cplusplus() {
    in_each("/usr/bin/g++", "g++", "frames.cc", &[c"thrown", c"called"]);
}
