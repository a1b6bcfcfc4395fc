//! A session: samples processes for a while, and counts samples by stack.
//!
//! `samples = Σ counts of all stacks of all processes`. Names are looked up afterwards (`resolve`), so that the
//! session itself costs little.

use crate::event::KernelTime;
use crate::images::{Frame, ImageId, Images, MAX_ANCESTORS};
use crate::maps::{AddressSpace, Mapping};
use crate::permission::Refusal;
use crate::sampler::{Change, Sampler, Targets};
use crate::target;
use crate::walk::{Registers, Stack, Unwinder};
use linux_perf_event_reader::{CpuMode, RawData, SampleRecord};
use rustc_hash::FxHashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Addresses from here on are markers in a call chain, not code (PERF_CONTEXT_MAX).
const CONTEXT_MARKERS: u64 = (-4095i64).cast_unsigned();
/// Maximum registers that are kept of each stack's samples.
const MAX_REGISTERS: usize = 512;
/// Maximum different stacks; samples of further ones count without their callers.
const MAX_STACKS: usize = 1 << 17;
/// Maximum processes with mappings of their own.
const MAX_PROCESSES: usize = 1 << 16;
/// Part of the time that unwinding may take; beyond, stacks are cut to their innermost frame.
const MAX_UNWIND_SHARE: f64 = 0.25;

/// Samples of one stack.
#[derive(Debug, Default)]
pub struct StackSamples {
    pub count: u64,
    /// User registers of some of the samples.
    pub registers: Vec<Registers>,
}

/// An address space, and the time from which it holds.
struct Generation {
    from_ns: u64,
    space: Rc<AddressSpace>,
}

/// A process and its samples.
#[derive(Default)]
pub struct Process {
    pub name: String,
    /// Words of the command line, as the process shows them.
    pub command: Vec<String>,
    pub samples: u64,
    /// Samples by stack: frames in the kernel, then in the program, innermost first.
    pub stacks: FxHashMap<Box<[Frame]>, StackSamples>,
    /// Address spaces, oldest first; a new one begins with fork and exec.
    generations: Vec<Generation>,
    /// Process that created this one under observation.
    parent: Option<u32>,
    /// Whether `/proc/PID/maps` has been read, or must not be, because the process began under observation.
    has_maps: bool,
}

impl Process {
    /// Returns the latest mappings.
    pub fn space(&self) -> Option<&AddressSpace> {
        self.generations.last().map(|latest| &*latest.space)
    }

    fn space_at(&self, time_ns: u64) -> Option<&Rc<AddressSpace>> {
        let after = self.generations.partition_point(|generation| generation.from_ns <= time_ns);
        self.generations.get(after.saturating_sub(1)).map(|generation| &generation.space)
    }

    fn insert(&mut self, mapping: Mapping, time_ns: u64) {
        if self.generations.is_empty() {
            self.generations.push(Generation { from_ns: time_ns, space: Rc::default() });
        }
        if let Some(latest) = self.generations.last_mut() {
            Rc::make_mut(&mut latest.space).insert(mapping);
        }
    }

    /// Forgets address spaces that ended before all samples still to come.
    fn forget_before(&mut self, time_ns: u64) {
        let current = self.generations.partition_point(|generation| generation.from_ns <= time_ns);
        self.generations.drain(..current.saturating_sub(1));
    }
}

/// Samples that were not counted, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that found no room in a ring.
    pub lost: u64,
    /// Times that the kernel sampled less often, because sampling took too long.
    pub throttled: u64,
    /// Stacks that were cut to bound the time of unwinding, or the number of stacks.
    pub cut: u64,
}

/// All processes that were sampled.
#[derive(Default)]
pub struct Samples {
    pub processes: FxHashMap<u32, Process>,
    pub images: Images,
    pub losses: Losses,
    unwinder: Unwinder,
    /// Time that unwinding has taken.
    unwind_time: Duration,
    frames: Vec<Frame>,
    /// State of the generator that chooses which registers to keep.
    random: u32,
}

/// Sampling of processes, in progress.
pub struct Session {
    sampler: Sampler,
    started: Instant,
    samples: Samples,
    pids: Vec<u32>,
}

/// A session's result.
pub struct Ended {
    pub(crate) samples: Samples,
    pub(crate) seconds: f64,
    pub(crate) kernel_time: KernelTime,
}

impl Session {
    /// Begins to sample.
    ///
    /// # Errors
    /// Why that is refused.
    pub fn begin(targets: &Targets, frequency: u32) -> Result<Self, Refusal> {
        let sampler = Sampler::open(targets, frequency)?;
        let mut samples = Samples { random: 1, ..Samples::default() };
        let mut pids = Vec::new();
        if let Targets::Processes(wanted) = targets {
            pids.clone_from(wanted);
            // A process that ends soon can no longer be asked.
            for pid in wanted {
                samples.open_process(*pid, 0);
            }
        }
        Ok(Self { sampler, started: Instant::now(), samples, pids })
    }

    /// Interval after which [`Session::collect`] must be called again.
    pub fn interval(&self) -> Duration {
        self.sampler.interval()
    }

    /// Time since the session began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Number of samples so far.
    pub fn count(&self) -> u64 {
        self.samples.processes.values().map(|process| process.samples).sum()
    }

    /// Whether a sampled process is still running.
    pub fn is_any_running(&self) -> bool {
        let exists = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        self.pids.is_empty() || self.pids.iter().any(exists) || self.samples.processes.keys().any(exists)
    }

    /// Reads the rings of all processors.
    pub fn collect(&mut self) {
        self.read(false);
    }

    fn read(&mut self, is_last: bool) {
        let elapsed = self.started.elapsed();
        for (time_ns, change) in self.sampler.changes() {
            self.samples.enter_change(change, time_ns);
        }
        let samples = std::cell::RefCell::new(&mut self.samples);
        let mut latest_ns = 0;
        self.sampler.samples(
            is_last,
            |sample, time_ns| {
                latest_ns = latest_ns.max(time_ns);
                samples.borrow_mut().enter_sample(sample, time_ns, elapsed);
            },
            |change| samples.borrow_mut().enter_change(change, 0),
        );
        let samples = samples.into_inner();
        // Samples of other processors may be this much older.
        const SPREAD_NS: u64 = 1_000_000_000;
        for process in samples.processes.values_mut().filter(|process| process.generations.len() > 1) {
            process.forget_before(latest_ns.saturating_sub(SPREAD_NS));
        }
    }

    /// Ends the session and reads the rest.
    pub fn end(mut self) -> Ended {
        let seconds = self.started.elapsed().as_secs_f64();
        self.read(true);
        Ended { samples: self.samples, seconds, kernel_time: self.sampler.kernel_time }
    }
}

impl Samples {
    /// Returns a process, with the mappings that it has now if it is new.
    fn open_process(&mut self, pid: u32, time_ns: u64) -> Option<&mut Process> {
        if !self.processes.contains_key(&pid) && self.processes.len() >= MAX_PROCESSES {
            return None;
        }
        let process = self.processes.entry(pid).or_default();
        if !process.has_maps {
            process.has_maps = true;
            let space = AddressSpace::parse(&target::read_maps(pid).unwrap_or_default());
            // Records that came before know less.
            process.generations.insert(0, Generation { from_ns: time_ns, space: Rc::new(space) });
            process.generations.truncate(1);
            process.name = target::name(pid);
            process.command = target::command_line(pid);
        }
        Some(process)
    }

    fn enter_change(&mut self, change: Change, time_ns: u64) {
        match change {
            Change::Mapped { pid, mapping } => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.insert(mapping, time_ns);
                }
            }
            Change::Created { pid, parent, .. } if pid != parent => self.enter_fork(pid, parent, time_ns),
            Change::Named { pid, name, is_exec } => {
                let Some(process) = self.processes.get_mut(&pid) else { return };
                process.name = name;
                if is_exec {
                    process.generations.push(Generation { from_ns: time_ns, space: Rc::default() });
                }
            }
            Change::Lost(lost) => self.losses.lost += lost,
            Change::Throttled => self.losses.throttled += 1,
            Change::Created { .. } => {}
        }
    }

    fn enter_fork(&mut self, pid: u32, parent: u32, time_ns: u64) {
        let inherited = self.processes.get(&parent).map(|parent| {
            let space = parent.generations.last().map(|latest| latest.space.clone());
            (parent.name.clone(), parent.command.clone(), space)
        });
        let Some((name, command, Some(space))) = inherited else { return };
        if self.processes.len() >= MAX_PROCESSES {
            return;
        }
        let process = self.processes.entry(pid).or_default();
        (process.name, process.command, process.has_maps) = (name, command, true);
        process.parent = Some(parent);
        process.generations.push(Generation { from_ns: time_ns, space });
    }

    fn enter_sample(&mut self, sample: &SampleRecord<'_>, time_ns: u64, elapsed: Duration) {
        let (Some(pid), Some(ip)) = (sample.pid, sample.ip) else { return };
        // The idle task and interrupts in it.
        if pid <= 0 {
            return;
        }
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        if sample.cpu_mode == CpuMode::Kernel {
            kernel_frames(sample, ip, &mut frames);
        }
        let registers = sample.user_regs.as_ref().and_then(Registers::read);
        let Some(process) = self.open_process(pid.cast_unsigned(), 0) else { return };
        process.samples += 1;
        let space = process.space_at(time_ns).cloned();
        if let (Some(registers), Some(space)) = (&registers, &space) {
            let (data, len_bytes) = sample.user_stack.unwrap_or((RawData::empty(), 0));
            let is_over = self.unwind_time.as_secs_f64() > MAX_UNWIND_SHARE * (elapsed.as_secs_f64() + 1.0);
            let len_bytes = if is_over { 0 } else { len_bytes };
            self.losses.cut += u64::from(is_over);
            let stack = Stack::new(registers.sp, data, len_bytes);
            let began = Instant::now();
            let ancestors = self.ancestors(pid.cast_unsigned());
            self.images.set_processes(ancestors);
            self.unwinder.walk(registers, &stack, space, &mut self.images, &mut frames);
            self.unwind_time += began.elapsed();
        }
        self.count(pid.cast_unsigned(), &frames, registers);
        self.frames = frames;
    }

    /// Returns a process and those that it may have its mappings from, which may live longer.
    fn ancestors(&self, pid: u32) -> [u32; MAX_ANCESTORS] {
        let mut chain = [pid; MAX_ANCESTORS];
        for at in 1..MAX_ANCESTORS {
            let parent = self.processes.get(&chain[at - 1]).and_then(|process| process.parent);
            chain[at] = parent.unwrap_or(chain[at - 1]);
        }
        chain
    }

    fn count(&mut self, pid: u32, frames: &[Frame], registers: Option<Registers>) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let mut key = frames;
        if process.stacks.len() >= MAX_STACKS && !process.stacks.contains_key(key) {
            self.losses.cut += 1;
            key = &frames[..frames.len().min(1)];
        }
        let entry = match process.stacks.get_mut(key) {
            Some(entry) => entry,
            None => process.stacks.entry(key.into()).or_default(),
        };
        entry.count += 1;
        let Some(registers) = registers else { return };
        if entry.registers.len() < MAX_REGISTERS {
            entry.registers.push(registers);
            return;
        }
        // Reservoir sampling: each sample is kept with the same probability.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let at = u64::from(self.random) % entry.count;
        if let Some(kept) = usize::try_from(at).ok().and_then(|at| entry.registers.get_mut(at)) {
            *kept = registers;
        }
    }
}

/// Appends the kernel's frames of a sample, innermost first.
fn kernel_frames(sample: &SampleRecord<'_>, ip: u64, frames: &mut Vec<Frame>) {
    let frame = |address| Frame { image: ImageId::KERNEL, address };
    let chain = sample.callchain.as_ref();
    let chain = (0..chain.map_or(0, |chain| chain.len())).filter_map(|at| chain?.get(at));
    frames.extend(chain.filter(|address| *address < CONTEXT_MARKERS).map(frame));
    if frames.is_empty() {
        frames.push(frame(ip));
    }
}
