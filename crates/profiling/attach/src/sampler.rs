//! Opens the events for threads or for the whole machine, and reads their rings.
//!
//! ```text
//!               processor 0   processor 1
//! thread 7      event ──┐     event ──┐        An event of a thread is inherited by the threads and
//! thread 8      event ──┤     event ──┤        processes that it creates, which the kernel allows only for
//!                     ring 0        ring 1     events bound to one processor.
//! ```

use crate::event::{self, KernelTime, Scope};
use crate::permission::{self, Refusal};
use crate::ring::Ring;
use crate::target;
use linux_perf_event_reader::{
    BranchSampleFormat, Endianness, EventRecord, ReadFormat, RecordIdParseInfo, RecordParseInfo, RecordType,
    SampleFormat,
};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes of a sample besides the stack, at most; a call chain has 127 kernel frames.
const SAMPLE_OVERHEAD_BYTES: usize = 1280;
/// Time for which a record may be written after its time stamp, ns: the kernel writes it with interrupts
/// disabled.
const WRITE_DELAY_NS: u64 = 5_000_000;
/// Maximum memory of all rings, which the kernel pins, bytes.
const MAX_RINGS_BYTES: usize = 64 << 20;
/// Longest interval between two reads of the rings.
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// What is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// These processes, and those that they create.
    Processes(Vec<u32>),
    /// Every process.
    Machine,
}

/// Open events and their rings.
pub struct Sampler {
    /// One for each processor, with the event that owns it.
    rings: Vec<(Ring, OwnedFd)>,
    /// Events without a ring of their own.
    _events: Vec<OwnedFd>,
    info: RecordParseInfo,
    frequency: u32,
    pub kernel_time: KernelTime,
}

impl Sampler {
    /// Opens the events, which count from now on.
    ///
    /// # Errors
    /// Why the kernel refuses, and what helps.
    pub fn open(targets: &Targets, frequency: u32) -> Result<Self, Refusal> {
        let processors = event::online_processors().map_err(Refusal::other)?;
        let mut opening = Opening {
            processors,
            frequency,
            kernel_time: permission::kernel_time(),
            rings: Vec::new(),
            events: Vec::new(),
        };
        let info = record_format();
        match targets {
            Targets::Machine => opening.add(Scope::Machine).map_err(Refusal::machine)?,
            Targets::Processes(pids) => {
                for pid in pids {
                    opening.add_process(*pid, &info)?;
                }
            }
        }
        let Opening { rings, events, kernel_time, .. } = opening;
        Ok(Self { rings, _events: events, info, frequency, kernel_time })
    }

    /// Interval between reads of the rings: a ring must not be full before.
    pub fn interval(&self) -> Duration {
        let data_bytes = self.rings.iter().map(|(ring, _)| ring.data_bytes()).min().unwrap_or(0);
        let sample_bytes = event::STACK_BYTES as usize + SAMPLE_OVERHEAD_BYTES;
        let samples = (data_bytes / sample_bytes) as f64;
        // Half of the time in which a busy processor fills its ring.
        Duration::from_secs_f64(samples / f64::from(self.frequency) / 2.0).min(MAX_INTERVAL)
    }

    /// Passes new records: first all that are not samples, then the samples up to the present. A sample is
    /// passed after every earlier record of all processors, because records of a processor come in order.
    pub fn read(
        &mut self,
        is_last: bool,
        mut on_record: impl FnMut(&EventRecord<'_>, u64),
        mut on_sample: impl FnMut(&EventRecord<'_>, u64),
    ) {
        let until = if is_last { u64::MAX } else { now_ns().saturating_sub(WRITE_DELAY_NS) };
        let info = self.info;
        for (ring, _) in &mut self.rings {
            ring.peek_new(&info, |record| {
                if record.record_type != RecordType::SAMPLE
                    && let Ok(parsed) = record.parse()
                {
                    on_record(&parsed, record.timestamp().unwrap_or(0));
                }
            });
        }
        for (ring, _) in &mut self.rings {
            ring.consume(&info, |record| {
                let time = record.timestamp().unwrap_or(0);
                if time > until {
                    return false;
                }
                if record.record_type == RecordType::SAMPLE
                    && let Ok(parsed) = record.parse()
                {
                    on_sample(&parsed, time);
                }
                true
            });
        }
    }
}

/// Events while they are opened.
struct Opening {
    processors: Vec<u32>,
    frequency: u32,
    kernel_time: KernelTime,
    rings: Vec<(Ring, OwnedFd)>,
    events: Vec<OwnedFd>,
}

impl Opening {
    /// Opens the events of one thread, or of the machine, on all processors.
    fn add(&mut self, scope: Scope) -> io::Result<()> {
        for (index, cpu) in self.processors.iter().enumerate() {
            let mut opened = event::open(scope, *cpu, self.frequency, self.kernel_time);
            if self.kernel_time == KernelTime::Sampled
                && self.rings.is_empty()
                && opened.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EACCES))
            {
                // A security module may refuse the kernel alone.
                self.kernel_time = KernelTime::Excluded;
                opened = event::open(scope, *cpu, self.frequency, self.kernel_time);
            }
            let opened = match opened {
                // The processor went offline.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) && scope == Scope::Machine => {
                    continue;
                }
                other => other?,
            };
            match self.rings.get(index) {
                None => {
                    let ring = Ring::map(&opened, MAX_RINGS_BYTES / self.processors.len().max(1))?;
                    self.rings.push((ring, opened));
                }
                Some((_, owner)) => {
                    event::share_ring(&opened, owner)?;
                    self.events.push(opened);
                }
            }
        }
        Ok(())
    }

    /// Opens the events of a process's threads. Threads that a sampled thread creates meanwhile inherit them.
    fn add_process(&mut self, pid: u32, info: &RecordParseInfo) -> Result<(), Refusal> {
        let refusal = |error| Refusal::process(pid, error);
        let threads = target::threads(pid).map_err(refusal)?;
        let mut opened = BTreeSet::new();
        for tid in threads {
            match self.add(Scope::Thread(tid)) {
                Ok(()) => {
                    opened.insert(tid);
                }
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tid != pid => {}
                Err(error) => return Err(refusal(error)),
            }
        }
        // Threads that others created before they were sampled.
        let mut inherited = BTreeSet::new();
        for (ring, _) in &mut self.rings {
            ring.peek_unchanged(info, |record| {
                if record.record_type == RecordType::FORK
                    && let Ok(EventRecord::Fork(fork)) = record.parse()
                {
                    inherited.insert(fork.tid.cast_unsigned());
                }
            });
        }
        let missed = target::threads(pid).unwrap_or_default();
        for tid in missed.into_iter().filter(|tid| !opened.contains(tid) && !inherited.contains(tid)) {
            match self.add(Scope::Thread(tid)) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(refusal(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Present time of the clock of all records, ns.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.cast_unsigned())
}

/// Layout of the records that [`event::open`] asks for (perf_event_open(2), "MMAP layout").
#[allow(clippy::cast_possible_truncation, reason = "a number of registers")]
const fn record_format() -> RecordParseInfo {
    RecordParseInfo {
        endian: Endianness::LittleEndian,
        sample_format: SampleFormat::from_bits_truncate(event::SAMPLE_FIELDS),
        branch_sample_format: BranchSampleFormat::empty(),
        read_format: ReadFormat::empty(),
        // Process, thread and time end every other record.
        common_data_offset_from_end: Some(16),
        sample_regs_user: event::REGISTERS,
        user_regs_count: event::REGISTERS.count_ones() as u8,
        sample_regs_intr: 0,
        intr_regs_count: 0,
        id_parse_info: RecordIdParseInfo {
            nonsample_record_id_offset_from_end: None,
            sample_record_id_offset_from_start: None,
        },
        nonsample_record_time_offset_from_end: Some(8),
        // After the instruction's address, process and thread.
        sample_record_time_offset_from_start: Some(16),
    }
}
