//! Flow of bytes through one process: replays its events in order of their effects.
//!
//! An input writes bytes to memory, a copy propagates the contents of its source, an output consumes
//! contents. Forget and Gap discard knowledge. Unrecorded accesses (calls below the minimum size, the
//! program's own loads and stores) have no effect here: bytes count as received until a recorded call
//! overwrites them.
//!
//! Memory use is bounded for recordings of any length: pieces by [`memory`](crate::memory), operations in
//! progress by [`MAX_OPERATIONS`], classes by [`crate::classes::MAX_CLASSES`], sites by the recording's stack
//! table.

use crate::classes::Classes;
use crate::elision::{Effect, Elision};
use crate::memory::{Content, Found, MemoryContents};
use crate::model::{Call, Object};
use crate::operation::{CallPart, Elided, Operation, StepKey, TIMEOUT_AFTER_OUTPUT_NS, TIMEOUT_NS};
use crate::sites::{SiteKey, Sites, scale};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use uncopy_core::recording::{self, Event, Flags, Function};

/// Minimum part of a message that a lane passes by reference, in bytes (`uncopy_lanes::message`).
const MIN_LANE_BYTES: u64 = 32 << 10;
/// Maximum operations in progress; beyond that, the oldest is ended.
pub const MAX_OPERATIONS: usize = 1 << 16;
/// Maximum ended operations whose allocations are kept for reuse.
const MAX_SPARE: usize = 256;
/// Maximum pairs of sites between which bytes are counted.
const MAX_FLOWS: usize = 1 << 16;
/// A step is named as a source if it wrote at least 1/16 of the bytes that a call uses of an operation.
const SOURCE_SHARE: u64 = 16;

/// Bytes that one call uses of one operation.
struct Used {
    number: u64,
    own_bytes: u64,
    by_step: SmallVec<[(u16, u64); 4]>,
}

/// Last call of a thread that began an operation without an input, which the thread's next call may continue.
#[derive(Clone, Copy)]
struct StartedOperation {
    number: u64,
    leaf: u32,
    fd: i32,
    next_from: u64,
}

#[derive(Clone, Copy)]
struct Received {
    number: u64,
    thread: u32,
}

/// Replay state and results of one process.
pub struct Flow {
    min_size_bytes: u64,
    memory: MemoryContents,
    elision: Elision,
    /// Operations in progress, by number from `first_number` on; `None` for those that have ended.
    operations: VecDeque<Option<Box<Operation>>>,
    first_number: u64,
    /// Allocations of ended operations, for reuse.
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Operation>>,
    /// Numbers of operations, and when to check whether they have ended.
    timeouts: VecDeque<(u64, u64)>,
    output_timeouts: VecDeque<(u64, u64)>,
    received: FxHashMap<i32, Received>,
    started: FxHashMap<u32, StartedOperation>,
    in_kernel: FxHashMap<u32, u64>,
    clock_ns: u64,
    found: Vec<Found>,
    written: Vec<Found>,
    /// Sums by call site.
    pub sites: Sites,
    /// Sums by class of operation.
    pub classes: Classes,
    /// Bytes streamed to and from programs on this host.
    pub local_streams: LocalStreams,
    /// Bytes and calls between pairs of sites; source `u32::MAX` is memory that no recorded call has written.
    pub flows: FxHashMap<(u32, u32), (u64, u64)>,
    /// Number of events replayed.
    pub events: u64,
    /// Number of missing events, according to the last Gap.
    pub missing_events: u64,
}

/// Bytes of streams whose other end is on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalStreams {
    /// All bytes recorded on such streams.
    pub bytes: u64,
    /// Bytes in parts that a lane would pass by reference.
    pub large_bytes: u64,
}

impl LocalStreams {
    fn count(&mut self, part_bytes: u64) {
        self.bytes = self.bytes.saturating_add(part_bytes);
        if part_bytes >= MIN_LANE_BYTES {
            self.large_bytes = self.large_bytes.saturating_add(part_bytes);
        }
    }
}

impl Flow {
    /// Creates the state before the first event.
    #[must_use]
    pub fn new(min_size_bytes: u64, elision: Elision) -> Self {
        Self {
            min_size_bytes: min_size_bytes.max(1),
            memory: MemoryContents::default(),
            elision,
            operations: VecDeque::new(),
            first_number: 0,
            spare: Vec::new(),
            timeouts: VecDeque::new(),
            output_timeouts: VecDeque::new(),
            received: FxHashMap::default(),
            started: FxHashMap::default(),
            in_kernel: FxHashMap::default(),
            clock_ns: 0,
            found: Vec::new(),
            written: Vec::new(),
            sites: Sites::default(),
            classes: Classes::default(),
            local_streams: LocalStreams::default(),
            flows: FxHashMap::default(),
            events: 0,
            missing_events: 0,
        }
    }

    /// Replays the next event. `leaf` returns the innermost return address of a stack, and is called once per
    /// stack.
    pub fn replay(&mut self, event: &Event, leaf: &mut dyn FnMut(u32) -> u64) {
        self.events += 1;
        self.clock_ns = self.clock_ns.max(event.start_ns.saturating_add(event.duration_ns));
        self.end_timed_out();
        let call = match event.call {
            recording::Call::Forget => {
                // The recorder sets one of the two addresses and leaves the other 0.
                self.memory.forget(event.from.max(event.to), event.len_bytes);
                return;
            }
            recording::Call::Relocate => {
                self.memory.relocate(event.from, event.to, event.len_bytes, &mut self.found);
                return;
            }
            recording::Call::Gap => {
                self.missing_events = event.len_bytes;
                self.end_all();
                return;
            }
            recording::Call::Input => Call::Input,
            recording::Call::Copy => Call::Copy,
            recording::Call::Output => Call::Output,
        };
        if event.len_bytes == 0 {
            return;
        }
        if event.object == recording::Object::Near && !event.flags.has(Flags::PEEKED) {
            self.local_streams.count(event.len_bytes);
        }
        let object = object(event.object);
        let key = SiteKey { call, object, function: event.function, stack: event.stack };
        let site = self.sites.site(key, leaf);
        let is_timed = !event.flags.has(Flags::SAMPLED);
        let continues = event.flags.has(Flags::CONTINUES);
        self.sites.count(site, event.len_bytes, is_timed.then_some(event.duration_ns), continues);
        if event.flags.has(Flags::IN_KERNEL) {
            self.in_kernel(event, site, call, object);
        } else if event.flags.has(Flags::PEEKED) {
            self.memory.forget(event.to, event.len_bytes);
        } else if call == Call::Input {
            self.input(event, site, object);
        } else {
            self.use_bytes(event, site, call);
        }
    }

    /// Sets the mappings of the process that cannot hold views.
    pub fn set_shared(&mut self, ranges: Vec<(u64, u64)>) {
        self.elision.set_shared(ranges);
    }

    fn operation(&mut self, number: u64) -> Option<&mut Operation> {
        let index = usize::try_from(number.checked_sub(self.first_number)?).ok()?;
        self.operations.get_mut(index)?.as_deref_mut()
    }

    fn begin(&mut self, from: Object) -> u64 {
        let number = self.first_number + self.operations.len() as u64;
        let fresh = Operation::new(number, from, self.clock_ns);
        let operation = match self.spare.pop() {
            Some(mut used) => {
                *used = fresh;
                used
            }
            None => Box::new(fresh),
        };
        self.operations.push_back(Some(operation));
        self.timeouts.push_back((number, self.clock_ns + TIMEOUT_NS));
        while self.operations.len() > MAX_OPERATIONS {
            self.end(self.first_number);
        }
        number
    }

    fn end(&mut self, number: u64) {
        let index = number.checked_sub(self.first_number).and_then(|index| usize::try_from(index).ok());
        if let Some(operation) = index.and_then(|index| self.operations.get_mut(index)).and_then(Option::take)
        {
            self.classes.add(&operation);
            if self.spare.len() < MAX_SPARE {
                self.spare.push(operation);
            }
        }
        while matches!(self.operations.front(), Some(None)) {
            self.operations.pop_front();
            self.first_number += 1;
        }
    }

    /// Ends operations that have had no call for long enough.
    fn end_timed_out(&mut self) {
        for has_output in [false, true] {
            let due = |flow: &Self| {
                let queue = if has_output { &flow.output_timeouts } else { &flow.timeouts };
                queue.front().is_some_and(|(_, due_ns)| *due_ns < flow.clock_ns)
            };
            while due(self) {
                let queue = if has_output { &mut self.output_timeouts } else { &mut self.timeouts };
                let Some((number, _)) = queue.pop_front() else { break };
                let clock_ns = self.clock_ns;
                let Some(operation) = self.operation(number) else { continue };
                if operation.has_ended(clock_ns) {
                    self.end(number);
                } else if operation.has_output {
                    let due_ns = operation.last_ns + TIMEOUT_AFTER_OUTPUT_NS;
                    self.output_timeouts.push_back((number, due_ns));
                } else {
                    let due_ns = operation.last_ns + TIMEOUT_NS;
                    self.timeouts.push_back((number, due_ns));
                }
            }
        }
    }

    /// Ends all operations, because there are no more events or some are missing.
    pub fn end_all(&mut self) {
        while !self.operations.is_empty() {
            self.end(self.first_number);
        }
        self.memory.clear();
        self.timeouts.clear();
        self.output_timeouts.clear();
        self.received.clear();
        self.started.clear();
        self.in_kernel.clear();
    }

    /// Adds a call to an operation in progress, and returns the index of its step.
    fn add(&mut self, number: u64, part: &CallPart) -> u16 {
        let Some(operation) = self.operation(number) else { return 0 };
        let had_output = operation.has_output;
        let step = operation.add(part);
        if !had_output && operation.has_output {
            self.output_timeouts.push_back((number, self.clock_ns + TIMEOUT_AFTER_OUTPUT_NS));
        }
        step
    }

    fn part(&self, event: &Event, site: u32, call: Call, after: u32) -> CallPart {
        let is_copy = call == Call::Copy;
        CallPart {
            key: StepKey { leaf: self.sites.leaf(site), after },
            site,
            call,
            fd: if is_copy { -1 } else { event.fd },
            thread: event.thread,
            bytes: event.len_bytes,
            own_bytes: event.len_bytes,
            from: (event.from, event.from.saturating_add(event.len_bytes)),
            ns: event.duration_ns,
            shift: is_copy.then(|| event.to.wrapping_sub(event.from).cast_signed()),
            is_overlapping: is_copy && event.to.abs_diff(event.from) < event.len_bytes,
            is_elided: false,
            end_ns: self.clock_ns,
            continues: event.flags.has(Flags::CONTINUES),
        }
    }

    fn count_flow(&mut self, from: u32, to: u32, bytes: u64) {
        if self.flows.len() < MAX_FLOWS || self.flows.contains_key(&(from, to)) {
            let flow = self.flows.entry((from, to)).or_default();
            flow.0 += bytes;
            flow.1 += 1;
        }
    }

    /// Returns the operation that an input continues: that of the last input from the same descriptor, if
    /// none of its bytes were output yet and the new bytes are placed directly after them.
    fn message(&mut self, event: &Event, object: Object) -> Option<u64> {
        let last = *self.received.get(&event.fd)?;
        let clock_ns = self.clock_ns;
        let operation = self.operation(last.number)?;
        if operation.has_ended(clock_ns) || operation.from != object {
            return None;
        }
        // Each part from recvmmsg is treated as a message, as nearly all are.
        let is_message = event.function == Function::Recvmmsg;
        if event.flags.has(Flags::CONTINUES) && last.thread == event.thread && !is_message {
            return Some(last.number);
        }
        if operation.has_output || object == Object::Datagram {
            return None;
        }
        let (end, content) = self.memory.before(event.to)?;
        if content.operation != last.number || event.to.saturating_sub(end) >= self.min_size_bytes {
            return None;
        }
        // If the bytes overwrite the same message, the buffer is being refilled, and merely follows another
        // one that also holds the message.
        self.memory.lookup(event.to, event.len_bytes, &mut self.found);
        let is_own = |found: &&Found| found.2.operation == last.number;
        let own_bytes: u64 = self.found.iter().filter(is_own).map(|(_, len, _)| len).sum();
        (own_bytes < event.len_bytes.div_ceil(2)).then_some(last.number)
    }

    fn input(&mut self, event: &Event, site: u32, object: Object) {
        let number = self.message(event, object).unwrap_or_else(|| self.begin(object));
        self.received.insert(event.fd, Received { number, thread: event.thread });
        let part = self.part(event, site, Call::Input, 0);
        let is_view = self.elision.makes_view(event.to, event.len_bytes);
        let offset = self.operation(number).map_or(0, |operation| {
            let offset = operation.bytes;
            operation.bytes += event.len_bytes;
            offset
        });
        let step = self.add(number, &part);
        let content = Content { operation: number, offset, step, is_received: true, is_view, site };
        self.memory.set(event.to, event.len_bytes, content);
    }

    /// Replays a copy or an output.
    fn use_bytes(&mut self, event: &Event, site: u32, call: Call) {
        let mut found = core::mem::take(&mut self.found);
        self.memory.lookup(event.from, event.len_bytes, &mut found);
        let known_bytes: u64 = found.iter().map(|(_, len, _)| len).sum();
        self.count_flows(site, event.len_bytes - known_bytes, &found);
        let used = self.used(event, site, call, &found);
        let elided = if call == Call::Copy {
            let effect = self.elision.effect_of_copy(event.to, event.len_bytes, &found);
            let is_timed = !event.flags.has(Flags::SAMPLED);
            let ns = is_timed.then_some(event.duration_ns);
            self.sites.count_elision(site, &effect, event.len_bytes, ns, used.is_empty());
            Elided { is_elided: matches!(effect, Effect::Elide { .. }), bytes: effect.elided_bytes() }
        } else {
            Elided::default()
        };
        self.written.clear();
        if used.is_empty() {
            self.use_stored(event, site, call, &found, elided);
        } else {
            self.use_operations(event, site, call, &found, &used, elided);
        }
        if call == Call::Copy {
            let written = core::mem::take(&mut self.written);
            self.memory.forget(event.to, event.len_bytes);
            for (at, len, content) in &written {
                self.memory.set(event.to + at, *len, *content);
            }
            self.written = written;
        }
        self.found = found;
    }

    fn count_flows(&mut self, site: u32, unknown_bytes: u64, found: &[Found]) {
        let mut by_site: SmallVec<[(u32, u64); 4]> = SmallVec::new();
        for (_, len, content) in found {
            match by_site.iter_mut().find(|(from, _)| *from == content.site) {
                Some((_, bytes)) => *bytes += len,
                None => by_site.push((content.site, *len)),
            }
        }
        if unknown_bytes > 0 {
            by_site.push((u32::MAX, unknown_bytes));
        }
        for (from, bytes) in by_site {
            self.count_flow(from, site, bytes);
        }
    }

    /// Returns the bytes used of each operation in progress, except operations that the call would only
    /// repeat.
    fn used(&mut self, event: &Event, site: u32, call: Call, found: &[Found]) -> SmallVec<[Used; 4]> {
        let mut all: SmallVec<[Used; 4]> = SmallVec::new();
        for (_, len, content) in found {
            match all.iter_mut().find(|used| used.number == content.operation) {
                Some(used) => {
                    used.own_bytes += len;
                    match used.by_step.iter_mut().find(|(step, _)| *step == content.step) {
                        Some((_, bytes)) => *bytes += len,
                        None => used.by_step.push((content.step, *len)),
                    }
                }
                None => all.push(Used {
                    number: content.operation,
                    own_bytes: *len,
                    by_step: SmallVec::from_slice(&[(content.step, *len)]),
                }),
            }
        }
        let (leaf, clock_ns) = (self.sites.leaf(site), self.clock_ns);
        let from = (event.from, event.from.saturating_add(event.len_bytes));
        all.retain(|used| {
            let key = StepKey { leaf, after: after(used) };
            self.operation(used.number).is_some_and(|operation| {
                !operation.has_ended(clock_ns) && !operation.repeats(key, call, event.fd, from)
            })
        });
        all
    }

    /// Replays a call on bytes of operations in progress, as a step of each.
    fn use_operations(
        &mut self,
        event: &Event,
        site: u32,
        call: Call,
        found: &[Found],
        used: &[Used],
        elided: Elided,
    ) {
        let mut steps: SmallVec<[(u64, u16); 4]> = SmallVec::new();
        for used in used {
            let mut part = self.part(event, site, call, after(used));
            part.own_bytes = used.own_bytes;
            part.ns = scale(event.duration_ns, used.own_bytes, event.len_bytes);
            part.is_elided = elided.is_elided;
            let step = self.add(used.number, &part);
            steps.push((used.number, step));
        }
        if call == Call::Copy {
            for (at, len, content) in found {
                let step = steps.iter().find(|(number, _)| *number == content.operation);
                // The bytes of an operation that has ended keep their last known step.
                let step = step.map_or(content.step, |(_, step)| *step);
                let is_view = content.is_view && elided.is_elided;
                self.written.push((*at, *len, Content { step, is_view, site, ..*content }));
            }
        }
    }

    /// Replays a call on bytes of no operation in progress: stored by an earlier one, or the program's own.
    fn use_stored(&mut self, event: &Event, site: u32, call: Call, found: &[Found], elided: Elided) {
        let leaf = self.sites.leaf(site);
        let fd = if call == Call::Output { event.fd } else { -1 };
        let clock_ns = self.clock_ns;
        let continued = self.started.get(&event.thread).copied().filter(|started| {
            let is_next = started.next_from == event.from || event.flags.has(Flags::CONTINUES);
            started.leaf == leaf && started.fd == fd && is_next
        });
        let continued = continued.filter(|started| {
            self.operation(started.number).is_some_and(|operation| !operation.has_ended(clock_ns))
        });
        let number = continued.map_or_else(|| self.begin(Object::Memory), |started| started.number);
        let next_from = event.from.saturating_add(event.len_bytes);
        self.started.insert(event.thread, StartedOperation { number, leaf, fd, next_from });
        let offset = self.operation(number).map_or(0, |operation| {
            let offset = operation.bytes;
            operation.bytes += event.len_bytes;
            offset
        });
        let mut part = self.part(event, site, call, 0);
        part.is_elided = elided.is_elided;
        let step = self.add(number, &part);
        if call == Call::Copy {
            let own = Content { operation: number, offset, step, is_received: false, is_view: false, site };
            let mut at = 0;
            for (found_at, len, content) in found {
                if *found_at > at {
                    self.written.push((at, found_at - at, Content { offset: offset + at, ..own }));
                }
                let is_view = content.is_view && elided.is_elided;
                let kept =
                    Content { offset: offset + found_at, is_received: content.is_received, is_view, ..own };
                self.written.push((*found_at, *len, kept));
                at = found_at + len;
            }
            if at < event.len_bytes {
                self.written.push((at, event.len_bytes - at, Content { offset: offset + at, ..own }));
            }
        }
    }

    /// Replays sendfile(2) and the like: an input and an output of bytes that never reach user memory.
    fn in_kernel(&mut self, event: &Event, site: u32, call: Call, object: Object) {
        let number = match (call, self.in_kernel.remove(&event.thread)) {
            (Call::Output, Some(number)) if self.operation(number).is_some() => number,
            (Call::Output, _) => self.begin(Object::Memory),
            _ => {
                let number = self.begin(object);
                self.in_kernel.insert(event.thread, number);
                number
            }
        };
        if let Some(operation) = self.operation(number).filter(|operation| operation.steps.is_empty()) {
            operation.bytes = event.len_bytes;
        }
        let after = u32::from(self.operation(number).is_some_and(|operation| !operation.steps.is_empty()));
        let part = self.part(event, site, call, after);
        self.add(number, &part);
    }
}

/// Returns the set of steps that wrote a significant part of the bytes, one bit each.
fn after(used: &Used) -> u32 {
    let matter = |(_, bytes): &&(u16, u64)| bytes.saturating_mul(SOURCE_SHARE) >= used.own_bytes;
    used.by_step.iter().filter(matter).fold(0, |bits, (step, _)| bits | 1 << (step % 32))
}

/// Converts the recorder's kind of object to the model's.
#[must_use]
pub const fn object(object: recording::Object) -> Object {
    match object {
        recording::Object::None => Object::Memory,
        recording::Object::Socket | recording::Object::Near => Object::Socket,
        recording::Object::Datagram => Object::Datagram,
        recording::Object::File => Object::File,
        recording::Object::Pipe => Object::Pipe,
        recording::Object::Terminal => Object::Terminal,
        recording::Object::Other => Object::Other,
    }
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
