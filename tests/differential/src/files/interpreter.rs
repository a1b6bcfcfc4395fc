//! Executes a program of files, and records the result of each call.

use std::ffi::{CStr, CString};
use std::fmt::{Arguments, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libc::c_int;

use uncopy_tests::oracle::{errno, raw_write};

use super::{MAPS, NAMES, SLOTS};
use crate::program::{Kind, Operation, Program};
use crate::progress::Progress;

/// Maximum depth of children within children.
const MAX_DEPTH: usize = 2;
/// Lower bound of the trace's descriptor: the program's own descriptors are the lowest.
const TRACE_ABOVE: i32 = 300;
/// Time limit for a file to take part in a log: the first log has to be created.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// Parameters of one execution.
#[derive(Clone, Debug)]
pub struct RunParameters {
    /// Path of the program's text.
    pub program: PathBuf,
    /// Path of the progress page.
    pub progress: PathBuf,
    /// Path of the file that results are appended to.
    pub trace: PathBuf,
    /// Indices of the operations to execute.
    pub operations: std::ops::Range<usize>,
    /// Inherited descriptor of each slot; -1 for none.
    pub slots: Vec<i32>,
    /// Number of children and programs between the started program and this one.
    pub depth: usize,
}

/// State of a program of files.
pub(super) struct FilesInterpreter<'a> {
    parameters: &'a RunParameters,
    program: &'a Program,
    progress: &'static Progress,
    trace: i32,
    index: usize,
    pub(super) slots: [i32; SLOTS],
    pub(super) maps: [Option<(usize, usize)>; MAPS],
    pub(super) depth: usize,
    /// End of a pipe whose closing ends the child that idles; -1 for none.
    idle: i32,
    line: String,
}

/// Writes and syncs a file until it takes part in a log, so that other files soon do.
///
/// # Panics
/// If no log was used within `BEGIN_LIMIT`.
pub fn wait_until_logged(path: &Path) {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    let mut mark = [0u8; 8192];
    // SAFETY: the names are NUL-terminated; one byte is written from a literal; `mark` is writable
    // for `len` bytes; the descriptor is opened and closed here.
    let is_logged = unsafe {
        let fd = libc::open(name.as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600);
        assert!(fd >= 0, "{}: errno {}", path.display(), errno());
        let begun = Instant::now();
        let mut is_logged = false;
        while !is_logged && begun.elapsed() < BEGIN_LIMIT {
            libc::write(fd, c"a".as_ptr().cast(), 1);
            libc::fsync(fd);
            let (value, len) = (mark.as_mut_ptr().cast(), mark.len());
            is_logged = libc::fgetxattr(fd, c"user.uncopy.log".as_ptr(), value, len) > 0;
        }
        libc::close(fd);
        is_logged
    };
    assert!(is_logged, "{}: no file takes part in a log", path.display());
}

/// Executes the operations.
///
/// # Panics
/// If the program or the trace cannot be opened.
pub fn run(parameters: &RunParameters) {
    let text = std::fs::read_to_string(&parameters.program).expect("the program");
    let program = Program::parse(&text).expect("a program");
    let name = CString::new(parameters.trace.as_os_str().as_encoded_bytes()).expect("no NUL");
    let mut slots = [-1; SLOTS];
    slots.iter_mut().zip(&parameters.slots).for_each(|(slot, fd)| *slot = *fd);
    let progress = Progress::open(&parameters.progress);
    // SAFETY: `name` is NUL-terminated and lives through the call; both descriptors are opened here.
    let trace = unsafe {
        let low = libc::open(
            name.as_ptr(),
            libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC,
            0o600,
        );
        let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, TRACE_ABOVE);
        libc::close(low);
        high
    };
    assert!(trace >= 0, "{}: errno {}", parameters.trace.display(), errno());
    let (index, depth, maps, line) =
        (parameters.operations.start, parameters.depth, [None; MAPS], String::new());
    let mut interpreter = FilesInterpreter {
        parameters,
        program: &program,
        progress,
        trace,
        index,
        slots,
        maps,
        depth,
        idle: -1,
        line,
    };
    interpreter.run_operations(parameters.operations.clone());
    if parameters.depth == 0 {
        interpreter.trace_final_state();
    }
}

/// Returns a file name in the working directory.
pub(super) fn name(number: usize) -> &'static CStr {
    [c"a", c"b", c"c", c"d", c"e"][number % NAMES]
}

impl FilesInterpreter<'_> {
    /// Returns the descriptor of a slot, or -1.
    pub(super) fn fd(&self, slot: usize) -> i32 {
        self.slots[slot % SLOTS]
    }

    /// Puts a descriptor into a slot, and closes the previous one.
    pub(super) fn set_slot(&mut self, slot: usize, fd: i32) {
        if fd >= 0 {
            let old = core::mem::replace(&mut self.slots[slot % SLOTS], fd);
            if old >= 0 {
                // SAFETY: `old` is the slot's own descriptor, which was just taken out.
                let returned = unsafe { libc::close(old) };
                self.trace_result(i64::from(returned), format_args!("closed {old}"));
            }
        }
    }

    /// Records the result of a call: its value, `errno` if the value is -1, and `more`.
    pub(super) fn trace_result(&mut self, value: i64, more: Arguments<'_>) {
        let error = if value == -1 { errno() } else { 0 };
        // Writing to a `String` cannot fail.
        let _ = write!(self.line, " {value}");
        if error != 0 {
            let _ = write!(self.line, " errno {error}");
        }
        let _ = write!(self.line, " {more};");
    }

    /// Records the state of a descriptor: file size, mode, links, offset and flags.
    pub(super) fn trace_descriptor(&mut self, fd: i32) {
        if fd < 0 {
            return;
        }
        // SAFETY: `status` is valid (all-zero) and lives through the call; the other calls take integers.
        let (found, status, at, flags, fd_flags) = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            let found = libc::fstat(fd, &raw mut status);
            let at = libc::lseek(fd, 0, libc::SEEK_CUR);
            (found, status, at, libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFD))
        };
        // A keeper's lease sets O_ASYNC. The library hides this flag from the logged program, but
        // not from its children.
        let flags = if self.depth > 0 && flags > 0 { flags & !libc::O_ASYNC } else { flags };
        let (size, mode, links) = (status.st_size, status.st_mode, status.st_nlink);
        let _ = write!(
            self.line,
            " [fd {fd}: {found} {size} bytes, {mode:o}, {links} names, at {at}, {flags:o} {fd_flags}]"
        );
    }

    /// Appends the recorded line to the trace.
    fn write_line(&mut self, kind: &str) {
        let line = format!("{} {kind} ({}){}\n", self.index, self.depth, self.line);
        self.line.clear();
        // SAFETY: `line` is readable for its length.
        let written = unsafe { raw_write(self.trace, line.as_ptr(), line.len()) };
        assert_eq!(written, Ok(line.len()), "the trace");
    }

    fn run_operations(&mut self, operations: std::ops::Range<usize>) {
        let end = operations.end.min(self.program.operations.len());
        for index in operations.start..end {
            self.index = index;
            let operation = self.program.operations[index];
            self.progress.begin(0, index, operation.kind, self.depth > 0);
            self.execute(&operation);
            self.write_line(operation.kind.name());
        }
    }

    fn execute(&mut self, operation: &Operation) {
        let numbers = operation.numbers;
        let [a, b, c, d, e, f, ..] = numbers;
        match operation.kind {
            Kind::Open => self.open(a, b, c, d),
            Kind::Reopen => self.reopen(a, b, c),
            Kind::Close => self.close(a, b),
            Kind::Duplicate => self.duplicate(a, b, c),
            Kind::Put => self.put(a, b, c, d, e, f),
            Kind::Get => self.get(a, b, c, d, e),
            Kind::Steady => self.steady(a, b, c, d, e),
            Kind::Seek => self.seek(a, b, c),
            Kind::Sync => self.sync(a, b, c, d),
            Kind::Length => self.length(a, b, c, d),
            Kind::Reserve => self.reserve(a, b, c, d),
            Kind::Name => self.rename(a, b, c),
            Kind::Control => self.control(a, b, c),
            Kind::Look => self.look(a, b),
            Kind::Pass => self.pass(a, b, c, d, e, f),
            Kind::Map => self.map(a, b, c, d, e),
            Kind::Mapped => self.mapped(a, b, c, d, e),
            Kind::Child => self.child(a, b),
            // Operations of other programs never get here.
            _ => {}
        }
    }

    /// Records the final state of all names and slots.
    fn trace_final_state(&mut self) {
        for number in 0..NAMES {
            self.look(number, 0);
            self.write_line("end");
        }
        for slot in 0..SLOTS {
            self.trace_descriptor(self.fd(slot));
            self.write_line("end");
        }
    }

    /// Runs the next operations in another process and waits for it, or replaces this process by a
    /// program that does the rest.
    fn child(&mut self, how: usize, count: usize) {
        let next = self.index + 1;
        if how % 5 == 3 {
            let end = self.parameters.operations.end.min(self.program.operations.len());
            let arguments = self.arguments(next..end, self.depth);
            self.trace_result(0, format_args!("exec"));
            self.write_line("child");
            exec(&arguments);
        }
        if self.depth >= MAX_DEPTH {
            return;
        }
        if how % 5 == 4 {
            return self.fork_idle();
        }
        self.trace_result(0, format_args!("a child"));
        self.write_line("child");
        let index = self.index;
        let arguments = self.arguments(next..next + count, self.depth + 1);
        let child = match how % 5 {
            2 => spawn(&arguments),
            // SAFETY: the process has one thread, so the child may continue to run Rust code.
            how => match unsafe { libc::fork() } {
                0 if how == 1 => exec(&arguments),
                0 => {
                    self.depth += 1;
                    self.run_operations(next..next + count);
                    // SAFETY: `_exit` takes an integer only, and skips the parent's exit handlers.
                    unsafe { libc::_exit(0) }
                }
                child => child,
            },
        };
        self.index = index;
        let mut status = 0;
        // SAFETY: `status` is writable and lives through the call.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) } == child;
        self.trace_result(i64::from(status), format_args!("ended {ended}"));
        (0..SLOTS).for_each(|slot| self.trace_descriptor(self.fd(slot)));
    }

    /// Forks a child that closes the slots' descriptors, and idles until this process ends or forks the next one.
    fn fork_idle(&mut self) {
        let mut ends: [c_int; 2] = [0; 2];
        // SAFETY: `ends` has room for two descriptors, which are closed here or in the child; the process has one
        // thread, and the child only closes descriptors, reads into its own byte, and ends by `_exit`.
        let (forked, idle) = unsafe {
            let made = libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC);
            assert_eq!(made, 0, "a pipe: errno {}", errno());
            let [from, to] = ends.map(|end| libc::fcntl(end, libc::F_DUPFD_CLOEXEC, TRACE_ABOVE));
            ends.into_iter().chain([self.idle]).filter(|fd| *fd >= 0).for_each(|fd| _ = libc::close(fd));
            let forked = libc::fork();
            if forked == 0 {
                self.slots.into_iter().chain([to]).filter(|fd| *fd >= 0).for_each(|fd| _ = libc::close(fd));
                libc::read(from, (&raw mut ends).cast(), 1);
                libc::_exit(0);
            }
            libc::close(from);
            (forked > 0, to)
        };
        self.idle = idle;
        self.trace_result(i64::from(forked), format_args!("a child that idles"));
    }

    /// Returns the arguments to execute `operations` with the descriptors that exec leaves open.
    fn arguments(&self, operations: std::ops::Range<usize>, depth: usize) -> Vec<CString> {
        // SAFETY: fcntl(2) with F_GETFD takes integers only.
        let survives_exec = |fd: i32| unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC == 0;
        let slots = self.slots.map(|fd| if fd >= 0 && survives_exec(fd) { fd } else { -1 });
        let slots = slots.map(|fd| fd.to_string()).join(",");
        let machine = std::env::current_exe().expect("this program");
        let arguments: [std::ffi::OsString; 16] = [
            machine.into(),
            "execute-files".into(),
            "--program".into(),
            self.parameters.program.clone().into(),
            "--progress".into(),
            self.parameters.progress.clone().into(),
            "--trace".into(),
            self.parameters.trace.clone().into(),
            "--from".into(),
            operations.start.to_string().into(),
            "--to".into(),
            operations.end.to_string().into(),
            "--depth".into(),
            depth.to_string().into(),
            "--slots".into(),
            slots.into(),
        ];
        arguments.into_iter().map(|word| CString::new(word.into_encoded_bytes()).expect("no NUL")).collect()
    }
}

fn pointers(arguments: &[CString]) -> Vec<*mut libc::c_char> {
    let pointers = arguments.iter().map(|argument| argument.as_ptr().cast_mut());
    pointers.chain([core::ptr::null_mut()]).collect()
}

fn exec(arguments: &[CString]) -> ! {
    let pointers = pointers(arguments);
    // SAFETY: `pointers` has NUL-terminated strings of `arguments`, which lives through the call,
    // and ends with a null pointer.
    unsafe {
        libc::execv(pointers[0], pointers.as_ptr().cast());
        libc::_exit(9)
    }
}

fn spawn(arguments: &[CString]) -> libc::pid_t {
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    let pointers = pointers(arguments);
    let mut child = -1;
    // SAFETY: `pointers` and `environ` have NUL-terminated strings and end with a null pointer;
    // null actions and attributes are allowed; no other thread changes the environment.
    unsafe {
        let (path, none) = (pointers[0], core::ptr::null());
        libc::posix_spawn(&raw mut child, path, none, core::ptr::null(), pointers.as_ptr(), environ);
    }
    child
}
