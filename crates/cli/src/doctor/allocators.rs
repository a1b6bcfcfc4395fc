//! Predicts from the program's files whether large blocks can come from the block heap beside
//! another allocator. The library decides by the same rules when it is loaded (its module
//! `families`).

use super::Check;
use crate::elf::{Functions, Image};
use crate::environment::Environment;
use crate::library;
use std::fs::File;
use std::path::Path;
use uncopy_core::allocators::{Treatment, family, treatment};

/// Mangled name of `MallocExtension::instance`, through which tcmalloc answers questions about any
/// pointer.
const EXTENSION_INSTANCE: &[u8] = b"_ZN15MallocExtension8instanceEv";

/// ELF file with the functions that it defines and imports.
pub struct ElfFile {
    pub name: String,
    pub functions: Functions,
}

impl ElfFile {
    /// Reads a file. An unreadable file has no functions.
    pub fn read(path: &Path) -> Self {
        let functions = File::open(path).ok().map(|file| Image::read(file).functions());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, functions: functions.unwrap_or_default() }
    }

    fn defines(&self, name: &[u8]) -> bool {
        self.functions.defined.iter().any(|defined| defined == name)
    }

    fn is_libc(&self) -> bool {
        self.defines(b"gnu_get_libc_version") || self.defines(b"__tls_get_addr")
    }

    /// Whether the file is an allocator other than libc's.
    pub fn is_allocator(&self) -> bool {
        self.defines(b"malloc") && !self.is_libc()
    }

    /// Returns the allocator family of the file's functions.
    pub fn family(&self) -> Option<&'static str> {
        self.functions.defined.iter().find_map(|name| family(name))
    }
}

fn display_name(name: &[u8]) -> String {
    if name == EXTENSION_INSTANCE {
        "MallocExtension::instance".to_owned()
    } else {
        String::from_utf8_lossy(name).into_owned()
    }
}

/// Returns why large blocks stay with an allocator among a program's files, as part of a sentence.
/// `None` if they come from the block heap.
pub fn why_heap_is_unused(files: &[ElfFile]) -> Option<String> {
    let allocators = || files.iter().filter(|file| file.is_allocator());
    for allocator in allocators() {
        let unknown = |name: &&Vec<u8>| treatment(name) == Treatment::Unknown;
        if allocator.family().is_none() {
            if let Some(name) = allocator.functions.defined.iter().find(unknown) {
                return Some(format!(
                    "{} has {}, which uncopy does not know",
                    allocator.name,
                    display_name(name)
                ));
            }
            continue;
        }
        for file in files.iter().filter(|file| file.name != allocator.name) {
            let queries_allocator =
                |name: &&Vec<u8>| (unknown(name) || **name == EXTENSION_INSTANCE) && allocator.defines(name);
            if let Some(name) = file.functions.imported.iter().find(queries_allocator) {
                return Some(format!("{} calls {} of {}", file.name, display_name(name), allocator.name));
            }
        }
    }
    None
}

/// Checks the other libraries in `LD_PRELOAD`. A sanitizer keeps uncopy out because it must be
/// loaded first; an allocator may keep the block heap unused.
pub fn check_preloads(environment: &Environment) -> Option<Check> {
    const NAME: &str = "other preloads";
    let value = library::without_library(environment.get(b"LD_PRELOAD").unwrap_or_default());
    if let Some((name, sanitizer)) = library::sanitizer(&value) {
        return Some(
            Check::missing(
                NAME,
                format!("{name} of {sanitizer} must be loaded first: uncopy run will be inactive"),
            )
            .with_fix("unset LD_PRELOAD"),
        );
    }
    let files: Vec<ElfFile> = library::preload_files(&value).map(ElfFile::read).collect();
    if files.is_empty() {
        return None;
    }
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let names = names.join(", ");
    Some(match why_heap_is_unused(&files) {
        Some(why) => Check::warning(
            NAME,
            format!("{names}: large allocations stay with that allocator, because {why}"),
        ),
        None => Check::ok(NAME, format!("{names}: loaded after uncopy")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, defined: &[&str], imported: &[&str]) -> ElfFile {
        let all = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
        ElfFile {
            name: name.to_owned(),
            functions: Functions { defined: all(defined), imported: all(imported) },
        }
    }

    #[test]
    fn blocks_stay_out_where_a_function_could_take_one_that_does_not_know_them() {
        let jemalloc = || file("libjemalloc.so.2", &["malloc", "mallocx", "sdallocx", "newer"], &[]);
        let libc = || file("libc.so.6", &["malloc", "gnu_get_libc_version", "qsort"], &[]);
        let program = |imported: &[&str]| file("program", &[], imported);
        assert_eq!(why_heap_is_unused(&[program(&["sdallocx", "qsort"]), jemalloc(), libc()]), None);
        let why = why_heap_is_unused(&[program(&["newer"]), jemalloc(), libc()]);
        assert_eq!(why.as_deref(), Some("program calls newer of libjemalloc.so.2"));
        let odd = file("libodd.so", &["malloc", "free", "odd_free"], &[]);
        let why = why_heap_is_unused(&[program(&[]), odd, libc()]);
        assert_eq!(why.as_deref(), Some("libodd.so has odd_free, which uncopy does not know"));
        let simple = file("libsimple.so", &["malloc", "free", "calloc", "realloc"], &[]);
        assert_eq!(why_heap_is_unused(&[program(&[]), simple, libc()]), None);
    }
}
