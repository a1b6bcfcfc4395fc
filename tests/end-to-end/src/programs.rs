//! Test programs in C, for cases that need a compiled and linked program: other allocators, libraries with
//! constructors, kernel interfaces through their own libraries. Each is compiled when a test needs it.

use std::path::{Path, PathBuf};

use crate::artifacts::packaged;
use crate::{Program, Scratch};

/// Directory of the libraries of Debian packages.
pub const LIBRARY_DIR: &str = "/usr/lib/x86_64-linux-gnu";

/// Compiles `programs/NAME.c` into `scratch`, with these arguments behind the file (definitions, libraries).
///
/// # Panics
/// When the compiler reports an error.
#[must_use]
pub fn compile(scratch: &Scratch, name: &str, arguments: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let output = scratch.join(name);
    let common = ["-O1", "-g", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
    let _ = packaged("/usr/include/stdio.h", "libc6-dev");
    let _ = Program::new(packaged("/usr/bin/cc", "gcc"))
        .args(common)
        .args([&output, &directory.join(format!("{name}.c"))])
        .args(arguments)
        .run(scratch, &format!("compile-{name}"))
        .expect_success();
    output
}
