//! Restrictions that a program puts on itself and that affect uncopy: limits, filters, used-up resources.

use libc::{c_int, rlimit, sock_filter, sock_fprog};

/// Whether the program may make processes and threads after the action.
#[must_use]
pub fn may_fork(action: &str) -> bool {
    !matches!(action, "mappings" | "descriptors" | "processes")
}

/// Performs the action; returns a description of the result, the same with and without uncopy.
///
/// # Panics
/// When there is no such action, or the action fails where it must not.
#[must_use]
pub fn apply(action: &str) -> String {
    match action {
        "nothing" => "done".to_owned(),
        "address-space" => set_limit(libc::RLIMIT_AS, 2 << 30),
        "address-space-by-prlimit" => set_limit_by_prlimit(libc::RLIMIT_AS, 2 << 30),
        "data" => set_limit(libc::RLIMIT_DATA, 1 << 30),
        "descriptors" => exhaust_descriptors(),
        "mappings" => exhaust_mappings(),
        "processes" => limit_processes(),
        "lock-all" => lock_all(libc::MCL_CURRENT | libc::MCL_FUTURE),
        "lock-future" => lock_all(libc::MCL_FUTURE),
        "filter-refusing" => install_filter(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, FilterCall::Prctl),
        "filter-killing" => install_filter(libc::SECCOMP_RET_KILL_PROCESS, FilterCall::Prctl),
        "filter-by-seccomp" => install_filter(libc::SECCOMP_RET_KILL_PROCESS, FilterCall::Syscall),
        other => panic!("unknown action {other}"),
    }
}

fn set_limit(resource: libc::__rlimit_resource_t, bytes: u64) -> String {
    let limit = rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is an initialized rlimit that setrlimit(2) only reads.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0, "setrlimit");
    check_allocatable(bytes)
}

fn set_limit_by_prlimit(resource: libc::__rlimit_resource_t, bytes: u64) -> String {
    let limit = rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit is valid; the old one is not asked for.
    let done = unsafe { libc::prlimit(0, resource, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(done, 0, "prlimit");
    check_allocatable(bytes)
}

/// Checks that most of what the limit allows can be allocated.
fn check_allocatable(bytes: u64) -> String {
    let len = usize::try_from(bytes).expect("fits") / 4 * 3;
    // SAFETY: the mapping is made and removed here, and nothing else refers to it.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0);
        assert_ne!(mapping, libc::MAP_FAILED, "three quarters of the limit cannot be had");
        libc::munmap(mapping, len);
    }
    let heap = vec![1u8; 64 << 20];
    assert_eq!(std::hint::black_box(&heap)[33 << 20], 1);
    "limited".to_owned()
}

/// Forbids further threads and processes; does not bind processes with CAP_SYS_RESOURCE.
fn limit_processes() -> String {
    let limit = rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: `limit` is an initialized rlimit that setrlimit(2) only reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) }, 0, "setrlimit");
    "limited".to_owned()
}

fn exhaust_descriptors() -> String {
    let limit = rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: the limit is valid; new descriptors, kept open.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0, "setrlimit");
        while libc::dup(0) >= 0 {}
        // Frees one descriptor, for the memory file.
        libc::close(63);
    }
    "used up".to_owned()
}

/// Maps single pages, every other one of them inaccessible, until the kernel refuses; then gives a few back
/// for what the workload itself must have.
fn exhaust_mappings() -> String {
    let mut made: Vec<*mut libc::c_void> = Vec::with_capacity(1 << 20);
    // SAFETY: only mappings made here are unmapped.
    unsafe {
        for number in 0..(1 << 20) {
            let protection = if number % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
            if page == libc::MAP_FAILED {
                break;
            }
            made.push(page);
        }
        for page in made.drain(made.len().saturating_sub(40)..) {
            libc::munmap(page, 4096);
        }
    }
    "used up".to_owned()
}

fn lock_all(flags: c_int) -> String {
    // SAFETY: mlockall(2) takes flags and changes no byte of memory.
    match unsafe { libc::mlockall(flags) } {
        0 => "locked".to_owned(),
        _ => format!("errno {}", crate::oracle::errno()),
    }
}

enum FilterCall {
    Prctl,
    Syscall,
}

/// Forbids what uncopy does and an ordinary program does not: userfaultfd and its requests, unshare,
/// close_range.
fn install_filter(action: u32, call: FilterCall) -> String {
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| sock_filter {
        code: u16::try_from(code).expect("fits"),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let ret = libc::BPF_RET | libc::BPF_K;
    let syscall_nr = |number: libc::c_long| u32::try_from(number).expect("fits");
    // struct seccomp_data: nr at 0, the low half of the second argument at 24.
    let mut program = [
        instruction(load, 0, 0, 0),
        instruction(equal, 7, 0, syscall_nr(libc::SYS_userfaultfd)),
        instruction(equal, 6, 0, syscall_nr(libc::SYS_unshare)),
        instruction(equal, 5, 0, syscall_nr(libc::SYS_close_range)),
        instruction(equal, 0, 3, syscall_nr(libc::SYS_ioctl)),
        instruction(load, 0, 0, 24),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 0xff00),
        instruction(equal, 1, 0, 0xaa00),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
        instruction(ret, 0, 0, action),
    ];
    let program =
        sock_fprog { len: u16::try_from(program.len()).expect("fits"), filter: program.as_mut_ptr() };
    // SAFETY: a valid program; seccomp copies it.
    let done = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0, "prctl");
        match call {
            FilterCall::Prctl => i64::from(libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
                0,
                0,
            )),
            FilterCall::Syscall => libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            ),
        }
    };
    assert_eq!(done, 0, "seccomp: errno {}", crate::oracle::errno());
    "installed".to_owned()
}

/// Installs the filter and runs a command under it: for filters that are there before a program begins.
///
/// # Panics
/// When the filter cannot be installed or execv(3) fails.
pub fn exec_under_filter(action: &str, command: &[std::ffi::CString]) -> ! {
    let action = match action {
        "eperm" => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        "enosys" => libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        "kill" => libc::SECCOMP_RET_KILL_PROCESS,
        "trap" => libc::SECCOMP_RET_TRAP,
        other => panic!("unknown filter {other}"),
    };
    let _ = install_filter(action, FilterCall::Syscall);
    let mut arguments: Vec<*const libc::c_char> = command.iter().map(|word| word.as_ptr()).collect();
    arguments.push(std::ptr::null());
    // SAFETY: terminated strings and a terminated array.
    unsafe { libc::execv(arguments[0], arguments.as_ptr()) };
    panic!("execv: errno {}", crate::oracle::errno());
}
