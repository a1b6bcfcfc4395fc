//! Where the built library, the packaged programs and the scripts are. Something that is missing
//! fails the test with the command that mends it; nothing is skipped silently.

use std::path::{Path, PathBuf};

/// Whether `UNCOPY_TEST_PLAIN` asks to start every program without uncopy.
#[must_use]
pub fn plain_only() -> bool {
    std::env::var_os("UNCOPY_TEST_PLAIN").is_some_and(|value| value == "1")
}

/// Directory that holds `libuncopy.so` and `uncopy`.
#[must_use]
pub fn bin_dir() -> PathBuf {
    std::env::var_os("UNCOPY_BIN_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release"),
        |directory| PathBuf::from(&directory),
    )
}

/// Path of `libuncopy.so`.
///
/// # Panics
/// When it was not built; the message says how to build it.
#[must_use]
pub fn library() -> PathBuf {
    let path = bin_dir().join("libuncopy.so");
    match path.canonicalize() {
        Ok(path) => path,
        Err(error) => panic!("{}: {error}; build it with: make build", path.display()),
    }
}

/// Path of a packaged program.
///
/// # Panics
/// When it is not installed; the message names the package that holds it.
#[must_use]
pub fn packaged(path: &str, package: &str) -> PathBuf {
    let path = PathBuf::from(path);
    assert!(path.exists(), "{} is missing; install it with: apt-get install {package}", path.display());
    path
}

/// Path of one of the scripts in `crates/tests/scripts`.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name)
}
