//! Combines the results of all processes into one [`Profile`].

use crate::chains;
use crate::flow::Flow;
use crate::model::{
    Call, FORMAT, Flow as SiteFlow, Frame, Machine, Measurement, Module, Object, Process, Profile, Site,
    VERSION,
};
use crate::prediction::{self, SiteSums};
use crate::symbols::{Symbols, file_name};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use uncopy_core::policy::trials::FactorReports;
use uncopy_core::policy::trials::catalogue::{ELISION, FactorName};
use uncopy_core::recording::{self, Call as RecordedCall, Function, Recording};

/// Maximum flows between sites in a profile, largest first.
const MAX_FLOWS: usize = 2048;
/// Maximum sites in a profile, most bytes first, in addition to those that operations refer to.
const MAX_SITES: usize = 4096;

/// One process: its recording without the events, and the result of their replay.
pub struct RecordedProcess {
    /// The recording without its events.
    pub recording: Recording,
    /// Result of replaying the events.
    pub flow: Flow,
    /// User and system CPU time while recorded, in seconds.
    pub cpu_seconds: f64,
}

/// Facts about the run that the command contributes.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Version of uncopy that recorded.
    pub uncopy: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How the recording ended, in words.
    pub ending: String,
    /// Machine that the program ran on.
    pub machine: Machine,
    /// Duration of the recording in seconds.
    pub seconds: f64,
    /// Minimum size of a recorded call in bytes.
    pub min_size_bytes: u64,
    /// Measurements made in the program itself.
    pub measured: FactorReports,
    /// Further caveats about the figures.
    pub warnings: Vec<String>,
}

/// Identity of a site across processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SiteKey {
    call: Call,
    object: Object,
    function: Function,
    stack: usize,
}

/// Modules, frames and stacks of all processes, deduplicated.
#[derive(Default)]
struct Tables {
    symbols: Symbols,
    modules: Vec<Module>,
    module_of: HashMap<(Vec<u8>, Vec<u8>), usize>,
    frames: Vec<Frame>,
    frame_of: HashMap<Frame, usize>,
    at: HashMap<(usize, u64), Vec<usize>>,
    stacks: Vec<Vec<usize>>,
    stack_of: HashMap<(Vec<usize>, chains::Leaf), usize>,
    /// Module and address of the innermost call of each stack.
    leaves: Vec<chains::Leaf>,
}

/// Builds the profile. All operations must have been ended.
#[must_use]
pub fn assemble(run: Run, processes: &[RecordedProcess]) -> Profile {
    let mut tables = Tables::default();
    let mut keys: HashMap<SiteKey, usize> = HashMap::new();
    let mut sites: Vec<Site> = Vec::new();
    let mut sums: Vec<SiteSums> = Vec::new();
    let mut local: Vec<Vec<usize>> = Vec::new();
    for process in processes {
        let mut numbers = Vec::new();
        for stats in process.flow.sites.stats() {
            let stack = tables.stack(&process.recording, stats.key.stack);
            let (call, object) = (stats.key.call, stats.key.object);
            let key = SiteKey { call, object, function: stats.key.function, stack };
            let index = *keys.entry(key).or_insert_with(|| {
                let site = tables.site(call, object, stats.key.function, stack);
                sites.push(Site { id: sites.len(), ..site });
                sums.push(SiteSums::default());
                sites.len() - 1
            });
            let site = &mut sites[index];
            site.events += stats.events;
            site.bytes += stats.bytes;
            site.ns += stats.work_ns();
            sums[index].add(stats);
            numbers.push(index);
        }
        local.push(numbers);
    }
    for (process, numbers) in processes.iter().zip(&local) {
        add_samples(process, numbers, &mut sites, &mut sums);
    }
    let replays: Vec<&Flow> = processes.iter().map(|process| &process.flow).collect();
    let mut profile = Profile {
        format: FORMAT.to_owned(),
        version: VERSION,
        uncopy: run.uncopy,
        command: run.command,
        ending: run.ending,
        machine: run.machine,
        seconds: run.seconds,
        min_size_bytes: run.min_size_bytes,
        cpu_seconds: processes.iter().map(|process| process.cpu_seconds).sum(),
        copy_seconds: 0.0,
        processes: processes.iter().map(told).collect(),
        flows: flows(processes, &local),
        operations: chains::operations(&replays, &local, &tables.leaves, &sites),
        sites,
        dropped_events: processes.iter().map(dropped).sum(),
        measured: run.measured.0.iter().map(|(factor, told)| Measurement::of(*factor, told)).collect(),
        warnings: run.warnings,
        ..Profile::default()
    };
    let copies = profile.sites.iter().filter(|site| site.call == Call::Copy);
    // Below 2^53 ns, which a float represents exactly, for recordings of up to a hundred days.
    profile.copy_seconds = copies.map(|site| site.ns as f64).sum::<f64>() / 1e9;
    let costs = processes.iter().find_map(|process| process.recording.costs);
    prediction::predict(&mut profile, &sums, &costs.unwrap_or_default());
    profile.prediction.lanes =
        prediction::predict_lanes(processes.iter().map(|process| process.flow.local_streams));
    add_warnings(&mut profile, processes);
    if let Some(told) = run.measured.contradicting(profile.prediction.ns.into()) {
        let what = FactorName(ELISION);
        let warning = format!("the estimate is wrong; measured by the program itself: {what}: {told}");
        profile.warnings.push(warning);
    }
    (profile.modules, profile.frames, profile.stacks) = (tables.modules, tables.frames, tables.stacks);
    sort_sites(&mut profile);
    profile
}

fn dropped(process: &RecordedProcess) -> u64 {
    process.recording.dropped.max(process.flow.missing_events)
}

fn told(process: &RecordedProcess) -> Process {
    Process {
        pid: process.recording.pid,
        name: process.recording.name.clone(),
        cpu_seconds: process.cpu_seconds,
        events: process.flow.events,
        dropped_events: dropped(process),
    }
}

fn add_warnings(profile: &mut Profile, processes: &[RecordedProcess]) {
    let mut warnings = Vec::new();
    if profile.dropped_events > 0 {
        let events: u64 = profile.processes.iter().map(|process| process.events).sum();
        warnings.push(format!(
            "{} of {} events were lost, because this command did not keep up; chains are cut where they are missing",
            profile.dropped_events,
            events + profile.dropped_events
        ));
    }
    let stacks: u64 = processes.iter().map(|process| process.recording.stacks_lost).sum();
    if stacks > 0 {
        warnings.push(format!("{stacks} calls have no stack, because there was no room for more"));
    }
    let others: u64 = processes.iter().map(|process| process.flow.classes.others).sum();
    if others > 0 {
        warnings
            .push(format!("{others} operations are not shown, because they took too many different ways"));
    }
    profile.warnings.extend(warnings);
}

/// Adds a process's samples of touched bytes to its sites.
fn add_samples(process: &RecordedProcess, numbers: &[usize], sites: &mut [Site], sums: &mut [SiteSums]) {
    for sample in &process.recording.samples {
        let call = match sample.call {
            RecordedCall::Input => Call::Input,
            RecordedCall::Copy => Call::Copy,
            _ => continue,
        };
        let stats = process.flow.sites.stats();
        let found = stats.iter().position(|stats| stats.key.stack == sample.stack && stats.key.call == call);
        let Some(index) = found.and_then(|found| numbers.get(found)) else { continue };
        let site = &mut sites[*index];
        // The process may have written implausible values, so they are clamped.
        let tally = sample.tally;
        let touched_bytes = tally.touched_bytes.min(tally.sampled_bytes);
        *site.sampled_bytes.get_or_insert(0) += tally.sampled_bytes;
        *site.touched_bytes.get_or_insert(0) += touched_bytes;
        sums[*index].faults = sums[*index].faults.saturating_add(tally.faults);
        sums[*index].touched_pages = sums[*index].touched_pages.saturating_add(tally.touched_pages);
    }
}

/// Returns the flows between sites of all processes, largest first.
fn flows(processes: &[RecordedProcess], local: &[Vec<usize>]) -> Vec<SiteFlow> {
    let mut all: FxHashMap<(usize, usize), (u64, u64)> = FxHashMap::default();
    for (process, numbers) in processes.iter().zip(local) {
        for ((from, to), (bytes, events)) in &process.flow.flows {
            let Some(to) = numbers.get(*to as usize) else { continue };
            let from = numbers.get(*from as usize).copied().unwrap_or(usize::MAX);
            let flow = all.entry((from, *to)).or_default();
            flow.0 += bytes;
            flow.1 += events;
        }
    }
    let flow = |((from, to), (bytes, events)): ((usize, usize), (u64, u64))| SiteFlow {
        from: Some(from).filter(|from| *from != usize::MAX),
        to,
        bytes,
        events,
    };
    let mut flows: Vec<SiteFlow> = all.into_iter().map(flow).collect();
    flows.sort_by_key(|flow| (core::cmp::Reverse(flow.bytes), flow.from, flow.to));
    flows.truncate(MAX_FLOWS);
    flows
}

/// Sorts the sites by bytes and renumbers all references to them.
fn sort_sites(profile: &mut Profile) {
    let mut by_bytes: Vec<usize> = (0..profile.sites.len()).collect();
    by_bytes.sort_by_key(|index| (core::cmp::Reverse(profile.sites[*index].bytes), *index));
    let used: std::collections::HashSet<usize> = profile
        .operations
        .iter()
        .flat_map(|operation| operation.steps.iter().map(|step| step.site))
        .collect();
    let mut kept = 0;
    by_bytes.retain(|index| {
        kept += 1;
        kept <= MAX_SITES || used.contains(index)
    });
    let mut place = vec![None; profile.sites.len()];
    for (to, from) in by_bytes.iter().enumerate() {
        place[*from] = Some(to);
    }
    profile.sites =
        by_bytes.iter().enumerate().map(|(id, from)| Site { id, ..profile.sites[*from].clone() }).collect();
    profile.flows.retain_mut(|flow| {
        let from = flow.from.map(|from| place[from]);
        let (Some(to), false) = (place[flow.to], from == Some(None)) else { return false };
        flow.to = to;
        flow.from = from.flatten();
        true
    });
    for step in profile.operations.iter_mut().flat_map(|operation| &mut operation.steps) {
        step.site = place[step.site].unwrap_or(0);
    }
    profile.prediction.losers.retain_mut(|loser| {
        let to = place[loser.site];
        loser.site = to.unwrap_or(0);
        to.is_some()
    });
}

impl Tables {
    fn module(&mut self, path: &[u8], build_id: &[u8]) -> usize {
        let key = (path.to_vec(), build_id.to_vec());
        *self.module_of.entry(key).or_insert_with(|| {
            self.modules.push(Module {
                path: String::from_utf8_lossy(path).into_owned(),
                build_id: build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            });
            self.modules.len() - 1
        })
    }

    fn frame(&mut self, frame: Frame) -> usize {
        *self.frame_of.entry(frame.clone()).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() - 1
        })
    }

    /// Returns the frames of the call before a return address.
    fn frames(&mut self, recording: &Recording, address: u64) -> Vec<usize> {
        let Some((module, own)) = recording.module_at(address.wrapping_sub(1)) else {
            let function = format!("code at {address:#x}");
            return vec![self.frame(Frame { function, ..Frame::default() })];
        };
        let index = self.module(&module.path, &module.build_id);
        if let Some(known) = self.at.get(&(index, own)) {
            return known.clone();
        }
        let file =
            if is_program(recording, module) { recording.name.clone() } else { file_name(&module.path) };
        let places = self.symbols.at_address(&module.path, own, &file);
        let frames = places.into_iter().map(|place| {
            let function = place.function.unwrap_or_else(|| format!("{file}+{own:#x}"));
            let (file, line, inlined) = (place.file, place.line, place.is_inlined);
            Frame { module: Some(index), function, file, line, inlined }
        });
        let frames: Vec<usize> =
            frames.collect::<Vec<_>>().into_iter().map(|frame| self.frame(frame)).collect();
        self.at.insert((index, own), frames.clone());
        frames
    }

    fn stack(&mut self, recording: &Recording, id: u32) -> usize {
        let addresses = recording.stacks.frames(id);
        let mut frames = Vec::new();
        for address in addresses {
            frames.extend(self.frames(recording, *address));
        }
        let address = addresses.first().copied().unwrap_or(0);
        let leaf = match recording.module_at(address.wrapping_sub(1)) {
            Some((module, own)) => {
                let key = (module.path.clone(), module.build_id.clone());
                (self.module_of.get(&key).copied(), own)
            }
            None => (None, address),
        };
        // Stacks with equal frames are distinct if they call from different addresses.
        let key = (frames, leaf);
        if let Some(known) = self.stack_of.get(&key) {
            return *known;
        }
        self.leaves.push(leaf);
        self.stacks.push(key.0.clone());
        self.stack_of.insert(key, self.stacks.len() - 1);
        self.stacks.len() - 1
    }

    fn site(&self, call: Call, object: Object, function: Function, stack: usize) -> Site {
        let frames = self.stacks[stack].iter().filter_map(|frame| self.frames.get(*frame));
        let is_program = |frame: &&Frame| {
            let module = frame.module.and_then(|module| self.modules.get(module));
            module.is_some_and(|module| !is_runtime(&file_name(module.path.as_bytes())))
        };
        let frame = frames.clone().find(is_program).or_else(|| frames.clone().next());
        // An unnamed function is easier to find by its caller.
        let caller = frame.filter(|frame| is_unnamed(frame)).and_then(|unnamed| {
            let mut outer = frames.clone().skip_while(|frame| *frame != unnamed).filter(is_program);
            outer.find(|frame| !is_unnamed(frame))
        });
        let place = match (frame, caller) {
            (Some(frame), Some(caller)) => format!("{} < {}", frame.function, caller.function),
            (Some(frame), None) => frame.function.clone(),
            (None, _) => "?".to_owned(),
        };
        let name = match (function.name(), call) {
            ("", Call::Input) => "input",
            ("", Call::Copy) => "copy",
            ("", Call::Output) => "output",
            (name, _) => name,
        };
        Site {
            call,
            name: name.to_owned(),
            object,
            stack,
            place,
            line: frame.and_then(|frame| Some(format!("{}:{}", frame.file.as_ref()?, frame.line?))),
            ..Site::default()
        }
    }
}

/// True for the program itself: the first module, shown under the name that the program was started by.
fn is_program(recording: &Recording, module: &recording::Module) -> bool {
    let first = recording.modules.first();
    !recording.name.is_empty() && first.is_some_and(|first| first.path == module.path)
}

/// True if a function is only known by its start, or by the distance from another function.
fn is_unnamed(frame: &Frame) -> bool {
    frame.function.contains("+0x")
}

/// True if a file belongs to the C library, whose functions are of no interest as call locations.
fn is_runtime(file: &str) -> bool {
    ["libc.so", "libc-", "libpthread", "ld-linux", "ld.so"].iter().any(|name| file.starts_with(name))
}
