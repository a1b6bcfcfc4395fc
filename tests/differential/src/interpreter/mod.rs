//! Executes a program: every operation by real calls of libc, and on the model.

mod altering;
mod files;
mod mapping;
mod memory;
mod processes;
mod transfer;

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use libc::iovec;
use uncopy_tests::oracle::{OracleBytes, raw_write};
use uncopy_tests::random::Random;

use crate::buffer::{Buffer, MAX_BUFFER, Origin};
use crate::channel::Channel;
use crate::handler_buffers::{HandlerBuffers, install_handler, set_alarm};
use crate::model::{Mirror, pool};
use crate::program::{Kind, Operation, Program};
use crate::progress::Progress;
use files::WorkerFile;

/// Number of slots whose buffers are allocated and freed.
pub const GENERAL_SLOTS: usize = 14;
/// Number of slots of a worker: the last two have a static buffer and one on the stack.
pub const SLOTS: usize = GENERAL_SLOTS + 2;
/// Length of the static buffers, in bytes. The buffers share pages, and data received into several
/// of them is one foreign range, too long to be made present as a whole.
pub const STATIC_BYTES: usize = 2_500_032;
/// Length of the buffers on the stack, in bytes.
const STACK_BYTES: usize = 300_000;
/// Maximum total length of one operation's parts, in bytes.
const MAX_PARTS_BYTES: usize = 1 << 20;
/// Exit status of a program that found a difference.
pub const DIFFERENCE_STATUS: i32 = 3;

/// `Err` describes what an operation found to be wrong.
type Verdict = Result<(), String>;

/// A range of a slot's buffer.
#[derive(Clone, Copy, Debug)]
struct Part {
    slot: usize,
    at: usize,
    len: usize,
}

/// A thread of the program with everything that it owns.
struct Worker<'a> {
    id: usize,
    program: &'a Program,
    /// Indices of the worker's operations in the program.
    operation_indices: Vec<usize>,
    progress: &'static Progress,
    slots: Vec<Option<Buffer>>,
    spare_mirrors: Vec<Mirror>,
    channels: Vec<Channel>,
    file: WorkerFile,
    scratch: OracleBytes,
    handler_buffers: Box<HandlerBuffers>,
    peers: Vec<Sender<Buffer>>,
    inbox: Receiver<Buffer>,
    children: Vec<libc::pid_t>,
    /// Number of forks between the started program and this process.
    depth: usize,
}

/// One static buffer for each worker.
#[repr(C, align(64))]
struct Statics([std::cell::UnsafeCell<[u8; STATIC_BYTES]>; crate::program::MAX_WORKERS]);
// SAFETY: each worker accesses only the buffer of its own number.
unsafe impl Sync for Statics {}
static STATICS: Statics =
    Statics([const { std::cell::UnsafeCell::new([0; STATIC_BYTES]) }; crate::program::MAX_WORKERS]);

/// Runs a program to its end; a difference ends the process with [`DIFFERENCE_STATUS`].
pub fn run(program: &Program, progress: &Path) {
    let progress = Progress::open(progress);
    let _ = pool();
    install_handler();
    let workers = program.workers();
    let (peers, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel()).unzip();
    set_alarm(program.alarm_us);
    thread::scope(|scope| {
        let mut inboxes = inboxes.into_iter().enumerate();
        let main = inboxes.next();
        for (id, inbox) in inboxes {
            let peers = peers.clone();
            thread::Builder::new()
                .stack_size(4 << 20)
                .spawn_scoped(scope, move || run_worker(id, program, progress, peers, inbox))
                .expect("thread");
        }
        if let Some((id, inbox)) = main {
            run_worker(id, program, progress, peers.clone(), inbox);
        }
    });
    set_alarm(0);
}

fn run_worker(
    id: usize,
    program: &Program,
    progress: &'static Progress,
    peers: Vec<Sender<Buffer>>,
    inbox: Receiver<Buffer>,
) {
    let mut stack = std::mem::MaybeUninit::<[u8; STACK_BYTES]>::uninit();
    let mut worker = Worker::new(id, program, progress, peers, inbox);
    // SAFETY: both buffers outlive the worker's last use of them, and only this worker accesses them.
    unsafe {
        let start = STATICS.0[id].get().cast::<u8>();
        worker.slots[GENERAL_SLOTS] = Some(Buffer::from_raw(start, STATIC_BYTES, Origin::Static));
        let start = std::hint::black_box(stack.as_mut_ptr()).cast::<u8>();
        worker.slots[GENERAL_SLOTS + 1] = Some(Buffer::from_raw(start, STACK_BYTES, Origin::Stack));
    }
    worker.run(0, usize::MAX);
    worker.finish();
}

impl<'a> Worker<'a> {
    fn new(
        id: usize,
        program: &'a Program,
        progress: &'static Progress,
        peers: Vec<Sender<Buffer>>,
        inbox: Receiver<Buffer>,
    ) -> Self {
        let operation_indices =
            (0..program.operations.len()).filter(|number| program.operations[*number].worker == id);
        Self {
            id,
            program,
            operation_indices: operation_indices.collect(),
            progress,
            slots: (0..SLOTS).map(|_| None).collect(),
            spare_mirrors: Vec::new(),
            channels: Channel::all(),
            file: WorkerFile::new(),
            scratch: OracleBytes::new(MAX_PARTS_BYTES + MAX_BUFFER),
            handler_buffers: HandlerBuffers::new(id + 1),
            peers,
            inbox,
            children: Vec::new(),
            depth: 0,
        }
    }

    /// Runs up to `count` of the worker's operations, from index `first` on.
    fn run(&mut self, first: usize, count: usize) {
        let last = self.operation_indices.len().min(first.saturating_add(count));
        for index in first..last {
            let number = self.operation_indices[index];
            let operation = self.program.operations[number];
            self.progress.begin(self.id, number, operation.kind, self.depth > 0);
            if let Err(what) = self.execute(index, operation) {
                self.fail(number, &operation.to_string(), &what);
            }
        }
    }

    /// Checks all buffers, channels and files, and frees the buffers.
    fn finish(&mut self) {
        if let Err(what) = self.check_and_free_all() {
            self.fail(self.program.operations.len(), "(the end)", &what);
        }
    }

    fn check_and_free_all(&mut self) -> Verdict {
        for channel in &mut self.channels {
            channel.drain_all(&self.scratch)?;
        }
        self.file.check_all(&self.scratch)?;
        self.handler_buffers.check_all();
        self.peers.clear();
        for slot in 0..SLOTS {
            self.check_buffer(slot)?;
        }
        while !self.children.is_empty() {
            self.wait_for_child()?;
        }
        // Buffers that other workers send after this are dropped, and unmapped with the process.
        while let Ok(buffer) = self.inbox.try_recv() {
            if let Some(difference) = buffer.difference(0, buffer.len()) {
                return Err(format!("a buffer that was handed over: {difference}"));
            }
            let _ = buffer.release();
        }
        for slot in 0..SLOTS {
            self.free_slot(slot);
        }
        Ok(())
    }

    /// Reports that the model and the program differ, and ends the process.
    fn fail(&self, number: usize, operation: &str, what: &str) -> ! {
        let process =
            if self.depth > 0 { format!(" (forked child, depth {})", self.depth) } else { String::new() };
        let message = format!(
            "machine: DIFFERENCE seed={} worker={} op={number}{process}: {operation}\nmachine: {what}\n",
            self.program.seed, self.id
        );
        // SAFETY: `message` is readable for its length; `_exit` takes an integer only.
        unsafe {
            let _ = raw_write(2, message.as_ptr(), message.len());
            libc::_exit(DIFFERENCE_STATUS)
        }
    }

    fn execute(&mut self, index: usize, operation: Operation) -> Verdict {
        let numbers = operation.numbers;
        let [a, b, c, d, e, f, ..] = numbers;
        match operation.kind {
            Kind::Allocate => self.allocate(a, b, c, d),
            Kind::Free => {
                let slot = a % GENERAL_SLOTS;
                self.check_start(slot)?;
                self.free_slot(slot);
                Ok(())
            }
            Kind::Resize => self.resize(a, b, c),
            Kind::Usable => self.extend_to_usable(a),
            Kind::Copy => self.copy(a, b, c, d, e, f),
            Kind::Move => self.move_within(a, b, c, d, e),
            Kind::Fill => self.fill(a, b, c, d, e),
            Kind::Check => self.check(a, b, c),
            Kind::Feed => {
                let count = self.channels.len();
                self.channels[a % count].feed(b, c)
            }
            Kind::Receive => self.receive(numbers),
            Kind::ReceiveMany => self.receive_many(numbers),
            Kind::Send => self.send(numbers),
            Kind::SendMany => self.send_many(numbers),
            Kind::Drain => {
                let count = self.channels.len();
                self.channels[a % count].drain(b, &self.scratch)
            }
            Kind::FileRead => self.read_file(numbers),
            Kind::FileWrite => self.write_file(numbers),
            Kind::Kernel => self.kernel_access(a, b, c, d, e),
            Kind::Odd => self.edge_case(a, b, c, d, e),
            Kind::Protect => self.protect(a, b, c, d),
            Kind::Advise => self.advise(a, b, c, d),
            Kind::Remap => self.remap(a, b, c, d),
            Kind::Cover => self.cover(a, b, c, d, e),
            Kind::AdviseOtherwise => self.advise_otherwise(a, b, c, d, e),
            Kind::Lock => self.lock_pages(a, b, c, d),
            Kind::Churn => self.churn(a, b),
            Kind::Fork => self.fork(index, a, b),
            Kind::Give => {
                self.give(a, b);
                Ok(())
            }
            Kind::Take => self.take(a),
            Kind::Raise => {
                for _ in 0..a.clamp(1, 16) {
                    // SAFETY: raise(3) takes an integer only, and a handler for the signal is installed.
                    unsafe { libc::raise(libc::SIGUSR1) };
                }
                Ok(())
            }
            Kind::Arm => {
                self.handler_buffers.fill(a);
                Ok(())
            }
            // Operations of programs of files never get here.
            _ => Ok(()),
        }
    }

    /// Returns the buffer of a slot, if the slot has one.
    fn buffer(&self, slot: usize) -> Option<&Buffer> {
        self.slots[slot % SLOTS].as_ref()
    }

    /// Returns up to `count` parts: `first`, then others from `seed`; writable ones in different buffers.
    fn parts(&self, first: Part, count: usize, seed: usize, writable: bool) -> Vec<Part> {
        let mut random = Random::new(seed as u64);
        let mut left = MAX_PARTS_BYTES;
        let mut parts: Vec<Part> = Vec::new();
        let mut next = first;
        for _ in 0..count.clamp(1, 16) {
            let slot = next.slot % SLOTS;
            if let Some(buffer) = self.buffer(slot)
                && left > 0
                && !(writable && parts.iter().any(|part| part.slot == slot))
            {
                let (at, len) = buffer.range(next.at, next.len.min(left));
                left -= len;
                parts.push(Part { slot, at, len });
            }
            let slot = random.below(SLOTS);
            let (at, len) = random.range(self.buffer(slot).map_or(1, Buffer::len));
            next = Part { slot, at, len: len.min(200_000) };
        }
        parts
    }

    fn vectors(&self, parts: &[Part]) -> Vec<iovec> {
        parts
            .iter()
            .filter_map(|part| {
                let start = self.buffer(part.slot)?.at(part.at);
                Some(iovec { iov_base: start.cast(), iov_len: part.len })
            })
            .collect()
    }

    fn check_range(&self, slot: usize, at: usize, len: usize) -> Verdict {
        let Some(buffer) = self.buffer(slot) else { return Ok(()) };
        match buffer.difference(at, len) {
            None => Ok(()),
            Some(difference) => Err(format!(
                "slot {} ({:?} at {:?}, {} bytes): {difference} (checked {at}+{len})",
                slot % SLOTS,
                buffer.origin(),
                buffer.at(0),
                buffer.len()
            )),
        }
    }

    fn check_buffer(&self, slot: usize) -> Verdict {
        self.check_range(slot, 0, self.buffer(slot).map_or(0, Buffer::len))
    }

    /// Checks the first bytes of a buffer that is about to be freed.
    fn check_start(&self, slot: usize) -> Verdict {
        self.check_range(slot, 0, self.buffer(slot).map_or(0, |buffer| buffer.len().min(100)))
    }
}
