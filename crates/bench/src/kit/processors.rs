//! The server's processors and the clients'. On the same one they take turns, or not, as the scheduler has it at the
//! moment, which is worth a factor of two: where there are more processors than the server has threads, it gets as many
//! as those, and its clients the others.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::CpuSet;

use crate::kit::failure::{Result, While};

/// Threads, or processes, of a packaged server that have work: Redis's, nginx's, memcached's as they are started here.
pub const ONE_THREAD: usize = 1;

/// The processors that this program may use, in two parts: the first `threads` of them, for a server, and the others.
/// `None` where there are no others.
#[must_use]
pub fn apart(threads: usize) -> Option<(CpuSet, CpuSet)> {
    let all = rustix::thread::sched_getaffinity(None).ok()?;
    let (mut servers, mut others) = (CpuSet::new(), CpuSet::new());
    for number in (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number)) {
        if servers.count() as usize == threads {
            others.set(number);
        } else {
            servers.set(number);
        }
    }
    (others.count() > 0).then_some((servers, others))
}

/// The processors that this program may use.
#[must_use]
pub fn numbers() -> Vec<usize> {
    let Ok(all) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number)).collect()
}

/// One processor.
#[must_use]
pub fn only(number: usize) -> CpuSet {
    let mut one = CpuSet::new();
    one.set(number);
    one
}

/// The processors of a server of so many threads, if they are not everybody's.
#[must_use]
pub fn of_server(threads: usize) -> Option<CpuSet> {
    apart(threads).map(|(servers, _)| servers)
}

/// The processors of such a server's clients, if they are not everybody's.
#[must_use]
pub fn of_clients(threads: usize) -> Option<CpuSet> {
    apart(threads).map(|(_, others)| others)
}

/// `command` on `processors`, with all its threads.
pub fn bind(command: &mut Command, processors: Option<CpuSet>) {
    if let Some(processors) = processors {
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(move || Ok(rustix::thread::sched_setaffinity(None, &processors)?));
        }
    }
}

/// Binds this thread to `processors`.
///
/// # Errors
/// [`crate::kit::failure::Failure`] when that is refused.
pub fn bind_to(processors: Option<CpuSet>) -> Result<()> {
    let bind = |processors| rustix::thread::sched_setaffinity(None, &processors).doing("choosing processors");
    processors.map_or(Ok(()), bind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_others_have_all_processors_between_them_and_none_in_common() {
        let all = rustix::thread::sched_getaffinity(None).expect("known");
        let count = all.count() as usize;
        assert!(apart(count).is_none());
        for threads in 1..count {
            let (servers, others) = apart(threads).expect("more processors than threads");
            assert_eq!(servers.count() as usize, threads);
            for number in 0..CpuSet::MAX_CPU {
                let (server, other) = (servers.is_set(number), others.is_set(number));
                assert_eq!(server || other, all.is_set(number));
                assert!(!(server && other));
            }
        }
    }

    #[test]
    fn a_bound_thread_and_a_bound_command_stay_on_their_processors() {
        let Some((servers, others)) = apart(1) else { return };
        let bound = std::thread::spawn(move || {
            bind_to(Some(others)).expect("they may be used");
            rustix::thread::sched_getaffinity(None).expect("known")
        });
        assert!(bound.join().expect("no panic") == others);
        let mut command = Command::new("nproc");
        bind(&mut command, Some(servers));
        let said = command.output().expect("nproc of coreutils");
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "1");
    }
}
