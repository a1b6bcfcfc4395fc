//! The flow of bytes through one process: its events, replayed in order of their effects.
//!
//! An input puts bytes into memory, a copy moves on what it finds at its source, an output collects what it finds,
//! and Forget and Gap take knowledge away. What is not recorded (calls below the smallest size, the program's own
//! loads and stores) changes nothing here: bytes count as received until something recorded is put over them.
//!
//! Memory is bounded however long the recording: pieces by [`memory`](crate::memory), operations under way by
//! [`MAX_OPERATIONS`], classes by [`crate::classes::MAX_CLASSES`], sites by the recording's table of stacks.

use crate::classes::Classes;
use crate::elision::{Elision, Would};
use crate::hash::FastMap;
use crate::memory::{Content, Found, Memory};
use crate::model::{Call, Object};
use crate::operation::{Elided, Operation, Part, QUIET_DONE_NS, QUIET_NS, StepKey};
use crate::sites::{SiteKey, Sites, scale};
use smallvec::SmallVec;
use std::collections::VecDeque;
use uncopy_core::recording::{self, Event, Flags, Function};

/// Shortest part of a message that a lane passes by reference, bytes (`uncopy_lanes::message`).
const MIN_LANE_BYTES: u64 = 32 << 10;
/// Operations that are under way at most; the oldest is ended for a further one.
pub const MAX_OPERATIONS: usize = 1 << 16;
/// Operations that are over whose memory is kept.
const MAX_SPARE: usize = 256;
/// Pairs of sites between which bytes are counted at most.
const MAX_LINKS: usize = 1 << 16;
/// Of the bytes that a call takes from an operation, a step must have put one in so many there to be named as
/// their source.
const SOURCE_SHARE: u64 = 16;

/// What one call takes from one operation.
struct Taken {
    number: u64,
    own_bytes: u64,
    by_step: SmallVec<[(u16, u64); 4]>,
}

/// The last call of a thread that began an operation without an input, which the next may go on with.
#[derive(Clone, Copy)]
struct Begun {
    number: u64,
    leaf: u32,
    fd: i32,
    next_from: u64,
}

/// The last input from a descriptor.
#[derive(Clone, Copy)]
struct Received {
    number: u64,
    thread: u32,
}

/// The flow of one process.
pub struct Flow {
    min_size_bytes: u64,
    memory: Memory,
    elision: Elision,
    /// The operations under way, by number from `first_number` on; those that are over are `None`.
    operations: VecDeque<Option<Box<Operation>>>,
    first_number: u64,
    /// Memory of operations that are over, for further ones.
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Operation>>,
    /// Numbers of operations, and when to look whether they are over.
    quiet: VecDeque<(u64, u64)>,
    quiet_done: VecDeque<(u64, u64)>,
    received: FastMap<i32, Received>,
    begun: FastMap<u32, Begun>,
    in_kernel: FastMap<u32, u64>,
    clock_ns: u64,
    found: Vec<Found>,
    placed: Vec<Found>,
    /// Where bytes were moved.
    pub sites: Sites,
    /// What became of operations.
    pub classes: Classes,
    /// What went to and came from programs on this host by streams.
    pub near: Near,
    /// Bytes and calls from one site to another; `u32::MAX`: from memory that nothing recorded was put in.
    pub links: FastMap<(u32, u32), (u64, u64)>,
    /// Events that were replayed.
    pub events: u64,
    /// Events that were missing, as the last Gap said.
    pub missing: u64,
}

/// Bytes of streams whose other end is on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Near {
    /// All that were recorded.
    pub bytes: u64,
    /// Of these, bytes of parts that a lane would pass by reference.
    pub large_bytes: u64,
}

impl Near {
    fn count(&mut self, part_bytes: u64) {
        self.bytes = self.bytes.saturating_add(part_bytes);
        if part_bytes >= MIN_LANE_BYTES {
            self.large_bytes = self.large_bytes.saturating_add(part_bytes);
        }
    }
}

impl Flow {
    /// Nothing replayed yet.
    #[must_use]
    pub fn new(min_size_bytes: u64, elision: Elision) -> Self {
        Self {
            min_size_bytes: min_size_bytes.max(1),
            memory: Memory::default(),
            elision,
            operations: VecDeque::new(),
            first_number: 0,
            spare: Vec::new(),
            quiet: VecDeque::new(),
            quiet_done: VecDeque::new(),
            received: FastMap::default(),
            begun: FastMap::default(),
            in_kernel: FastMap::default(),
            clock_ns: 0,
            found: Vec::new(),
            placed: Vec::new(),
            sites: Sites::default(),
            classes: Classes::default(),
            near: Near::default(),
            links: FastMap::default(),
            events: 0,
            missing: 0,
        }
    }

    /// Takes the next event. `leaf` gives the innermost return address of a stack; it is asked once for each.
    pub fn replay(&mut self, event: &Event, leaf: &mut dyn FnMut(u32) -> u64) {
        self.events += 1;
        self.clock_ns = self.clock_ns.max(event.start_ns.saturating_add(event.duration_ns));
        self.end_quiet();
        let call = match event.call {
            recording::Call::Forget => {
                // Which of the two names the memory is the recorder's affair; the other is 0.
                self.memory.forget(event.from.max(event.to), event.len_bytes);
                return;
            }
            recording::Call::Relocate => {
                self.memory.relocate(event.from, event.to, event.len_bytes, &mut self.found);
                return;
            }
            recording::Call::Gap => {
                self.missing = event.len_bytes;
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
            self.near.count(event.len_bytes);
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

    /// Says which mappings of the process can hold no views.
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
        self.quiet.push_back((number, self.clock_ns + QUIET_NS));
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

    /// Ends what nothing has happened to for long enough.
    fn end_quiet(&mut self) {
        for is_done in [false, true] {
            let due = |flow: &Self| {
                let queue = if is_done { &flow.quiet_done } else { &flow.quiet };
                queue.front().is_some_and(|(_, due_ns)| *due_ns < flow.clock_ns)
            };
            while due(self) {
                let queue = if is_done { &mut self.quiet_done } else { &mut self.quiet };
                let Some((number, _)) = queue.pop_front() else { break };
                let clock_ns = self.clock_ns;
                let Some(operation) = self.operation(number) else { continue };
                if operation.is_over(clock_ns) {
                    self.end(number);
                } else if operation.is_done {
                    let due_ns = operation.last_ns + QUIET_DONE_NS;
                    self.quiet_done.push_back((number, due_ns));
                } else {
                    let due_ns = operation.last_ns + QUIET_NS;
                    self.quiet.push_back((number, due_ns));
                }
            }
        }
    }

    /// Ends everything: no more events are to come, or some are missing.
    pub fn end_all(&mut self) {
        while !self.operations.is_empty() {
            self.end(self.first_number);
        }
        self.memory.clear();
        self.quiet.clear();
        self.quiet_done.clear();
        self.received.clear();
        self.begun.clear();
        self.in_kernel.clear();
    }

    /// Adds a part to an operation that is under way; the index of its step.
    fn add(&mut self, number: u64, part: &Part) -> u16 {
        let Some(operation) = self.operation(number) else { return 0 };
        let was_done = operation.is_done;
        let step = operation.add(part);
        if !was_done && operation.is_done {
            self.quiet_done.push_back((number, self.clock_ns + QUIET_DONE_NS));
        }
        step
    }

    fn part(&self, event: &Event, site: u32, call: Call, after: u32) -> Part {
        let is_copy = call == Call::Copy;
        Part {
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
            is_within: is_copy && event.to.abs_diff(event.from) < event.len_bytes,
            is_elided: false,
            at_ns: self.clock_ns,
            continues: event.flags.has(Flags::CONTINUES),
        }
    }

    fn link(&mut self, from: u32, to: u32, bytes: u64) {
        if self.links.len() < MAX_LINKS || self.links.contains_key(&(from, to)) {
            let link = self.links.entry((from, to)).or_default();
            link.0 += bytes;
            link.1 += 1;
        }
    }

    /// The operation that an input goes on with: what came from the same descriptor last, if nothing of it has gone
    /// out yet and the bytes are put behind it.
    fn message(&mut self, event: &Event, object: Object) -> Option<u64> {
        let last = *self.received.get(&event.fd)?;
        let clock_ns = self.clock_ns;
        let operation = self.operation(last.number)?;
        if operation.is_over(clock_ns) || operation.from != object {
            return None;
        }
        // Of recvmmsg, each part is taken for a message of its own, which it nearly always is.
        let is_message = event.function == Function::Recvmmsg;
        if event.flags.has(Flags::CONTINUES) && last.thread == event.thread && !is_message {
            return Some(last.number);
        }
        if operation.is_done || object == Object::Datagram {
            return None;
        }
        let (end, content) = self.memory.before(event.to)?;
        if content.operation != last.number || event.to.saturating_sub(end) >= self.min_size_bytes {
            return None;
        }
        // Over what came before: a buffer that is filled again, behind another that holds the message too.
        self.memory.lookup(event.to, event.len_bytes, &mut self.found);
        let is_own = |found: &&Found| found.2.operation == last.number;
        let own_bytes: u64 = self.found.iter().filter(is_own).map(|(_, len, _)| len).sum();
        (own_bytes < event.len_bytes.div_ceil(2)).then_some(last.number)
    }

    fn input(&mut self, event: &Event, site: u32, object: Object) {
        let number = self.message(event, object).unwrap_or_else(|| self.begin(object));
        self.received.insert(event.fd, Received { number, thread: event.thread });
        let part = self.part(event, site, Call::Input, 0);
        let is_view = self.elision.input(event.to, event.len_bytes);
        let offset = self.operation(number).map_or(0, |operation| {
            let offset = operation.bytes;
            operation.bytes += event.len_bytes;
            offset
        });
        let step = self.add(number, &part);
        let content = Content { operation: number, offset, step, is_received: true, is_view, site };
        self.memory.set(event.to, event.len_bytes, content);
    }

    /// A copy or an output.
    fn use_bytes(&mut self, event: &Event, site: u32, call: Call) {
        let mut found = core::mem::take(&mut self.found);
        self.memory.lookup(event.from, event.len_bytes, &mut found);
        let known_bytes: u64 = found.iter().map(|(_, len, _)| len).sum();
        self.count_links(site, event.len_bytes - known_bytes, &found);
        let taken = self.taken(event, site, call, &found);
        let elided = if call == Call::Copy {
            let would = self.elision.copy(event.to, event.len_bytes, &found);
            let is_timed = !event.flags.has(Flags::SAMPLED);
            let ns = is_timed.then_some(event.duration_ns);
            self.sites.count_elision(site, &would, event.len_bytes, ns, taken.is_empty());
            Elided { is_elided: matches!(would, Would::Elide { .. }), bytes: would.elided_bytes() }
        } else {
            Elided::default()
        };
        self.placed.clear();
        if taken.is_empty() {
            self.use_kept(event, site, call, &found, elided);
        } else {
            self.use_operations(event, site, call, &found, &taken, elided);
        }
        if call == Call::Copy {
            let placed = core::mem::take(&mut self.placed);
            self.memory.forget(event.to, event.len_bytes);
            for (at, len, content) in &placed {
                self.memory.set(event.to + at, *len, *content);
            }
            self.placed = placed;
        }
        self.found = found;
    }

    fn count_links(&mut self, site: u32, unknown_bytes: u64, found: &[Found]) {
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
            self.link(from, site, bytes);
        }
    }

    /// What a call takes from each operation that is under way and that it does not only repeat.
    fn taken(&mut self, event: &Event, site: u32, call: Call, found: &[Found]) -> SmallVec<[Taken; 4]> {
        let mut all: SmallVec<[Taken; 4]> = SmallVec::new();
        for (_, len, content) in found {
            match all.iter_mut().find(|taken| taken.number == content.operation) {
                Some(taken) => {
                    taken.own_bytes += len;
                    match taken.by_step.iter_mut().find(|(step, _)| *step == content.step) {
                        Some((_, bytes)) => *bytes += len,
                        None => taken.by_step.push((content.step, *len)),
                    }
                }
                None => all.push(Taken {
                    number: content.operation,
                    own_bytes: *len,
                    by_step: SmallVec::from_slice(&[(content.step, *len)]),
                }),
            }
        }
        let (leaf, clock_ns) = (self.sites.leaf(site), self.clock_ns);
        let from = (event.from, event.from.saturating_add(event.len_bytes));
        all.retain(|taken| {
            let key = StepKey { leaf, after: after(taken) };
            self.operation(taken.number).is_some_and(|operation| {
                !operation.is_over(clock_ns) && !operation.repeats(key, call, event.fd, from)
            })
        });
        all
    }

    /// A call on bytes of operations that are under way: a step of each.
    fn use_operations(
        &mut self,
        event: &Event,
        site: u32,
        call: Call,
        found: &[Found],
        taken: &[Taken],
        elided: Elided,
    ) {
        let mut steps: SmallVec<[(u64, u16); 4]> = SmallVec::new();
        for taken in taken {
            let mut part = self.part(event, site, call, after(taken));
            part.own_bytes = taken.own_bytes;
            part.ns = scale(event.duration_ns, taken.own_bytes, event.len_bytes);
            part.is_elided = elided.is_elided;
            let step = self.add(taken.number, &part);
            steps.push((taken.number, step));
        }
        if call == Call::Copy {
            for (at, len, content) in found {
                let step = steps.iter().find(|(number, _)| *number == content.operation);
                // Of one that only lends a little, and is over, its last known place is as good as any.
                let step = step.map_or(content.step, |(_, step)| *step);
                let is_view = content.is_view && elided.is_elided;
                self.placed.push((*at, *len, Content { step, is_view, site, ..*content }));
            }
        }
    }

    /// A call on bytes of no operation that is under way: kept from an earlier one, or the program's own.
    fn use_kept(&mut self, event: &Event, site: u32, call: Call, found: &[Found], elided: Elided) {
        let leaf = self.sites.leaf(site);
        let fd = if call == Call::Output { event.fd } else { -1 };
        let clock_ns = self.clock_ns;
        let goes_on = self.begun.get(&event.thread).copied().filter(|begun| {
            let is_next = begun.next_from == event.from || event.flags.has(Flags::CONTINUES);
            begun.leaf == leaf && begun.fd == fd && is_next
        });
        let goes_on = goes_on.filter(|begun| {
            self.operation(begun.number).is_some_and(|operation| !operation.is_over(clock_ns))
        });
        let number = goes_on.map_or_else(|| self.begin(Object::Memory), |begun| begun.number);
        let next_from = event.from.saturating_add(event.len_bytes);
        self.begun.insert(event.thread, Begun { number, leaf, fd, next_from });
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
                    self.placed.push((at, found_at - at, Content { offset: offset + at, ..own }));
                }
                let is_view = content.is_view && elided.is_elided;
                let kept =
                    Content { offset: offset + found_at, is_received: content.is_received, is_view, ..own };
                self.placed.push((*found_at, *len, kept));
                at = found_at + len;
            }
            if at < event.len_bytes {
                self.placed.push((at, event.len_bytes - at, Content { offset: offset + at, ..own }));
            }
        }
    }

    /// sendfile and its like: an input and an output of bytes that never are in memory.
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

/// The steps that put a good part of these bytes where they were, a bit each.
fn after(taken: &Taken) -> u32 {
    let matter = |(_, bytes): &&(u16, u64)| bytes.saturating_mul(SOURCE_SHARE) >= taken.own_bytes;
    taken.by_step.iter().filter(matter).fold(0, |bits, (step, _)| bits | 1 << (step % 32))
}

/// The recorder's object as the model has it.
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
