//! Opens the events for threads or for the whole machine, and reads their rings.
//!
//! ```text
//!               processor 0                  processor 1
//! this thread   owner of ring 0, of track 0  owner of ring 1, of track 1
//! thread 7      clock → ring 0               clock → ring 1       samples
//!               tracker → track 0            tracker → track 1    threads that begin or end, mappings, names
//! ```
//!
//! Threads and processes that a sampled thread creates inherit both. The kernel allows that only for events bound
//! to one processor.

use crate::event::{self, KernelTime, Purpose, Scope};
use crate::maps::{FileId, Mapping};
use crate::permission::{self, Refusal};
use crate::ring::Ring;
use crate::target;
use linux_perf_event_reader::{
    BranchSampleFormat, CpuMode, Endianness, EventRecord, Mmap2FileId, Mmap2Record, ReadFormat,
    RecordIdParseInfo, RecordParseInfo, SampleFormat, SampleRecord,
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
/// Maximum memory of all rings of samples, which the kernel pins, bytes.
const MAX_RINGS_BYTES: usize = 64 << 20;
/// Size of a ring of trackers' records, bytes.
const TRACK_BYTES: usize = 128 << 10;
/// Longest interval between two reads of the rings.
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// Processes that are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// These processes, and those that they create.
    Processes(Vec<u32>),
    /// Every process of the machine.
    Machine,
}

/// Change of a process, from a tracker's record.
#[derive(Clone, Debug)]
pub enum Change {
    Mapped {
        pid: u32,
        mapping: Mapping,
    },
    /// A new thread, or a new process if `pid` and `parent` differ.
    Created {
        pid: u32,
        parent: u32,
        tid: u32,
    },
    Named {
        pid: u32,
        name: String,
        is_exec: bool,
    },
    /// Records that found no room in a ring.
    Lost(u64),
    Throttled,
}

/// Open events and their rings.
pub struct Sampler {
    processors: Vec<u32>,
    frequency: u32,
    pub kernel_time: KernelTime,
    /// Rings of samples and of trackers' records, one each for every processor, with the events that own them.
    rings: Vec<(Ring, OwnedFd)>,
    tracks: Vec<(Ring, OwnedFd)>,
    events: Vec<OwnedFd>,
    /// Changes that were read while events were opened.
    early: Vec<(u64, Change)>,
    info: RecordParseInfo,
    /// Time of the last reading of changes.
    changes_ns: u64,
}

impl Sampler {
    /// Opens the events, which count from now on.
    ///
    /// # Errors
    /// Why the kernel refuses, and what helps.
    pub fn open(targets: &Targets, frequency: u32) -> Result<Self, Refusal> {
        let mut sampler = Self {
            processors: event::online_processors().map_err(Refusal::other)?,
            frequency,
            kernel_time: permission::kernel_time(),
            rings: Vec::new(),
            tracks: Vec::new(),
            events: Vec::new(),
            early: Vec::new(),
            info: record_format(),
            changes_ns: 0,
        };
        match targets {
            Targets::Machine => {
                sampler.open_rings().map_err(Refusal::machine)?;
                sampler.add(Scope::Machine).map_err(Refusal::machine)?;
            }
            Targets::Processes(pids) => {
                sampler.open_rings().map_err(|error| Refusal::new_for(pids.first().copied(), error))?;
                for pid in pids {
                    sampler.add_process(*pid).map_err(|error| Refusal::process(*pid, error))?;
                }
            }
        }
        Ok(sampler)
    }

    fn open_rings(&mut self) -> io::Result<()> {
        let max_bytes = MAX_RINGS_BYTES / self.processors.len().max(1);
        for cpu in &self.processors {
            for (rings, max_bytes) in [(&mut self.tracks, TRACK_BYTES), (&mut self.rings, max_bytes)] {
                let owner = event::open(Scope::Own, *cpu, Purpose::Ring)?;
                rings.push((Ring::map(&owner, max_bytes)?, owner));
            }
        }
        Ok(())
    }

    /// Opens events on all processors, which write to the rings of their kind.
    fn events(&self, scope: Scope, purpose: Purpose) -> io::Result<Vec<OwnedFd>> {
        let rings = if purpose == Purpose::Track { &self.tracks } else { &self.rings };
        let mut events = Vec::with_capacity(self.processors.len());
        for (cpu, (_, owner)) in self.processors.iter().zip(rings) {
            let opened = event::open(scope, *cpu, purpose)?;
            event::share_ring(&opened, owner)?;
            events.push(opened);
        }
        Ok(events)
    }

    /// Opens tracker and clock of a thread or of the machine. A thread that is created in between is not sampled.
    fn add(&mut self, scope: Scope) -> io::Result<()> {
        let mut events = self.events(scope, Purpose::Track)?;
        events.extend(self.events(scope, Purpose::Clock(self.frequency, self.kernel_time))?);
        self.events.extend(events);
        Ok(())
    }

    /// Tracks and samples the threads of a process.
    fn add_process(&mut self, pid: u32) -> io::Result<()> {
        // Threads that others create before they are sampled are found by another look.
        const MAX_LOOKS: usize = 4;
        let mut known = BTreeSet::new();
        for _ in 0..MAX_LOOKS {
            let mut threads = target::threads(pid)?;
            let early = self.changes();
            // These have inherited their events.
            known.extend(early.iter().filter_map(|(_, change)| match change {
                Change::Created { tid, .. } => Some(*tid),
                _ => None,
            }));
            self.early.extend(early);
            threads.retain(|tid| known.insert(*tid));
            if threads.is_empty() {
                break;
            }
            for tid in threads {
                match self.add(Scope::Thread(tid)) {
                    // The thread has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tid != pid => {}
                    result => result?,
                }
            }
        }
        Ok(())
    }

    /// Interval between reads of the rings: a ring must not be full before.
    pub fn interval(&self) -> Duration {
        let data_bytes = self.rings.iter().map(|(ring, _)| ring.data_bytes()).min().unwrap_or(0);
        let sample_bytes = event::STACK_BYTES as usize + SAMPLE_OVERHEAD_BYTES;
        let samples = (data_bytes / sample_bytes) as f64;
        // Half of the time in which a busy processor fills its ring.
        Duration::from_secs_f64(samples / f64::from(self.frequency) / 2.0).min(MAX_INTERVAL)
    }

    /// Returns the changes since the last call, in the order of their time stamps.
    pub fn changes(&mut self) -> Vec<(u64, Change)> {
        self.changes_ns = now_ns();
        let mut changes = std::mem::take(&mut self.early);
        let info = self.info;
        for (ring, _) in &mut self.tracks {
            ring.consume(&info, |record| {
                if let Ok(parsed) = record.parse()
                    && let Some(change) = change(&parsed)
                {
                    changes.push((record.timestamp().unwrap_or(0), change));
                }
                true
            });
        }
        changes.sort_by_key(|(time_ns, _)| *time_ns);
        changes
    }

    /// Passes samples whose earlier changes have been returned, or all if `is_last`, and what the rings lost.
    pub fn samples(
        &mut self,
        is_last: bool,
        mut on_sample: impl FnMut(&SampleRecord<'_>, u64),
        mut on_change: impl FnMut(Change),
    ) {
        let until = if is_last { u64::MAX } else { self.changes_ns.saturating_sub(WRITE_DELAY_NS) };
        let info = self.info;
        for (ring, _) in &mut self.rings {
            ring.consume(&info, |record| {
                let time_ns = record.timestamp().unwrap_or(0);
                if time_ns > until {
                    return false;
                }
                match record.parse() {
                    Ok(EventRecord::Sample(sample)) => on_sample(&sample, time_ns),
                    Ok(other) => change(&other).into_iter().for_each(&mut on_change),
                    Err(_) => {}
                }
                true
            });
        }
    }
}

/// Returns the change that a record reports.
fn change(record: &EventRecord<'_>) -> Option<Change> {
    let id = |id: i32| id.cast_unsigned();
    Some(match record {
        EventRecord::Mmap2(mapped) => return mapping(mapped),
        EventRecord::Fork(fork) => {
            Change::Created { pid: id(fork.pid), parent: id(fork.ppid), tid: id(fork.tid) }
        }
        // Threads have names too; that of the first is the process's.
        EventRecord::Comm(named) if named.pid == named.tid => Change::Named {
            pid: id(named.pid),
            name: target::clean_name(&named.name.as_slice()),
            is_exec: named.is_execve,
        },
        EventRecord::Lost(lost) => Change::Lost(lost.count),
        EventRecord::Throttle(_) => Change::Throttled,
        _ => return None,
    })
}

fn mapping(mapped: &Mmap2Record<'_>) -> Option<Change> {
    const PROT_EXEC: u32 = libc::PROT_EXEC.cast_unsigned();
    if mapped.cpu_mode != CpuMode::User || mapped.protection & PROT_EXEC == 0 {
        return None;
    }
    let file = match &mapped.file_id {
        Mmap2FileId::InodeAndVersion(id) => FileId { major: id.major, minor: id.minor, inode: id.inode },
        Mmap2FileId::BuildId(_) => FileId::default(),
    };
    let name = mapped.path.as_slice();
    // The kernel's name for memory without a file.
    let name = if &*name == b"//anon" { &b""[..] } else { &name };
    let mapping = Mapping {
        start: mapped.address,
        end: mapped.address.saturating_add(mapped.length),
        offset: mapped.page_offset,
        file,
        name: name.into(),
    };
    Some(Change::Mapped { pid: mapped.pid.cast_unsigned(), mapping })
}

/// Present time of the clock of all records, ns.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.cast_unsigned())
}

/// Layout of the records of events that [`event::open`] opens (perf_event_open(2), "MMAP layout").
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
