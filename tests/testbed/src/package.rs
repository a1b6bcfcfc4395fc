//! Packaged programs: paths, and the command that installs them.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::failure::{Failure, Result};

/// A program of a package.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Name of the program.
    pub program: &'static str,
    /// Debian package of the program.
    pub package: &'static str,
    /// Arguments that print the version; empty if the program has no version of its own.
    pub version: &'static [&'static str],
    /// Directories searched before `PATH` and `/usr/sbin`.
    pub directories: &'static [&'static str],
}

impl Package {
    /// A program on `PATH` or in `/usr/sbin`.
    #[must_use]
    pub const fn new(program: &'static str, package: &'static str, version: &'static [&'static str]) -> Self {
        Self { program, package, version, directories: &[] }
    }

    /// Path of the program.
    #[must_use]
    pub fn find(&self) -> Option<PathBuf> {
        let mut path: OsString = self.directories.join(":").into();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path.push(":/usr/sbin");
        on_path(&path, self.program)
    }

    /// Path of the program, or a failure that names the command to install it.
    ///
    /// # Errors
    /// [`Failure`] when the program is not installed.
    pub fn path(&self) -> Result<PathBuf> {
        self.find().ok_or_else(|| missing(&[*self]))
    }
}

/// Returns a failure that names the command to install `packages`.
#[must_use]
pub fn missing(packages: &[Package]) -> Failure {
    let programs: Vec<&str> = packages.iter().map(|missing| missing.program).collect();
    let mut packages: Vec<&str> = packages.iter().map(|missing| missing.package).collect();
    packages.dedup();
    let (programs, packages) = (programs.join(", "), packages.join(" "));
    Failure::new(format!("not installed: {programs}; install with: apt-get install {packages}"))
}

/// Returns the first program called `name` in the absolute directories of `path`.
#[must_use]
pub fn on_path(path: &OsStr, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_absolute_directories_of_the_path_only() {
        let found = |path: &str, name| on_path(path.as_ref(), name);
        assert_eq!(found("/nonexistent:/bin", "sh"), Some("/bin/sh".into()));
        assert_eq!(found("/nonexistent", "sh"), None);
        assert_eq!(found(".:relative:", "Cargo.toml"), None);
        assert_eq!(found("/", "bin"), None);
    }
}
