//! Programs whose threads end one by one, by paths that run no code of libc; each path is used in
//! a forked child and in an executed program.
//!
//! ```text
//! ends SCENARIO SEED
//! ends end PATH SEED
//! ```

#![allow(
    clippy::cast_possible_truncation,
    reason = "arguments and results of system calls have 64 bits here"
)]

use std::arch::asm;
use std::ffi::c_long;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use uncopy_tests::calls::CopyCall;
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::wait;
use uncopy_tests::mirror::Buffer;

const MIB: usize = 1 << 20;
/// Exit status of threads that give one.
const STATUS: usize = 3;

/// A system call made by an instruction of this program's own: nothing can interpose on it.
///
/// # Safety
/// The call's requirements apply.
unsafe fn inline_syscall(number: c_long, arguments: [usize; 3]) -> isize {
    let [first, second, third] = arguments;
    let result;
    // SAFETY: the caller promises what the call requires; the kernel changes the named registers only.
    unsafe {
        asm!("syscall", inout("rax") number as isize => result, in("rdi") first, in("rsi") second,
            in("rdx") third, out("rcx") _, out("r11") _, options(nostack));
    }
    result
}

/// Ways in which the program's last thread ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ExitPath {
    InlineSyscall,
    Syscall,
    StrictExit,
    StrictViolation,
    FilterByPrctl,
    FilterByInlineSyscall,
    FilterForAllThreads,
    FilterForAllThreadsByInlineSyscall,
}

impl ExitPath {
    const ALL: [Self; 8] = [
        Self::InlineSyscall,
        Self::Syscall,
        Self::StrictExit,
        Self::StrictViolation,
        Self::FilterByPrctl,
        Self::FilterByInlineSyscall,
        Self::FilterForAllThreads,
        Self::FilterForAllThreadsByInlineSyscall,
    ];

    fn end(self) -> ! {
        // SAFETY: each of these ends the calling thread.
        unsafe {
            match self {
                Self::InlineSyscall => _ = inline_syscall(libc::SYS_exit, [STATUS, 0, 0]),
                Self::Syscall => _ = libc::syscall(libc::SYS_exit, STATUS),
                Self::StrictExit => {
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT, 0, 0, 0);
                    libc::syscall(libc::SYS_exit, STATUS);
                }
                Self::StrictViolation => {
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT, 0, 0, 0);
                    libc::syscall(libc::SYS_getppid);
                }
                _ => self.end_by_filter(),
            }
        }
        panic!("{self:?}: the thread goes on");
    }

    /// Installs a filter that kills a thread for getppid, and makes that call.
    unsafe fn end_by_filter(self) {
        let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
            code: u16::try_from(code).expect("fits"),
            jt,
            jf,
            k,
        };
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let ret = libc::BPF_RET | libc::BPF_K;
        let mut program = [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            instruction(equal, 0, 1, u32::try_from(libc::SYS_getppid).expect("fits")),
            instruction(ret, 0, 0, libc::SECCOMP_RET_KILL_THREAD),
            instruction(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
        let address = (&raw const program).addr();
        let (filter, all) =
            (libc::SECCOMP_SET_MODE_FILTER as usize, libc::SECCOMP_FILTER_FLAG_TSYNC as usize);
        let (option, mode) = (libc::PR_SET_SECCOMP as usize, libc::SECCOMP_MODE_FILTER as usize);
        // SAFETY: a valid program, which the kernel copies.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0, "prctl");
            let installed = match self {
                Self::FilterByPrctl => {
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, address, 0, 0) as isize
                }
                Self::FilterByInlineSyscall => inline_syscall(libc::SYS_prctl, [option, mode, address]),
                Self::FilterForAllThreads => libc::syscall(libc::SYS_seccomp, filter, all, address) as isize,
                _ => inline_syscall(libc::SYS_seccomp, [filter, all, address]),
            };
            assert_eq!(installed, 0, "{self:?}");
            inline_syscall(libc::SYS_getppid, [0; 3]);
        }
    }
}

/// Ends with views. Core files are disabled, and the status's core flag is not compared.
fn end_with_views(path: ExitPath, seed: u64) -> ! {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is an initialized rlimit that setrlimit(2) only reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) }, 0, "setrlimit");
    let mut feeder = Feeder::new(seed);
    let received = feeder.received_buffer(MIB);
    let copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, MIB);
    copy.check(0, MIB / 2, "copied in a program that ends");
    path.end();
}

/// A process ends with the last thread of the program, with that thread's status.
fn threads_that_end_alone(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let kept = feeder.copied_buffer(MIB);
    for path in ExitPath::ALL {
        // SAFETY: the program has one thread, so no lock is held in the child.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            kept.check(0, MIB / 2, "in the child");
            end_with_views(path, seed);
        }
        let status = wait(pid);
        println!("{path:?}, forked: {status:#x}");
        let program = std::env::current_exe().expect("this program");
        let number = ExitPath::ALL.iter().position(|other| *other == path).expect("one of all");
        let mut command = Command::new(program);
        command.args(["end", &number.to_string(), &seed.to_string()]);
        let status = command.status().expect("this program runs").into_raw();
        println!("{path:?}, executed: {status:#x}");
    }
    kept.check_all("kept while others ended");
}

/// Page faults are served until the last thread ends, also where the first one has ended by an instruction.
fn threads_that_outlive_the_first(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let kept = feeder.copied_buffer(MIB);
    for _ in 0..3 {
        // SAFETY: the program has one thread, so no lock is held in the child.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            let mut feeder = Feeder::new(seed + 1);
            let received = feeder.copied_buffer(MIB);
            std::thread::spawn(move || {
                let stat = format!("/proc/self/task/{}/stat", std::process::id());
                let has_ended = |stat: &str| {
                    let text = std::fs::read_to_string(stat).expect("the first thread's entry");
                    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
                };
                while !has_ended(&stat) {
                    std::thread::yield_now();
                }
                received.check_all("behind the first thread");
                feeder.copied_buffer(MIB).check_all("received behind the first thread");
            });
            ExitPath::InlineSyscall.end();
        }
        let status = wait(pid);
        assert!(libc::WIFEXITED(status), "{status:#x}");
    }
    kept.check_all("kept while others ended");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments.last().expect("a seed").parse().expect("seed");
    match arguments[0].as_str() {
        "threads_that_end_alone" => threads_that_end_alone(seed),
        "threads_that_outlive_the_first" => threads_that_outlive_the_first(seed),
        "end" => end_with_views(ExitPath::ALL[arguments[1].parse::<usize>().expect("a number")], seed),
        other => panic!("unknown scenario {other}"),
    }
}
