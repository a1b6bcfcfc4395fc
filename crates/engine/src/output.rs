//! What goes to the kernel: gathered straight from the segments.

use crate::block::BlockRef;
use crate::calls::{Held, InProgress, Segments};
use crate::engine::ENGINE;
use crate::input::Part;
use crate::live;
use uncopy_core::plan::Piece;
use uncopy_core::stats::Counter;
use uncopy_sys::fd::{FdKind, kind};
use uncopy_sys::presence::Section;

/// Parts of one call that the kernel takes (IOV_MAX).
pub const PARTS_MOST: usize = 1024;

/// A gathered output: the parts to send and the references that keep their bytes.
pub struct Output {
    parts: smallvec::SmallVec<[Part; 16]>,
    /// Number of `parts` of each message.
    messages: smallvec::SmallVec<[usize; 2]>,
    /// What keeps the bytes, until the call is made.
    segments: Segments,
    progress: Option<InProgress>,
    gathered_bytes: usize,
    /// Last, so that everything else is dropped with signals blocked.
    section: Section,
}

/// Whether an output of these parts may have bytes in segments: cheap, no lock.
#[must_use]
pub fn concerns(parts: &[Part]) -> bool {
    let least_bytes = ENGINE.min_size_bytes();
    parts.len() <= PARTS_MOST && parts.iter().any(|part| part.len_bytes >= least_bytes && may_be_absent(part))
}

fn may_be_absent(part: &Part) -> bool {
    ENGINE.find(part.address).as_ref().is_some_and(BlockRef::may_have_absent_pages)
}

impl Output {
    /// Gathers the parts of one message. See [`Output::begin_messages`].
    #[must_use]
    pub fn begin(fd: i32, parts: &[Part]) -> Option<Self> {
        Self::begin_messages(fd, parts, &[parts.len()])
    }

    /// Gathers `parts`, which make up several messages of so many parts each. `None`: make the call unchanged; the kernel's faults are served.
    ///
    /// Only for files, sockets and pipes: for other descriptors several parts may mean several
    /// operations.
    #[must_use]
    pub fn begin_messages(fd: i32, parts: &[Part], messages: &[usize]) -> Option<Self> {
        ENGINE.heap.leave_stack_alone();
        let section = Section::enter()?;
        if kind(fd) == FdKind::Other {
            return None;
        }
        let mut output = Self {
            parts: smallvec::SmallVec::new(),
            messages: smallvec::SmallVec::new(),
            segments: Segments::new(),
            progress: None,
            gathered_bytes: 0,
            section,
        };
        let mut parts = parts.iter();
        for count in messages {
            let before = output.parts.len();
            for part in parts.by_ref().take(*count) {
                output.push(part, before);
            }
            let gathered = output.parts.len() - before;
            if gathered > PARTS_MOST {
                return None;
            }
            output.messages.push(gathered);
        }
        if output.gathered_bytes == 0 {
            return None;
        }
        output.progress = Some(InProgress::new(Held::Output(core::mem::take(&mut output.segments))));
        Some(output)
    }

    /// Adds one part of the program's to the message whose parts begin at index `first`.
    fn push(&mut self, part: &Part, first: usize) {
        let found = ENGINE.find(part.address).filter(BlockRef::may_have_absent_pages);
        let Some((at, range)) = found.and_then(|at| Some((at, at.range(part.address, part.len_bytes)?)))
        else {
            self.parts.push(*part);
            return;
        };
        let mut address = part.address;
        for piece in at.lock().pieces(range) {
            let len_bytes = piece.len_bytes();
            match piece {
                // Empty pages are left to the kernel's faults: they read as zeroes.
                Piece::Plain { .. } | Piece::Zeroes { .. } => match self.parts[first..].last_mut() {
                    Some(last) if last.address + last.len_bytes == address => last.len_bytes += len_bytes,
                    _ => self.parts.push(Part { address, len_bytes }),
                },
                Piece::Segment { segment, offset_bytes, .. } => {
                    self.parts.push(Part { address: segment.address() + offset_bytes, len_bytes });
                    segment.touch();
                    self.segments.push(segment);
                    self.gathered_bytes += len_bytes;
                }
            }
            address += len_bytes;
        }
    }

    /// Runs the system call, signals unblocked, and keeps the segments until it is done.
    pub fn call<T>(&self, call: impl FnOnce(&[Part]) -> T) -> T {
        let call = || self.section.leave_for(|| call(&self.parts));
        match &self.progress {
            Some(progress) => progress.run(call),
            None => call(),
        }
    }

    /// Counts what was sent.
    pub fn finish(self, sent_bytes: usize) {
        live::add(Counter::GatheredOutputs, 1);
        live::add(Counter::OutputBytes, sent_bytes.min(self.gathered_bytes));
    }

    /// Number of parts of each message.
    #[must_use]
    pub fn messages(&self) -> &[usize] {
        &self.messages
    }

    /// The parts as the system call should see them.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}
