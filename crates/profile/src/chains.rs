//! Classes of operations as the report shows them: the chains of zIO's Table 2, the counts of its Table 1.

use crate::classes::{Class, StepSum};
use crate::flow::Flow;
use crate::model::{Call, ExampleStep, Object, Operation, Site, Step};
use std::collections::HashMap;
use uncopy_core::recording::Function;

/// Classes in the file at most, those with the most bytes moved.
const MAX_OPERATIONS: usize = 256;

/// Module and address of the innermost call of a stack.
pub type Leaf = (Option<usize>, u64);

/// What makes steps of several processes the same.
type StepKey = (Call, Object, Leaf, u32);

/// A class of the whole run.
struct Merged {
    class: Class,
    /// Sites of the steps.
    sites: Vec<usize>,
    /// Whether the steps never have their bytes in memory.
    in_kernel: Vec<bool>,
}

/// The operations of all processes, whose events came to `flows`, by class, those that move the most bytes first.
#[must_use]
pub fn operations(flows: &[&Flow], local: &[Vec<usize>], leaves: &[Leaf], sites: &[Site]) -> Vec<Operation> {
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
            let seen = flow.sites.seen();
            let is_in_kernel = |step: &StepSum| {
                let function = seen.get(step.site as usize).map(|seen| seen.key.function);
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
    let mut operations: Vec<(u64, Operation)> = merged
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
        sum.is_within &= step.is_within;
    }
}

/// How often a step moves all of an operation's bytes: once at least.
fn passes(step_bytes: f64, bytes_each: f64) -> u32 {
    let passes = (step_bytes / bytes_each.max(1.0)).round().clamp(1.0, 1e6);
    // Clamped to what it holds.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let passes = passes as u32;
    passes
}

fn operation(merged: &Merged, sites: &[Site]) -> Operation {
    let Merged { class, sites: numbers, in_kernel } = merged;
    let count = class.count.max(1) as f64;
    let bytes_each = class.bytes as f64 / count;
    let all_ns: u64 = class.steps.iter().map(|step| step.ns).sum();
    let mut operation = Operation {
        from: class.from,
        count: class.count,
        bytes_each,
        example: class
            .example
            .iter()
            .map(|call| ExampleStep {
                step: usize::from(call.step),
                bytes: call.bytes,
                own_bytes: call.own_bytes,
                shift: call.shift,
                thread: call.thread,
            })
            .collect(),
        ..Operation::default()
    };
    let mut buffers: Vec<usize> = Vec::new();
    let mut next_buffer = 1;
    let (mut io, mut application) = (0, 0);
    let mut moved_bytes = 0.0;
    let mut outputs: Vec<(usize, f64)> = Vec::new();
    for (index, (sum, number)) in class.steps.iter().zip(numbers).enumerate() {
        let site = &sites[*number];
        let after: Vec<usize> = (0..index.min(32)).filter(|bit| sum.key.after & 1 << bit != 0).collect();
        let is_in_kernel = in_kernel[index];
        let bytes = sum.bytes as f64 / count;
        let before = after.first().map(|step| buffers[*step]);
        let is_within = sum.is_within && before.is_some();
        let buffer = match (site.call, before) {
            (Call::Output, _) => 0,
            (Call::Copy, Some(before)) if is_within => before,
            _ => {
                next_buffer += 1;
                next_buffer - 1
            }
        };
        buffers.push(buffer);
        let named =
            |buffer: usize| if is_in_kernel { "kernel".to_owned() } else { format!("buffer {buffer}") };
        let sources = || {
            let mut from: Vec<usize> = after.iter().map(|step| buffers[*step]).collect();
            from.sort_unstable();
            from.dedup();
            let names: Vec<String> = from.into_iter().map(named).collect();
            if names.is_empty() { "memory".to_owned() } else { names.join(", ") }
        };
        let (source, destination) = match site.call {
            Call::Input => (site.object.name().to_owned(), named(buffer)),
            Call::Copy => (sources(), named(buffer)),
            Call::Output => (sources(), site.object.name().to_owned()),
        };
        let passes = passes(bytes, bytes_each);
        let elidable = site.call == Call::Copy && sum.elided_calls * 2 > sum.calls;
        let label = if site.call == Call::Copy {
            application += 1;
            operation.copies_in_application += passes;
            operation.elidable_copies += if elidable { passes } else { 0 };
            moved_bytes += bytes;
            format!("A{application}")
        } else if is_in_kernel {
            "K".to_owned()
        } else {
            io += 1;
            // The parts of one output may come from several steps.
            match outputs.iter_mut().find(|(site, _)| site == number && !after.is_empty()) {
                Some((_, output_bytes)) => *output_bytes += bytes,
                None => outputs.push((*number, bytes)),
            }
            format!("IO{io}")
        };
        if site.call == Call::Output && !operation.to.contains(&site.object) {
            operation.to.push(site.object);
        }
        operation.steps.push(Step {
            label,
            site: *number,
            source,
            destination,
            after,
            shift: sum.shift.filter(|_| is_within),
            calls_each: sum.calls as f64 / count,
            bytes,
            share: sum.ns as f64 / all_ns.max(1) as f64,
            elidable,
        });
    }
    operation.copies_at_io_stack = outputs.iter().map(|(_, bytes)| self::passes(*bytes, bytes_each)).sum();
    operation.moves_each = moved_bytes / bytes_each.max(1.0);
    let to: Vec<&str> = operation.to.iter().map(|object| object.name()).collect();
    let to = if to.is_empty() { "memory".to_owned() } else { to.join(" + ") };
    operation.name = format!("{} → {to}", class.from.name());
    operation
}
