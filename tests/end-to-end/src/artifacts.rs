//! Paths of the built library, the packaged programs and the scripts. A missing file fails the test
//! with the command that makes it; nothing is skipped silently.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use uncopy_testbed::Package;

/// Whether `UNCOPY_TEST_PLAIN` asks to start every program without uncopy.
#[must_use]
pub fn plain_only() -> bool {
    std::env::var_os("UNCOPY_TEST_PLAIN").is_some_and(|value| value == "1")
}

/// Whether tests of uncopy itself are skipped, because every program runs plain. Prints that on stderr.
#[must_use]
pub fn skipped() -> bool {
    if plain_only() {
        eprintln!("skipped: nothing runs under uncopy");
    }
    plain_only()
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
/// When the library was not built; the message says how to build it.
#[must_use]
pub fn library() -> PathBuf {
    let path = bin_dir().join("libuncopy.so");
    match path.canonicalize() {
        Ok(path) => path,
        Err(error) => panic!("{}: {error}; build it with: make build", path.display()),
    }
}

/// Path of a `libuncopy.so` whose system calls a test can make fail, built here if it is not up to date.
///
/// The build uses a target directory of its own, so that it neither waits for the build that runs
/// the tests nor replaces the ordinary library.
///
/// # Panics
/// When the build fails.
#[must_use]
pub fn injecting_library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_injecting(&["uncopy-preload"], "libuncopy.so")).clone()
}

/// Path of a log keeper whose system calls a test can make fail, built as [`injecting_library`] is.
///
/// # Panics
/// When the build fails.
#[must_use]
pub fn injecting_keeper() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_injecting(&["uncopy-store", "--example", "keep"], "examples/keep")).clone()
}

fn build_injecting(package: &[&str], file: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = root.join(target).join("inject");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(&root)
        .args(["build", "--locked", "--quiet", "--profile", "checked", "-p"])
        .args(package)
        .args(["--features", "inject", "--target-dir"])
        .arg(&target)
        .status()
        .expect("cargo");
    assert!(built.success(), "{file} for fault injection could not be built: {built}");
    target.join("checked").join(file).canonicalize().expect("what was built")
}

/// Path of a packaged server, or of another program that the testbed knows.
///
/// # Panics
/// When the program is not installed; the message names the package that holds it.
#[must_use]
pub fn installed(package: Package) -> PathBuf {
    package.path().unwrap_or_else(|failure| panic!("{failure}"))
}

/// Path of a file of a package.
///
/// # Panics
/// When the file is not installed; the message names the package that holds it.
#[must_use]
pub fn packaged(path: &str, package: &str) -> PathBuf {
    let path = PathBuf::from(path);
    assert!(path.exists(), "{} is missing; install it with: apt-get install {package}", path.display());
    path
}

/// Path of one of the scripts in `tests/end-to-end/scripts`.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name)
}
