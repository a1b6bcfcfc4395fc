//! Programs in C, for what only a compiled and linked program shows: other allocators, libraries with
//! constructors, kernel interfaces by their own libraries. They are compiled when a test needs them.

use std::path::{Path, PathBuf};

use crate::artifacts::packaged;
use crate::{Program, Scratch};

/// Where the libraries of Debian packages are.
pub const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Compiles `programs/NAME.c` with these arguments behind it (definitions, libraries) into `scratch`.
///
/// # Panics
/// When the compiler finds fault with it.
#[must_use]
pub fn compiled(scratch: &Scratch, name: &str, arguments: &[&str]) -> PathBuf {
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
