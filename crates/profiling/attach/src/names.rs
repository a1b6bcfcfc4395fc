//! Names of all frames of a session's samples.

use crate::function::Function;
use crate::image::FunctionRange;
use crate::images::{Frame, ImageId, Images};
use crate::imports::Imports;
use crate::jvm;
use crate::session::{Process, Samples};
use crate::symbols::{CompiledCode, KernelSymbols, functions_of_file};
use crate::target::{self, Memory};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Maximum processes whose memory is read to name functions.
const MAX_PROCESSES_READ: usize = 16;

/// Name of a code location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFrame {
    /// Function; `None` if it has no name.
    pub function: Option<String>,
    /// Start of a function without a name, in its file's address space.
    pub start: Option<u64>,
    /// Name of the file without its directory; `[kernel]` for the kernel, empty for memory without a file.
    pub file: String,
}

impl NamedFrame {
    /// Returns the function's name, empty if it has none.
    pub fn plain_name(&self) -> &str {
        self.function.as_deref().unwrap_or_default()
    }

    /// Returns a name for people: the function, else file and address, else `[unknown]`.
    pub fn label(&self) -> String {
        match (&self.function, self.start) {
            (Some(name), _) => name.clone(),
            (None, Some(start)) if !self.file.is_empty() => format!("{}+{start:#x}", self.file),
            (None, _) if !self.file.is_empty() => self.file.clone(),
            (None, _) => "[unknown]".to_owned(),
        }
    }
}

/// Names of all frames.
#[derive(Default)]
pub struct Names {
    /// Frames in files and in the kernel.
    shared: FxHashMap<Frame, Rc<NamedFrame>>,
    /// Frames in memory without a file, by process and address.
    own: FxHashMap<(u32, u64), Rc<NamedFrame>>,
    unknown: Rc<NamedFrame>,
    has_kernel_symbols: bool,
}

impl Names {
    /// Returns whether the kernel's functions have names.
    pub fn has_kernel_symbols(&self) -> bool {
        self.has_kernel_symbols
    }

    /// Returns the name of a frame of a process.
    pub fn frame(&self, pid: u32, frame: Frame) -> Rc<NamedFrame> {
        let found = match frame.image {
            ImageId::UNKNOWN => self.own.get(&(pid, frame.address)),
            _ => self.shared.get(&frame),
        };
        found.unwrap_or(&self.unknown).clone()
    }

    /// Looks up the names of all frames.
    pub fn look_up(samples: &mut Samples) -> Self {
        let mut names = Self::default();
        let mut addresses: BTreeMap<ImageId, BTreeSet<u64>> = BTreeMap::new();
        for process in samples.processes.values() {
            for frame in process.stacks.keys().flat_map(|stack| stack.iter()) {
                addresses.entry(frame.image).or_default().insert(frame.address);
            }
        }
        addresses.remove(&ImageId::UNKNOWN);
        if let Some(of_kernel) = addresses.remove(&ImageId::KERNEL) {
            names.enter_kernel(&of_kernel);
        }
        let inferred = infer(samples, &mut addresses, &mut names);
        for (image, addresses) in &addresses {
            names.enter_file(*image, addresses, &samples.images, &inferred);
        }
        for (pid, process) in &samples.processes {
            names.enter_compiled(*pid, process);
        }
        names
    }

    fn enter_kernel(&mut self, addresses: &BTreeSet<u64>) {
        let symbols = KernelSymbols::read();
        self.has_kernel_symbols = !symbols.is_empty();
        for address in addresses {
            let function = symbols.name(*address).map(ToOwned::to_owned);
            let named = NamedFrame { function, start: None, file: "[kernel]".to_owned() };
            self.shared.insert(Frame { image: ImageId::KERNEL, address: *address }, Rc::new(named));
        }
    }

    fn enter_file(&mut self, id: ImageId, addresses: &BTreeSet<u64>, images: &Images, inferred: &Inferred) {
        let Some(image) = images.get(id) else { return };
        let file = target::clean_name(target::base_name(&image.name));
        for address in addresses {
            let frame = Frame { image: id, address: *address };
            if self.shared.contains_key(&frame) {
                continue;
            }
            let range = image.tables.function(*address);
            let function = range.and_then(|range| inferred.get(&(id, range))).map(|name| (*name).to_owned());
            let start = range.map(|range| range.start);
            self.shared.insert(frame, Rc::new(NamedFrame { function, start, file: file.clone() }));
        }
    }

    /// Names code without a file: of just-in-time compilers.
    fn enter_compiled(&mut self, pid: u32, process: &Process) {
        let addresses: BTreeSet<u64> = process
            .stacks
            .keys()
            .flat_map(|stack| stack.iter())
            .filter(|frame| frame.image == ImageId::UNKNOWN)
            .map(|frame| frame.address)
            .collect();
        if addresses.is_empty() {
            return;
        }
        let mut code = target::read_perf_map(pid).map(|text| CompiledCode::parse(&text)).unwrap_or_default();
        code.add_starts(jvm_stubs(pid, process), jvm::MAX_STUB_BYTES);
        for address in addresses {
            let file = process
                .space()
                .and_then(|space| space.find(address))
                .map(|found| target::base_name(&found.name));
            let file = target::clean_name(file.unwrap_or_default());
            let function = code.function(address).map(|found| found.name);
            self.own.insert((pid, address), Rc::new(NamedFrame { function, start: None, file }));
        }
    }
}

/// Returns the stubs of a Java virtual machine, if the process is one.
fn jvm_stubs(pid: u32, process: &Process) -> Vec<(u64, String)> {
    let Some(space) = process.space() else { return Vec::new() };
    let libjvm = space.mappings().iter().find(|mapping| target::base_name(&mapping.name) == b"libjvm.so");
    let found = || {
        let mapping = libjvm?;
        let file = target::open_mapped(pid, mapping)?;
        let tables = crate::image::Tables::read(file.try_clone().ok()?);
        let bias = tables.bias(mapping)?;
        Some(jvm::stubs(&file, bias, &Memory::open(pid).ok()?, space))
    };
    found().unwrap_or_default()
}

/// Names of functions without symbols.
type Inferred = FxHashMap<(ImageId, FunctionRange), &'static str>;

/// Enters the names of symbol tables, and returns names for functions that have none, from their callers.
fn infer(samples: &Samples, addresses: &mut BTreeMap<ImageId, BTreeSet<u64>>, names: &mut Names) -> Inferred {
    for (id, addresses) in addresses.iter() {
        let Some(image) = samples.images.get(*id) else { continue };
        let Some(file) = &image.file else { continue };
        let sorted: Vec<u64> = addresses.iter().copied().collect();
        let base = target::clean_name(target::base_name(&image.name));
        for (address, found) in sorted.iter().zip(functions_of_file(file, &sorted)) {
            if let Some(Function { name, start }) = found {
                let named = NamedFrame { function: Some(name), start: Some(start), file: base.clone() };
                names.shared.insert(Frame { image: *id, address: *address }, Rc::new(named));
            }
        }
    }
    let mut finder = CallerNames { samples, imports: FxHashMap::default(), votes: FxHashMap::default() };
    for process in samples.processes.values() {
        for (stack, counted) in &process.stacks {
            finder.vote(stack, counted.count, names);
        }
    }
    let mut read = 0;
    for (pid, process) in &samples.processes {
        let is_needed = process.stacks.keys().any(|stack| {
            innermost_user(stack)
                .is_some_and(|frame| frame.image != ImageId::UNKNOWN && !names.shared.contains_key(frame))
        });
        if is_needed && read < MAX_PROCESSES_READ {
            read += 1;
            finder.read_slots(*pid, process);
        }
    }
    finder.into_names()
}

/// Returns the innermost frame of a stack that was not in the kernel.
fn innermost_user(stack: &[Frame]) -> Option<&Frame> {
    stack.first().filter(|frame| frame.image != ImageId::KERNEL)
}

/// Finds names of functions by the slots through which they are called.
struct CallerNames<'a> {
    samples: &'a Samples,
    imports: FxHashMap<ImageId, Imports>,
    /// Samples for each name of a function.
    votes: FxHashMap<(ImageId, FunctionRange), BTreeMap<&'static str, u64>>,
}

impl CallerNames<'_> {
    fn imports(&mut self, id: ImageId) -> &Imports {
        let samples = self.samples;
        self.imports.entry(id).or_insert_with(|| {
            let file = samples.images.get(id).and_then(|image| image.file.as_ref());
            file.map(Imports::read).unwrap_or_default()
        })
    }

    /// Notes what a stack's second frame calls, if its first has no name.
    fn vote(&mut self, stack: &[Frame], samples: u64, names: &Names) {
        let Some(innermost) = innermost_user(stack) else { return };
        let Some(caller) = stack.get(1).filter(|_| !names.shared.contains_key(innermost)) else { return };
        let images = &self.samples.images;
        let (Some(of_innermost), Some(of_caller)) = (images.get(innermost.image), images.get(caller.image))
        else {
            return;
        };
        let Some(range) = of_innermost.tables.function(innermost.address) else { return };
        let Some(file) = &of_caller.file else { return };
        let return_address = caller.address.wrapping_add(1);
        if let Some(name) = self.imports(caller.image).callee(file, &of_caller.tables, return_address) {
            *self.votes.entry((innermost.image, range)).or_default().entry(name).or_default() += samples;
        }
    }

    /// Notes where the slots of a process's files lead to.
    fn read_slots(&mut self, pid: u32, process: &Process) {
        let (Ok(memory), Some(space)) = (Memory::open(pid), process.space()) else { return };
        let images = &self.samples.images;
        for mapping in space.mappings() {
            let Some(id) = images.known(mapping) else { continue };
            let Some(image) = images.get(id) else { continue };
            let Some(bias) = image.tables.bias(mapping) else { continue };
            let slots: Vec<_> = self.imports(id).slots().collect();
            for (slot, name) in slots {
                let Some(start) = memory.word(slot.wrapping_add(bias)) else { continue };
                let Some(target) = space.find(start) else { continue };
                let Some(target_id) = images.known(target) else { continue };
                let frame = images.frame(target_id, target, start);
                let range = images.get(frame.image).and_then(|image| image.tables.function(frame.address));
                // A slot that is not resolved yet leads into the caller's own file.
                if let Some(range) = range.filter(|range| range.start == frame.address) {
                    *self.votes.entry((frame.image, range)).or_default().entry(name).or_default() += 1;
                }
            }
        }
    }

    fn into_names(self) -> Inferred {
        let best = |votes: BTreeMap<&'static str, u64>| votes.into_iter().max_by_key(|(_, count)| *count);
        self.votes.into_iter().filter_map(|(key, votes)| Some((key, best(votes)?.0))).collect()
    }
}
