//! Programs of this project that are started like packaged ones.

use std::path::PathBuf;

use uncopy_testbed::package::on_path;

use crate::kit::{Failure, Launcher, Result};

/// Returns the path of the program `name`: beside `uncopy`, or on `PATH`.
///
/// # Errors
/// [`Failure`] with the places searched.
pub fn find(launcher: &Launcher, name: &str) -> Result<PathBuf> {
    let beside = launcher.sibling_program(name);
    if beside.is_file() {
        return Ok(beside);
    }
    on_path(&std::env::var_os("PATH").unwrap_or_default(), name).ok_or_else(|| {
        let beside = beside.display();
        Failure::new(format!("found neither {beside} nor {name} on PATH; build it with: make bench"))
    })
}
