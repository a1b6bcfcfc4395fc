//! Outputs: gathered directly from the segments, as copies or, where the same bytes are sent repeatedly, by
//! reference (`loan`).

use crate::account::accounts;
use crate::account::work::Work;
use crate::arena::segment::{Segment, SharedBytes};
use crate::call::in_flight::{CallResources, InProgress, Segments};
use crate::call::input::Part;
use crate::range::block::BlockRef;
use crate::range::heap::HEAP;
use crate::range::{constants, directory};
use crate::state::policy::POLICY;
use crate::state::{counters, gate};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::options::Policy;
use uncopy_core::plan::Piece;
use uncopy_core::policy::loans;
use uncopy_core::policy::sites::{Exit, WorkPart};
use uncopy_core::stats::Counter;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::fd::{FdKind, kind};
pub use uncopy_sys::iovec::MAX_PARTS;
use uncopy_sys::presence::Section;
use uncopy_sys::stack_room;

/// Source of a gathered part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The program's own memory.
    Program,
    /// A segment, held by the call.
    Segment,
    /// A segment, held by the call, that should go by reference.
    Lendable,
    /// Constants of the program, which go by reference at once.
    Constant,
}

impl Origin {
    const fn is_lendable(self) -> bool {
        matches!(self, Self::Lendable | Self::Constant)
    }

    const fn is_segment(self) -> bool {
        matches!(self, Self::Lendable | Self::Segment)
    }
}

/// A gathered output: the parts to send, and the references that keep their bytes.
pub struct Output {
    kind: FdKind,
    parts: smallvec::SmallVec<[Part; 16]>,
    origins: smallvec::SmallVec<[Origin; 16]>,
    /// Number of `parts` in each message.
    messages: smallvec::SmallVec<[usize; 2]>,
    /// References that keep the bytes, until the call is made.
    segments: Segments,
    progress: Option<InProgress>,
    gathered_bytes: usize,
    lendable_bytes: usize,
    is_lent: bool,
    /// The last field, so that all others are dropped while no signal handler of the program can run.
    section: Section,
}

/// Whether an output of these parts may have bytes in segments: cheap, takes no lock.
#[must_use]
pub fn is_candidate(parts: &[Part]) -> bool {
    let min_bytes = gate::min_engine_bytes();
    let is_candidate = |part: &Part| {
        may_be_absent(part)
            || !gate::is_in_heap(part.address) && constants::contains(part.address, part.len_bytes)
    };
    parts.len() <= MAX_PARTS && parts.iter().any(|part| part.len_bytes >= min_bytes && is_candidate(part))
}

fn may_be_absent(part: &Part) -> bool {
    gate::has_registered()
        && directory::find(part.address).as_ref().is_some_and(BlockRef::may_have_absent_pages)
}

/// Whether this part of a segment should go by reference: only if it was sent as a copy before, since most
/// data is sent once.
fn is_time(segment: &Segment, offset_bytes: usize, len_bytes: usize) -> bool {
    let may_lend = match POLICY.mode() {
        Policy::Always => true,
        Policy::Never => false,
        Policy::Auto => len_bytes >= gate::min_engine_bytes() && POLICY.elides(),
    };
    may_lend && len_bytes >= PAGE_BYTES && segment.was_sent(offset_bytes, len_bytes)
}

impl Output {
    /// Gathers the parts of one message. See [`Output::begin_messages`].
    #[must_use]
    pub fn begin(fd: ProgramFd, parts: &[Part]) -> Option<Self> {
        Self::begin_messages(fd, parts, &[parts.len()])
    }

    /// Gathers `parts`, which belong to several messages; `messages` has the number of parts of each.
    /// `None`: make the call unchanged; faults of the kernel are served.
    ///
    /// Only for files, sockets and pipes: for other descriptors several parts may mean several operations.
    #[must_use]
    pub fn begin_messages(fd: ProgramFd, parts: &[Part], messages: &[usize]) -> Option<Self> {
        // Checked before the larger stack frames below are entered.
        if stack_room::is_available(stack_room::FOR_OUTPUT_BYTES) {
            Self::gather(fd, parts, messages)
        } else {
            None
        }
    }

    #[inline(never)]
    fn gather(fd: ProgramFd, parts: &[Part], messages: &[usize]) -> Option<Self> {
        HEAP.make_stack_plain();
        let work = Work::begin();
        let section = Section::enter()?;
        let kind = kind(fd);
        if kind == FdKind::Other {
            return None;
        }
        let mut output = Self {
            kind,
            parts: smallvec::SmallVec::new(),
            origins: smallvec::SmallVec::new(),
            messages: smallvec::SmallVec::new(),
            segments: Segments::new(),
            progress: None,
            gathered_bytes: 0,
            lendable_bytes: 0,
            is_lent: false,
            section,
        };
        let mut parts = parts.iter();
        for count in messages {
            let before = output.parts.len();
            for part in parts.by_ref().take(*count) {
                output.push(part, before);
            }
            let gathered = output.parts.len() - before;
            if gathered > MAX_PARTS {
                return None;
            }
            output.messages.push(gathered);
        }
        if output.gathered_bytes + output.lendable_bytes == 0 {
            return None;
        }
        if let Some(segment) = output.segments.first() {
            work.charge(segment.site(), WorkPart::Output);
        }
        output.progress = Some(InProgress::new(CallResources::Output(core::mem::take(&mut output.segments))));
        Some(output)
    }

    /// Adds one of the program's parts to the message whose parts begin at index `first`.
    fn push(&mut self, part: &Part, first: usize) {
        let found = directory::find(part.address).filter(BlockRef::may_have_absent_pages);
        let Some((at, range)) = found.and_then(|at| Some((at, at.range(part.address, part.len_bytes)?)))
        else {
            self.parts.push(*part);
            let is_constant = part.len_bytes >= gate::min_engine_bytes()
                && constants::contains(part.address, part.len_bytes);
            self.origins.push(if is_constant { Origin::Constant } else { Origin::Program });
            self.lendable_bytes += if is_constant { part.len_bytes } else { 0 };
            return;
        };
        let mut address = part.address;
        for piece in at.lock().pieces(range) {
            let len_bytes = piece.len_bytes();
            match piece {
                // Empty pages are left to the kernel's faults; they read as zeroes.
                Piece::Plain { .. } | Piece::Zeroes { .. } => match self.parts[first..].last_mut() {
                    Some(last)
                        if self.origins.last() == Some(&Origin::Program)
                            && last.address + last.len_bytes == address =>
                    {
                        last.len_bytes += len_bytes
                    }
                    _ => {
                        self.parts.push(Part { address, len_bytes });
                        self.origins.push(Origin::Program);
                    }
                },
                Piece::Segment { segment, offset_bytes, .. } => {
                    self.parts.push(Part { address: segment.address() + offset_bytes, len_bytes });
                    if is_time(&segment, offset_bytes, len_bytes) {
                        self.origins.push(Origin::Lendable);
                        self.lendable_bytes += len_bytes;
                    } else {
                        self.origins.push(Origin::Segment);
                    }
                    segment.touch();
                    self.segments.push(segment);
                    self.gathered_bytes += len_bytes;
                }
            }
            address += len_bytes;
        }
    }

    /// Bytes that should go by reference, if that pays and the descriptor supports it.
    #[must_use]
    pub const fn lendable_bytes(&self) -> usize {
        self.lendable_bytes
    }

    /// Length of all parts, bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len_bytes).sum()
    }

    /// Kind of the output's descriptor.
    #[must_use]
    pub const fn kind(&self) -> FdKind {
        self.kind
    }

    /// Lends the lendable parts: the kernel may hold their pages for good from the call on. Returns the
    /// results of `make`, which gets each part and whether it is lent.
    pub fn lend<T>(&mut self, make: impl Fn(Part, bool) -> T) -> smallvec::SmallVec<[T; 16]> {
        self.is_lent = true;
        self.for_each_segment(usize::MAX, |segment, offset_bytes, len_bytes, origin| {
            if origin == Origin::Lendable {
                let pages = segment.lend(offset_bytes, len_bytes);
                if pages > 0 {
                    accounts::debit(segment.site(), loans::dropped_ns(pages));
                }
            }
        });
        let parts = self.parts.iter().zip(&self.origins);
        parts.map(|(part, origin)| make(*part, origin.is_lendable())).collect()
    }

    /// Records that the kernel copied the lent parts after all.
    pub const fn mark_copied(&mut self) {
        self.is_lent = false;
    }

    /// Calls `each` for the parts from segments within the first `sent_bytes` bytes, with the segment, the
    /// part's offset in it, its length and its source. Not to be called during the system call.
    fn for_each_segment(&self, sent_bytes: usize, mut each: impl FnMut(&Segment, usize, usize, Origin)) {
        let Some(progress) = &self.progress else { return };
        progress.inspect(|held| {
            let CallResources::Output(segments) = held else { return };
            let mut segments = segments.iter();
            let mut left_bytes = sent_bytes;
            for (part, origin) in self.parts.iter().zip(&self.origins) {
                let len_bytes = part.len_bytes.min(left_bytes);
                left_bytes -= len_bytes;
                if len_bytes == 0 {
                    return;
                }
                if origin.is_segment()
                    && let Some(segment) = segments.next()
                {
                    each(segment, part.address - segment.address(), len_bytes, *origin);
                }
            }
        });
    }

    /// Passes each part to `show`, with its segment if that lies in shared memory. The bytes do not change meanwhile.
    pub fn inspect<T>(
        &self,
        show: impl FnOnce(&mut dyn Iterator<Item = (Part, Option<&SharedBytes>)>) -> T,
    ) -> T {
        let show = |mut segments: core::slice::Iter<'_, Segment>| {
            let parts = self.parts.iter().zip(&self.origins);
            show(&mut parts.map(|(part, origin)| {
                let segment = if origin.is_segment() { segments.next() } else { None };
                (*part, segment.and_then(Segment::shared))
            }))
        };
        match &self.progress {
            Some(progress) => progress.inspect(|held| match held {
                CallResources::Output(segments) => show(segments.iter()),
                CallResources::Input(_) => show([].iter()),
            }),
            None => show(self.segments.iter()),
        }
    }

    /// Returns the segments of the parts that lie in shared memory. Not to be called during the system call.
    #[must_use]
    pub fn shared_segments(&self) -> smallvec::SmallVec<[Segment; 4]> {
        let mut shared = smallvec::SmallVec::<[Segment; 4]>::new();
        self.for_each_segment(usize::MAX, |segment, _, _, _| {
            if segment.shared().is_some() && shared.last() != Some(segment) {
                shared.push(segment.clone());
            }
        });
        shared
    }

    /// Records that the first `sent_bytes` bytes went where shared memory can go by reference: later inputs of the same
    /// sites, of `min_bytes` and more, may be received there.
    pub fn record_leaving(&self, exit: Exit, sent_bytes: usize, min_bytes: usize) {
        self.for_each_segment(sent_bytes, |segment, _, len_bytes, _| {
            if len_bytes >= min_bytes {
                POLICY.sites.record_leaving(exit, segment.site());
            }
        });
    }

    /// Number of constant bytes among the first `sent_bytes` bytes that went by reference.
    fn constant_bytes(&self, sent_bytes: usize) -> usize {
        let mut left_bytes = if self.is_lent { sent_bytes } else { 0 };
        let parts = self.parts.iter().zip(&self.origins);
        let bytes = parts.map(|(part, origin)| {
            let len_bytes = part.len_bytes.min(left_bytes);
            left_bytes -= len_bytes;
            if *origin == Origin::Constant { len_bytes } else { 0 }
        });
        bytes.sum()
    }

    /// Runs the system call, outside the critical section, and keeps the segments until it is done.
    pub fn call<T>(&self, call: impl FnOnce(&[Part]) -> T) -> T {
        let call = || self.section.run_outside(|| call(&self.parts));
        match &self.progress {
            Some(progress) => progress.run(call),
            None => call(),
        }
    }

    /// Counts the bytes that were sent.
    pub fn finish(self, sent_bytes: usize) {
        if self.gathered_bytes > 0 {
            counters::add(Counter::GatheredOutputs, 1);
            counters::add(Counter::OutputBytes, sent_bytes.min(self.gathered_bytes));
        }
        if self.section.is_outside() || self.messages.len() != 1 {
            // With several messages, the sent parts are not determined: such messages are small.
            return;
        }
        let mut lent_bytes = self.constant_bytes(sent_bytes);
        self.for_each_segment(sent_bytes, |segment, offset_bytes, len_bytes, origin| {
            segment.record_sent(offset_bytes, len_bytes);
            if self.is_lent && origin == Origin::Lendable {
                lent_bytes += len_bytes;
                accounts::credit(segment.site(), loans::saved_ns(&POLICY.costs, len_bytes));
            }
        });
        if lent_bytes > 0 {
            counters::add(Counter::LentBytes, lent_bytes);
        }
    }

    /// Number of parts of each message.
    #[must_use]
    pub fn messages(&self) -> &[usize] {
        &self.messages
    }

    /// Parts for the system call.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}
