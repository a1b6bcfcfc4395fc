//! The built program under test, and directories for its temporary files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use uncopy_testbed::TemporaryDirectory;

/// Returns the path of `uncopy-bench` in `UNCOPY_BIN_DIR`, or in the directory of `make bench`.
pub fn program() -> PathBuf {
    let directory = std::env::var_os("UNCOPY_BIN_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release"),
        |directory| PathBuf::from(&directory),
    );
    let path = directory.join("uncopy-bench");
    match path.canonicalize() {
        Ok(path) => path,
        Err(error) => panic!("{}: {error}; build it with: make bench", path.display()),
    }
}

/// Returns a command that runs the appended words for at most `seconds`, without this test's settings of uncopy.
pub fn limited(seconds: u32) -> Command {
    // An absolute path, because a test may give the command another PATH.
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["--kill-after=5".to_owned(), seconds.to_string()]);
    for variable in ["LD_PRELOAD", "UNCOPY_BENCH_EXE", "UNCOPY_BIN_DIR"] {
        command.env_remove(variable);
    }
    command
}

/// Returns the build's directory for temporary files.
pub fn build_tmp() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Creates a test's temporary directory in `parent`, which other users can enter, because some servers refuse root.
pub fn scratch_in(parent: &Path) -> TemporaryDirectory {
    let scratch = TemporaryDirectory::make_in(parent).expect("a directory");
    let permissions = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(scratch.path(), permissions).expect("permissions");
    scratch
}

/// Runs `command` with `directory` for its temporary files, which must be empty at the end.
pub fn run(command: &mut Command, directory: &TemporaryDirectory) -> Output {
    let output = command.env("TMPDIR", directory.path()).output().expect("timeout runs");
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    expect_empty(directory);
    output
}

/// Panics if a command has left files behind.
pub fn expect_empty(directory: &TemporaryDirectory) {
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("the directory").flatten().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
