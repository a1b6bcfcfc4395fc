//! Puts together what was found out about each process: one [`Profile`].

use crate::chains;
use crate::flow::Flow;
use crate::hash::FastMap;
use crate::model::{
    Call, FORMAT, Flow as Link, Frame, Machine, Measurement, Module, Object, Process, Profile, Site, VERSION,
};
use crate::prediction::{self, SiteSums};
use crate::symbols::{Symbols, file_name};
use std::collections::HashMap;
use uncopy_core::policy::trials::Standings;
use uncopy_core::policy::trials::catalogue::{ELISION, Name};
use uncopy_core::recording::{self, Call as RecordedCall, Function, Recording};

/// Links in the file at most, the largest.
const MAX_LINKS: usize = 2048;
/// Sites in the file at most, those with the most bytes.
const MAX_SITES: usize = 4096;

/// One process: its recording without the events, and what the events came to.
pub struct Recorded {
    /// What the process wrote beside its events.
    pub recording: Recording,
    /// The events.
    pub flow: Flow,
    /// Processor time while it was recorded, user and system, seconds.
    pub cpu_seconds: f64,
}

/// What the command knows of the run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The version of uncopy.
    pub uncopy: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How the recording ended.
    pub ending: String,
    /// Where it ran.
    pub machine: Machine,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Smallest size recorded, bytes.
    pub min_size_bytes: u64,
    /// What the program had measured by itself.
    pub measured: Standings,
    /// What is to be known besides.
    pub warnings: Vec<String>,
}

/// A site in the whole run: what makes calls of several processes one site.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SiteKey {
    call: Call,
    object: Object,
    function: Function,
    stack: usize,
}

/// Names shared by all processes.
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

/// Puts a profile together. Operations that are under way have been ended.
#[must_use]
pub fn assemble(run: Run, processes: &[Recorded]) -> Profile {
    let mut tables = Tables::default();
    let mut keys: HashMap<SiteKey, usize> = HashMap::new();
    let mut sites: Vec<Site> = Vec::new();
    let mut sums: Vec<SiteSums> = Vec::new();
    let mut local: Vec<Vec<usize>> = Vec::new();
    for process in processes {
        let mut numbers = Vec::new();
        for seen in process.flow.sites.seen() {
            let stack = tables.stack(&process.recording, seen.key.stack);
            let (call, object) = (seen.key.call, seen.key.object);
            let key = SiteKey { call, object, function: seen.key.function, stack };
            let index = *keys.entry(key).or_insert_with(|| {
                let site = tables.site(call, object, seen.key.function, stack);
                sites.push(Site { id: sites.len(), ..site });
                sums.push(SiteSums::default());
                sites.len() - 1
            });
            let site = &mut sites[index];
            site.events += seen.events;
            site.bytes += seen.bytes;
            site.ns += seen.work_ns();
            sums[index].add(seen);
            numbers.push(index);
        }
        local.push(numbers);
    }
    for (process, numbers) in processes.iter().zip(&local) {
        add_samples(process, numbers, &mut sites, &mut sums);
    }
    let flows: Vec<&Flow> = processes.iter().map(|process| &process.flow).collect();
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
        flows: links(processes, &local),
        operations: chains::operations(&flows, &local, &tables.leaves, &sites),
        sites,
        dropped_events: processes.iter().map(dropped).sum(),
        measured: run.measured.0.iter().map(|(factor, told)| Measurement::of(*factor, told)).collect(),
        warnings: run.warnings,
        ..Profile::default()
    };
    let copies = profile.sites.iter().filter(|site| site.call == Call::Copy);
    // Less than the 2^53 ns that a float holds exactly, for any recording of a hundred days.
    profile.copy_seconds = copies.map(|site| site.ns as f64).sum::<f64>() / 1e9;
    let costs = processes.iter().find_map(|process| process.recording.costs);
    prediction::predict(&mut profile, &sums, &costs.unwrap_or_default());
    profile.prediction.lanes = prediction::of_lanes(processes.iter().map(|process| process.flow.near));
    warn(&mut profile, processes);
    if let Some(told) = run.measured.contradicting(profile.prediction.ns.into()) {
        let what = Name(ELISION);
        let warning = format!("the estimate is wrong; measured by the program itself: {what}: {told}");
        profile.warnings.push(warning);
    }
    (profile.modules, profile.frames, profile.stacks) = (tables.modules, tables.frames, tables.stacks);
    order(&mut profile);
    profile
}

fn dropped(process: &Recorded) -> u64 {
    process.recording.dropped.max(process.flow.missing)
}

fn told(process: &Recorded) -> Process {
    Process {
        pid: process.recording.pid,
        name: process.recording.name.clone(),
        cpu_seconds: process.cpu_seconds,
        events: process.flow.events,
        dropped_events: dropped(process),
    }
}

/// Says what makes figures less than they look.
fn warn(profile: &mut Profile, processes: &[Recorded]) {
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

/// Adds what was found to be touched to the sites of a process.
fn add_samples(process: &Recorded, numbers: &[usize], sites: &mut [Site], sums: &mut [SiteSums]) {
    for sample in &process.recording.samples {
        let call = match sample.call {
            RecordedCall::Input => Call::Input,
            RecordedCall::Copy => Call::Copy,
            _ => continue,
        };
        let seen = process.flow.sites.seen();
        let found = seen.iter().position(|seen| seen.key.stack == sample.stack && seen.key.call == call);
        let Some(index) = found.and_then(|found| numbers.get(found)) else { continue };
        let site = &mut sites[*index];
        // What a process wrote is not believed where it cannot be.
        let tally = sample.tally;
        let touched_bytes = tally.touched_bytes.min(tally.sampled_bytes);
        *site.sampled_bytes.get_or_insert(0) += tally.sampled_bytes;
        *site.touched_bytes.get_or_insert(0) += touched_bytes;
        sums[*index].faults = sums[*index].faults.saturating_add(tally.faults);
        sums[*index].touched_pages = sums[*index].touched_pages.saturating_add(tally.touched_pages);
    }
}

/// The links of all processes, the largest first.
fn links(processes: &[Recorded], local: &[Vec<usize>]) -> Vec<Link> {
    let mut all: FastMap<(usize, usize), (u64, u64)> = FastMap::default();
    for (process, numbers) in processes.iter().zip(local) {
        for ((from, to), (bytes, events)) in &process.flow.links {
            let Some(to) = numbers.get(*to as usize) else { continue };
            let from = numbers.get(*from as usize).copied().unwrap_or(usize::MAX);
            let link = all.entry((from, *to)).or_default();
            link.0 += bytes;
            link.1 += events;
        }
    }
    let link = |((from, to), (bytes, events)): ((usize, usize), (u64, u64))| Link {
        from: Some(from).filter(|from| *from != usize::MAX),
        to,
        bytes,
        events,
    };
    let mut links: Vec<Link> = all.into_iter().map(link).collect();
    links.sort_by_key(|link| (core::cmp::Reverse(link.bytes), link.from, link.to));
    links.truncate(MAX_LINKS);
    links
}

/// Puts the sites in order of their bytes, and everything that refers to them accordingly.
fn order(profile: &mut Profile) {
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

    /// The frames of a return address: what is named is the call before it.
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
        // Calls of one function that nothing tells apart by name are two stacks all the same.
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
        // A function that nothing names is easier to find by who calls it.
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

/// Whether a module is the program itself, which is listed first and goes by the name that it was started by.
fn is_program(recording: &Recording, module: &recording::Module) -> bool {
    let first = recording.modules.first();
    !recording.name.is_empty() && first.is_some_and(|first| first.path == module.path)
}

/// Whether a function is only known by its start or its distance from another.
fn is_unnamed(frame: &Frame) -> bool {
    frame.function.contains("+0x")
}

/// Whether a file belongs to the C library: what is called there is not a place that anybody looks for.
fn is_runtime(file: &str) -> bool {
    ["libc.so", "libc-", "libpthread", "ld-linux", "ld.so"].iter().any(|name| file.starts_with(name))
}
