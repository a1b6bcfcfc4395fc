//! Events of perf_event_open(2): samples of processor time, with the registers and the top of the stack of
//! the interrupted user code.
//!
//! The event is the kernel's processor clock, which every machine has, also a virtual one without hardware
//! counters. Its samples are equally spaced in processor time, so that shares of samples are shares of time.
//! Code that runs with interrupts disabled is sampled when it enables them.
#![allow(unsafe_code)]

use perf_event_open_sys::bindings as perf;
use perf_event_open_sys::{ioctls, perf_event_open};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Bytes of the user's stack in each sample: the frames that a stack is unwound through. A multiple of 8.
pub const STACK_BYTES: u32 = 8192;

/// Numbers of the registers in a sample (arch/x86/include/uapi/asm/perf_regs.h).
pub mod register {
    pub const AX: u64 = 0;
    pub const CX: u64 = 2;
    pub const DX: u64 = 3;
    pub const SI: u64 = 4;
    pub const DI: u64 = 5;
    pub const BP: u64 = 6;
    pub const SP: u64 = 7;
    pub const IP: u64 = 8;
}

/// Registers in each sample, as a mask of their numbers.
pub const REGISTERS: u64 = 1 << register::AX
    | 1 << register::CX
    | 1 << register::DX
    | 1 << register::SI
    | 1 << register::DI
    | 1 << register::BP
    | 1 << register::SP
    | 1 << register::IP;

/// Fields of each sample.
pub const SAMPLE_FIELDS: u64 = (perf::PERF_SAMPLE_IP
    | perf::PERF_SAMPLE_TID
    | perf::PERF_SAMPLE_TIME
    | perf::PERF_SAMPLE_CALLCHAIN
    | perf::PERF_SAMPLE_REGS_USER
    | perf::PERF_SAMPLE_STACK_USER) as u64;

/// Threads that an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This thread, which outlives all events.
    Own,
    /// Thread with this id.
    Thread(u32),
    /// Every thread of the machine.
    Machine,
}

/// Whether time in the kernel is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelTime {
    Sampled,
    /// The kernel refuses to tell this user about itself (perf_event_paranoid of 2).
    Excluded,
}

/// Purpose of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Samples, this many per second of processor time.
    Clock(u32, KernelTime),
    /// Records of mappings, names, and of new threads and processes.
    Track,
    /// Owner of a ring for others' records.
    Ring,
}

/// Opens an event on one processor, which counts from now on. Threads and processes that its thread creates
/// inherit it.
///
/// # Errors
/// Those of perf_event_open(2).
pub fn open(scope: Scope, cpu: u32, purpose: Purpose) -> io::Result<OwnedFd> {
    let mut attributes = perf::perf_event_attr {
        type_: perf::PERF_TYPE_SOFTWARE,
        size: u32::try_from(size_of::<perf::perf_event_attr>()).unwrap_or(0),
        config: u64::from(perf::PERF_COUNT_SW_DUMMY),
        sample_type: SAMPLE_FIELDS,
        sample_regs_user: REGISTERS,
        sample_stack_user: STACK_BYTES,
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attributes.set_exclude_kernel(1);
    attributes.set_exclude_hv(1);
    attributes.set_exclude_callchain_user(1);
    attributes.set_sample_id_all(1);
    attributes.set_use_clockid(1);
    match purpose {
        Purpose::Clock(frequency, kernel_time) => {
            attributes.config = u64::from(perf::PERF_COUNT_SW_CPU_CLOCK);
            attributes.__bindgen_anon_1.sample_freq = u64::from(frequency);
            attributes.set_freq(1);
            attributes.set_inherit(u64::from(scope != Scope::Machine));
            attributes.set_exclude_idle(1);
            attributes.set_exclude_kernel(u64::from(kernel_time == KernelTime::Excluded));
        }
        Purpose::Track => {
            attributes.set_inherit(u64::from(scope != Scope::Machine));
            attributes.set_mmap(1);
            attributes.set_mmap2(1);
            attributes.set_comm(1);
            attributes.set_comm_exec(1);
            attributes.set_task(1);
        }
        // Nobody waits for a ring, so no wakeup is needed before it is full.
        Purpose::Ring => {
            attributes.set_watermark(1);
            attributes.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        }
    }
    let pid = match scope {
        Scope::Own => 0,
        Scope::Thread(tid) => i32::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?,
        Scope::Machine => -1,
    };
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: perf_event_open(2) reads `size` bytes of the attributes, a structure without padding that is
    // fully initialised, and may write its size. It asks for samples in a ring and no signals.
    let fd = unsafe { perf_event_open(&raw mut attributes, pid, cpu, -1, perf::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `from_raw_fd` needs an open descriptor that nothing else owns: the call has just created it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Directs the records of `event` to the ring of `owner`, an event on the same processor.
///
/// # Errors
/// Those of the ioctl PERF_EVENT_IOC_SET_OUTPUT.
pub fn share_ring(event: &OwnedFd, owner: &OwnedFd) -> io::Result<()> {
    // SAFETY: the ioctl takes a descriptor of another event and accesses no memory of this process.
    let failed = unsafe { ioctls::SET_OUTPUT(event.as_raw_fd(), owner.as_raw_fd()) };
    if failed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the processors that are online.
///
/// # Errors
/// If the kernel does not say.
pub fn online_processors() -> io::Result<Vec<u32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let processors = parse_processors(text.trim());
    processors
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the list of processors is illegible"))
}

/// Parses a list such as `0-3,8`.
fn parse_processors(text: &str) -> Option<Vec<u32>> {
    /// Maximum number of processors of a kernel (NR_CPUS).
    const MAX_PROCESSORS: u32 = 8192;
    let mut processors = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX_PROCESSORS {
            return None;
        }
        processors.extend(first..=last);
    }
    Some(processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_processors("0"), Some(vec![0]));
        assert_eq!(parse_processors("0-2,7"), Some(vec![0, 1, 2, 7]));
        for illegible in ["", "a", "0-", "0-4000000000", "1,,2"] {
            assert_eq!(parse_processors(illegible), None, "{illegible}");
        }
        assert!(!online_processors().expect("a list").is_empty());
    }
}
