//! exec and its family, and the functions that start a program by ways of their own: which streams the other program has is noted
//! first, see [`uncopy_lanes::handed`], and files that stay open there are synced. Without `--lanes` and `--log` that is a load each.
//! Programs that cannot be loaded with this library get an environment without it: see [`successor`].

use crate::successor::{self, List, Program};
use crate::{files, lanes};
use core::ffi::{c_char, c_int, c_long, c_void};
use uncopy_interpose::{before, slots};

type Path = *const c_char;

slots! {
    EXECVE = c"execve": unsafe extern "C" fn(Path, List, List) -> c_int;
    EXECVPE = c"execvpe": unsafe extern "C" fn(Path, List, List) -> c_int;
    FEXECVE = c"fexecve": unsafe extern "C" fn(c_int, List, List) -> c_int;
    EXECVEAT = c"execveat": unsafe extern "C" fn(c_int, Path, List, List, c_int) -> c_int;
    SYSTEM = c"system": unsafe extern "C" fn(Path) -> c_int;
    POPEN = c"popen": unsafe extern "C" fn(Path, Path) -> *mut c_void;
    POSIX_SPAWN = c"posix_spawn": unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;
    POSIX_SPAWNP = c"posix_spawnp": unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;
    ADD_DUP2 = c"posix_spawn_file_actions_adddup2": unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
}

/// Before the calling process executes another program.
fn before_exec() {
    lanes::before_exec();
    files::before_exec();
}

/// Before another one is started by a function that has its own way to do so.
fn before_spawn() {
    lanes::before_spawn();
    files::before_spawn();
}

/// The environment of the calling process.
fn own_environment() -> List {
    unsafe extern "C" {
        static environ: List;
    }
    // SAFETY: libc's pointer; a program that changes it in another thread meanwhile has the race that it has without us.
    unsafe { (&raw const environ).read_volatile() }
}

/// execve and its like: `executed!(name (arguments) program, environment => call with the environment at its end)`.
macro_rules! executed {
    ($name:ident ($($argument:ident: $type:ty),* $(,)?) $before:ident, $program:expr, $environment:expr, $call:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            $before();
            // SAFETY: the program's own arguments; the environment is its own, or that without some entries.
            unsafe { successor::with_environment($program, $environment, $call) }
        }
    };
}

executed!(execve (path: Path, arguments: List, environment: List)
before_exec, Program::Path(path), environment, |environment| EXECVE.call()(path, arguments, environment));

executed!(execv (path: Path, arguments: List)
before_exec, Program::Path(path), own_environment(), |environment| EXECVE.call()(path, arguments, environment));

executed!(execvp (file: Path, arguments: List)
before_exec, Program::Searched(file), own_environment(), |environment| EXECVPE.call()(file, arguments, environment));

executed!(execvpe (file: Path, arguments: List, environment: List)
before_exec, Program::Searched(file), environment, |environment| EXECVPE.call()(file, arguments, environment));

executed!(fexecve (fd: c_int, arguments: List, environment: List)
before_exec, Program::Descriptor(fd), environment, |environment| FEXECVE.call()(fd, arguments, environment));

executed!(execveat (directory: c_int, path: Path, arguments: List, environment: List, flags: c_int)
before_exec, Program::At(directory, path), environment, |environment| {
    EXECVEAT.call()(directory, path, arguments, environment, flags)
});

executed!(posix_spawn
(pid: *mut c_int, path: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List)
before_spawn, Program::Path(path), environment, |environment| {
    POSIX_SPAWN.call()(pid, path, actions, attributes, arguments, environment)
});

executed!(posix_spawnp
(pid: *mut c_int, file: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List)
before_spawn, Program::Searched(file), environment, |environment| {
    POSIX_SPAWNP.call()(pid, file, actions, attributes, arguments, environment)
});

/// execve and execveat by libc's `syscall`, before the call is made as it is: makes it itself if the environment is another. Returns
/// only if there is nothing to do, or the call failed, as it will again.
pub unsafe fn before_call(number: c_long, [a, b, c, d, e]: [usize; 5]) {
    before_exec();
    // SAFETY: the program's own arguments.
    unsafe {
        if number == libc::SYS_execve {
            successor::with_environment(Program::Path(a as Path), c as List, |environment| {
                if environment as usize != c {
                    execute(number, [a, b, environment as usize, 0, 0]);
                }
            });
        } else {
            successor::with_environment(Program::At(a as c_int, b as Path), d as List, |environment| {
                if environment as usize != d {
                    execute(number, [a, b, c, environment as usize, e]);
                }
            });
        }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn execute(number: c_long, [a, b, c, d, e]: [usize; 5]) {
    // SAFETY: the program's own system call, with another environment.
    unsafe { uncopy_sys::raw::call(number as usize, [a, b, c, d, e, 0]) };
}

before!(system SYSTEM (command: Path) -> c_int, {
    before_spawn();
});

before!(popen POPEN (command: Path, kind: Path) -> *mut c_void, {
    before_spawn();
});

// Exec closes the one that is duplicated, perhaps, and never the duplicate.
before!(posix_spawn_file_actions_adddup2 ADD_DUP2 (actions: *mut c_void, from: c_int, to: c_int) -> c_int, {
    lanes::passed(from);
    files::refuse(from);
});

/// Hooks of functions that take a program's arguments one by one: these are put behind one another on the stack, where those that
/// are no longer in registers lie already, and the body gets a list of them. On x86-64 (System V ABI).
macro_rules! listed {
    ($($name:ident = $body:ident;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    // The return address makes way for the last arguments in registers.
                    "pop rax",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax",
                    "push rbx",
                    "sub rsp, 8",
                    "call {body}",
                    "add rsp, 8",
                    "pop rbx",
                    "pop rcx",
                    "add rsp, 40",
                    "push rcx",
                    "ret",
                    body = sym $body,
                )
            }
        )*
    };
}

listed! {
    execl = execv;
    execlp = execvp;
    execle = execle_body;
}

/// The environment comes behind the null at the arguments' end.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn execle_body(path: Path, arguments: List) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, (*end.add(1)).cast())
    }
}
