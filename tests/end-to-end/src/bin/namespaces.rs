//! Programs that leave their namespaces while buffers hold received data. The kernel refuses some
//! of these calls to processes with more than one thread, which must not count uncopy's. Each
//! scenario prints what it saw; the test compares that with the output without uncopy.
//!
//! ```text
//! namespaces SCENARIO SEED
//! ```

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::wait;
use uncopy_tests::mirror::Buffer;
use uncopy_tests::oracle::{errno, set_errno};

const MIB: usize = 1 << 20;

fn unshare(what: &str, flags: c_int) {
    set_errno(0);
    // SAFETY: unshare(2) takes an integer and accesses no memory.
    let result = unsafe { libc::unshare(flags) };
    println!("unshare {what}: {result} errno {}", errno());
}

fn set_namespace(what: &str, file: &std::fs::File, kind: c_int) {
    set_errno(0);
    // SAFETY: setns(2) takes integers and accesses no memory; the descriptor is open.
    let result = unsafe { libc::setns(file.as_raw_fd(), kind) };
    println!("setns {what}: {result} errno {}", errno());
}

fn namespace(name: &str) -> std::fs::File {
    std::fs::File::open(format!("/proc/self/ns/{name}")).expect("a namespace")
}

/// Calls `unshare` and `setns` by system calls.
fn namespaces_by_number(seed: u64) {
    let (mut feeder, mut buffers) = make_buffers(seed);
    let network = namespace("net");
    for _ in 0..2 {
        // SAFETY: unshare(2) and setns(2) take integers and access no memory.
        unsafe {
            println!("unshare: {}", libc::syscall(libc::SYS_unshare, libc::CLONE_NEWNET));
            use_buffers(&mut feeder, &mut buffers, "in a new network namespace");
            println!("setns: {}", libc::syscall(libc::SYS_setns, network.as_raw_fd(), 0));
            use_buffers(&mut feeder, &mut buffers, "in the old network namespace");
            println!("unshare: {}", libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER));
            println!("unshare: {} errno {}", libc::syscall(libc::SYS_unshare, 0x40), errno());
        }
        use_buffers(&mut feeder, &mut buffers, "in a new user namespace");
    }
}

/// Checks the buffers, then receives, copies, touches and sends.
fn use_buffers(feeder: &mut Feeder, buffers: &mut [Buffer], what: &str) {
    for buffer in buffers.iter() {
        buffer.check(MIB / 2, 5000, what);
    }
    feeder.receive(InputCall::Recv, &mut buffers[0], 0, MIB);
    let [target, source] = buffers.get_disjoint_mut([1, 0]).expect("different");
    target.copy_from(CopyCall::Memcpy, 0, source, 0, MIB);
    feeder.send(OutputCall::Send, &buffers[1], 0, 300_000);
    for buffer in buffers.iter() {
        buffer.check_all(what);
    }
}

fn make_buffers(seed: u64) -> (Feeder, Vec<Buffer>) {
    let mut feeder = Feeder::new(seed);
    let buffers = (0..4).map(|_| feeder.copied_buffer(MIB)).collect();
    (feeder, buffers)
}

/// A new user namespace, which only a process with one thread may enter.
fn new_user_namespace(seed: u64) {
    let (mut feeder, mut buffers) = make_buffers(seed);
    for round in 0..3 {
        unshare("a user namespace", libc::CLONE_NEWUSER);
        use_buffers(&mut feeder, &mut buffers, "in a new user namespace");
        feeder.copied_buffer(MIB).check_all(&format!("received in user namespace {round}"));
    }
    unshare("descriptors", libc::CLONE_FILES);
    unshare("the file system's directories", libc::CLONE_FS);
    unshare("no such thing", 0x40);
    use_buffers(&mut feeder, &mut buffers, "after more calls");
}

/// A new mount namespace and back again: refused to threads that share their directories.
fn mount_namespaces_back_and_forth(seed: u64) {
    let (mut feeder, mut buffers) = make_buffers(seed);
    let before = namespace("mnt");
    for _ in 0..3 {
        unshare("a mount namespace", libc::CLONE_NEWNS);
        use_buffers(&mut feeder, &mut buffers, "in a new mount namespace");
        set_namespace("back", &before, libc::CLONE_NEWNS);
        use_buffers(&mut feeder, &mut buffers, "in the old mount namespace");
    }
    set_namespace("of another kind", &before, libc::CLONE_NEWNET);
    let network = namespace("net");
    unshare("a network namespace", libc::CLONE_NEWNET);
    set_namespace("of any kind", &network, 0);
    use_buffers(&mut feeder, &mut buffers, "in the old network namespace");
}

/// A new pid namespace for children: this process can start no thread any more.
fn new_process_namespace(seed: u64) {
    let (mut feeder, mut buffers) = make_buffers(seed);
    unshare("process ids, with others", libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS);
    use_buffers(&mut feeder, &mut buffers, "with children in a new namespace");
    // SAFETY: the child checks its memory and ends by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        use_buffers(&mut Feeder::new(seed + 1), &mut buffers, "in the child");
        // SAFETY: _exit(2) ends the child without running destructors, of which none is needed.
        unsafe { libc::_exit(if libc::getpid() < 10 { 3 } else { 4 }) };
    }
    println!("child: {:#x}", wait(pid));
    use_buffers(&mut feeder, &mut buffers, "after the child");
}

/// A program with another thread of its own is refused the call, as without uncopy.
fn refused_to_a_program_with_threads(seed: u64) {
    let (mut feeder, mut buffers) = make_buffers(seed);
    let (sender, receiver) = std::sync::mpsc::channel::<Buffer>();
    let other = std::thread::spawn(move || {
        for buffer in receiver {
            buffer.check_all("in another thread");
        }
    });
    for _ in 0..3 {
        sender.send(feeder.copied_buffer(MIB)).expect("the other thread lives");
        unshare("a user namespace", libc::CLONE_NEWUSER);
        use_buffers(&mut feeder, &mut buffers, "after a refused call");
    }
    drop(sender);
    other.join().expect("the other thread");
    // The kernel may still count a joined thread for a moment.
    uncopy_tests::scratch::wait_until("one thread", || {
        let threads = std::fs::read_dir("/proc/self/task").expect("tasks").flatten();
        let own = threads.filter(|task| {
            !std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "uncopy-faults\n")
        });
        (own.count() == 1).then_some(())
    });
    unshare("a user namespace, alone", libc::CLONE_NEWUSER);
    use_buffers(&mut feeder, &mut buffers, "alone");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "new_user_namespace" => new_user_namespace(seed),
        "mount_namespaces_back_and_forth" => mount_namespaces_back_and_forth(seed),
        "namespaces_by_number" => namespaces_by_number(seed),
        "new_process_namespace" => new_process_namespace(seed),
        "refused_to_a_program_with_threads" => refused_to_a_program_with_threads(seed),
        other => panic!("unknown scenario {other}"),
    }
}
