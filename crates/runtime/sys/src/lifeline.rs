//! Lifelines: pipes by which a process learns that a forked child, with all its descendants, has
//! ended or executed another program. The child holds the write end, which exec closes. Before that
//! it may send words to tell what the other program inherits; users define their meaning.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd};
use crate::errno::{Errno, check};
use crate::fd::{duplicate_high, keep_on_exec};

/// Both ends of a lifeline, under high numbers and closed on exec.
#[derive(Debug)]
pub struct Lifeline {
    /// The read end, which the parent keeps.
    pub watched: OwnFd,
    /// The write end, which the child keeps.
    pub held: OwnFd,
}

impl Lifeline {
    /// Creates a lifeline.
    ///
    /// # Errors
    /// Errors of pipe2(2); EMFILE if there are no high numbers left.
    pub fn make() -> Result<Self, Errno> {
        let mut ends = [-1; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: pipe2(2) writes two descriptors, for which `ends` has room.
        check(unsafe { kernel!(Open, syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), flags)) })?;
        let [watched, held] = ends.map(OwnFd::new);
        let (watched, held) =
            duplicate_high(&watched).zip(duplicate_high(&held)).ok_or(Errno(libc::EMFILE))?;
        // The kernel counts a user's pipes by their capacity (pipe(7)), and this one carries only a
        // few words.
        // SAFETY: F_SETPIPE_SZ takes only integers and acts on a descriptor of ours.
        unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, &held, libc::F_SETPIPE_SZ, crate::PAGE_BYTES)) };
        Ok(Self { watched, held })
    }
}

/// Result of reading a lifeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifelineEvent {
    /// Nothing new: a process still holds the write end.
    Nothing,
    /// A word that the child has sent.
    Word(u64),
    /// No process holds the write end any more.
    Ended,
}

/// Reads the next event of a lifeline, without blocking. Only one thread may do so at a time.
#[must_use]
pub fn next_event(watched: impl Descriptor) -> LifelineEvent {
    let mut word = 0u64;
    // SAFETY: read(2) writes at most 8 bytes to `word`, which lives through the call.
    match unsafe { syscall!(libc::SYS_read, watched, &raw mut word, 8) } {
        8 => LifelineEvent::Word(word),
        0 => LifelineEvent::Ended,
        _ => LifelineEvent::Nothing,
    }
}

/// Sends a word before another program is executed. If that fails, the program inherits the lifeline instead.
pub fn send_word(held: impl Descriptor, word: u64) {
    // SAFETY: write(2) reads the 8 bytes of `word`, and writes so few atomically (pipe(7)).
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
        assert_eq!(next_event(&watched), LifelineEvent::Nothing);
        // SAFETY: the child only sleeps and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            send_word(&held, 77);
            // SAFETY: _exit(2) ends the child without running the parent's destructors.
            unsafe { libc::_exit(0) };
        }
        drop(held);
        assert_eq!(next_event(&watched), LifelineEvent::Nothing);
        let mut status = 0;
        // SAFETY: waitpid(2) writes one int to `status`; the child is the test's own.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(next_event(&watched), LifelineEvent::Word(77));
        assert_eq!(next_event(&watched), LifelineEvent::Ended);
    }
}
