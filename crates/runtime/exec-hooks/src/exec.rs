//! Hooks of exec, posix_spawn, system, popen and their families.

use crate::successor::{self, List, Successor};
use core::ffi::{c_char, c_int, c_long, c_void};
use uncopy_interpose::{before, slots};
use uncopy_lanes_hooks as lanes;
use uncopy_store_hooks as files;
use uncopy_sys::descriptor::ProgramFd;

type Path = *const c_char;

slots! {
    EXECVE = c"execve": unsafe extern "C" fn(Path, List, List) -> c_int;
    EXECVPE = c"execvpe": unsafe extern "C" fn(Path, List, List) -> c_int;
    FEXECVE = c"fexecve": unsafe extern "C" fn(ProgramFd, List, List) -> c_int;
    EXECVEAT = c"execveat": unsafe extern "C" fn(ProgramFd, Path, List, List, c_int) -> c_int;
    SYSTEM = c"system": unsafe extern "C" fn(Path) -> c_int;
    POPEN = c"popen": unsafe extern "C" fn(Path, Path) -> *mut c_void;
    POSIX_SPAWN = c"posix_spawn": unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;
    POSIX_SPAWNP = c"posix_spawnp": unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;
    ADD_DUP2 = c"posix_spawn_file_actions_adddup2": unsafe extern "C" fn(*mut c_void, ProgramFd, ProgramFd) -> c_int;
}

/// Prepares for an exec by the calling process.
fn before_exec() {
    lanes::before_exec();
    files::before_exec();
}

/// Prepares for a spawn by a libc function that does not call exec through a hook.
fn before_spawn() {
    lanes::before_spawn();
    files::before_spawn();
}

/// Returns the environment of the calling process.
fn own_environment() -> List {
    unsafe extern "C" {
        static environ: List;
    }
    // SAFETY: `environ` is libc's, initialized and aligned. A program that changes it concurrently has the same
    // race without this library.
    unsafe { (&raw const environ).read_volatile() }
}

/// Defines hooks of execve and its like: `executed!(name (arguments) successor, environment => call with the
/// environment at its end)`.
macro_rules! executed {
    ($name:ident ($($argument:ident: $type:ty),* $(,)?) $before:ident, $successor:expr, $environment:expr, $call:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            $before();
            // SAFETY: the program's own arguments; the environment is its own, or the same without some entries.
            unsafe { successor::with_environment($successor, $environment, $call) }
        }
    };
}

executed!(execve (path: Path, arguments: List, environment: List)
before_exec, Successor::Path(path), environment, |environment| EXECVE.call()(path, arguments, environment));

executed!(execv (path: Path, arguments: List)
before_exec, Successor::Path(path), own_environment(), |environment| EXECVE.call()(path, arguments, environment));

executed!(execvp (file: Path, arguments: List)
before_exec, Successor::Searched(file), own_environment(), |environment| EXECVPE.call()(file, arguments, environment));

executed!(execvpe (file: Path, arguments: List, environment: List)
before_exec, Successor::Searched(file), environment, |environment| EXECVPE.call()(file, arguments, environment));

executed!(fexecve (fd: ProgramFd, arguments: List, environment: List)
before_exec, Successor::Descriptor(fd), environment, |environment| FEXECVE.call()(fd, arguments, environment));

executed!(execveat (directory: ProgramFd, path: Path, arguments: List, environment: List, flags: c_int)
before_exec, Successor::At(directory, path), environment, |environment| {
    EXECVEAT.call()(directory, path, arguments, environment, flags)
});

executed!(posix_spawn
(pid: *mut c_int, path: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List)
before_spawn, Successor::Path(path), environment, |environment| {
    POSIX_SPAWN.call()(pid, path, actions, attributes, arguments, environment)
});

executed!(posix_spawnp
(pid: *mut c_int, file: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List)
before_spawn, Successor::Searched(file), environment, |environment| {
    POSIX_SPAWNP.call()(pid, file, actions, attributes, arguments, environment)
});

/// Prepares for execve and execveat by `syscall`. If the environment is to be changed, makes the call itself.
/// Returns if there is nothing to change or the call failed, as it will again.
pub unsafe fn before_call(number: c_long, [a, b, c, d, e]: [usize; 5]) {
    before_exec();
    // SAFETY: the program's own arguments of execve(2) or execveat(2): null-terminated arrays and strings.
    unsafe {
        if number == libc::SYS_execve {
            successor::with_environment(Successor::Path(a as Path), c as List, |environment| {
                if environment as usize != c {
                    execute(number, [a, b, environment as usize, 0, 0]);
                }
            });
        } else {
            successor::with_environment(
                Successor::At(ProgramFd::of_argument(a), b as Path),
                d as List,
                |environment| {
                    if environment as usize != d {
                        execute(number, [a, b, c, environment as usize, e]);
                    }
                },
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn execute(number: c_long, [a, b, c, d, e]: [usize; 5]) {
    // SAFETY: the program's own system call; its environment is the same without some entries.
    unsafe { uncopy_sys::raw::call(number as usize, [a, b, c, d, e, 0]) };
}

before!(system SYSTEM (command: Path) -> c_int, {
    before_spawn();
});

before!(popen POPEN (command: Path, kind: Path) -> *mut c_void, {
    before_spawn();
});

// exec may close the descriptor that is duplicated, but never the duplicate.
before!(posix_spawn_file_actions_adddup2 ADD_DUP2 (actions: *mut c_void, from: ProgramFd, to: ProgramFd) -> c_int, {
    uncopy_fdtable::on_pass(from);
});

/// Defines hooks of functions that take a program's arguments one by one (x86-64, System V ABI). Arguments in
/// registers are pushed next to those on the stack, and the body gets a pointer to the resulting list.
macro_rules! listed {
    ($($name:ident = $body:ident;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    // The return address is moved below the last arguments in registers.
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

/// Implements execle(3), whose environment follows the null that ends the arguments.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn execle_body(path: Path, arguments: List) -> c_int {
    // SAFETY: `arguments` is the program's list, which execle requires to end with null and an environment.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, (*end.add(1)).cast())
    }
}
