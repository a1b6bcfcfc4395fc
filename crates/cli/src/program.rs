//! Finds the program that CMD names, and decides whether a library can be preloaded into it.
//!
//! Only what is cheap is read: file mode, ELF header and program headers, and for a script those of
//! its interpreter. Programs that the program starts are not inspected.

use crate::elf::{Image, Kind};
use crate::os;
use crate::output::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Quoted, Reason};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use uncopy_core::allocators::sanitizer;
use uncopy_core::loader::is_glibc_loader;

/// Search path of execvp(3) without `PATH` (glibc's `confstr(_CS_PATH)`).
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
/// Program that execvp(3) starts for a file that the kernel cannot execute.
pub const SHELL: &str = "/bin/sh";
/// Maximum depth of scripts that name scripts as interpreters, as in the kernel (`fs/exec.c`,
/// `exec_binprm`).
const MAX_SCRIPTS: usize = 5;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;

/// Error: CMD cannot be started. `Display` is a complete message.
#[derive(Debug)]
pub struct FindError {
    command: OsString,
    error: io::Error,
    searched: bool,
}

impl FindError {
    /// Returns 127 if nothing has the name, 126 if it cannot be executed.
    pub fn status(&self) -> u8 {
        match self.error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => EXIT_NOT_FOUND,
            _ => EXIT_NOT_EXECUTABLE,
        }
    }
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run {}: ", Quoted(&self.command))?;
        if self.searched && self.status() == EXIT_NOT_FOUND {
            f.write_str("not found in PATH")
        } else {
            write!(f, "{}", Reason(&self.error))
        }
    }
}

/// Finds CMD as execvp(3) does.
pub fn find(command: &OsStr, search: Option<&[u8]>) -> Result<PathBuf, FindError> {
    let find_error = |error, searched| FindError { command: command.to_os_string(), error, searched };
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return executable(&path).map(|()| path).map_err(|error| find_error(error, false));
    }
    let mut last_error = io::Error::from_raw_os_error(libc::ENOENT);
    if !command.is_empty() {
        for directory in search.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':') {
            // An empty entry is the current directory; "./" keeps the result from being searched
            // again.
            let directory = if directory.is_empty() { b"." } else { directory };
            let path = Path::new(OsStr::from_bytes(directory)).join(command);
            match executable(&path) {
                Ok(()) => return Ok(path),
                // Unlike in execvp(3), a directory that may not be searched counts as without the
                // file.
                Err(error)
                    if error.raw_os_error() == Some(libc::EACCES) && path.symlink_metadata().is_ok() =>
                {
                    last_error = error;
                }
                Err(_) => {}
            }
        }
    }
    Err(find_error(last_error, true))
}

fn executable(path: &Path) -> io::Result<()> {
    os::check_executable(path)?;
    // The kernel refuses to execute a directory with this error.
    if path.metadata()?.is_file() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}

/// Reason why a preloaded library cannot be loaded into a program or work there.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No loader, which would read `LD_PRELOAD`.
    Static,
    /// Runs with another user's rights, so that the loader ignores `LD_PRELOAD`.
    SetUserId,
    /// Runs with another group's rights.
    SetGroupId,
    /// Gains capabilities when executed.
    Capabilities,
    /// Has addresses of 32 bits.
    Bits32,
    /// Code for another machine, with its `e_machine`.
    OtherMachine(u16),
    /// Loaded by another loader than glibc's.
    OtherLoader(OsString),
    /// Built with this sanitizer, whose library must be loaded first.
    Sanitizer(&'static str),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("is statically linked"),
            Self::SetUserId => f.write_str("is set-user-ID"),
            Self::SetGroupId => f.write_str("is set-group-ID"),
            Self::Capabilities => f.write_str("carries file capabilities"),
            Self::Bits32 => f.write_str("is a 32-bit program"),
            Self::OtherMachine(machine) => {
                write!(f, "is built for another architecture (ELF machine {machine})")
            }
            Self::OtherLoader(loader) => {
                write!(f, "is loaded by {}, which is not glibc's loader", Quoted(loader))
            }
            Self::Sanitizer(name) => write!(f, "is built with {name}, whose library must be loaded first"),
        }
    }
}

/// File that the kernel reads to start CMD: CMD itself, or a script's interpreter.
pub struct Step {
    pub path: PathBuf,
    /// Open file; `None` if it may be executed but not read.
    pub file: Option<File>,
    pub kind: Kind,
}

impl Step {
    fn read(path: PathBuf, open: impl Fn(&Path) -> io::Result<File>) -> Self {
        let file = open(&path).ok();
        let kind = file.as_ref().map_or(Kind::Other, |file| Image::read(file).kind());
        Self { path, file, kind }
    }

    /// Returns the obstacle to preloading, if any.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let file = self.file.as_ref()?;
        let mode = file.metadata().ok()?.mode();
        // Refused even where the loader would read LD_PRELOAD because the caller has these rights
        // anyway: programs that exist to hold rights run plainly.
        if mode & SET_USER_ID != 0 {
            return Some(Obstacle::SetUserId);
        }
        if mode & SET_GROUP_ID != 0 {
            return Some(Obstacle::SetGroupId);
        }
        // Root gains nothing by file capabilities, and the loader then reads LD_PRELOAD.
        if os::user_id() != 0 && os::has_file_capabilities(file) {
            return Some(Obstacle::Capabilities);
        }
        match self.kind {
            Kind::Bits32 => Some(Obstacle::Bits32),
            Kind::OtherMachine(machine) => Some(Obstacle::OtherMachine(machine)),
            Kind::Native => self.loading_obstacle(&Image::read(file)),
            // The kernel or the shell reports what it cannot run.
            Kind::Script { .. } | Kind::Other => None,
        }
    }
}

impl Step {
    /// Returns the obstacle in the program's loader or libraries. Its twin inside programs is
    /// `cannot_preload` in `crates/runtime/exec-hooks/src/successor.rs`; change both.
    fn loading_obstacle(&self, image: &Image<&File>) -> Option<Obstacle> {
        match image.loader() {
            // A loader that is run directly loads its first argument and reads LD_PRELOAD.
            None if is_glibc_loader(self.path.as_os_str().as_bytes()) => None,
            None => Some(Obstacle::Static),
            Some(loader) if is_glibc_loader(&loader) => {
                image.needed().iter().find_map(|name| sanitizer(name)).map(Obstacle::Sanitizer)
            }
            Some(loader) => Some(Obstacle::OtherLoader(OsString::from_vec(loader))),
        }
    }
}

/// Returns the files that start CMD: CMD's own, its interpreter if it is a script, that one's
/// interpreter, and so on. Never empty.
pub fn interpreter_chain(path: &Path) -> Vec<Step> {
    interpreter_chain_with(path, |path| File::open(path))
}

/// Does the same as [`interpreter_chain`], opening files by `open`.
pub fn interpreter_chain_with(path: &Path, open: impl Fn(&Path) -> io::Result<File>) -> Vec<Step> {
    let mut steps = vec![Step::read(path.to_path_buf(), &open)];
    while steps.len() <= MAX_SCRIPTS {
        let last = &steps[steps.len() - 1];
        let next = match &last.kind {
            Kind::Script { interpreter, .. } => PathBuf::from(OsStr::from_bytes(interpreter)),
            // An unreadable file may be anything; a readable one of no known kind is a shell
            // script.
            Kind::Other if last.file.is_some() && steps.len() == 1 => PathBuf::from(SHELL),
            _ => break,
        };
        steps.push(Step::read(next, &open));
    }
    steps
}

/// Returns why CMD cannot be accelerated, as a sentence; `None` if it can.
pub fn why_not_preloadable(path: &Path) -> Option<String> {
    let steps = interpreter_chain(path);
    let last = steps.last()?;
    let obstacle = last.obstacle()?;
    Some(match steps.len() {
        1 => format!("{} {obstacle}", Quoted(path.as_os_str())),
        _ => format!(
            "{}, which interprets {}, {obstacle}",
            Quoted(last.path.as_os_str()),
            Quoted(path.as_os_str())
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Scratch directory, removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("uncopy-program-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("scratch directory");
            Self(path)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, content).expect("scratch file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn search_skips_what_cannot_be_executed_and_remembers_it() {
        let scratch = Scratch::new("search");
        let first = scratch.0.join("first");
        let second = scratch.0.join("second");
        for directory in [&first, &second] {
            std::fs::create_dir_all(directory).expect("directory");
        }
        scratch.file("first/tool", b"", 0o644);
        scratch.file("first/plain", b"", 0o644);
        std::fs::create_dir_all(first.join("folder")).expect("directory");
        let tool = scratch.file("second/tool", b"", 0o755);
        let search = [first.as_os_str().as_bytes(), second.as_os_str().as_bytes()].join(&b':');

        assert_eq!(find("tool".as_ref(), Some(&search)).expect("found"), tool);
        for (name, status) in [("plain", 126), ("folder", 126), ("nothing", 127), ("", 127)] {
            let error = find(name.as_ref(), Some(&search)).expect_err(name);
            assert_eq!(error.status(), status, "{error}");
        }
        let not_a_directory = first.join("tool/x");
        assert_eq!(find(not_a_directory.as_os_str(), None).expect_err("no directory").status(), 127);
        assert!(find("sh".as_ref(), None).is_ok(), "without PATH the default is searched");
    }

    #[test]
    fn modes_that_give_rights_are_obstacles() {
        let scratch = Scratch::new("modes");
        for (mode, obstacle) in [(0o4755, Obstacle::SetUserId), (0o2755, Obstacle::SetGroupId)] {
            let path = scratch.file("tool", b"\x7fELF", mode);
            assert_eq!(Step::read(path, |path| File::open(path)).obstacle(), Some(obstacle));
        }
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let scratch = Scratch::new("scripts");
        let shell = scratch.file("shell", b"#!/bin/sh\n", 0o755);
        assert_eq!(why_not_preloadable(&shell), None);
        let plain = scratch.file("plain", b"echo\n", 0o755);
        assert_eq!(interpreter_chain(&plain).last().map(|step| step.path.as_path()), Some(Path::new(SHELL)));
        let circle = scratch.0.join("circle");
        scratch.file("circle", format!("#!{}\n", circle.display()).as_bytes(), 0o755);
        assert_eq!(interpreter_chain(&circle).len(), MAX_SCRIPTS + 1);
        let interpreter = scratch.file("old", b"\x7fELF\x01\x01\0\0\0\0\0\0\0\0\0\0\x02\0\x03\0", 0o755);
        let script = scratch.file("script", format!("#!{} -x\n", interpreter.display()).as_bytes(), 0o755);
        let why = why_not_preloadable(&script).expect("32-bit interpreter");
        assert!(why.contains("which interprets") && why.ends_with("is a 32-bit program"), "{why}");
    }
}
