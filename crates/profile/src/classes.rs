//! Classes of operations: those that came from the same kind of object and took the same steps.

use crate::hash::{FastMap, Multiply};
use crate::model::Object;
use crate::operation::{OpenCall, Operation, StepKey};
use smallvec::SmallVec;
use std::hash::{Hash as _, Hasher as _};

/// Classes that are told apart at most; further ones are only counted.
pub const MAX_CLASSES: usize = 4096;

/// The sums of one step over all operations of a class.
#[derive(Clone, Debug)]
pub struct StepSum {
    /// What makes it a step.
    pub key: StepKey,
    /// The site of the first call.
    pub site: u32,
    /// Calls.
    pub calls: u64,
    /// Of them, calls that would have been elided.
    pub elided_calls: u64,
    /// Bytes of the operations.
    pub bytes: u64,
    /// Time, ns.
    pub ns: u64,
    /// Destination minus source, as long as that is one number.
    pub shift: Option<i64>,
    /// Whether source and destination overlapped in every call.
    pub is_within: bool,
}

/// One class.
#[derive(Clone, Debug)]
pub struct Class {
    /// What its operations' bytes came from.
    pub from: Object,
    /// Operations.
    pub count: u64,
    /// Bytes that came.
    pub bytes: u64,
    /// The steps, in order of their first calls.
    pub steps: Vec<StepSum>,
    /// The calls of the first operation.
    pub example: Vec<OpenCall>,
}

/// What is left of operations that are over.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    /// Classes by the hash of where their bytes come from and of their steps.
    by_hash: FastMap<u64, SmallVec<[u32; 2]>>,
    all: Vec<Class>,
    /// Operations that no class was made for.
    pub others: u64,
}

impl Classes {
    /// Adds an operation that is over.
    pub fn add(&mut self, operation: &Operation) {
        if operation.steps.is_empty() {
            return;
        }
        let mut hasher = Multiply::default();
        operation.from.hash(&mut hasher);
        for step in &operation.steps {
            step.key.hash(&mut hasher);
        }
        let hash = hasher.finish();
        let mut same = self.by_hash.get(&hash).into_iter().flatten();
        let index = match same.find(|index| self.all[**index as usize].holds(operation)) {
            Some(index) => *index,
            None if self.all.len() == MAX_CLASSES => {
                self.others += 1;
                return;
            }
            None => {
                // Fewer than MAX_CLASSES.
                let index = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
                self.all.push(Class::like(operation));
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
            sum.is_within &= step.is_within;
        }
    }

    /// Every class.
    #[must_use]
    pub fn all(&self) -> &[Class] {
        &self.all
    }
}

impl Class {
    /// Whether an operation is of this class.
    fn holds(&self, operation: &Operation) -> bool {
        self.from == operation.from
            && self.steps.iter().map(|step| step.key).eq(operation.steps.iter().map(|step| step.key))
    }

    /// A class without operations, for such as this one.
    fn like(operation: &Operation) -> Self {
        let sum = |step: &crate::operation::OpenStep| StepSum {
            key: step.key,
            site: step.site,
            calls: 0,
            elided_calls: 0,
            bytes: 0,
            ns: 0,
            shift: step.shift,
            is_within: step.is_within,
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
