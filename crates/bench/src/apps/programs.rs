//! The packaged programs that cases need: where they are, and of which version.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::processes::process::{self, TIMEOUT};
use crate::kit::{Failure, Result};
use crate::servers::redis::on_path;

/// A program that a case needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Its name.
    pub program: &'static str,
    /// Debian's package that brings it; empty where there is none.
    pub package: &'static str,
    /// Arguments that make it tell its version; none where it has no version of its own.
    pub version: &'static [&'static str],
    /// Directories where it is looked for before `PATH` and `/usr/sbin`.
    pub directories: &'static [&'static str],
}

impl Need {
    /// A program on `PATH` or in `/usr/sbin`.
    #[must_use]
    pub const fn new(program: &'static str, package: &'static str, version: &'static [&'static str]) -> Self {
        Self { program, package, version, directories: &[] }
    }

    /// Where it is.
    fn find(&self) -> Option<PathBuf> {
        let mut path: OsString = self.directories.join(":").into();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path.push(":/usr/sbin");
        on_path(&path, self.program)
    }
}

/// The programs of one case, found.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    found: Vec<(&'static str, PathBuf)>,
    /// Name of each program and its version.
    pub versions: Vec<(&'static str, String)>,
}

impl Programs {
    /// Finds all of `needs` and asks for their versions.
    ///
    /// # Errors
    /// [`Failure`] that names everything that is missing and the command that installs it.
    pub fn find(needs: &[Need]) -> Result<Self> {
        let mut programs = Self::default();
        let mut missing: Vec<Need> = Vec::new();
        for need in needs {
            match need.find() {
                Some(path) => programs.found.push((need.program, path)),
                None => missing.push(*need),
            }
        }
        if !missing.is_empty() {
            let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
            packages.dedup();
            let names: Vec<&str> = missing.iter().map(|need| need.program).collect();
            let names = names.join(", ");
            return Err(Failure::new(if packages.contains(&"") {
                format!("not on PATH: {names}, which Debian does not package")
            } else {
                format!("not installed: {names}; install with: apt-get install {}", packages.join(" "))
            }));
        }
        for (need, (name, path)) in needs.iter().zip(&programs.found) {
            if !need.version.is_empty() {
                programs.versions.push((name, version(path, need.version)));
            }
        }
        Ok(programs)
    }

    /// Where the program `name`, which the case said it needs, is.
    ///
    /// # Errors
    /// [`Failure`] when the case did not.
    pub fn path(&self, name: &str) -> Result<&Path> {
        let found = self.found.iter().find(|(known, _)| *known == name);
        found.map(|(_, path)| path.as_path()).ok_or_else(|| {
            Failure::new(format!("{name} is not among the programs that the case says it needs"))
        })
    }
}

/// The version that `program` tells.
fn version(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = process::run(command, &program.display().to_string(), TIMEOUT);
    let found = output.ok().and_then(|output| {
        number_in(&output.stdout).or_else(|| number_in(&output.stderr)).map(str::to_owned)
    });
    found.unwrap_or_else(|| "of an unknown version".to_owned())
}

/// The first word, or end of one, that is a version: it begins with a digit and holds a dot.
fn number_in(text: &str) -> Option<&str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || ".-+~".contains(c);
    text.split(|c| !inside(c)).find_map(|word| {
        let number = word[word.find(|c: char| c.is_ascii_digit())?..].trim_end_matches('.');
        number.contains('.').then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            ("nginx version: nginx/1.22.1", "1.22.1"),
            ("varnishd (varnish-7.1.1 revision 7cee1c581bead20e88d)\nCopyright (c) 2006", "7.1.1"),
            ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/", "2.6.12-1+deb12u4"),
            ("Icecast 2.4.4\n", "2.4.4"),
            ("This is ApacheBench, Version 2.3 <$Revision: 1901567 $>", "2.3"),
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)", "15.14"),
            ("memcached 1.6.18.", "1.6.18"),
        ] {
            assert_eq!(number_in(text), Some(version), "{text}");
        }
        assert_eq!(number_in("no number, copyright 2006"), None);
    }

    #[test]
    fn everything_that_is_missing_is_named_with_how_to_install_it() {
        let needs = [
            Need::new("sh", "dash", &[]),
            Need::new("no-such-server", "package-a", &[]),
            Need::new("no-such-client", "package-b", &[]),
        ];
        let failure = Programs::find(&needs).expect_err("missing").to_string();
        assert!(failure.contains("no-such-server, no-such-client"), "{failure}");
        assert!(failure.ends_with("apt-get install package-a package-b"), "{failure}");
        let programs = Programs::find(&needs[..1]).expect("sh is there");
        assert!(programs.path("sh").is_ok() && programs.path("ls").is_err() && programs.versions.is_empty());
    }
}
