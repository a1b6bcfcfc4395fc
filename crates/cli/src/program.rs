//! Finds the program that CMD names, and says whether a preloaded library can reach it.
//!
//! What can be known cheaply is known here: file mode, ELF header and program headers, and for a
//! script those of its interpreter. What a program then starts is looked at by nobody.

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

/// What `execvp` searches if there is no `PATH` (glibc's `confstr(_CS_PATH)`).
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
/// What `execvp` starts for a file that the kernel does not know how to run.
pub const SHELL: &str = "/bin/sh";
/// How many scripts may name one another as interpreters; the kernel's own bound
/// (`fs/exec.c`, `exec_binprm`).
const SCRIPTS_LIMIT: usize = 5;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;

/// Why CMD cannot be started.
#[derive(Debug)]
pub struct Unfound {
    command: OsString,
    error: io::Error,
    searched: bool,
}

impl Unfound {
    /// 127 if nothing has that name, 126 if something has and cannot be executed.
    pub fn status(&self) -> u8 {
        match self.error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => EXIT_NOT_FOUND,
            _ => EXIT_NOT_EXECUTABLE,
        }
    }
}

impl fmt::Display for Unfound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run {}: ", Quoted(&self.command))?;
        if self.searched && self.status() == EXIT_NOT_FOUND {
            f.write_str("not found in PATH")
        } else {
            write!(f, "{}", Reason(&self.error))
        }
    }
}

/// Finds CMD as `execvp` does.
///
/// # Errors
/// [`Unfound`] if nothing executable has that name.
pub fn find(command: &OsStr, search: Option<&[u8]>) -> Result<PathBuf, Unfound> {
    let unfound = |error, searched| Unfound { command: command.to_os_string(), error, searched };
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return executable(&path).map(|()| path).map_err(|error| unfound(error, false));
    }
    let mut refusal = io::Error::from_raw_os_error(libc::ENOENT);
    if !command.is_empty() {
        for directory in search.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':') {
            // An empty entry is the current directory; "./" keeps it from being searched again.
            let directory = if directory.is_empty() { b"." } else { directory };
            let path = Path::new(OsStr::from_bytes(directory)).join(command);
            match executable(&path) {
                Ok(()) => return Ok(path),
                // Unlike for execvp, a directory that may not be searched holds no such file.
                Err(error)
                    if error.raw_os_error() == Some(libc::EACCES) && path.symlink_metadata().is_ok() =>
                {
                    refusal = error;
                }
                Err(_) => {}
            }
        }
    }
    Err(unfound(refusal, true))
}

fn executable(path: &Path) -> io::Result<()> {
    os::may_execute(path)?;
    // The kernel refuses to execute a directory in these words.
    if path.metadata()?.is_file() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}

/// What keeps a preloaded library out of a program, or from working in it.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No loader, so nothing that would look at `LD_PRELOAD`.
    Static,
    /// It runs with another user's rights; the loader then ignores `LD_PRELOAD`.
    SetUserId,
    /// It runs with another group's rights.
    SetGroupId,
    /// It gains capabilities.
    Capabilities,
    /// 32-bit addresses.
    Bits32,
    /// Another machine's code, with its ELF number.
    OtherMachine(u16),
    /// Its loader is not glibc's.
    OtherLoader(OsString),
    /// It is built with this sanitizer, whose library must be the first.
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
            Self::OtherMachine(machine) => write!(f, "is a program for another machine (ELF {machine})"),
            Self::OtherLoader(loader) => {
                write!(f, "is loaded by {}, which is not glibc's loader", Quoted(loader))
            }
            Self::Sanitizer(name) => write!(f, "is built with {name}, whose library must be loaded first"),
        }
    }
}

/// One file that the kernel looks at to start CMD: CMD itself, or a script's interpreter.
pub struct Step {
    /// Where it is.
    pub path: PathBuf,
    /// The open file, unless it may be executed but not read.
    pub file: Option<File>,
    /// What it is.
    pub kind: Kind,
}

impl Step {
    fn read(path: PathBuf, open: impl Fn(&Path) -> io::Result<File>) -> Self {
        let file = open(&path).ok();
        let kind = file.as_ref().map_or(Kind::Other, |file| Image::read(file).kind());
        Self { path, file, kind }
    }

    /// What keeps the library out, if anything does.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let file = self.file.as_ref()?;
        let mode = file.metadata().ok()?.mode();
        // Also where the loader would look at LD_PRELOAD, because the program's rights are those
        // of its caller anyway: programs made to hold rights are left alone.
        if mode & SET_USER_ID != 0 {
            return Some(Obstacle::SetUserId);
        }
        if mode & SET_GROUP_ID != 0 {
            return Some(Obstacle::SetGroupId);
        }
        // Root gains nothing by them, and the loader then honours LD_PRELOAD.
        if os::user_id() != 0 && os::has_file_capabilities(file) {
            return Some(Obstacle::Capabilities);
        }
        match self.kind {
            Kind::Bits32 => Some(Obstacle::Bits32),
            Kind::OtherMachine(machine) => Some(Obstacle::OtherMachine(machine)),
            Kind::Native => self.loading_obstacle(&Image::read(file)),
            // The kernel or the shell says what it thinks of anything else.
            Kind::Script { .. } | Kind::Other => None,
        }
    }
}

impl Step {
    /// What the program's loader and its libraries have against another library.
    fn loading_obstacle(&self, image: &Image<&File>) -> Option<Obstacle> {
        match image.loader() {
            // Called by hand, it loads its first argument and looks at LD_PRELOAD.
            None if is_glibc_loader(self.path.as_os_str().as_bytes()) => None,
            None => Some(Obstacle::Static),
            Some(loader) if is_glibc_loader(&loader) => {
                image.needed().iter().find_map(|name| sanitizer(name)).map(Obstacle::Sanitizer)
            }
            Some(loader) => Some(Obstacle::OtherLoader(OsString::from_vec(loader))),
        }
    }
}

/// glibc's loader is `ld-linux…` or `ld64…` on every machine; musl's is `ld-musl…`, Android's
/// `linker64`. A library linked with glibc would keep their programs from starting.
fn is_glibc_loader(path: &[u8]) -> bool {
    let name = Path::new(OsStr::from_bytes(path)).file_name().unwrap_or_default().as_bytes();
    [b"ld-linux".as_slice(), b"ld64.", b"ld.so"].iter().any(|start| name.starts_with(start))
}

/// CMD's file, the interpreter that it names if it is a script, that one's, and so on. Never empty.
pub fn follow(path: &Path) -> Vec<Step> {
    follow_by(path, |path| File::open(path))
}

/// The same where files are opened otherwise.
pub fn follow_by(path: &Path, open: impl Fn(&Path) -> io::Result<File>) -> Vec<Step> {
    let mut steps = vec![Step::read(path.to_path_buf(), &open)];
    while steps.len() <= SCRIPTS_LIMIT {
        let last = &steps[steps.len() - 1];
        let next = match &last.kind {
            Kind::Script { interpreter, .. } => PathBuf::from(OsStr::from_bytes(interpreter)),
            // A file that cannot be read may be anything; one that can is a shell script.
            Kind::Other if last.file.is_some() && steps.len() == 1 => PathBuf::from(SHELL),
            _ => break,
        };
        steps.push(Step::read(next, &open));
    }
    steps
}

/// Why CMD cannot be accelerated, as a sentence, if it cannot.
pub fn why_out_of_reach(path: &Path) -> Option<String> {
    let steps = follow(path);
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

    /// A directory of its own below the build's, removed when dropped.
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
        assert_eq!(why_out_of_reach(&shell), None);
        let plain = scratch.file("plain", b"echo\n", 0o755);
        assert_eq!(follow(&plain).last().map(|step| step.path.as_path()), Some(Path::new(SHELL)));
        let circle = scratch.0.join("circle");
        scratch.file("circle", format!("#!{}\n", circle.display()).as_bytes(), 0o755);
        assert_eq!(follow(&circle).len(), SCRIPTS_LIMIT + 1);
        let interpreter = scratch.file("old", b"\x7fELF\x01\x01\0\0\0\0\0\0\0\0\0\0\x02\0\x03\0", 0o755);
        let script = scratch.file("script", format!("#!{} -x\n", interpreter.display()).as_bytes(), 0o755);
        let why = why_out_of_reach(&script).expect("32-bit interpreter");
        assert!(why.contains("which interprets") && why.ends_with("is a 32-bit program"), "{why}");
    }

    #[test]
    fn only_glibcs_loaders_are_accepted() {
        for loader in ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib64/ld64.so.2"] {
            assert!(is_glibc_loader(loader.as_bytes()), "{loader}");
        }
        for loader in ["/lib/ld-musl-x86_64.so.1", "/system/bin/linker64", "", "/"] {
            assert!(!is_glibc_loader(loader.as_bytes()), "{loader}");
        }
    }
}
