//! Operations in progress: the calls that process the bytes of one message, grouped into steps.
//!
//! An operation begins with an input, or with the first copy or output of bytes that belong to no operation
//! in progress. Calls of one site on bytes written by the same steps form one step. After a while without
//! calls, the operation ends and is added to its class (`classes`).

use crate::model::{Call, Object};
use smallvec::SmallVec;

/// Maximum steps of an operation; later calls are added to the last one.
pub const MAX_STEPS: usize = 32;
/// Maximum calls of an operation that are kept individually.
pub const MAX_CALLS: usize = 32;
/// Time without calls after which an operation ends, in nanoseconds of the program's time.
pub const TIMEOUT_NS: u64 = 1_000_000_000;
/// Time without calls after which an operation ends whose bytes have been output, in nanoseconds.
pub const TIMEOUT_AFTER_OUTPUT_NS: u64 = 20_000_000;

/// Identity of a step: the call's location, and the steps that its bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepKey {
    /// Number of the call's location: see `sites`.
    pub leaf: u32,
    /// Bit set of the earlier steps that wrote a significant part of the bytes.
    pub after: u32,
}

/// Effect that uncopy would have had on a call: see `elision`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Elided {
    /// True if the call would have been elided.
    pub is_elided: bool,
    /// Bytes that would not have been copied.
    pub bytes: u64,
}

/// A step of an operation in progress.
#[derive(Clone, Copy, Debug)]
pub struct OpenStep {
    /// Identity of the step.
    pub key: StepKey,
    /// Site of the first call.
    pub site: u32,
    /// Number of calls of the step so far.
    pub calls: u32,
    /// Number of calls that would have been elided.
    pub elided_calls: u32,
    /// Bytes of this operation that the calls moved.
    pub bytes: u64,
    /// This operation's share of the calls' time, in nanoseconds.
    pub ns: u64,
    /// Destination minus source, if equal for all calls.
    pub shift: Option<i64>,
    /// True if source and destination overlap in all calls.
    pub is_overlapping: bool,
    /// Descriptor of the last call, and the start and end of the contiguous range that it and the calls
    /// before read.
    last_read: (i32, u64, u64),
}

/// One call of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// Index of the call's step.
    pub step: u16,
    /// Bytes that the call moved.
    pub bytes: u64,
    /// Bytes of the operation among them.
    pub own_bytes: u64,
    /// Destination minus source, if they overlap.
    pub shift: Option<i64>,
    /// Thread that made the call.
    pub thread: u32,
}

/// Contribution of one call to one operation.
#[derive(Clone, Copy, Debug)]
pub struct CallPart {
    /// Identity of the step.
    pub key: StepKey,
    /// Site of the call.
    pub site: u32,
    /// Kind of call that contributes.
    pub call: Call,
    /// Descriptor of the call, or -1.
    pub fd: i32,
    /// Thread that made the call.
    pub thread: u32,
    /// Bytes that the call moved.
    pub bytes: u64,
    /// Bytes of the operation among them.
    pub own_bytes: u64,
    /// Start and end of the addresses read.
    pub from: (u64, u64),
    /// This operation's share of the call's time, in nanoseconds.
    pub ns: u64,
    /// Destination minus source of a copy.
    pub shift: Option<i64>,
    /// True if source and destination overlap.
    pub is_overlapping: bool,
    /// True if the call would have been elided.
    pub is_elided: bool,
    /// End of the call in nanoseconds.
    pub end_ns: u64,
    /// True if this is a further part of the previous call.
    pub continues: bool,
}

/// An operation in progress.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Number of the operation, counted from the start of the recording.
    pub number: u64,
    /// Origin of the bytes; `Memory` if no input was recorded.
    pub from: Object,
    /// Bytes that the operation has received.
    pub bytes: u64,
    /// Steps of the operation so far.
    pub steps: SmallVec<[OpenStep; 6]>,
    /// The operation's first calls, individually.
    pub calls: SmallVec<[OpenCall; 8]>,
    /// Time of the last call in nanoseconds.
    pub last_ns: u64,
    /// True if some of the bytes have been output.
    pub has_output: bool,
}

impl Operation {
    /// Creates an operation without calls.
    #[must_use]
    pub fn new(number: u64, from: Object, now_ns: u64) -> Self {
        Self {
            number,
            from,
            bytes: 0,
            steps: SmallVec::new(),
            calls: SmallVec::new(),
            last_ns: now_ns,
            has_output: false,
        }
    }

    /// True if the operation has ended by `now_ns`, because it had no call for its timeout.
    #[must_use]
    pub fn has_ended(&self, now_ns: u64) -> bool {
        let timeout_ns = if self.has_output { TIMEOUT_AFTER_OUTPUT_NS } else { TIMEOUT_NS };
        now_ns.saturating_sub(self.last_ns) > timeout_ns
    }

    /// True if a copy or output repeats an earlier one: then the bytes were stored and are used again, by
    /// another operation. Sending the same bytes to another descriptor is no repetition.
    #[must_use]
    pub fn repeats(&self, key: StepKey, call: Call, fd: i32, from: (u64, u64)) -> bool {
        let Some(step) = self.steps.iter().find(|step| step.key == key) else { return false };
        let (last_fd, start, end) = step.last_read;
        let overlaps = from.0 < end && start < from.1;
        match call {
            Call::Input => false,
            Call::Output => overlaps && fd == last_fd,
            Call::Copy => overlaps && self.has_output,
        }
    }

    /// Adds a call's contribution and returns the index of its step.
    pub fn add(&mut self, part: &CallPart) -> u16 {
        let existing = self.steps.iter().position(|step| step.key == part.key);
        let index = existing.unwrap_or_else(|| {
            if self.steps.len() == MAX_STEPS {
                return MAX_STEPS - 1;
            }
            self.steps.push(OpenStep {
                key: part.key,
                site: part.site,
                calls: 0,
                elided_calls: 0,
                bytes: 0,
                ns: 0,
                shift: part.shift,
                is_overlapping: part.call == Call::Copy,
                last_read: (part.fd, part.from.0, part.from.0),
            });
            self.steps.len() - 1
        });
        let step = &mut self.steps[index];
        let calls = u32::from(!part.continues || step.calls == 0);
        step.calls = step.calls.saturating_add(calls);
        step.elided_calls = step.elided_calls.saturating_add(u32::from(part.is_elided));
        step.bytes = step.bytes.saturating_add(part.own_bytes);
        step.ns = step.ns.saturating_add(part.ns);
        step.shift = step.shift.filter(|shift| Some(*shift) == part.shift);
        step.is_overlapping &= part.is_overlapping;
        let (fd, start, end) = step.last_read;
        let is_contiguous = fd == part.fd && end == part.from.0;
        step.last_read = (part.fd, if is_contiguous { start } else { part.from.0 }, part.from.1);
        // The index is below MAX_STEPS.
        #[allow(clippy::cast_possible_truncation)]
        let index = index as u16;
        if self.calls.len() < MAX_CALLS {
            self.calls.push(OpenCall {
                step: index,
                bytes: part.bytes,
                own_bytes: part.own_bytes,
                shift: part.shift.filter(|_| part.is_overlapping),
                thread: part.thread,
            });
        }
        self.last_ns = self.last_ns.max(part.end_ns);
        self.has_output |= part.call == Call::Output;
        index
    }
}
