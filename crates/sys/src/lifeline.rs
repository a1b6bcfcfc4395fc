//! Lifelines: pipes by which a process learns that a forked child, and all that it forked in turn, have ended or executed
//! another program. The child holds the end that is written to, which exec closes; nothing is ever written.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::fd::duplicate_high;

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
        match high {
            [Some(watched), Some(held)] => Ok(Self { watched, held }),
            some => {
                some.into_iter().flatten().for_each(close);
                Err(Errno(libc::EMFILE))
            }
        }
    }
}

/// Whether nobody holds the other end of a watched one any more.
#[must_use]
pub fn has_ended(watched: i32) -> bool {
    let mut byte = 0u8;
    // SAFETY: room for a byte; a descriptor of ours that does not block.
    unsafe { syscall!(libc::SYS_read, watched, &raw mut byte, 1) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_all_that_hold_it_shows() {
        let Lifeline { watched, held } = Lifeline::make().expect("a pipe");
        assert!(!has_ended(watched));
        // SAFETY: the child does nothing but wait and end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        close(held);
        assert!(!has_ended(watched));
        let mut status = 0;
        // SAFETY: the test's own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(has_ended(watched));
        close(watched);
    }
}
