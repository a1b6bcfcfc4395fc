//! Finds `libuncopy.so` relative to the running command, so that a build tree and an installed copy
//! both work without configuration, and composes `LD_PRELOAD`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use uncopy_core::allocators;

/// File name of the library.
pub const FILE_NAME: &str = "libuncopy.so";

/// Returns the paths where the library may be, in search order.
pub fn candidates(program: &Path) -> Vec<PathBuf> {
    let directory = program.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().unwrap_or(directory);
    vec![
        directory.join(FILE_NAME),
        prefix.join("lib/uncopy").join(FILE_NAME),
        prefix.join("lib").join(FILE_NAME),
    ]
}

/// Returns the library's path.
///
/// # Errors
/// The reason why no library can be preloaded, as part of a sentence.
pub fn locate() -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|_| format!("{FILE_NAME} not found: /proc is not mounted"))?;
    let candidates = candidates(&program);
    match candidates.iter().find(|path| path.is_file()) {
        None => Err(not_found(&candidates)),
        Some(path) if !can_be_preloaded(path) => Err(format!(
            "{FILE_NAME} is in {}, and LD_PRELOAD cannot hold a path with a space, a colon or a dollar sign",
            path.parent().unwrap_or(path).display()
        )),
        Some(path) => Ok(path.clone()),
    }
}

fn not_found(candidates: &[PathBuf]) -> String {
    let directories: Vec<String> = candidates
        .iter()
        .filter_map(|path| path.parent())
        .map(|directory| directory.display().to_string().escape_debug().to_string())
        .collect();
    format!("{FILE_NAME} not found in {}", directories.join(", "))
}

/// Whether the loader takes the path from `LD_PRELOAD` unchanged. The loader splits the value at
/// spaces and colons and expands `$ORIGIN` and similar tokens (ld.so(8)).
fn can_be_preloaded(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$'))
}

/// Returns `old` without entries for `libuncopy.so`; empty if nothing else remains.
pub fn without_library(old: &[u8]) -> Vec<u8> {
    let is_ours = |entry: &[u8]| Path::new(OsStr::from_bytes(entry)).file_name() == Some(FILE_NAME.as_ref());
    let entries: Vec<&[u8]> =
        old.split(|byte| matches!(byte, b' ' | b':')).filter(|entry| !entry.is_empty()).collect();
    if !entries.iter().any(|entry| is_ours(entry)) {
        return old.to_vec();
    }
    entries.into_iter().filter(|entry| !is_ours(entry)).collect::<Vec<_>>().join(&b':')
}

/// Returns the files in a value of `LD_PRELOAD`.
pub fn preload_files(value: &[u8]) -> impl Iterator<Item = &Path> {
    let entries = value.split(|byte| matches!(byte, b' ' | b':')).filter(|entry| !entry.is_empty());
    entries.map(|entry| Path::new(OsStr::from_bytes(entry)))
}

/// Returns the first sanitizer library in a value of `LD_PRELOAD`: its file name and the sanitizer.
pub fn sanitizer(value: &[u8]) -> Option<(String, &'static str)> {
    preload_files(value).find_map(|path| {
        let name = path.file_name()?;
        Some((name.to_string_lossy().into_owned(), allocators::sanitizer(name.as_bytes())?))
    })
}

/// Returns the value of `LD_PRELOAD` that loads `library` first and then the files of `old`.
pub fn preload_value(library: &Path, old: &[u8]) -> Vec<u8> {
    let mut value = library.as_os_str().as_bytes().to_vec();
    let rest = without_library(old);
    if !rest.is_empty() {
        value.push(b':');
        value.extend(rest);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looked_for_beside_the_command_and_then_under_the_prefix() {
        assert_eq!(
            candidates(Path::new("/opt/u/bin/uncopy")),
            [
                Path::new("/opt/u/bin/libuncopy.so"),
                Path::new("/opt/u/lib/uncopy/libuncopy.so"),
                Path::new("/opt/u/lib/libuncopy.so"),
            ]
        );
    }

    #[test]
    fn preloads_of_the_user_are_kept_and_ours_is_never_doubled() {
        let library = Path::new("/b/libuncopy.so");
        assert_eq!(preload_value(library, b""), b"/b/libuncopy.so");
        assert_eq!(preload_value(library, b"/x.so"), b"/b/libuncopy.so:/x.so");
        assert_eq!(preload_value(library, b"/x.so /a/libuncopy.so:/y.so"), b"/b/libuncopy.so:/x.so:/y.so");
        assert_eq!(without_library(b"libuncopy.so"), b"");
        assert_eq!(without_library(b"/x.so  /y.so"), b"/x.so  /y.so");
    }

    #[test]
    fn sanitizers_are_known_by_their_files() {
        let found = sanitizer(b"/x.so /usr/lib/libasan.so.8:/y.so");
        assert_eq!(found, Some(("libasan.so.8".to_owned(), "AddressSanitizer")));
        assert_eq!(sanitizer(b"/libasan.so/x.so libubsan.so.1"), None);
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        assert!(can_be_preloaded(Path::new("/usr/lib/uncopy/libuncopy.so")));
        for path in ["/my programs/libuncopy.so", "/a:b/libuncopy.so", "/$LIB/libuncopy.so"] {
            assert!(!can_be_preloaded(Path::new(path)), "{path}");
        }
    }
}
