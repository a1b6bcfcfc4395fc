//! The built command, for tests that drive it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// In `UNCOPY_BIN_DIR`, or where `make build` puts it.
pub fn uncopy() -> PathBuf {
    let directory = std::env::var_os("UNCOPY_BIN_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release"),
        |directory| PathBuf::from(&directory),
    );
    let path = directory.join("uncopy");
    match path.canonicalize() {
        Ok(path) => path,
        Err(error) => panic!("{}: {error}; build it with: make build", path.display()),
    }
}

/// Runs what is appended for so many seconds at most, without what the test's own environment says to uncopy.
pub fn limited(seconds: u32) -> Command {
    // By its path: a test may give the command another PATH.
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["--kill-after=5".to_owned(), seconds.to_string()]);
    for variable in ["LD_PRELOAD", "UNCOPY_BENCH_EXE", "UNCOPY_BIN_DIR"] {
        command.env_remove(variable);
    }
    command
}
