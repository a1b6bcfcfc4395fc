//! Placement of servers and clients on processors. On a shared processor the scheduler may or may not make server and
//! clients take turns, which is worth a factor of two. Where there are more processors than server threads, the server
//! therefore gets one for each thread, and its clients the others.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Pid;
use rustix::thread::CpuSet;

use crate::kit::failure::{Result, While};

/// Busy threads or processes of a packaged server: Redis, nginx and memcached as they are started here.
pub const ONE_THREAD: usize = 1;

/// Splits the processors that this program may use: the first `threads` for a server, and the rest for its clients.
/// `None` if there is no rest.
#[must_use]
pub fn split(threads: usize) -> Option<(CpuSet, CpuSet)> {
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

/// Returns the processors that this program may use.
#[must_use]
pub fn available() -> Vec<usize> {
    let Ok(all) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number)).collect()
}

/// Returns the set of one processor.
#[must_use]
pub fn single(number: usize) -> CpuSet {
    let mut one = CpuSet::new();
    one.set(number);
    one
}

/// Returns the processors of a server with `threads` threads; `None` if all are shared.
#[must_use]
pub fn of_server(threads: usize) -> Option<CpuSet> {
    split(threads).map(|(servers, _)| servers)
}

/// Returns the processors of the clients of a server with `threads` threads; `None` if all are shared.
#[must_use]
pub fn of_clients(threads: usize) -> Option<CpuSet> {
    split(threads).map(|(_, others)| others)
}

/// Binds `command`, with all its threads, to `processors`.
pub fn bind_command(command: &mut Command, processors: Option<CpuSet>) {
    if let Some(processors) = processors {
        // SAFETY: code between fork and exec must be async-signal-safe: the closure makes one system call only.
        unsafe {
            command.pre_exec(move || Ok(rustix::thread::sched_setaffinity(None, &processors)?));
        }
    }
}

/// Binds all threads of a process to `processors`, without its children.
///
/// # Errors
/// [`crate::kit::failure::Failure`] when the process has ended.
pub fn bind_process(pid: Pid, processors: Option<CpuSet>) -> Result<()> {
    let Some(processors) = processors else { return Ok(()) };
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    for task in std::fs::read_dir(&tasks).doing(format_args!("reading {tasks}"))?.flatten() {
        let number = task.file_name().to_str().and_then(|name| name.parse().ok());
        let thread = number.and_then(Pid::from_raw);
        // A thread may have ended meanwhile.
        let _ = thread.map(|thread| rustix::thread::sched_setaffinity(Some(thread), &processors));
    }
    Ok(())
}

/// Gives this thread idle priority (SCHED_IDLE, sched(7)), so that it runs only on otherwise idle processors.
///
/// # Errors
/// The error of sched_setscheduler(2).
pub fn set_idle_priority() -> std::io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_setscheduler(2) reads `parameter`, which lives through the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Binds this thread to `processors`.
///
/// # Errors
/// [`crate::kit::failure::Failure`] when sched_setaffinity(2) fails.
pub fn bind_thread(processors: Option<CpuSet>) -> Result<()> {
    let bind = |processors| {
        rustix::thread::sched_setaffinity(None, &processors).doing("setting the processor affinity")
    };
    processors.map_or(Ok(()), bind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_others_have_all_processors_between_them_and_none_in_common() {
        let all = rustix::thread::sched_getaffinity(None).expect("known");
        let count = all.count() as usize;
        assert!(split(count).is_none());
        for threads in 1..count {
            let (servers, others) = split(threads).expect("more processors than threads");
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
        let Some((servers, others)) = split(1) else { return };
        let bound = std::thread::spawn(move || {
            bind_thread(Some(others)).expect("they may be used");
            rustix::thread::sched_getaffinity(None).expect("known")
        });
        assert!(bound.join().expect("no panic") == others);
        let mut command = Command::new("nproc");
        bind_command(&mut command, Some(servers));
        let output = command.output().expect("nproc of coreutils");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1");
    }
}
