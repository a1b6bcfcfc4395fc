//! Processor time of one thread or one process.

use std::io;

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};

/// This thread's processor time, ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    ns(time.tv_sec, time.tv_nsec)
}

/// Processor time, ns, of all threads of `pid`, also of ended ones.
///
/// # Errors
/// When the process has ended.
pub fn process_cpu_ns(pid: Pid) -> io::Result<u64> {
    let mut clock = 0;
    // SAFETY: `clock` is a local that clock_getcpuclockid(3) writes.
    let error = unsafe { libc::clock_getcpuclockid(pid.as_raw_pid(), &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local that clock_gettime(2) writes; an unknown clock is an error.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ns(time.tv_sec, time.tv_nsec))
}

fn ns(seconds: i64, ns: i64) -> u64 {
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(seconds) * 1_000_000_000 + part(ns)
}
