//! The built command, for tests that drive it.

use std::path::{Path, PathBuf};

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
