//! exec and its family, and the functions that start a program by ways of their own: which streams the other program has is noted
//! first, see [`uncopy_lanes::handed`], and files that stay open there are synced. Without `--lanes` and `--log` that is a load each.

use crate::{files, lanes};
use core::ffi::{c_char, c_int, c_void};
use uncopy_interpose::{before, slots, variadic};

type Path = *const c_char;
type List = *const *const c_char;
/// A function with arguments that only libc counts.
type Variadic = unsafe extern "C" fn();

slots! {
    EXECVE = c"execve": unsafe extern "C" fn(Path, List, List) -> c_int;
    EXECV = c"execv": unsafe extern "C" fn(Path, List) -> c_int;
    EXECVP = c"execvp": unsafe extern "C" fn(Path, List) -> c_int;
    EXECVPE = c"execvpe": unsafe extern "C" fn(Path, List, List) -> c_int;
    FEXECVE = c"fexecve": unsafe extern "C" fn(c_int, List, List) -> c_int;
    EXECVEAT = c"execveat": unsafe extern "C" fn(c_int, Path, List, List, c_int) -> c_int;
    EXECL = c"execl": Variadic;
    EXECLP = c"execlp": Variadic;
    EXECLE = c"execle": Variadic;
    SYSTEM = c"system": unsafe extern "C" fn(Path) -> c_int;
    POPEN = c"popen": unsafe extern "C" fn(Path, Path) -> *mut c_void;
    POSIX_SPAWN = c"posix_spawn": unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;
    POSIX_SPAWNP = c"posix_spawnp": unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, List, List) -> c_int;
    ADD_DUP2 = c"posix_spawn_file_actions_adddup2": unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
}

/// Before the calling process executes another program.
pub fn before_exec() {
    lanes::before_exec();
    files::before_exec();
}

/// Before another one is started by a function that has its own way to do so.
fn before_spawn() {
    lanes::before_spawn();
    files::before_spawn();
}

before!(execve EXECVE (path: Path, arguments: List, environment: List) -> c_int, {
    before_exec();
});

before!(execv EXECV (path: Path, arguments: List) -> c_int, {
    before_exec();
});

before!(execvp EXECVP (file: Path, arguments: List) -> c_int, {
    before_exec();
});

before!(execvpe EXECVPE (file: Path, arguments: List, environment: List) -> c_int, {
    before_exec();
});

before!(fexecve FEXECVE (fd: c_int, arguments: List, environment: List) -> c_int, {
    before_exec();
});

before!(execveat EXECVEAT (directory: c_int, path: Path, arguments: List, environment: List, flags: c_int) -> c_int, {
    before_exec();
});

before!(system SYSTEM (command: Path) -> c_int, {
    before_spawn();
});

before!(popen POPEN (command: Path, kind: Path) -> *mut c_void, {
    before_spawn();
});

before!(posix_spawn POSIX_SPAWN
(pid: *mut c_int, path: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int, {
    before_spawn();
});

before!(posix_spawnp POSIX_SPAWNP
(pid: *mut c_int, file: Path, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int, {
    before_spawn();
});

// Exec closes the one that is duplicated, perhaps, and never the duplicate.
before!(posix_spawn_file_actions_adddup2 ADD_DUP2 (actions: *mut c_void, from: c_int, to: c_int) -> c_int, {
    lanes::passed(from);
    files::refuse(from);
});

variadic! {
    execl EXECL prepare_execl () { before_exec() }
    execlp EXECLP prepare_execlp () { before_exec() }
    execle EXECLE prepare_execle () { before_exec() }
}
