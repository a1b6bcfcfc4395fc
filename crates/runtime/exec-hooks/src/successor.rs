//! The program that a caller is about to execute or spawn, here called the successor, and its environment. A loader
//! other than this machine's glibc, or a sanitizer that must be first, would refuse to run with this library. Such
//! successors get an environment without uncopy and run plainly.
//!
//! This code may run between fork and exec, also in a vfork child, whose memory is its parent's: it neither allocates
//! nor locks, and all its data are on the stack. In case of doubt the environment is left unchanged.

use core::ffi::{CStr, c_char};
use uncopy_core::allocators::sanitizer;
use uncopy_core::loader::is_glibc_loader;
use uncopy_core::options::{INTERNAL_VARIABLES, OPTIONS};
use uncopy_sys::descriptor::{Descriptor as _, OwnFd, ProgramFd};
use uncopy_sys::{errno, file, readable};

/// Null-terminated array of strings.
pub type List = *const *const c_char;

const LIBRARY: &[u8] = b"libuncopy.so";
/// Maximum depth of scripts that name scripts as interpreters (`fs/exec.c`, `exec_binprm`).
const MAX_SCRIPTS: usize = 5;
/// Maximum length in bytes of a path, and of an `LD_PRELOAD` that is shortened.
const MAX_PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Maximum length in bytes of a script's first line, and of an interpreter's name, that the kernel reads.
const MAX_LINE_BYTES: usize = 256;
/// Search path of execvp without `PATH` (glibc's `confstr(_CS_PATH)`).
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
/// Number of a successor's needed libraries that are examined: sanitizers come first.
const EXAMINED_LIBRARIES: usize = 2;

const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const HEADER_BYTES: usize = size_of::<libc::Elf64_Ehdr>();
const SEGMENT_BYTES: usize = size_of::<libc::Elf64_Phdr>();
const MAX_SEGMENTS: usize = 32;

/// The successor, as the caller names it.
#[derive(Clone, Copy)]
pub enum Successor {
    /// File at a path.
    Path(*const c_char),
    /// File at a path; without a slash, searched for as execvp does.
    Searched(*const c_char),
    /// File at a path relative to a directory's descriptor; the descriptor's own file if the path is empty.
    At(ProgramFd, *const c_char),
    /// File of a descriptor.
    Descriptor(ProgramFd),
}

struct Path {
    bytes: [u8; MAX_PATH_BYTES],
    len: usize,
}

impl Path {
    const fn new() -> Self {
        Self { bytes: [0; MAX_PATH_BYTES], len: 0 }
    }

    /// Appends to the path. Returns false if it does not fit.
    fn push(&mut self, part: &[u8]) -> bool {
        let end = self.len + part.len();
        if end >= self.bytes.len() {
            return false;
        }
        self.bytes[self.len..end].copy_from_slice(part);
        self.bytes[end] = 0;
        self.len = end;
        true
    }

    fn push_number(&mut self, fd: ProgramFd) -> bool {
        let (mut digits, mut at, mut left) = ([0u8; 10], 10, fd.number().cast_unsigned());
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                return self.push(&digits[at..]);
            }
        }
    }

    fn open(&self) -> Option<File> {
        File::open(CStr::from_bytes_until_nul(&self.bytes).ok()?)
    }
}

struct File(OwnFd);

impl File {
    fn open(path: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        file::open(path, flags, 0).ok().map(Self)
    }

    /// Reads bytes at an offset; those beyond the end are zero.
    fn read<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let got = file::read_at(&self.0, offset, &mut bytes).ok()?;
        (got != 0).then_some(bytes)
    }
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(<[u8]>::first_chunk).map_or(0, |eight| u64::from_ne_bytes(*eight))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(<[u8]>::first_chunk).map_or(0, |two| u16::from_ne_bytes(*two))
}

/// True if the file, executed as `path`, would not start or would complain with this library preloaded.
/// `script_depth`: number of scripts whose interpreters led to the file; 0 for the successor itself.
///
/// Its twin in the command is `loading_obstacle` in `crates/cli/src/program.rs`, which may allocate; change both. A
/// static program is an obstacle there; here it starts, with the library ignored.
fn cannot_preload(file: &File, path: &[u8], script_depth: usize) -> bool {
    let Some(head) = file.read::<HEADER_BYTES>(0) else { return false };
    if head.starts_with(b"#!") {
        return script_depth < MAX_SCRIPTS && cannot_preload_interpreter(file, script_depth);
    }
    if !head.starts_with(b"\x7FELF") {
        return false;
    }
    // In a big-endian file the bytes of the machine number are swapped, so it differs as well.
    if head[4] != libc::ELFCLASS64 || u16_at(&head, 18) != MACHINE {
        return true;
    }
    let count = usize::from(u16_at(&head, 56)).min(MAX_SEGMENTS);
    let Some(segments) = file.read::<{ MAX_SEGMENTS * SEGMENT_BYTES }>(u64_at(&head, 32)) else {
        return false;
    };
    let segments = &segments[..count * SEGMENT_BYTES];
    let of_kind = |kind: u32| {
        segments.chunks_exact(SEGMENT_BYTES).filter(move |segment| u64_at(segment, 0) as u32 == kind)
    };
    let Some(loader) = of_kind(libc::PT_INTERP).next() else {
        // A static program ignores `LD_PRELOAD`, unless it is a loader that was executed by name.
        return last_part(path).starts_with(b"ld-musl");
    };
    let Some(loader) = file.read::<MAX_LINE_BYTES>(u64_at(loader, 8)) else { return false };
    !is_glibc_loader(until_zero(&loader)) || has_sanitizer(file, of_kind)
}

/// True if one of the first libraries that a successor needs is a sanitizer's.
fn has_sanitizer<'a, I: Iterator<Item = &'a [u8]>>(file: &File, of_kind: impl Fn(u32) -> I) -> bool {
    const ENTRIES: usize = 64;
    const ENTRY_BYTES: usize = 16;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    let Some(section) = of_kind(libc::PT_DYNAMIC).next() else { return false };
    let Some(entries) = file.read::<{ ENTRIES * ENTRY_BYTES }>(u64_at(section, 8)) else { return false };
    let len = (u64_at(section, 32) as usize).min(entries.len());
    let with = |tag: u64| {
        let entries = entries[..len].chunks_exact(ENTRY_BYTES);
        entries.take_while(|entry| u64_at(entry, 0) != 0).filter(move |entry| u64_at(entry, 0) == tag)
    };
    let Some(names) = with(DT_STRTAB).next().map(|entry| u64_at(entry, 8)) else { return false };
    let loaded =
        of_kind(libc::PT_LOAD).find(|segment| names.wrapping_sub(u64_at(segment, 16)) < u64_at(segment, 32));
    let Some(names) = loaded.map(|segment| names - u64_at(segment, 16) + u64_at(segment, 8)) else {
        return false;
    };
    with(DT_NEEDED).take(EXAMINED_LIBRARIES).any(|entry| {
        let name = file.read::<32>(names.saturating_add(u64_at(entry, 8)));
        name.is_some_and(|name| sanitizer(until_zero(&name)).is_some())
    })
}

/// Applies [`cannot_preload`] to the interpreter of a script.
#[inline(never)]
fn cannot_preload_interpreter(script: &File, script_depth: usize) -> bool {
    let Some(line) = script.read::<MAX_LINE_BYTES>(0) else { return false };
    let line = until_zero(line[2..].split(|byte| *byte == b'\n').next().unwrap_or_default()).trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let mut path = [0; MAX_LINE_BYTES];
    path[..end].copy_from_slice(&line[..end]);
    let interpreter = CStr::from_bytes_until_nul(&path).ok().and_then(File::open);
    interpreter.is_some_and(|interpreter| cannot_preload(&interpreter, &line[..end], script_depth + 1))
}

/// Returns the bytes of a string of the caller's, if it is readable.
///
/// # Safety
/// `at` is null, or what the caller passes as a terminated string.
unsafe fn string<'a>(at: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: a terminated string of the caller's, of which the first byte was found readable.
    (!at.is_null() && readable::is_readable(at as usize, 1)).then(|| unsafe { CStr::from_ptr(at).to_bytes() })
}

impl Successor {
    /// True if the successor would not start with this library.
    ///
    /// # Safety
    /// The path is what the caller of exec passes as a terminated string.
    #[inline(never)]
    unsafe fn cannot_preload(self) -> bool {
        let mut path = Path::new();
        // SAFETY: by contract the path is what the caller of exec passes as a terminated string.
        let name = unsafe {
            match self {
                Self::Path(name) | Self::Searched(name) | Self::At(_, name) => {
                    string(name).unwrap_or_default()
                }
                Self::Descriptor(_) => b"",
            }
        };
        let file = match self {
            Self::Searched(_) if !name.contains(&b'/') => return cannot_preload_searched(name, &mut path),
            Self::Descriptor(fd) | Self::At(fd, _) if name.is_empty() => {
                (path.push(b"/proc/self/fd/") && path.push_number(fd)).then(|| path.open())
            }
            Self::At(directory, _)
                if directory != ProgramFd::CURRENT_DIRECTORY && !name.starts_with(b"/") =>
            {
                let is_named = path.push(b"/proc/self/fd/")
                    && path.push_number(directory)
                    && path.push(b"/")
                    && path.push(name);
                is_named.then(|| path.open())
            }
            _ => path.push(name).then(|| path.open()),
        };
        file.flatten().is_some_and(|file| cannot_preload(&file, name, 0))
    }
}

/// Finds the first file of that name in `PATH`; true if there is one that would not start with this library.
fn cannot_preload_searched(name: &[u8], path: &mut Path) -> bool {
    // SAFETY: getenv takes a terminated name and returns null or a terminated string, which is used at once.
    let search = unsafe {
        let found = libc::getenv(c"PATH".as_ptr());
        if found.is_null() { DEFAULT_PATH } else { CStr::from_ptr(found).to_bytes() }
    };
    for directory in search.split(|byte| *byte == b':') {
        path.len = 0;
        let directory = if directory.is_empty() { b"." } else { directory };
        if path.push(directory)
            && path.push(b"/")
            && path.push(name)
            && let Some(file) = path.open()
        {
            return cannot_preload(&file, name, 0);
        }
    }
    false
}

fn is_ours(entry: &[u8]) -> bool {
    last_part(entry) == LIBRARY
}

/// True if an entry of the environment is a variable that `uncopy run` sets or reads.
fn is_option(entry: &[u8]) -> bool {
    let is = |name: &str| entry.strip_prefix(name.as_bytes()).is_some_and(|value| value.starts_with(b"="));
    entry.starts_with(b"UNCOPY_")
        && (OPTIONS.iter().any(|option| is(option.variable))
            || INTERNAL_VARIABLES.iter().any(|name| is(name)))
}

fn entries(preload: &[u8]) -> impl Iterator<Item = &[u8]> {
    preload.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty())
}

/// Returns the number of entries of an environment, without the final null. `None` if its `LD_PRELOAD` does not
/// name this library, or it cannot be read.
///
/// # Safety
/// `environment` is what the caller passes as an environment.
unsafe fn count_entries(environment: List) -> Option<usize> {
    const WORDS_PER_PAGE: usize = uncopy_core::addr::PAGE_BYTES / size_of::<usize>();
    if environment.is_null() {
        return None;
    }
    let (mut count, mut has_us) = (0, false);
    loop {
        let at = environment.wrapping_add(count);
        if (count == 0 || (at as usize / size_of::<usize>()).is_multiple_of(WORDS_PER_PAGE))
            && !readable::is_readable(at as usize, size_of::<usize>())
        {
            return None;
        }
        // SAFETY: the word was found readable, and by contract it is null or a terminated string.
        let entry = unsafe {
            if (*at).is_null() {
                break;
            }
            string(*at)?
        };
        has_us |= entry.strip_prefix(b"LD_PRELOAD=").is_some_and(|list| entries(list).any(is_ours));
        count += 1;
    }
    has_us.then_some(count)
}

/// Calls `execute` with the environment for the successor: the given one, or, if the successor would not start with
/// this library, that without everything of uncopy's.
///
/// # Safety
/// The arguments are valid for an exec function.
pub unsafe fn with_environment<T>(
    successor: Successor,
    environment: List,
    execute: impl FnOnce(List) -> T,
) -> T {
    const FEW: usize = 128;
    const MANY: usize = 2048;
    const MAX_ENTRIES: usize = 16384;
    // SAFETY: the caller guarantees that the arguments are valid for an exec function.
    unsafe {
        let stripped = {
            let _errno = errno::SavedErrno::new();
            count_entries(environment).filter(|_| successor.cannot_preload())
        };
        match stripped {
            Some(count) if count < FEW => without_uncopy::<FEW, T>(environment, execute),
            Some(count) if count < MANY => without_uncopy::<MANY, T>(environment, execute),
            Some(count) if count < MAX_ENTRIES => without_uncopy::<MAX_ENTRIES, T>(environment, execute),
            _ => execute(environment),
        }
    }
}

/// Calls `execute` with a copy of the environment without everything of uncopy's.
///
/// # Safety
/// `environment` has fewer than `N` entries.
#[inline(never)]
unsafe fn without_uncopy<const N: usize, T>(environment: List, execute: impl FnOnce(List) -> T) -> T {
    let mut list = [core::ptr::null::<c_char>(); N];
    let mut preload = Path::new();
    let mut kept = 0;
    for index in 0..N {
        // SAFETY: by contract the environment has fewer than `N` entries; this reads up to the null.
        let (at, entry) = unsafe {
            let at = *environment.add(index);
            if at.is_null() {
                break;
            }
            (at, CStr::from_ptr(at).to_bytes())
        };
        if is_option(entry) {
            continue;
        }
        list[kept] = at;
        if let Some(others) = entry.strip_prefix(b"LD_PRELOAD=").filter(|list| entries(list).any(is_ours)) {
            preload.len = 0;
            let mut fits = preload.push(b"LD_PRELOAD=");
            let start = preload.len;
            for other in entries(others).filter(|other| !is_ours(other)) {
                fits &= (preload.len == start || preload.push(b":")) && preload.push(other);
            }
            if !fits {
                return execute(environment);
            }
            if preload.len == start {
                continue;
            }
            list[kept] = preload.bytes.as_ptr().cast();
        }
        kept += 1;
    }
    execute(list.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn is_refused(name: &str, bytes: &[u8]) -> bool {
        let path = std::env::temp_dir().join(format!("uncopy-successor-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("written");
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
        let file = File::open(&name).expect("open");
        std::fs::remove_file(&path).expect("removed");
        cannot_preload(&file, path.as_os_str().as_encoded_bytes(), 0)
    }

    fn header(class: u8, machine: u16) -> Vec<u8> {
        let mut head = b"\x7FELF".to_vec();
        head.push(class);
        head.resize(18, 1);
        head.extend(machine.to_ne_bytes());
        head.resize(HEADER_BYTES, 0);
        head
    }

    #[test]
    fn programs_of_another_machine_are_known_by_their_first_bytes() {
        assert!(is_refused("32", &header(1, MACHINE)), "32 bits");
        assert!(is_refused("other", &header(2, MACHINE + 1)), "another machine");
        assert!(!is_refused("own", &header(2, MACHINE)), "static");
    }

    #[test]
    fn what_is_damaged_or_no_program_is_left_to_the_kernel() {
        for (name, bytes) in
            [("empty", &b""[..]), ("text", b"echo\n"), ("line", b"#!"), ("none", b"#! /nothing\n")]
        {
            assert!(!is_refused(name, bytes), "{name}");
        }
        let mut far = header(2, MACHINE);
        far[32..40].copy_from_slice(&u64::MAX.to_ne_bytes());
        far[56..58].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert!(!is_refused("far", &far));
        let own = std::fs::read("/proc/self/exe").expect("this program");
        assert!(!is_refused("this", &own));
    }

    #[test]
    fn variables_of_others_that_begin_as_ours_do_stay() {
        assert!(is_option(b"UNCOPY_POLICY=auto") && is_option(b"UNCOPY_STATS="));
        assert!(
            !is_option(b"UNCOPY_POLICY_OF_MINE=1")
                && !is_option(b"UNCOPY_BIN_DIR=/")
                && !is_option(b"UNCOPY_POLICY")
        );
    }
}
