//! Sums of the samples of one process, or of several.

use crate::classes::{Class, is_input, is_output};
use crate::resolve::{NamedStack, ProcessProfile};
use std::collections::BTreeMap;

/// Smallest copy that uncopy elides by default, bytes (`--min-size`).
pub const LARGE_BYTES: u64 = 16 << 10;
/// Maximum callers and system calls in a report.
const MAX_ROWS: usize = 8;

/// Copies that one function makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    pub function: String,
    /// Name of its file.
    pub file: String,
    pub samples: u64,
    /// Size that half of the copying time is spent below; `None` if no size is known.
    pub median_bytes: Option<u64>,
}

/// A system call that moves bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCall {
    pub name: String,
    pub samples: u64,
    /// Samples in the kernel's copy.
    pub copying: u64,
}

/// Sums of processes' samples.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub samples: u64,
    /// Numbers of samples by class.
    pub classes: BTreeMap<Class, u64>,
    /// Copies by the program of at least [`LARGE_BYTES`] that uncopy could elide, estimated from those whose sizes
    /// are known.
    pub large_reachable: f64,
    /// Copies that uncopy can reach, in calls of any size.
    pub reachable: u64,
    /// Copies whose source and destination overlap, estimated likewise.
    pub overlapping: f64,
    /// Size that half of the copying time is spent below; `None` if no size is known.
    pub median_bytes: Option<u64>,
    /// Functions that copy, the one with the most samples first.
    pub callers: Vec<Caller>,
    pub system_calls: Vec<SystemCall>,
    /// Samples in system calls that receive or send bytes.
    pub input: u64,
    pub output: u64,
    /// The function that makes most of the copies that uncopy cannot reach, and its file.
    pub unreachable: Option<(String, String)>,
}

/// Copies while they are summed: time-weighted sizes.
#[derive(Default)]
struct Sizes {
    /// Size and weight, samples.
    sizes: Vec<(u64, f64)>,
}

impl Sizes {
    /// Adds a stack's copies, which stand for all of its samples.
    fn add(&mut self, stack: &NamedStack) {
        let weight = stack.samples as f64 / stack.copies.len().max(1) as f64;
        self.sizes.extend(stack.copies.iter().map(|copy| (copy.len_bytes, weight)));
    }

    fn median(mut self) -> Option<u64> {
        self.sizes.sort_unstable_by_key(|(size, _)| *size);
        let all: f64 = self.sizes.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        self.sizes.iter().find_map(|(size, weight)| {
            sum += weight;
            (sum >= all / 2.0).then_some(*size)
        })
    }
}

impl Summary {
    /// Sums the samples of processes.
    #[must_use]
    pub fn of<'a>(processes: impl IntoIterator<Item = &'a ProcessProfile>) -> Self {
        let mut summary = Self::default();
        let mut sizes = Sizes::default();
        let mut callers: BTreeMap<(String, String), (u64, Sizes)> = BTreeMap::new();
        let mut system_calls: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut unreachable: BTreeMap<(String, String), u64> = BTreeMap::new();
        for process in processes {
            summary.samples += process.samples;
            for stack in &process.stacks {
                *summary.classes.entry(stack.class).or_default() += stack.samples;
                if let Some(call) = &stack.system_call {
                    summary.add_system_call(call, stack, &mut system_calls);
                }
                if stack.class != Class::Copy {
                    continue;
                }
                summary.add_copy(stack);
                sizes.add(stack);
                let caller = stack.caller().or_else(|| Some(stack.frames.first()?));
                let name =
                    caller.map_or_else(Default::default, |caller| (caller.label(), caller.file.clone()));
                let entry = callers.entry(name).or_default();
                entry.0 += stack.samples;
                entry.1.add(stack);
                if !stack.is_reachable
                    && let Some(copying) = stack.frames.first()
                {
                    *unreachable.entry((copying.label(), copying.file.clone())).or_default() += stack.samples;
                }
            }
        }
        summary.median_bytes = sizes.median();
        summary.unreachable =
            unreachable.into_iter().max_by_key(|(_, samples)| *samples).map(|(name, _)| name);
        summary.callers = callers
            .into_iter()
            .map(|((function, file), (samples, sizes))| Caller {
                function,
                file,
                samples,
                median_bytes: sizes.median(),
            })
            .collect();
        summary.callers.sort_by_key(|caller| std::cmp::Reverse(caller.samples));
        summary.callers.truncate(MAX_ROWS);
        summary.system_calls = system_calls
            .into_iter()
            .map(|(name, (samples, copying))| SystemCall { name, samples, copying })
            .collect();
        summary.system_calls.sort_by_key(|call| std::cmp::Reverse(call.samples));
        summary.system_calls.truncate(MAX_ROWS);
        summary
    }

    fn add_system_call(&mut self, call: &str, stack: &NamedStack, calls: &mut BTreeMap<String, (u64, u64)>) {
        self.input += if is_input(call) { stack.samples } else { 0 };
        self.output += if is_output(call) { stack.samples } else { 0 };
        if is_input(call) || is_output(call) || matches!(call, "sendfile" | "sendfile64" | "splice") {
            let entry = calls.entry(call.to_owned()).or_default();
            entry.0 += stack.samples;
            if matches!(stack.class, Class::KernelCopyIn | Class::KernelCopyOut) {
                entry.1 += stack.samples;
            }
        }
    }

    fn add_copy(&mut self, stack: &NamedStack) {
        self.reachable += if stack.is_reachable { stack.samples } else { 0 };
        if stack.copies.is_empty() {
            return;
        }
        let share = |of: usize| stack.samples as f64 * of as f64 / stack.copies.len() as f64;
        let large = stack.copies.iter().filter(|copy| copy.len_bytes >= LARGE_BYTES);
        if stack.is_reachable {
            self.large_reachable += share(large.clone().count());
        }
        self.overlapping += share(large.filter(|copy| copy.is_overlapping()).count());
    }

    /// Returns a number of samples as a fraction of all.
    #[must_use]
    pub fn fraction(&self, samples: f64) -> f64 {
        if self.samples == 0 { 0.0 } else { samples / self.samples as f64 }
    }

    /// Returns the fraction of the time in some classes.
    #[must_use]
    pub fn share(&self, classes: &[Class]) -> f64 {
        let samples: u64 = classes.iter().filter_map(|class| self.classes.get(class)).sum();
        self.fraction(samples as f64)
    }

    /// Returns the fraction of the time in copies, by the program and the kernel, as in zIO's Figure 1.
    #[must_use]
    pub fn copy_share(&self) -> f64 {
        self.share(&[Class::Copy, Class::KernelCopyIn, Class::KernelCopyOut])
    }
}
