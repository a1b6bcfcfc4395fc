//! The packaged programs that cases need: paths and versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use uncopy_testbed::package::{Package, missing};

use crate::kit::processes::process::{self, TIMEOUT};
use crate::kit::{Failure, Result};

/// Paths and versions of one case's programs.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    found: Vec<(&'static str, PathBuf)>,
    /// Name and version of each program.
    pub versions: Vec<(&'static str, String)>,
}

impl Programs {
    /// Finds all of `packages` and queries their versions.
    ///
    /// # Errors
    /// [`Failure`] that names all missing packages and the command that installs them.
    pub fn find(packages: &[Package]) -> Result<Self> {
        let mut programs = Self::default();
        let mut absent = Vec::new();
        for package in packages {
            match package.find() {
                Some(path) => programs.found.push((package.program, path)),
                None => absent.push(*package),
            }
        }
        if !absent.is_empty() {
            return Err(missing(&absent));
        }
        for (package, (name, path)) in packages.iter().zip(&programs.found) {
            if !package.version.is_empty() {
                programs.versions.push((name, version(path, package.version)));
            }
        }
        Ok(programs)
    }

    /// Returns the path of `name`, one of the programs that the case needs.
    ///
    /// # Errors
    /// [`Failure`] when `name` is not among the case's packages.
    pub fn path(&self, name: &str) -> Result<&Path> {
        let found = self.found.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, path)| path.as_path())
            .ok_or_else(|| Failure::new(format!("{name} is not among the case's packages")))
    }
}

/// Returns the version that `program` reports.
fn version(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = process::run(command, &program.display().to_string(), TIMEOUT);
    let found = output.ok().and_then(|output| {
        number_in(&output.stdout).or_else(|| number_in(&output.stderr)).map(str::to_owned)
    });
    found.unwrap_or_else(|| "unknown version".to_owned())
}

/// Returns the first word, or end of a word, that is a version: it begins with a digit and contains a dot.
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
    fn versions_are_found_in_the_output_of_programs() {
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
    fn missing_programs_are_listed_with_their_packages() {
        let packages = [
            Package::new("sh", "dash", &[]),
            Package::new("no-such-server", "package-a", &[]),
            Package::new("no-such-client", "package-b", &[]),
        ];
        let failure = Programs::find(&packages).expect_err("missing").to_string();
        assert!(failure.contains("no-such-server, no-such-client"), "{failure}");
        assert!(failure.ends_with("apt-get install package-a package-b"), "{failure}");
        let programs = Programs::find(&packages[..1]).expect("sh is there");
        assert!(programs.path("sh").is_ok() && programs.path("ls").is_err() && programs.versions.is_empty());
    }
}
