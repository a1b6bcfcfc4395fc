//! Descriptors of the file in other processes, and ends of the process.

use std::ffi::CString;
use std::os::unix::net::UnixDatagram;

use libc::{c_int, pid_t};
use uncopy_tests::forked::in_child;

use crate::file::{File, bytes, show, show_content};

/// Writes and syncs until a log may have the file again.
fn enter_log_again(file: File) {
    for turn in 0..8 {
        file.write(&bytes(turn, 333));
        file.sync();
    }
}

pub fn duplicates() {
    let file = File::enter_log("file", 0);
    // SAFETY: these calls take descriptors and numbers; the targets are not in use.
    let others = unsafe {
        [
            libc::dup(file.0),
            libc::dup2(file.0, 70),
            libc::dup3(file.0, 71, libc::O_CLOEXEC),
            libc::fcntl(file.0, libc::F_DUPFD_CLOEXEC, 80),
        ]
    };
    let others = others.map(File);
    for turn in 0..12 {
        show("write", others[turn % 4].write(&bytes(turn, 100 * turn)));
        show("write", file.write(&bytes(turn + 3, 50)));
        others[(turn + 1) % 4].show_state("duplicate");
        show("sync", others[(turn + 2) % 4].sync());
        show("seek", others[(turn + 3) % 4].seek(-20, libc::SEEK_CUR));
        file.show_state("original");
    }
    file.close();
    show("write", others[0].write(&bytes(1, 100)));
    others[1..].iter().for_each(|file| file.close());
    others[0].show_state("the last");
    show("write", others[0].write(&bytes(2, 100)));
    // SAFETY: dup2(2) takes two descriptors; another file takes the number of the last.
    unsafe { libc::dup2(2, others[0].0) };
    show_content("file", "closed");
}

pub fn forks() {
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 1000));
    in_child(|| println!("a child without use of it"));
    file.show_state("after the child");
    file.write(&bytes(2, 1000));
    // The child shares the file offset.
    in_child(|| {
        show("child's write", file.write(&bytes(3, 1000)));
        file.show_state("child");
    });
    file.show_state("after the child's write");
    file.write(&bytes(4, 1000));
    enter_log_again(file);
    file.write(&bytes(4, 77));
    in_child(|| {
        file.show_state("child");
        show("child's seek", file.seek(5, libc::SEEK_SET));
        show("child's sync", file.sync());
    });
    file.show_state("after the child's seek");
    file.write(&bytes(5, 1000));
    enter_log_again(file);
    file.write(&bytes(5, 77));
    in_child(|| {
        // SAFETY: dup(2) takes a descriptor.
        let other = File(unsafe { libc::dup(file.0) });
        file.close();
        show("child's write by a duplicate", other.write(&bytes(6, 100)));
        show("child's truncation", other.truncate(20_000));
        in_child(|| {
            show("grandchild's write", other.write(&bytes(7, 100)));
        });
        other.show_state("child");
        println!("by its path: {} bytes", std::fs::metadata("file").expect("known").len());
    });
    file.show_state("after the child's truncation");
    show("write", file.write(&bytes(8, 1000)));
    show_content("file", "read");
    let append = File::enter_log("appended", libc::O_APPEND);
    append.write(&bytes(9, 100));
    in_child(|| {
        append.show_state("child");
        show("child's append", append.write(&bytes(10, 100)));
    });
    show("append", append.write(&bytes(11, 100)));
    append.show_state("at the end");
    show_content("appended", "read");
}

/// Opens the file again while a child lives that was forked while a log had the file, so that the file gets another
/// entry in the log's table than before.
pub fn reopened_beside_a_child() {
    let file = File::enter_log("file", 0);
    let ((child_from, parent_to), (parent_from, child_to)) = (File::pipe(), File::pipe());
    // SAFETY: fork(2) without threads, and the child ends by _exit.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            parent_to.close();
            file.close();
            child_to.write(b"closed");
            // Returns when the parent has closed its end.
            child_from.read(&mut [0]);
            libc::_exit(0);
        }
        child
    };
    child_to.close();
    assert_eq!(parent_from.read(&mut [0; 6]), 6);
    file.close();
    let again = File::open("file", libc::O_WRONLY | libc::O_APPEND);
    for turn in 0..6 {
        enter_log_again(again);
        show("write", again.write(&bytes(turn, 100)));
        again.show_state("opened again");
        println!("by its path: {} bytes", std::fs::metadata("file").expect("known").len());
    }
    parent_to.close();
    // SAFETY: the child is this process's; a null pointer means that its status is not wanted.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    show("write", again.write(&bytes(9, 100)));
    again.show_state("after the child");
    show_content("file", "read");
}

/// Ends while a child goes on writing. The child prints nothing: who starts the program waits for it alone.
pub fn orphan() {
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 1000));
    let (from, to) = File::pipe();
    // SAFETY: fork(2) without threads, and the child ends by _exit.
    unsafe {
        if libc::fork() == 0 {
            to.close();
            // Returns when the parent has ended.
            assert_eq!(from.read(&mut [0]), 0);
            let fine = file.write(&bytes(2, 1000)) == 1000 && file.size() == 2600 && file.sync() == 0;
            let marked = File::open("orphan", libc::O_WRONLY | libc::O_CREAT);
            marked.write(if fine { b"fine" } else { b"wrong" });
            libc::_exit(0);
        }
    }
    file.write(&bytes(3, 100));
    file.pwrite(&bytes(4, 100), 0);
    file.seek(1600, libc::SEEK_SET);
}

/// Executes programs that write to the file: `exec` runs itself as `exec FD`.
pub fn execs(arguments: &[String]) {
    if let [fd] = arguments {
        let file = File(fd.parse().expect("a descriptor"));
        file.show_state("executed");
        show("write", file.write(&bytes(5, 500)));
        file.show_state("written");
        return show_content("file", "read");
    }
    let file = File::enter_log("file", libc::O_APPEND);
    file.write(&bytes(1, 1000));
    show("keep it open", file.fcntl(libc::F_SETFD, 0));
    file.write(&bytes(2, 1000));
    in_child(|| {
        execute("/bin/sh", &["sh", "-c", &format!("echo from a shell >&{}", file.0)]);
    });
    show("write", file.write(&bytes(3, 1000)));
    file.show_state("after the shell");
    enter_log_again(file);
    file.write(&bytes(4, 1000));
    execute("/proc/self/exe", &["log_only", "exec", &file.0.to_string()]);
}

fn execute(program: &str, arguments: &[&str]) -> ! {
    let strings = |texts: &[&str]| -> Vec<CString> {
        texts.iter().map(|text| CString::new(*text).expect("no NUL")).collect()
    };
    let (program, arguments) = (strings(&[program]), strings(arguments));
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: the path and the arguments are NUL-terminated, and the array ends with null.
    unsafe { libc::execv(program[0].as_ptr(), pointers.as_ptr()) };
    panic!("execv");
}

pub fn spawns() {
    let file = File::enter_log("file", 0);
    show("keep it open", file.fcntl(libc::F_SETFD, 0));
    for turn in 0..3 {
        file.write(&bytes(turn, 1000));
        let command = CString::new(format!("echo spawned {turn} >&{}", file.0)).expect("no NUL");
        let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), command.as_ptr(), std::ptr::null()];
        let mut pid: pid_t = 0;
        // SAFETY: the path and the arguments are NUL-terminated, the arrays end with null, and system(3) is given a
        // NUL-terminated command.
        unsafe {
            unsafe extern "C" {
                static environ: *const *mut libc::c_char;
            }
            let (null, attributes) = (std::ptr::null(), std::ptr::null());
            let result = libc::posix_spawn(
                &raw mut pid,
                c"/bin/sh".as_ptr(),
                null,
                attributes,
                arguments.as_ptr().cast(),
                environ,
            );
            show("posix_spawn", i64::from(result));
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            println!("status {status}");
            show("write", file.write(&bytes(turn, 100)));
            show("system", i64::from(libc::system(c"echo by its name >>file".as_ptr())));
        }
        file.show_state("written");
        enter_log_again(file);
    }
    show_content("file", "read");
}

/// Passes the file to a process that was forked before it was opened.
pub fn passed() {
    let (one, other) = UnixDatagram::pair().expect("sockets");
    let (answers, answer) = UnixDatagram::pair().expect("sockets");
    // SAFETY: fork(2) without threads; the child ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fd = receive(&other);
        let fine = fd.write(&bytes(2, 500)) == 500;
        answer.send(&[u8::from(fine)]).expect("sent");
        let mut word = [0];
        other.recv(&mut word).expect("received");
        let fine = fd.write(&bytes(4, 500)) == 500 && fd.size() == 600 + 2500 + 8 * 333;
        answer.send(&[u8::from(fine)]).expect("sent");
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 1000));
    send(&one, file);
    let mut word = [0];
    answers.recv(&mut word).expect("received");
    println!("the child's write: {}", word[0]);
    file.show_state("after its write");
    file.write(&bytes(3, 500));
    enter_log_again(file);
    one.send(b"x").expect("sent");
    answers.recv(&mut word).expect("received");
    println!("the child's write: {}", word[0]);
    file.show_state("after its write");
    // SAFETY: waitpid(2) without a place for the status.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    show_content("file", "read");
}

/// Room for a control message with one descriptor (cmsg(3)), aligned as `cmsghdr`.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn with_message<R>(control: &mut Control, len: usize, call: impl FnOnce(&mut libc::msghdr) -> R) -> R {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.0.as_mut_ptr().cast(), len);
    call(&mut message)
}

fn send(socket: &UnixDatagram, file: File) {
    use std::os::fd::AsRawFd as _;
    let mut control = Control([0; 64]);
    // SAFETY: CMSG_SPACE computes a number.
    let len = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the control buffer has room for a header and a descriptor, which are written before the call reads them.
    let sent = with_message(&mut control, len, |message| unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(file.0);
        libc::sendmsg(socket.as_raw_fd(), message, 0)
    });
    assert_eq!(sent, 1);
}

fn receive(socket: &UnixDatagram) -> File {
    use std::os::fd::AsRawFd as _;
    let mut control = Control([0; 64]);
    // SAFETY: the kernel writes at most the control buffer's 64 bytes, and the header that it has written is read.
    with_message(&mut control, 64, |message| unsafe {
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), message, 0), 1);
        let header = libc::CMSG_FIRSTHDR(message);
        assert!(!header.is_null());
        File(libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())
    })
}

/// Ends without closing files: by exit(3), or by abort(3), which has no exit handlers.
pub fn exits_without_close(how: usize) {
    let (file, append) = (File::enter_log("file", 0), File::enter_log("appended", libc::O_APPEND));
    file.write(&bytes(1, 70_000));
    append.write(&bytes(2, 70_000));
    file.pwrite(&bytes(3, 70_000), 100);
    file.show_state("written");
    append.show_state("appended");
    if how == 1 {
        // SAFETY: abort(3) takes no arguments.
        unsafe { libc::abort() };
    }
}
