//! A program whose calls are counted: the account of its call sites must show these numbers.
//!
//! ```text
//! explained HOW MESSAGES        end: returns; kill: by SIGKILL; fork: its child does the same, too
//! ```
//!
//! Each message is received, copied in `forward_message`, and compared in `check_copy`, which touches the copy.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const LEN_BYTES: usize = 512 << 10;

#[inline(never)]
fn forward_message(message: &[u8], to: &mut [u8]) {
    assert_eq!(message.len(), to.len());
    // SAFETY: both are as long as that, and do not overlap. A call by this function itself, in any build.
    unsafe { libc::memcpy(to.as_mut_ptr().cast(), message.as_ptr().cast(), message.len()) };
    std::hint::black_box(to);
}

#[inline(never)]
fn check_copy(copy: &[u8], number: usize) {
    for at in [0, LEN_BYTES / 2, LEN_BYTES - 1] {
        assert_eq!(copy[at], byte(number, at), "message {number}, byte {at}");
    }
}

fn byte(number: usize, at: usize) -> u8 {
    u8::try_from((number * 7 + at) % 251).unwrap_or(0)
}

fn receive_and_copy(messages: usize) {
    let (mut near, mut far) = UnixStream::pair().expect("a pair of sockets");
    let sender = std::thread::spawn(move || {
        for number in 0..messages {
            let message: Vec<u8> = (0..LEN_BYTES).map(|at| byte(number, at)).collect();
            far.write_all(&message).expect("sent");
        }
    });
    let mut message = vec![0; LEN_BYTES];
    let mut copy = vec![0; LEN_BYTES];
    for number in 0..messages {
        near.read_exact(&mut message).expect("received");
        forward_message(&message, &mut copy);
        check_copy(&copy, number);
    }
    sender.join().expect("the sender");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, how, messages] = arguments.as_slice() else { panic!("usage: explained HOW MESSAGES") };
    let messages = messages.parse().expect("a number of messages");
    receive_and_copy(messages);
    match how.as_str() {
        "end" => {}
        // SAFETY: raise(3) takes an integer; SIGKILL runs no handler.
        "kill" => unsafe {
            libc::raise(libc::SIGKILL);
        },
        "fork" => {
            // SAFETY: this process has one thread by now.
            let child = unsafe { libc::fork() };
            if child == 0 {
                receive_and_copy(messages);
                return;
            }
            let mut status = -1;
            // SAFETY: `status` is an int on this stack that waitpid(2) may write.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "the child");
        }
        other => panic!("unknown: {other}"),
    }
}
