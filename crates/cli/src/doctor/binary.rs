//! Inspects a program's file and libraries: language, allocator, TLS library, and calls of libc
//! functions that uncopy hooks.
//!
//! The libraries are those that the loader would load. Modules and plug-ins that the program opens
//! later are unknown before it runs.

use super::Check;
use super::allocators::{ElfFile, why_heap_is_unused};
use crate::elf::{Image, Symbols};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Known allocator: name, prefix of its library's file name, and symbols that only it defines.
struct Allocator {
    name: &'static str,
    library: &'static str,
    symbols: &'static [&'static str],
}

const ALLOCATORS: &[Allocator] = &[
    Allocator {
        name: "jemalloc",
        library: "libjemalloc",
        symbols: &["mallocx", "je_mallocx", "malloc_stats_print"],
    },
    Allocator {
        name: "tcmalloc",
        library: "libtcmalloc",
        symbols: &["tc_malloc", "TCMalloc_Internal_Alloc"],
    },
    Allocator { name: "mimalloc", library: "libmimalloc", symbols: &["mi_malloc"] },
];

/// Known TLS libraries: name, prefix of the file name, and a symbol that only the library defines.
const TLS: &[(&str, &str, &str)] = &[
    ("OpenSSL", "libssl.so", "SSL_read"),
    ("GnuTLS", "libgnutls.so", "gnutls_record_recv"),
    ("NSS", "libssl3.so", "SSL_ImportFD"),
    ("Mbed TLS", "libmbedtls.so", "mbedtls_ssl_read"),
    ("wolfSSL", "libwolfssl.so", "wolfSSL_read"),
];

/// Prefixes of libraries of libc and the compiler, whose imports say nothing about the program.
const LIBC_PREFIXES: &[&str] =
    &["libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libresolv.so", "ld-linux"];

const INPUTS: &[&str] = &[
    "read",
    "pread",
    "pread64",
    "readv",
    "preadv",
    "preadv64",
    "preadv2",
    "preadv64v2",
    "recv",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "__read_chk",
    "__pread_chk",
    "__pread64_chk",
    "__recv_chk",
    "__recvfrom_chk",
    "fread",
    "fread_unlocked",
    "__fread_chk",
    "__fread_unlocked_chk",
];
const COPIES: &[&str] = &["memcpy", "memmove", "mempcpy", "__memcpy_chk", "__memmove_chk", "__mempcpy_chk"];
const OUTPUTS: &[&str] = &[
    "write",
    "pwrite",
    "pwrite64",
    "writev",
    "pwritev",
    "pwritev64",
    "pwritev2",
    "pwritev64v2",
    "send",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "fwrite",
    "fwrite_unlocked",
];

/// Symbols that identify the runtimes of languages.
const LANGUAGES: [&str; 3] = [JAVA, PYTHON, NODE];
const JAVA: &str = "JLI_Launch";
const PYTHON: &str = "Py_BytesMain";
const NODE: &str = "napi_create_function";

/// Functions that OpenSSL imports only if it was built with kTLS.
const KTLS: [&str; 2] = ["sendfile", "sendfile64"];

/// Returns all symbols that the checks look up.
fn wanted_symbols() -> Vec<&'static str> {
    let of_allocators = ALLOCATORS.iter().flat_map(|allocator| allocator.symbols);
    let of_tls = TLS.iter().map(|(_, _, symbol)| symbol);
    let all = [INPUTS, COPIES, OUTPUTS, &LANGUAGES, &KTLS, &["malloc"]].into_iter().flatten();
    all.chain(of_allocators).chain(of_tls).copied().collect()
}

struct Library {
    name: OsString,
    path: PathBuf,
    symbols: Symbols,
}

/// Inspected program with its libraries.
pub struct Binary<'a> {
    path: &'a Path,
    is_go: bool,
    /// `None` if the file has no symbol table.
    symbols: Option<Symbols>,
    libraries: Vec<Library>,
}

/// Findings that decide whether uncopy is worth trying.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Reason why little can be elided, as part of a sentence.
    pub blocker: Option<String>,
    /// Limitation for a program worth trying, as part of a sentence.
    pub caveat: Option<String>,
}

/// Whether a file name begins with `start`.
fn has_prefix(name: &OsStr, start: &str) -> bool {
    name.as_bytes().starts_with(start.as_bytes())
}

fn display_name(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

/// Lists the files that the loader would load for a program, in its order. `--list` runs none of
/// the program's code. The loader is this command's own, which may differ from the program's.
fn loaded_libraries(program: &Path) -> Option<Vec<PathBuf>> {
    let own = File::open("/proc/self/exe").ok()?;
    let loader = OsString::from_vec(Image::read(&own).loader()?);
    let listing = Command::new(loader)
        .arg("--list")
        .arg(program)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    // Lines are `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`; the vDSO has no path.
    let path = |line: &[u8]| {
        let line = line.trim_ascii();
        let end = line.windows(2).rposition(|pair| pair == b" (")?;
        let start = line.windows(4).position(|word| word == b" => ").map_or(0, |at| at + 4);
        let path = line.get(start..end)?;
        path.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(path)))
    };
    listing.status.success().then(|| listing.stdout.split(|byte| *byte == b'\n').filter_map(path).collect())
}

impl<'a> Binary<'a> {
    /// Inspects a program and its libraries.
    pub fn inspect(image: &Image<&File>, path: &'a Path) -> Self {
        let wanted = wanted_symbols();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let library = |path: PathBuf| Library {
            name: path.file_name().unwrap_or_default().to_owned(),
            symbols: File::open(&path)
                .ok()
                .and_then(|file| Image::read(file).symbols(&wanted))
                .unwrap_or_default(),
            path,
        };
        // Without the loader's list only the names in the file are known, not the paths.
        let paths = loaded_libraries(&absolute).unwrap_or_else(|| {
            image.needed().into_iter().map(|name| PathBuf::from(OsString::from_vec(name))).collect()
        });
        Self {
            path,
            is_go: image.is_go(),
            symbols: image.symbols(&wanted),
            libraries: paths.into_iter().map(library).collect(),
        }
    }

    fn library(&self, start: &str) -> Option<&Library> {
        self.libraries.iter().find(|library| has_prefix(&library.name, start))
    }

    /// Whether the program itself exports the symbol.
    fn defines(&self, symbol: &str) -> bool {
        self.symbols.as_ref().is_some_and(|symbols| symbols.defined.contains(&symbol))
    }

    /// Whether a library with this prefix is loaded, or the program itself exports the symbol.
    fn has_library_or_symbol(&self, start: &str, symbol: &str) -> bool {
        self.library(start).is_some() || self.defines(symbol)
    }

    /// Returns all checks and the findings for the verdict.
    pub fn checks(&self) -> (Vec<Check>, Findings) {
        let mut findings = Findings::default();
        let language = self.language(&mut findings);
        let calls = self.calls(&mut findings);
        let mut checks: Vec<Check> = language.into_iter().collect();
        checks.push(calls);
        checks.extend(self.own_functions());
        checks.push(self.allocator());
        checks.extend(self.tls(&mut findings));
        checks.extend(self.uring());
        (checks, findings)
    }

    fn language(&self, findings: &mut Findings) -> Option<Check> {
        const NAME: &str = "language";
        let mut reject = |language: &str| {
            findings.blocker =
                Some(format!("it is a {language} program, and uncopy reaches only copies by C code"));
        };
        if self.is_go {
            reject("Go");
            return Some(Check::warning(NAME, "Go: uncopy reaches only C code, not Go's own copies and I/O"));
        }
        if self.has_library_or_symbol("libjli.so", JAVA) {
            reject("Java");
            return Some(Check::warning(NAME, "Java: uncopy reaches only C code, not Java's own copies"));
        }
        let name = self.path.file_name().unwrap_or_default();
        let language = if self.has_library_or_symbol("libpython", PYTHON) || has_prefix(name, "python") {
            "Python"
        } else if self.has_library_or_symbol("libnode.so", NODE) || name == "node" {
            "Node.js"
        } else {
            return None;
        };
        let found = format!(
            "{language}: uncopy reaches the libc calls of C code; modules that a script loads later are not checked"
        );
        Some(Check::ok(NAME, found))
    }

    /// Returns which of `wanted` the program or one of its own libraries imports. `None` if the
    /// program's file has no symbol table.
    fn imports(&self, wanted: &[&'static str]) -> Option<Vec<&'static str>> {
        let program = self.symbols.as_ref()?;
        let libraries = self.libraries.iter();
        let own =
            libraries.filter(|library| !LIBC_PREFIXES.iter().any(|start| has_prefix(&library.name, start)));
        let all = own.map(|library| &library.symbols).chain([program]);
        let is_called = |name: &&str| all.clone().any(|symbols| symbols.imported.contains(name));
        Some(wanted.iter().copied().filter(|name| is_called(name)).collect())
    }

    /// Checks which hooked functions are called.
    fn calls(&self, findings: &mut Findings) -> Check {
        const NAME: &str = "calls of libc";
        let all = [("receives", INPUTS), ("copies", COPIES), ("sends", OUTPUTS)];
        let mut parts = Vec::new();
        let mut missing = Vec::new();
        for (what, functions) in all {
            let Some(found) = self.imports(functions) else {
                return Check::warning(NAME, "unknown: the file has no symbol table");
            };
            if found.is_empty() {
                missing.push(what)
            } else {
                parts.push(format!("{what} by {}", found.join(", ")))
            }
        }
        if missing.is_empty() {
            return Check::ok(NAME, parts.join("; "));
        }
        // Copies may be elided without outputs.
        let is_blocker = missing != ["sends"];
        let missing = format!("calls no hooked function that {}", missing.join(" or "));
        if is_blocker && findings.blocker.is_none() {
            findings.blocker = Some(format!("it {missing}"));
        }
        parts.push(missing);
        Check::warning(NAME, parts.join("; "))
    }

    /// Checks for hooked functions that the program defines itself, which keeps its calls from the
    /// hooks.
    fn own_functions(&self) -> Option<Check> {
        let calls = [INPUTS, COPIES, OUTPUTS].concat();
        let own: Vec<&str> = calls.into_iter().filter(|name| self.defines(name)).collect();
        (!own.is_empty()).then(|| {
            Check::warning(
                "own functions",
                format!("defines {} itself: uncopy does not reach these calls", own.join(", ")),
            )
        })
    }

    fn allocator(&self) -> Check {
        const NAME: &str = "allocator";
        if self.defines("malloc") {
            let known = ALLOCATORS
                .iter()
                .find(|allocator| allocator.symbols.iter().any(|symbol| self.defines(symbol)))
                .map_or(String::new(), |allocator| format!(" ({})", allocator.name));
            return Check::warning(
                NAME,
                format!(
                    "linked into the program{known}: large allocations cannot come from uncopy's block heap, and copies \
                     into them are elided only where PROCMAP_QUERY works"
                ),
            );
        }
        if self.libraries.iter().filter(|library| library.symbols.defined.contains(&"malloc")).count() > 1 {
            let paths = self.libraries.iter().map(|library| library.path.as_path());
            let files: Vec<ElfFile> = [self.path].into_iter().chain(paths).map(ElfFile::read).collect();
            if let Some(why) = why_heap_is_unused(&files) {
                return Check::warning(
                    NAME,
                    format!("large allocations stay with the program's allocator, because {why}"),
                );
            }
        }
        let linked = ALLOCATORS.iter().find_map(|allocator| {
            Some((allocator.name, display_name(&self.library(allocator.library)?.name)))
        });
        match linked {
            Some((name, library)) => Check::ok(
                NAME,
                format!("{name} ({library}); large allocations come from uncopy's block heap"),
            ),
            None => Check::ok(NAME, "glibc; large allocations come from uncopy's block heap"),
        }
    }

    fn tls(&self, findings: &mut Findings) -> Option<Check> {
        let mut names = Vec::new();
        let mut has_ktls = false;
        for (name, start, symbol) in TLS {
            let library = self.library(start);
            match library {
                Some(library) => names.push(format!("{name} ({})", display_name(&library.name))),
                None if self.defines(symbol) => names.push(format!("{name} (in the program)")),
                None => {}
            }
            let calls = library.map(|library| library.symbols.imported.iter());
            has_ktls |=
                *name == "OpenSSL" && calls.is_some_and(|mut calls| calls.any(|call| KTLS.contains(call)));
        }
        if names.is_empty() {
            return None;
        }
        findings.caveat = Some("not for connections with TLS".to_owned());
        let ktls = match (has_ktls, kernel_has_tls()) {
            (false, _) => String::new(),
            (true, true) => {
                "; if the program uses kTLS, which this kernel has, the kernel encrypts: a profile shows what is \
                 copied then"
                .to_owned()
            }
            (true, false) => "; kTLS (encryption by the kernel) needs the kernel module tls, which is not loaded".to_owned(),
        };
        let names = names.join(", ");
        Some(Check::warning(
            "TLS",
            format!("{names}: encryption reads every byte, so connections with TLS gain nothing{ktls}"),
        ))
    }

    fn uring(&self) -> Option<Check> {
        let library = display_name(&self.library("liburing")?.name);
        let found = format!("{library}: I/O by io_uring is not elided; other calls are");
        Some(Check::warning("io_uring", found))
    }
}

/// Whether this kernel has kTLS.
fn kernel_has_tls() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    read("/proc/sys/net/ipv4/tcp_available_ulp").split_whitespace().any(|name| name == "tls")
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn checks(path: &str) -> (Vec<Check>, Findings) {
        let file = File::open(path).expect("a program");
        Binary::inspect(&Image::read(&file), Path::new(path)).checks()
    }

    fn found<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name}: {checks:?}"))
    }

    #[test]
    fn a_shell_is_reached_and_has_neither_tls_nor_io_uring() {
        let (checks, findings) = checks("/bin/sh");
        assert_eq!(findings, Findings::default());
        assert_eq!(
            found(&checks, "allocator").found,
            "glibc; large allocations come from uncopy's block heap"
        );
        assert_eq!(found(&checks, "calls of libc").state, State::Ok, "{checks:?}");
        assert!(
            !checks.iter().any(|check| ["TLS", "io_uring", "language"].contains(&check.name)),
            "{checks:?}"
        );
    }

    #[test]
    fn the_library_stands_in_front_of_every_function_that_is_looked_for() {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release");
        let directory = std::env::var_os("UNCOPY_BIN_DIR").map_or(built, PathBuf::from);
        let library = File::open(directory.join("libuncopy.so")).expect("what `make build` makes");
        let functions = [INPUTS, COPIES, OUTPUTS, &KTLS].concat();
        let defined = Image::read(library).symbols(&functions).expect("a table of symbols").defined;
        let missing: Vec<_> = functions.iter().filter(|name| !defined.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_loader_lists_what_this_program_uses() {
        let this = std::env::current_exe().expect("a path");
        let names: Vec<PathBuf> = loaded_libraries(&this).expect("a list");
        let is_libc = |path: &PathBuf| path.file_name() == Some(OsStr::new("libc.so.6"));
        assert!(names.iter().any(is_libc), "{names:?}");
        assert!(names.iter().all(|path| path.exists()), "{names:?}");
        assert_eq!(loaded_libraries(Path::new("/etc/passwd")), None);
    }
}
