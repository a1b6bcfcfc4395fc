//! Classes of operations: those that came from the same kind of object and took the same steps.

use crate::model::Object;
use crate::operation::{OpenCall, Operation, StepKey};
use std::collections::HashMap;

/// Classes that are told apart at most; further ones are only counted.
pub const CLASSES_MOST: usize = 4096;

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
    by_key: HashMap<(Object, Box<[StepKey]>), usize>,
    all: Vec<Class>,
    /// Operations that no class was made for.
    pub others: u64,
    key: Vec<StepKey>,
}

impl Classes {
    /// Adds an operation that is over.
    pub fn add(&mut self, operation: &Operation) {
        if operation.steps.is_empty() {
            return;
        }
        self.key.clear();
        self.key.extend(operation.steps.iter().map(|step| step.key));
        let key = (operation.from, self.key.as_slice().into());
        let index = match self.by_key.get(&key) {
            Some(index) => *index,
            None if self.all.len() == CLASSES_MOST => {
                self.others += 1;
                return;
            }
            None => {
                self.all.push(Class::like(operation));
                self.by_key.insert(key, self.all.len() - 1);
                self.all.len() - 1
            }
        };
        let class = &mut self.all[index];
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
