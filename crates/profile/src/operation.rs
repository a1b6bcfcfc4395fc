//! Operations under way: what happens to the bytes of one message, step by step.
//!
//! An operation begins with an input, or with the first copy or output of bytes that belong to none that is under
//! way. Calls of one site on bytes that the same steps put there are one step. An operation ends
//! when nothing has happened to it for a while; it is then added to its class (`classes`) and forgotten.

use crate::model::{Call, Object};
use smallvec::SmallVec;

/// Steps of an operation at most; what comes after is added to the last one.
pub const MAX_STEPS: usize = 32;
/// Calls that are kept of an operation as they were.
pub const MAX_CALLS: usize = 32;
/// How long an operation waits for something to happen to its bytes, ns of the program's time.
pub const QUIET_NS: u64 = 1_000_000_000;
/// The same for one whose bytes went out already.
pub const QUIET_DONE_NS: u64 = 20_000_000;

/// What makes two steps the same: where the call is, and which steps its bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepKey {
    /// The place of the call: see `sites`.
    pub leaf: u32,
    /// A bit for each earlier step that put a good part of the bytes where they were.
    pub after: u32,
}

/// What a call would have been under uncopy: see `elision`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Elided {
    /// Whether it would have been elided.
    pub is_elided: bool,
    /// Bytes that would not have been copied.
    pub bytes: u64,
}

/// A step so far.
#[derive(Clone, Copy, Debug)]
pub struct OpenStep {
    /// What makes it the same step.
    pub key: StepKey,
    /// The site of its first call.
    pub site: u32,
    /// Calls.
    pub calls: u32,
    /// Of them, calls that would have been elided.
    pub elided_calls: u32,
    /// Bytes of this operation that they moved.
    pub bytes: u64,
    /// Their part of the calls' time.
    pub ns: u64,
    /// Destination minus source of its calls, as long as that is one number.
    pub shift: Option<i64>,
    /// Whether source and destination overlap in all of its calls.
    pub is_within: bool,
    /// The descriptor of the last call, and the addresses that it read, with those of calls before it that go on: start, end.
    covered: (i32, u64, u64),
}

/// One call as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// The step.
    pub step: u16,
    /// Bytes of the call.
    pub bytes: u64,
    /// Of these, bytes of the operation.
    pub own_bytes: u64,
    /// Destination minus source, if they overlap.
    pub shift: Option<i64>,
    /// The thread.
    pub thread: u32,
}

/// A part that one call plays in one operation.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The key of its step.
    pub key: StepKey,
    /// Its site.
    pub site: u32,
    /// What it does.
    pub call: Call,
    /// Its descriptor, or -1.
    pub fd: i32,
    /// Its thread.
    pub thread: u32,
    /// Bytes of the call.
    pub bytes: u64,
    /// Of these, bytes of the operation.
    pub own_bytes: u64,
    /// The addresses that it reads: start, end.
    pub from: (u64, u64),
    /// This operation's part of the call's time, ns.
    pub ns: u64,
    /// Destination minus source of a copy.
    pub shift: Option<i64>,
    /// Whether source and destination overlap.
    pub is_within: bool,
    /// Whether it would have been elided.
    pub is_elided: bool,
    /// When it ended, ns.
    pub at_ns: u64,
    /// Whether it is a further part of the call before, and no call by itself.
    pub continues: bool,
}

/// An operation under way.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its number since the start.
    pub number: u64,
    /// What its bytes came from; `Memory`: no recorded input.
    pub from: Object,
    /// Bytes that came.
    pub bytes: u64,
    /// What has happened to them.
    pub steps: SmallVec<[OpenStep; 6]>,
    /// The first calls, as they were.
    pub calls: SmallVec<[OpenCall; 8]>,
    /// When something happened last, ns.
    pub last_ns: u64,
    /// Whether some of its bytes went out.
    pub is_done: bool,
}

impl Operation {
    /// One to which nothing has happened yet.
    #[must_use]
    pub fn new(number: u64, from: Object, at_ns: u64) -> Self {
        Self {
            number,
            from,
            bytes: 0,
            steps: SmallVec::new(),
            calls: SmallVec::new(),
            last_ns: at_ns,
            is_done: false,
        }
    }

    /// Whether it is over at `now_ns` if nothing happens to it then.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        let quiet_ns = if self.is_done { QUIET_DONE_NS } else { QUIET_NS };
        now_ns.saturating_sub(self.last_ns) > quiet_ns
    }

    /// Whether this copy or output does once more what was done already: what is kept is then used again, by
    /// another operation. Sending the same bytes to a further descriptor is not that.
    #[must_use]
    pub fn repeats(&self, key: StepKey, call: Call, fd: i32, from: (u64, u64)) -> bool {
        let Some(step) = self.steps.iter().find(|step| step.key == key) else { return false };
        let (last_fd, start, end) = step.covered;
        let is_again = from.0 < end && start < from.1;
        match call {
            Call::Input => false,
            Call::Output => is_again && fd == last_fd,
            Call::Copy => is_again && self.is_done,
        }
    }

    /// Adds a call's part; the index of its step.
    pub fn add(&mut self, part: &Part) -> u16 {
        let known = self.steps.iter().position(|step| step.key == part.key);
        let index = known.unwrap_or_else(|| {
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
                is_within: part.call == Call::Copy,
                covered: (part.fd, part.from.0, part.from.0),
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
        step.is_within &= part.is_within;
        let (fd, start, end) = step.covered;
        let goes_on = fd == part.fd && end == part.from.0;
        step.covered = (part.fd, if goes_on { start } else { part.from.0 }, part.from.1);
        // An index below MAX_STEPS.
        #[allow(clippy::cast_possible_truncation)]
        let index = index as u16;
        if self.calls.len() < MAX_CALLS {
            self.calls.push(OpenCall {
                step: index,
                bytes: part.bytes,
                own_bytes: part.own_bytes,
                shift: part.shift.filter(|_| part.is_within),
                thread: part.thread,
            });
        }
        self.last_ns = self.last_ns.max(part.at_ns);
        self.is_done |= part.call == Call::Output;
        index
    }
}
