//! Programs of this project that are started like packaged ones.

use std::path::PathBuf;

use uncopy_testbed::package::on_path;

use crate::kit::{Failure, Launcher, Result};

/// Returns the path of the program `name`: beside `uncopy`, or on `PATH`.
///
/// # Errors
/// [`Failure`] with the places searched.
pub fn find(launcher: &Launcher, name: &str) -> Result<PathBuf> {
    let sibling = launcher.sibling_program(name);
    if sibling.is_file() {
        return Ok(sibling);
    }
    on_path(&std::env::var_os("PATH").unwrap_or_default(), name).ok_or_else(|| {
        let sibling = sibling.display();
        Failure::new(format!("found neither {sibling} nor {name} on PATH; build it with: make bench"))
    })
}
