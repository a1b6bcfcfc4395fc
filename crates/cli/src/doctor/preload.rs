//! Checks that `libuncopy.so` exists and that the loader accepts it.

use super::Check;
use crate::library;
use std::path::Path;
use std::process::{Command, Stdio};

/// Finds the library and has the loader load it, without running any of its code.
pub fn check() -> Check {
    const NAME: &str = "libuncopy.so";
    let path = match library::locate() {
        Ok(path) => path,
        Err(why) => return Check::missing(NAME, why).with_fix("make build"),
    };
    match loading_problem(&path) {
        None => Check::ok(NAME, path.display().to_string()),
        Some(problem) => {
            Check::missing(NAME, format!("{}: {problem}", path.display())).with_fix("make build")
        }
    }
}

/// Returns the loader's complaint about the library, if any.
///
/// The loader only lists what it would load and resolves every symbol, as for `ldd -r` (ld.so(8)).
/// Neither this command nor the library runs.
fn loading_problem(library: &Path) -> Option<String> {
    let listing = Command::new("/proc/self/exe")
        .arg("--version")
        .env("LD_PRELOAD", library)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env("LD_WARN", "1")
        .env("LD_BIND_NOW", "1")
        .stdin(Stdio::null())
        .output();
    let listing = match listing {
        Ok(listing) => listing,
        Err(error) => return Some(format!("the loader cannot be started: {error}")),
    };
    let complaint = String::from_utf8_lossy(&listing.stderr);
    if let Some(line) = complaint.lines().find(|line| !line.trim().is_empty()) {
        return Some(line.trim().to_string());
    }
    let listed = String::from_utf8_lossy(&listing.stdout);
    let undefined = listed.lines().find(|line| line.trim_start().starts_with("undefined symbol"));
    let is_listed = listed.lines().any(|line| line.contains(&*library.to_string_lossy()));
    match undefined {
        Some(line) => Some(line.trim().to_string()),
        None if !is_listed => Some("the loader ignores it".to_string()),
        None => None,
    }
}
