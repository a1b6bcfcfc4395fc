//! Lifelines: pipes by which a process learns that a forked child, and all that it forked in turn, have ended or executed
//! another program. The child holds the end that is written to, which exec closes. Before that it says what the other program
//! has, in words whose meaning is their users'.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::fd::{duplicate_high, keep_on_exec};

/// The ends of a lifeline, both under high numbers and closed on exec.
#[derive(Clone, Copy, Debug)]
pub struct Lifeline {
    /// The parent's.
    pub watched: i32,
    /// The child's.
    pub held: i32,
}

/// Closes an end.
pub fn close(fd: i32) {
    // SAFETY: callers pass an end of a lifeline that they made.
    unsafe { kernel!(Close, syscall!(libc::SYS_close, fd)) };
}

impl Lifeline {
    /// Makes one.
    ///
    /// # Errors
    /// What pipe2 says; EMFILE where there are no high numbers left.
    pub fn make() -> Result<Self, Errno> {
        let mut ends = [-1; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: room for two descriptors.
        check(unsafe { kernel!(Open, syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), flags)) })?;
        let high = ends.map(duplicate_high);
        ends.into_iter().for_each(close);
        if let Some(held) = high[1] {
            // The kernel counts a user's pipes by their length (pipe(7)), and a few words is all that goes by this one.
            // SAFETY: a descriptor of ours; touches no memory.
            unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, held, libc::F_SETPIPE_SZ, crate::PAGE_BYTES)) };
        }
        match high {
            [Some(watched), Some(held)] => Ok(Self { watched, held }),
            some => {
                some.into_iter().flatten().for_each(close);
                Err(Errno(libc::EMFILE))
            }
        }
    }
}

/// What is heard of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing new: somebody holds it.
    Nothing,
    /// This word.
    Said(u64),
    /// Nobody holds it any more.
    Ended,
}

/// What is heard of a watched end. One thread at a time.
#[must_use]
pub fn hear(watched: i32) -> Heard {
    let mut word = 0u64;
    // SAFETY: room for eight bytes; a descriptor of ours that does not block.
    match unsafe { syscall!(libc::SYS_read, watched, &raw mut word, 8) } {
        8 => Heard::Said(word),
        0 => Heard::Ended,
        _ => Heard::Nothing,
    }
}

/// Says a word before another program is executed. Where that cannot be said, that program holds the lifeline too.
pub fn say(held: i32, word: u64) {
    // SAFETY: eight bytes; a descriptor of ours that does not block. So few bytes go whole (pipe(7)).
    if unsafe { syscall!(libc::SYS_write, held, &raw const word, 8) } != 8 {
        keep_on_exec(held);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_all_that_hold_it_shows() {
        let Lifeline { watched, held } = Lifeline::make().expect("a pipe");
        assert_eq!(hear(watched), Heard::Nothing);
        // SAFETY: the child does nothing but wait and end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            say(held, 77);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        close(held);
        assert_eq!(hear(watched), Heard::Nothing);
        let mut status = 0;
        // SAFETY: the test's own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(hear(watched), Heard::Said(77));
        assert_eq!(hear(watched), Heard::Ended);
        close(watched);
    }
}
