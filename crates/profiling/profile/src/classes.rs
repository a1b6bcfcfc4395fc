//! Classes of operations: those with the same kind of origin and the same steps.

use crate::model::Object;
use crate::operation::{OpenCall, Operation, StepKey};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::hash::{Hash as _, Hasher as _};

/// Maximum number of classes; operations of further classes are only counted.
pub const MAX_CLASSES: usize = 4096;

/// Sums of one step over all operations of a class.
#[derive(Clone, Debug)]
pub struct StepSum {
    /// Identity of the step.
    pub key: StepKey,
    /// Site of the first call.
    pub site: u32,
    /// Number of calls of the step.
    pub calls: u64,
    /// Number of calls that would have been elided.
    pub elided_calls: u64,
    /// Bytes of the operations.
    pub bytes: u64,
    /// Time of the calls in nanoseconds.
    pub ns: u64,
    /// Destination minus source, if equal for all calls.
    pub shift: Option<i64>,
    /// True if source and destination overlap in all calls.
    pub is_overlapping: bool,
}

/// One class of operations.
#[derive(Clone, Debug)]
pub struct Class {
    /// Origin of the operations' bytes.
    pub from: Object,
    /// Number of operations in the class.
    pub count: u64,
    /// Bytes that the operations received.
    pub bytes: u64,
    /// Steps in order of their first calls.
    pub steps: Vec<StepSum>,
    /// Calls of the first operation.
    pub example: Vec<OpenCall>,
}

/// Classes of all operations that have ended.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    /// Indices of classes, by the hash of their origin and steps.
    by_hash: FxHashMap<u64, SmallVec<[u32; 2]>>,
    all: Vec<Class>,
    /// Number of operations that belong to no class, because there were too many.
    pub others: u64,
}

impl Classes {
    /// Adds an operation that has ended.
    pub fn add(&mut self, operation: &Operation) {
        if operation.steps.is_empty() {
            return;
        }
        let mut hasher = FxHasher::default();
        operation.from.hash(&mut hasher);
        for step in &operation.steps {
            step.key.hash(&mut hasher);
        }
        let hash = hasher.finish();
        let mut same = self.by_hash.get(&hash).into_iter().flatten();
        let index = match same.find(|index| self.all[**index as usize].matches(operation)) {
            Some(index) => *index,
            None if self.all.len() == MAX_CLASSES => {
                self.others += 1;
                return;
            }
            None => {
                // There are fewer than MAX_CLASSES.
                let index = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
                self.all.push(Class::empty_for(operation));
                self.by_hash.entry(hash).or_default().push(index);
                index
            }
        };
        let class = &mut self.all[index as usize];
        class.count += 1;
        class.bytes = class.bytes.saturating_add(operation.bytes);
        for (sum, step) in class.steps.iter_mut().zip(&operation.steps) {
            sum.calls += u64::from(step.calls);
            sum.elided_calls += u64::from(step.elided_calls);
            sum.bytes = sum.bytes.saturating_add(step.bytes);
            sum.ns = sum.ns.saturating_add(step.ns);
            sum.shift = sum.shift.filter(|shift| Some(*shift) == step.shift);
            sum.is_overlapping &= step.is_overlapping;
        }
    }

    /// Returns all classes, in order of appearance.
    #[must_use]
    pub fn all(&self) -> &[Class] {
        &self.all
    }
}

impl Class {
    fn matches(&self, operation: &Operation) -> bool {
        self.from == operation.from
            && self.steps.iter().map(|step| step.key).eq(operation.steps.iter().map(|step| step.key))
    }

    /// Creates the class of an operation, without any operations.
    fn empty_for(operation: &Operation) -> Self {
        let sum = |step: &crate::operation::OpenStep| StepSum {
            key: step.key,
            site: step.site,
            calls: 0,
            elided_calls: 0,
            bytes: 0,
            ns: 0,
            shift: step.shift,
            is_overlapping: step.is_overlapping,
        };
        Self {
            from: operation.from,
            count: 0,
            bytes: 0,
            steps: operation.steps.iter().map(sum).collect(),
            example: operation.calls.to_vec(),
        }
    }
}
