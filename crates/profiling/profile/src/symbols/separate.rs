//! Finds separate debug files, as installed by distributions' debug packages: by build id, or by the name and
//! checksum in the stripped file (`.gnu_debuglink`). Never downloads anything.

use super::read;
use object::{Object as _, ObjectSection as _};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

const ROOT: &str = "/usr/lib/debug";

/// Returns the contents of the separate debug file of `file`, if there is one.
pub fn find(path: &Path, file: &object::File<'_>) -> Option<Vec<u8>> {
    find_below(Path::new(ROOT), path, file)
}

fn find_below(root: &Path, path: &Path, file: &object::File<'_>) -> Option<Vec<u8>> {
    let build_id = file.build_id().ok().flatten();
    if let Some(id) = build_id
        && let Some(data) = read(&by_build_id(root, id)?).filter(|data| has_build_id(data, id))
    {
        return Some(data);
    }
    let (name, checksum) = file.gnu_debuglink().ok()??;
    let name = OsStr::from_bytes(name);
    // Accept only a file name, not a path to somewhere else.
    if Path::new(name).components().count() != 1 || name == ".." {
        return None;
    }
    let directory = path.parent()?;
    let below_root = root.join(directory.strip_prefix("/").unwrap_or(directory)).join(name);
    [directory.join(name), directory.join(".debug").join(name), below_root]
        .into_iter()
        .filter(|candidate| candidate != path)
        .find_map(|candidate| read(&candidate).filter(|data| crc32(data) == checksum))
}

/// Returns the path `ROOT/.build-id/ab/cdef….debug`.
fn by_build_id(root: &Path, id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let mut name = String::new();
    for byte in rest {
        // Writing to a String never fails.
        let _ = write!(name, "{byte:02x}");
    }
    Some(root.join(".build-id").join(format!("{first:02x}")).join(name + ".debug"))
}

fn has_build_id(data: &[u8], id: &[u8]) -> bool {
    object::File::parse(data).is_ok_and(|file| file.build_id().ok().flatten() == Some(id))
}

/// Returns the contents of the supplementary debug file (`.gnu_debugaltlink`) of `file`, if there is one.
pub fn supplementary(file: &object::File<'_>) -> Option<Vec<u8>> {
    let section = file.section_by_name(".gnu_debugaltlink")?;
    let data = section.data().ok()?;
    let (name, id) = data.split_at(data.iter().position(|byte| *byte == 0)?);
    let id = &id[1..];
    let path = Path::new(OsStr::from_bytes(name));
    let found = by_build_id(Path::new(ROOT), id).and_then(|path| read(&path));
    found.or_else(|| read(path).filter(|_| path.is_absolute())).filter(|data| has_build_id(data, id))
}

/// Computes the checksum of `.gnu_debuglink` (CRC-32 as in zlib).
fn crc32(data: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    for (byte, entry) in (0u32..).zip(&mut table) {
        *entry = (0..8).fold(byte, |crc, _| if crc & 1 == 0 { crc >> 1 } else { 0xEDB8_8320 ^ (crc >> 1) });
    }
    !data.iter().fold(!0, |crc: u32, byte| table[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn a_build_id_says_where_the_debug_file_is() {
        let path = by_build_id(Path::new("/d"), &[0xAB, 0x0C, 0xDE]);
        assert_eq!(path, Some(PathBuf::from("/d/.build-id/ab/0cde.debug")));
        assert_eq!(by_build_id(Path::new("/d"), &[]), None);
    }
}
