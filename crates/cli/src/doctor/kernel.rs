//! Checks the kernel: version, architecture, userfaultfd's features, and whether a page can be
//! moved.

use super::Check;
use super::permission::Access;
use crate::os::{self, uffd};

use std::io;
use std::os::fd::AsFd as _;
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem;
use uncopy_sys::procmap;

/// Oldest Linux version that is tested.
const TESTED_SINCE: (u32, u32) = (5, 10);
/// First Linux version with `UFFDIO_MOVE`.
const MOVE_SINCE: (u32, u32) = (6, 8);
/// First Linux version with `PROCMAP_QUERY`.
const QUERY_SINCE: (u32, u32) = (6, 11);

/// Result of probing userfaultfd's features. Masks hold all features of the kernel.
pub enum Features {
    /// No userfaultfd could be opened.
    NotTested,
    /// A required feature is missing.
    MissingFeature(u64),
    /// All required features exist, but pages cannot be moved.
    WithoutMoves(u64),
    Failed(io::Error),
    /// A page was moved, but its bytes changed.
    CorruptMove,
    /// A page was moved with its bytes.
    MovesPages(u64),
}

/// Queries the kernel's features, and moves a page if possible.
pub fn features(access: &Access) -> Features {
    // UFFDIO_API succeeds once for a descriptor, so each query needs its own.
    let Some(first) = access.open() else { return Features::NotTested };
    let all = match uffd::enable_features(first.as_fd(), 0) {
        Ok(all) => all,
        Err(error) => return Features::Failed(error),
    };
    let Some(second) = access.open() else { return Features::NotTested };
    if all & uffd::NEEDED_FEATURES == uffd::NEEDED_FEATURES && all & uffd::MOVE == 0 {
        return Features::WithoutMoves(all);
    }
    match uffd::enable_features(second.as_fd(), uffd::NEEDED_FEATURES | uffd::MOVE) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Features::MissingFeature(all),
        Err(error) => return Features::Failed(error),
    }
    match uffd::move_one_page(second.as_fd()) {
        Ok(true) => Features::MovesPages(all),
        Ok(false) => Features::CorruptMove,
        // A seccomp filter refuses UFFDIO_MOVE; the library finds that as well.
        Err(_) => Features::WithoutMoves(all),
    }
}

impl Features {
    /// Returns the report's line on userfaultfd.
    pub fn check(&self) -> Check {
        const NAME: &str = "userfaultfd";
        let (major, minor) = MOVE_SINCE;
        match self {
            Self::NotTested => Check::missing(NAME, "not tested: no userfaultfd can be opened"),
            Self::MissingFeature(all) => {
                Check::missing(NAME, format!("lacks a feature that uncopy needs (features {all:#x})")).with_fix(NEWER_KERNEL)
            }
            Self::WithoutMoves(all) => Check::warning(
                NAME,
                format!(
                    "works by dropping and copying pages (features {all:#x}); Linux {major}.{minor} and later moves them, \
                     which is cheaper, and elides copies outside uncopy's block heap too"
                ),
            )
            .with_fix(NEWER_KERNEL),
            Self::Failed(error) => Check::missing(NAME, format!("failed: {error}")),
            Self::CorruptMove => Check::missing(NAME, "moved a page, but its bytes changed"),
            Self::MovesPages(all) => {
                Check::ok(NAME, format!("works by moving pages; a test page arrived intact (features {all:#x})"))
            }
        }
    }
}

const NEWER_KERNEL: &str =
    "sudo apt-get install -t bookworm-backports linux-image-amd64  # or any Linux 6.8 or later";

/// Returns the checks of the kernel itself.
pub fn checks() -> Vec<Check> {
    let (release, machine) = os::kernel();
    vec![version(&release), architecture(&machine), query(&release)]
}

/// Returns the major and minor version of a kernel release.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn version(release: &str) -> Check {
    const NAME: &str = "kernel";
    let (major, minor) = TESTED_SINCE;
    match numbers(release) {
        Some(numbers) if numbers >= TESTED_SINCE => {
            Check::ok(NAME, format!("Linux {release} (tested from {major}.{minor} on)"))
        }
        _ => Check::warning(NAME, format!("Linux {release}; tested from {major}.{minor} on"))
            .with_fix(NEWER_KERNEL),
    }
}

fn architecture(machine: &str) -> Check {
    const NAME: &str = "architecture";
    let page_bytes = mem::page_size();
    if page_bytes != PAGE_BYTES {
        let found = format!("{machine}, {page_bytes}-byte pages; uncopy needs {PAGE_BYTES}-byte pages");
        return Check::missing(NAME, found);
    }
    let found = format!("{machine}, {page_bytes}-byte pages");
    match machine {
        "x86_64" => Check::ok(NAME, found),
        _ => Check::warning(NAME, format!("{found}; only x86_64 is tested")),
    }
}

/// Queries the mapping of a local variable, as the library does before memory may hold views.
fn query_own_mapping() -> Result<bool, Errno> {
    let variable = 0u8;
    let address = &raw const variable as usize;
    procmap::for_each_mapping(address, address + 1, |mapping| {
        mapping.start <= address && address < mapping.end
    })
}

fn query(release: &str) -> Check {
    const NAME: &str = "PROCMAP_QUERY";
    let (major, minor) = QUERY_SINCE;
    match query_own_mapping() {
        Ok(true) => Check::ok(NAME, "works: copies outside uncopy's block heap can be elided too"),
        Ok(false) | Err(_) => Check::warning(
            NAME,
            format!(
                "not in Linux {release} (new in {major}.{minor}): copies outside uncopy's block heap are not elided"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        for (release, state) in [
            ("6.8.0", State::Ok),
            ("6.18.44-fc-v657", State::Ok),
            ("10.0", State::Ok),
            ("6.1.0-28-amd64", State::Ok),
            ("5.14.0-570.el9", State::Ok),
            ("5.10.0", State::Ok),
            ("5.4.0-200-generic", State::Warning),
            ("4.19", State::Warning),
            ("unknown", State::Warning),
            ("", State::Warning),
        ] {
            assert_eq!(version(release).state, state, "{release}");
        }
    }

    #[test]
    fn only_a_page_that_arrived_counts_as_working() {
        assert_eq!(Features::MovesPages(0x1ffff).check().state, State::Ok);
        assert_eq!(Features::WithoutMoves(0x1fff).check().state, State::Warning);
        for features in [
            Features::NotTested,
            Features::MissingFeature(0xff),
            Features::CorruptMove,
            Features::Failed(io::Error::from_raw_os_error(libc::EBUSY)),
        ] {
            assert_eq!(features.check().state, State::Missing);
        }
    }
}
