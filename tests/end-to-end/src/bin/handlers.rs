//! Signal handlers as the program installs them: the reported actions, and how handlers are called
//! while the program copies received data.
//!
//! ```text
//! handlers SCENARIO SEED
//! ```

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use uncopy_tests::calls::CopyCall;
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::Buffer;

const MIB: usize = 1 << 20;
/// Bytes of a `siginfo_t` that the kernel fills.
const INFO_BYTES: usize = 128;

unsafe extern "C" {
    fn sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn siginterrupt(signal: c_int, flag: c_int) -> c_int;
}

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: sigaction is plain data; zeroes are SIG_DFL, an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// Installs `new` if there is one; returns the previous action.
fn replace_action(signal: c_int, new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut old = action(0, 0);
    let new = new.map_or(std::ptr::null(), |new| &raw const *new);
    // SAFETY: `new` is null or points to an initialized sigaction; `old` is a local that the call may write.
    assert_eq!(unsafe { libc::sigaction(signal, new, &raw mut old) }, 0, "sigaction");
    old
}

/// Returns a handler's name for the output, because addresses differ from run to run.
fn name(handler: usize) -> &'static str {
    match handler {
        libc::SIG_DFL => "default",
        libc::SIG_IGN => "ignored",
        2 => "held",
        libc::SIG_ERR => "refused",
        _ if handler == simple as *const () as usize => "simple",
        _ if handler == with_info as *const () as usize => "with_info",
        _ => "unknown",
    }
}

fn describe(what: &str, action: &libc::sigaction) {
    let handler = name(action.sa_sigaction);
    // SAFETY: `sa_mask` is initialized, by the kernel or by `action`; sigismember(3) only reads it.
    let mask: Vec<c_int> = (1..=64)
        .filter(|signal| unsafe { libc::sigismember(&raw const action.sa_mask, *signal) } == 1)
        .collect();
    println!("{what}: {handler}, flags {:#x}, mask {mask:?}", action.sa_flags);
}

static HITS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn simple(_signal: c_int) {
    HITS.fetch_add(1, SeqCst);
}

extern "C" fn with_info(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    HITS.fetch_add(1, SeqCst);
}

/// Copies a viewed buffer back and forth until `is_done`; checks all of it at the end.
fn copy_until(seed: u64, is_done: impl Fn() -> bool) {
    let mut feeder = Feeder::new(seed);
    let source = feeder.copied_buffer(MIB);
    let mut target = feeder.copied_buffer(MIB);
    let mut rounds = 0usize;
    while !is_done() || rounds < 100 {
        target.copy_from(CopyCall::Memcpy, 0, &source, 0, MIB);
        rounds += 1;
        if rounds.is_multiple_of(1000) {
            drop(Buffer::copy_of(CopyCall::Memmove, &source, 0, MIB));
        }
    }
    target.check_all("after the signals");
}

/// Compares the actions that `sigaction` and its older relatives report of each other's installations.
fn actions_as_installed(seed: u64) {
    copy_until(seed, || true);
    let (plain, info) = (simple as *const () as usize, with_info as *const () as usize);
    let signal = libc::SIGUSR1;
    let mut new_action = action(info, libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER);
    // SAFETY: `sa_mask` is an initialized set of a local variable; SIGHUP is a valid signal.
    unsafe { libc::sigaddset(&raw mut new_action.sa_mask, libc::SIGHUP) };
    describe("at first", &replace_action(signal, Some(&new_action)));
    describe("with information", &replace_action(signal, None));
    describe("replaced", &replace_action(signal, Some(&action(plain, libc::SA_ONSTACK))));
    describe("on a stack", &replace_action(signal, Some(&replace_action(signal, None))));
    describe("given back", &replace_action(signal, None));
    // SAFETY: handlers of this program; the signals go to this thread.
    unsafe {
        println!("signal: {}", name(libc::signal(signal, info)));
        describe("by signal", &replace_action(signal, None));
        siginterrupt(signal, 1);
        describe("interrupting", &replace_action(signal, None));
        println!("signal: {}", name(libc::signal(signal, plain)));
        describe("by signal, interrupting", &replace_action(signal, None));
        siginterrupt(signal, 0);
        describe("not interrupting", &replace_action(signal, None));
        println!("signal refused: {}", name(libc::signal(libc::SIGKILL, plain)));
        println!("signal refused: {}", name(libc::signal(32, plain)));
        println!("sigset: {}", name(sigset(signal, libc::SIG_IGN)));
        println!("sigset: {}", name(sigset(signal, plain)));
        describe("by sigset", &replace_action(signal, None));
        println!("sigset: {}", name(sigset(signal, 2)));
        println!("sigset: {}", name(sigset(signal, info)));
        println!("sigset: {}", name(sigset(signal, plain)));
        libc::raise(signal);
        println!("{} hits", HITS.load(SeqCst));
        // The first time only: uncopy blocks signals from here on.
        println!("sysv_signal: {}", name(sysv_signal(libc::SIGUSR2, plain)));
        describe("by sysv_signal", &replace_action(libc::SIGUSR2, None));
        libc::raise(libc::SIGUSR2);
        describe("after it", &replace_action(libc::SIGUSR2, None));
        libc::raise(signal);
        println!("{} hits", HITS.load(SeqCst));
    }
    copy_until(seed + 1, || true);
}

static NEXT: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicI32 = AtomicI32::new(0);
static IS_STOPPING: AtomicBool = AtomicBool::new(false);

/// Checks that values arrive once each and in order, with the sender's pid, under the handler's mask.
extern "C" fn check_numbered_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's structures; the value is the sender's.
    unsafe {
        let value = info.cast::<u64>().add(3).read();
        let mut mask: libc::sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        let before = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        let is_right = value == NEXT.fetch_add(1, SeqCst)
            && (*info).si_signo == signal
            && (*info).si_code == libc::SI_QUEUE
            && libc::sigismember(&raw const mask, libc::SIGHUP) == 1
            && libc::sigismember(&raw const mask, signal) == 1
            && libc::sigismember(&raw const mask, libc::SIGTERM) == 0
            && libc::sigismember(before, libc::SIGTERM) == 0
            && libc::sigismember(before, signal) == 0;
        if !is_right {
            WRONG.fetch_add(1, SeqCst);
        }
    }
}

/// Sends numbered signals to a thread, never more than `ahead` before the first of them is handled.
fn send_numbered_signals(thread: libc::pid_t, signal: c_int, count: u64, ahead: u64) {
    for value in 0..count {
        while value > NEXT.load(SeqCst) + ahead {
            std::thread::yield_now();
        }
        let mut info = [0u64; INFO_BYTES / 8];
        info[0] = u64::from(signal.cast_unsigned());
        info[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
        info[3] = value;
        // SAFETY: `info` is as large as a siginfo_t, which the call only reads.
        let result = unsafe {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread, signal, info.as_ptr())
        };
        assert_eq!(result, 0, "rt_tgsigqueueinfo");
    }
}

/// Hundreds of signals with values reach a thread that copies without a pause.
fn every_signal_arrives_once_in_order(seed: u64) {
    const COUNT: u64 = 500;
    // SAFETY: gettid(2) takes no arguments and cannot fail.
    let me = unsafe { libc::gettid() };
    // Only one standard signal can be pending; several real-time signals can, in order.
    for (signal, ahead) in [(libc::SIGUSR1, 0), (libc::SIGRTMIN() + 4, 4)] {
        NEXT.store(0, SeqCst);
        let mut new =
            action(check_numbered_signal as *const () as usize, libc::SA_SIGINFO | libc::SA_RESTART);
        // SAFETY: `sa_mask` is an initialized set of a local variable; SIGHUP is a valid signal.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, libc::SIGHUP) };
        replace_action(signal, Some(&new));
        let sender = std::thread::spawn(move || send_numbered_signals(me, signal, COUNT, ahead));
        copy_until(seed, || NEXT.load(SeqCst) == COUNT);
        sender.join().expect("the sender");
        println!("{} signals, {} wrong", NEXT.load(SeqCst), WRONG.load(SeqCst));
        assert_eq!(WRONG.load(SeqCst), 0);
    }
}

/// A child that shares this memory changes its own actions, not its parent's.
fn a_vfork_child_changes_only_its_own(seed: u64) {
    copy_until(seed, || true);
    replace_action(libc::SIGUSR1, Some(&action(simple as *const () as usize, 0)));
    for handler in [libc::SIG_DFL, libc::SIG_IGN, with_info as *const () as usize] {
        // SAFETY: the child calls async-signal-safe functions only and leaves by _exit.
        unsafe {
            #[expect(deprecated, reason = "it is what is tested")]
            let child = libc::vfork();
            if child == 0 {
                let new = action(handler, 0);
                libc::sigaction(libc::SIGUSR1, &raw const new, null_mut());
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            println!("child: {status}");
            describe("the parent's", &replace_action(libc::SIGUSR1, None));
            libc::raise(libc::SIGUSR1);
        }
    }
    println!("{} hits", HITS.load(SeqCst));
    copy_until(seed + 1, || true);
}

/// `struct sigaction` in the kernel's layout.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// A handler installed by the bare system call runs like any other.
fn handlers_installed_by_the_system_call(seed: u64) {
    replace_action(libc::SIGUSR1, Some(&action(simple as *const () as usize, 0)));
    copy_until(seed, || true);
    let mut installed = KernelAction::default();
    // SAFETY: the kernel's structure. With the restorer that libc uses the handler returns.
    unsafe {
        let get = |to: *mut KernelAction| {
            libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR1, null_mut::<c_void>(), to, 8)
        };
        assert_eq!(get(&raw mut installed), 0);
        installed.handler = simple as *const () as usize;
        let set = libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGUSR2,
            &raw const installed,
            null_mut::<KernelAction>(),
            8,
        );
        assert_eq!(set, 0);
        describe("installed", &replace_action(libc::SIGUSR2, None));
        let process = libc::getpid();
        let sender = std::thread::spawn(move || {
            while !IS_STOPPING.load(SeqCst) {
                libc::kill(process, libc::SIGUSR2);
                std::thread::yield_now();
            }
        });
        copy_until(seed + 1, || HITS.load(SeqCst) > 200);
        IS_STOPPING.store(true, SeqCst);
        sender.join().expect("the sender");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "actions_as_installed" => actions_as_installed(seed),
        "every_signal_arrives_once_in_order" => every_signal_arrives_once_in_order(seed),
        "a_vfork_child_changes_only_its_own" => a_vfork_child_changes_only_its_own(seed),
        "handlers_installed_by_the_system_call" => handlers_installed_by_the_system_call(seed),
        other => panic!("unknown scenario {other}"),
    }
}
