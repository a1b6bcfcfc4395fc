//! File names of glibc's loader, the only one that loads this library.

/// Starts of the file names of glibc's loader on all machines.
const GLIBC_PREFIXES: &[&[u8]] = &[b"ld-linux", b"ld64.", b"ld.so"];

/// Whether a path is that of glibc's loader: `ld-linux…`, `ld64.…` or `ld.so…`. musl's is `ld-musl…` and
/// Android's `linker64`; a library linked with glibc would keep their programs from starting.
#[must_use]
pub fn is_glibc_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    GLIBC_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_glibcs_loaders_are_accepted() {
        for loader in
            ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib64/ld64.so.2", "ld.so.1"]
        {
            assert!(is_glibc_loader(loader.as_bytes()), "{loader}");
        }
        for loader in ["/lib/ld-musl-x86_64.so.1", "/system/bin/linker64", "", "/"] {
            assert!(!is_glibc_loader(loader.as_bytes()), "{loader}");
        }
    }
}
