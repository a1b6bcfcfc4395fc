//! Converts classes of operations to the report's form: the chains of zIO's Table 2 and the counts of its
//! Table 1.

use crate::classes::{Class, StepSum};
use crate::flow::Flow;
use crate::model::{Call, ExampleStep, Object, OperationClass, Site, Step};
use std::collections::HashMap;
use uncopy_core::recording::Function;

/// Maximum classes in a profile, those with the most bytes moved.
const MAX_OPERATIONS: usize = 256;

/// Module and address of the innermost call of a stack.
pub type Leaf = (Option<usize>, u64);

/// Identity of a step across processes.
type StepKey = (Call, Object, Leaf, u32);

/// A class of all processes.
struct Merged {
    class: Class,
    sites: Vec<usize>,
    /// True for steps whose bytes never reach user memory.
    in_kernel: Vec<bool>,
}

/// Merges the classes of all processes and returns them, most bytes moved first. `local` maps each flow's
/// site numbers to indices of `sites`.
#[must_use]
pub fn operations(
    flows: &[&Flow],
    local: &[Vec<usize>],
    leaves: &[Leaf],
    sites: &[Site],
) -> Vec<OperationClass> {
    let mut merged: Vec<Merged> = Vec::new();
    let mut by_key: HashMap<(Object, Vec<StepKey>), usize> = HashMap::new();
    for (flow, numbers) in flows.iter().zip(local) {
        let site_of = |step: &StepSum| numbers.get(step.site as usize).copied();
        for class in flow.classes.all() {
            let key: Option<Vec<StepKey>> = class
                .steps
                .iter()
                .map(|step| {
                    let site = sites.get(site_of(step)?)?;
                    Some((site.call, site.object, *leaves.get(site.stack)?, step.key.after))
                })
                .collect();
            let Some(key) = key else { continue };
            let key = (class.from, key);
            if let Some(index) = by_key.get(&key) {
                add(&mut merged[*index].class, class);
                continue;
            }
            let stats = flow.sites.stats();
            let is_in_kernel = |step: &StepSum| {
                let function = stats.get(step.site as usize).map(|stats| stats.key.function);
                matches!(function, Some(Function::Sendfile | Function::Splice | Function::CopyFileRange))
            };
            merged.push(Merged {
                class: class.clone(),
                sites: class.steps.iter().filter_map(site_of).collect(),
                in_kernel: class.steps.iter().map(is_in_kernel).collect(),
            });
            by_key.insert(key, merged.len() - 1);
        }
    }
    let mut operations: Vec<(u64, OperationClass)> = merged
        .iter()
        .map(|merged| {
            let moved: u64 = merged.class.steps.iter().map(|step| step.bytes).sum();
            (moved, operation(merged, sites))
        })
        .collect();
    operations.sort_by_key(|(moved, _)| core::cmp::Reverse(*moved));
    operations.truncate(MAX_OPERATIONS);
    operations.into_iter().map(|(_, operation)| operation).collect()
}

fn add(all: &mut Class, class: &Class) {
    all.count += class.count;
    all.bytes += class.bytes;
    for (sum, step) in all.steps.iter_mut().zip(&class.steps) {
        sum.calls += step.calls;
        sum.elided_calls += step.elided_calls;
        sum.bytes += step.bytes;
        sum.ns += step.ns;
        sum.shift = sum.shift.filter(|shift| Some(*shift) == step.shift);
        sum.is_overlapping &= step.is_overlapping;
    }
}

/// Returns how many times a step moves all of an operation's bytes, at least once.
fn passes(step_bytes: f64, bytes_each: f64) -> u32 {
    let passes = (step_bytes / bytes_each.max(1.0)).round().clamp(1.0, 1e6);
    // The value was clamped to a range that fits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let passes = passes as u32;
    passes
}

/// State while the steps of one class are converted in order.
struct ChainBuilder<'a> {
    merged: &'a Merged,
    sites: &'a [Site],
    operation: OperationClass,
    /// Number of the buffer that each step so far leaves the bytes in.
    buffers: Vec<usize>,
    next_buffer: usize,
    /// Numbers of copies (A) and of inputs and outputs (IO) so far, for labels.
    application: u32,
    io: u32,
    /// Bytes copied by the program per operation.
    moved_bytes: f64,
    /// Sites of inputs and outputs, and the bytes that they move per operation.
    outputs: Vec<(usize, f64)>,
}

impl ChainBuilder<'_> {
    fn count(&self) -> f64 {
        self.merged.class.count.max(1) as f64
    }

    /// Returns the buffer that a step leaves the bytes in: 0 for the kernel, `before`, or a new one.
    fn buffer(&mut self, call: Call, before: Option<usize>, is_overlapping: bool) -> usize {
        match (call, before) {
            (Call::Output, _) => 0,
            (Call::Copy, Some(before)) if is_overlapping => before,
            _ => {
                self.next_buffer += 1;
                self.next_buffer - 1
            }
        }
    }

    /// Returns the names of a step's source and destination.
    fn ends(&self, index: usize, site: &Site, after: &[usize]) -> (String, String) {
        let is_in_kernel = self.merged.in_kernel[index];
        let named =
            |buffer: usize| if is_in_kernel { "kernel".to_owned() } else { format!("buffer {buffer}") };
        let sources = || {
            let mut from: Vec<usize> = after.iter().map(|step| self.buffers[*step]).collect();
            from.sort_unstable();
            from.dedup();
            let names: Vec<String> = from.into_iter().map(named).collect();
            if names.is_empty() { "memory".to_owned() } else { names.join(", ") }
        };
        let buffer = self.buffers[index];
        match site.call {
            Call::Input => (site.object.name().to_owned(), named(buffer)),
            Call::Copy => (sources(), named(buffer)),
            Call::Output => (sources(), site.object.name().to_owned()),
        }
    }

    /// Counts a step that moves `bytes` bytes per operation, and returns its label.
    fn label(&mut self, index: usize, bytes: f64, elidable: bool, after: &[usize]) -> String {
        let number = self.merged.sites[index];
        if self.sites[number].call == Call::Copy {
            let passes = passes(bytes, self.operation.bytes_each);
            self.application += 1;
            self.operation.copies_in_application += passes;
            self.operation.elidable_copies += if elidable { passes } else { 0 };
            self.moved_bytes += bytes;
            format!("A{}", self.application)
        } else if self.merged.in_kernel[index] {
            "K".to_owned()
        } else {
            self.io += 1;
            // One output may have several steps, if its parts come from different steps.
            match self.outputs.iter_mut().find(|(site, _)| *site == number && !after.is_empty()) {
                Some((_, output_bytes)) => *output_bytes += bytes,
                None => self.outputs.push((number, bytes)),
            }
            format!("IO{}", self.io)
        }
    }

    fn step(&mut self, index: usize, all_ns: u64) {
        let (sum, number) = (&self.merged.class.steps[index], self.merged.sites[index]);
        let site = &self.sites[number];
        let after: Vec<usize> = (0..index.min(32)).filter(|bit| sum.key.after & 1 << bit != 0).collect();
        let bytes = sum.bytes as f64 / self.count();
        let before = after.first().map(|step| self.buffers[*step]);
        let is_overlapping = sum.is_overlapping && before.is_some();
        let buffer = self.buffer(site.call, before, is_overlapping);
        self.buffers.push(buffer);
        let (source, destination) = self.ends(index, site, &after);
        let elidable = site.call == Call::Copy && sum.elided_calls * 2 > sum.calls;
        let label = self.label(index, bytes, elidable, &after);
        if site.call == Call::Output && !self.operation.to.contains(&site.object) {
            self.operation.to.push(site.object);
        }
        self.operation.steps.push(Step {
            label,
            site: number,
            source,
            destination,
            after,
            shift: sum.shift.filter(|_| is_overlapping),
            calls_each: sum.calls as f64 / self.count(),
            bytes,
            share: sum.ns as f64 / all_ns.max(1) as f64,
            elidable,
        });
    }

    fn finish(self) -> OperationClass {
        let Self { mut operation, outputs, moved_bytes, .. } = self;
        let bytes_each = operation.bytes_each;
        operation.copies_at_io_stack = outputs.iter().map(|(_, bytes)| passes(*bytes, bytes_each)).sum();
        operation.moves_each = moved_bytes / bytes_each.max(1.0);
        let to: Vec<&str> = operation.to.iter().map(|object| object.name()).collect();
        let to = if to.is_empty() { "memory".to_owned() } else { to.join(" + ") };
        operation.name = format!("{} → {to}", operation.from.name());
        operation
    }
}

fn operation(merged: &Merged, sites: &[Site]) -> OperationClass {
    let class = &merged.class;
    let example = class.example.iter().map(|call| ExampleStep {
        step: usize::from(call.step),
        bytes: call.bytes,
        own_bytes: call.own_bytes,
        shift: call.shift,
        thread: call.thread,
    });
    let operation = OperationClass {
        from: class.from,
        count: class.count,
        bytes_each: class.bytes as f64 / class.count.max(1) as f64,
        example: example.collect(),
        ..OperationClass::default()
    };
    let mut builder = ChainBuilder {
        merged,
        sites,
        operation,
        buffers: Vec::new(),
        next_buffer: 1,
        application: 0,
        io: 0,
        moved_bytes: 0.0,
        outputs: Vec::new(),
    };
    let all_ns: u64 = class.steps.iter().map(|step| step.ns).sum();
    for index in 0..class.steps.len() {
        builder.step(index, all_ns);
    }
    builder.finish()
}
