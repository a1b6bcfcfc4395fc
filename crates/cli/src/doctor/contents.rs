//! What a program consists of, as far as its file and its libraries tell: which language, allocator and TLS library, and which
//! of libc's functions it calls that uncopy stands in front of.
//!
//! The libraries are those that the loader would load; what a program opens later (modules, plug-ins) nobody knows before it runs.

use super::Check;
use super::allocators::{Linked, why_blocks_stay_out};
use crate::elf::{Image, Symbols};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An allocator, the start of its library's name, and symbols that only it defines.
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

/// A TLS library: its name, the start of its file's, and a symbol that only it defines.
const TLS: &[(&str, &str, &str)] = &[
    ("OpenSSL", "libssl.so", "SSL_read"),
    ("GnuTLS", "libgnutls.so", "gnutls_record_recv"),
    ("NSS", "libssl3.so", "SSL_ImportFD"),
    ("Mbed TLS", "libmbedtls.so", "mbedtls_ssl_read"),
    ("wolfSSL", "libwolfssl.so", "wolfSSL_read"),
];

/// Libraries of the C library and the compiler: what they call themselves says nothing about the program.
const OF_LIBC: &[&str] =
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

/// Symbols that only a program of that language defines.
const LANGUAGES: [&str; 3] = [JAVA, PYTHON, NODE];
const JAVA: &str = "JLI_Launch";
const PYTHON: &str = "Py_BytesMain";
const NODE: &str = "napi_create_function";

/// What OpenSSL calls only if it was built with kTLS.
const KTLS: [&str; 2] = ["sendfile", "sendfile64"];

/// Every symbol that is looked for.
fn wanted() -> Vec<&'static str> {
    let of_allocators = ALLOCATORS.iter().flat_map(|allocator| allocator.symbols);
    let of_tls = TLS.iter().map(|(_, _, symbol)| symbol);
    let all = [INPUTS, COPIES, OUTPUTS, &LANGUAGES, &KTLS, &["malloc"]].into_iter().flatten();
    all.chain(of_allocators).chain(of_tls).copied().collect()
}

/// A library of the program: its file's name and path, and its symbols.
struct Library {
    name: OsString,
    path: PathBuf,
    symbols: Symbols,
}

/// A program and its libraries.
pub struct Contents<'a> {
    path: &'a Path,
    is_go: bool,
    /// `None`: the file has no table of them.
    symbols: Option<Symbols>,
    libraries: Vec<Library>,
}

/// What the checks found that decides whether it is worth trying.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Why nothing much can be elided, as part of a sentence.
    pub against: Option<String>,
    /// What is to be known all the same, likewise.
    pub but: Option<String>,
}

/// Whether the library is one whose file's name begins so.
fn is(name: &OsStr, start: &str) -> bool {
    name.as_bytes().starts_with(start.as_bytes())
}

fn shown(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

/// The files that the loader would load for a program, in its order. It only lists them: nothing of the program runs. It is
/// this command's loader, not the one that the file names.
fn listed(program: &Path) -> Option<Vec<PathBuf>> {
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
    // NAME => PATH (ADDRESS), or PATH (ADDRESS); the kernel's own has no path.
    let path = |line: &[u8]| {
        let line = line.trim_ascii();
        let end = line.windows(2).rposition(|pair| pair == b" (")?;
        let start = line.windows(4).position(|word| word == b" => ").map_or(0, |at| at + 4);
        let path = line.get(start..end)?;
        path.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(path)))
    };
    listing.status.success().then(|| listing.stdout.split(|byte| *byte == b'\n').filter_map(path).collect())
}

impl<'a> Contents<'a> {
    /// Looks at a program and its libraries.
    pub fn of(image: &Image<&File>, path: &'a Path) -> Self {
        let wanted = wanted();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let library = |path: PathBuf| Library {
            name: path.file_name().unwrap_or_default().to_owned(),
            symbols: File::open(&path)
                .ok()
                .and_then(|file| Image::read(file).symbols(&wanted))
                .unwrap_or_default(),
            path,
        };
        // What it names itself is known in any case, if not where it is.
        let paths = listed(&absolute).unwrap_or_else(|| {
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
        self.libraries.iter().find(|library| is(&library.name, start))
    }

    /// Whether the program itself defines the symbol, for others to use.
    fn defines(&self, symbol: &str) -> bool {
        self.symbols.as_ref().is_some_and(|symbols| symbols.defined.contains(&symbol))
    }

    /// Whether a library whose name begins so is among them, or the program defines the symbol itself.
    fn has(&self, start: &str, symbol: &str) -> bool {
        self.library(start).is_some() || self.defines(symbol)
    }

    /// All checks, and what they come to.
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
        let mut own = |language: &str| {
            findings.against = Some(format!("it is a {language} program, whose own copies are not reached"));
        };
        if self.is_go {
            own("Go");
            return Some(Check::warning(
                NAME,
                "Go: only its C parts are reached, its own copies and I/O are not",
            ));
        }
        if self.has("libjli.so", JAVA) {
            own("Java");
            return Some(Check::warning(NAME, "Java: only its C parts are reached, its own copies are not"));
        }
        let name = self.path.file_name().unwrap_or_default();
        let language = if self.has("libpython", PYTHON) || is(name, "python") {
            "Python"
        } else if self.has("libnode.so", NODE) || name == "node" {
            "Node.js"
        } else {
            return None;
        };
        let found = format!(
            "{language}: what its C parts call of libc is reached; which modules a script loads shows only when it runs"
        );
        Some(Check::ok(NAME, found))
    }

    /// Which of `wanted` the program or a library of its own calls; `None` if the program's file does not tell.
    fn imports(&self, wanted: &[&'static str]) -> Option<Vec<&'static str>> {
        let program = self.symbols.as_ref()?;
        let libraries = self.libraries.iter();
        let own = libraries.filter(|library| !OF_LIBC.iter().any(|start| is(&library.name, start)));
        let all = own.map(|library| &library.symbols).chain([program]);
        let is_called = |name: &&str| all.clone().any(|symbols| symbols.imported.contains(name));
        Some(wanted.iter().copied().filter(|name| is_called(name)).collect())
    }

    /// Which of the functions that uncopy stands in front of are called.
    fn calls(&self, findings: &mut Findings) -> Check {
        const NAME: &str = "calls of libc";
        let all = [("receives", INPUTS), ("copies", COPIES), ("sends", OUTPUTS)];
        let mut told = Vec::new();
        let mut missing = Vec::new();
        for (what, functions) in all {
            let Some(found) = self.imports(functions) else {
                return Check::warning(NAME, "not known: the file has no table of symbols");
            };
            if found.is_empty() {
                missing.push(what)
            } else {
                told.push(format!("{what} by {}", found.join(", ")))
            }
        }
        if missing.is_empty() {
            return Check::ok(NAME, told.join("; "));
        }
        // Without outputs, copies may still be elided.
        let is_against = missing != ["sends"];
        let missing = format!("nothing that uncopy stands in front of {}", missing.join(" or "));
        if is_against && findings.against.is_none() {
            findings.against = Some(format!("among what it calls, {missing}"));
        }
        told.push(missing);
        Check::warning(NAME, told.join("; "))
    }

    /// Functions that the program has itself, which its calls go to.
    fn own_functions(&self) -> Option<Check> {
        let calls = [INPUTS, COPIES, OUTPUTS].concat();
        let own: Vec<&str> = calls.into_iter().filter(|name| self.defines(name)).collect();
        (!own.is_empty()).then(|| {
            Check::warning(
                "own functions",
                format!("it has {} itself: calls of them are not reached", own.join(", ")),
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
                    "linked into the program{known}: large blocks cannot come from the block heap, and hold views only where \
                     PROCMAP_QUERY works"
                ),
            );
        }
        if self.libraries.iter().filter(|library| library.symbols.defined.contains(&"malloc")).count() > 1 {
            let paths = self.libraries.iter().map(|library| library.path.as_path());
            let files: Vec<Linked> = [self.path].into_iter().chain(paths).map(Linked::read).collect();
            if let Some(why) = why_blocks_stay_out(&files) {
                return Check::warning(
                    NAME,
                    format!("large blocks stay with the program's allocator, because {why}"),
                );
            }
        }
        let linked = ALLOCATORS
            .iter()
            .find_map(|allocator| Some((allocator.name, shown(&self.library(allocator.library)?.name))));
        match linked {
            Some((name, library)) => {
                Check::ok(NAME, format!("{name} ({library}); large blocks come from the block heap"))
            }
            None => Check::ok(NAME, "glibc; large blocks come from the block heap"),
        }
    }

    fn tls(&self, findings: &mut Findings) -> Option<Check> {
        let mut names = Vec::new();
        let mut has_ktls = false;
        for (name, start, symbol) in TLS {
            let library = self.library(start);
            match library {
                Some(library) => names.push(format!("{name} ({})", shown(&library.name))),
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
        findings.but = Some("not for connections with TLS".to_owned());
        let ktls = match (has_ktls, kernel_has_tls()) {
            (false, _) => String::new(),
            (true, true) => {
                "; with kTLS, which this kernel has, the kernel encrypts if the program asks for it: a profile \
                             shows what is copied then"
                .to_owned()
            }
            (true, false) => "; kTLS, where the kernel does that, needs its module tls, which is not loaded".to_owned(),
        };
        let names = names.join(", ");
        Some(Check::warning(
            "TLS",
            format!("{names}: to encrypt, every byte is read, so connections with TLS gain nothing{ktls}"),
        ))
    }

    fn uring(&self) -> Option<Check> {
        let library = shown(&self.library("liburing")?.name);
        let found = format!("{library}: nothing is elided of what passes that way; other calls are as ever");
        Some(Check::warning("io_uring", found))
    }
}

/// Whether sockets can be given keys for TLS here.
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
        Contents::of(&Image::read(&file), Path::new(path)).checks()
    }

    fn found<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name}: {checks:?}"))
    }

    #[test]
    fn a_shell_is_reached_and_has_neither_tls_nor_io_uring() {
        let (checks, findings) = checks("/bin/sh");
        assert_eq!(findings, Findings::default());
        assert_eq!(found(&checks, "allocator").found, "glibc; large blocks come from the block heap");
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
        let names: Vec<PathBuf> = listed(&this).expect("a list");
        let is_libc = |path: &PathBuf| path.file_name() == Some(OsStr::new("libc.so.6"));
        assert!(names.iter().any(is_libc), "{names:?}");
        assert!(names.iter().all(|path| path.exists()), "{names:?}");
        assert_eq!(listed(Path::new("/etc/passwd")), None);
    }
}
