//! The ring of a recording, as the command reads it.

use super::event::{Event, WORDS};
use super::{EVENT_BYTES, GAP_BIT, HEAD_OFFSET, RING_OFFSET, SLOTS, TAIL_OFFSET};

extern crate std;
use std::io;
use std::vec::Vec;

/// A recording's file, or what stands for one.
pub trait Memory {
    /// Reads the bytes at `offset`, all of them.
    ///
    /// # Errors
    /// What keeps it from that; also if the file is too short.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// What keeps it from that.
    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<()>;
}

impl Memory for Vec<u8> {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = start.checked_add(into.len()).and_then(|end| self.get(start..end));
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = start.checked_add(from.len()).and_then(|end| self.get_mut(start..end));
        found.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(from);
        Ok(())
    }
}

/// Events that are read at once.
const CHUNK: u64 = 1024;
/// How often an event that is not complete is waited for, if others behind it are: a second, by draining 20 times a
/// second. A thread that was stopped for good in the few instructions that write one leaves such a place.
const MAX_STUCK: u32 = 20;

/// What a call of [`Ring::drain`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events that were handed on.
    pub events: u64,
    /// Whether there may be more right away.
    pub is_full: bool,
}

/// How far a ring has been read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring {
    next: u64,
    stuck: u32,
    lost: u64,
}

impl Ring {
    /// Nothing read yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0, stuck: 0, lost: 0 }
    }

    /// Events that were in the ring and could not be read; for each run of them `each` has got a Gap.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Hands on what has come, in order, and gives its room back to the process. `is_over`: the process has ended, and
    /// what is not complete never will be.
    ///
    /// Takes a bounded time, whatever the bytes are.
    ///
    /// # Errors
    /// What reading or writing says.
    pub fn drain<M: Memory + ?Sized>(
        &mut self,
        file: &mut M,
        is_over: bool,
        mut each: impl FnMut(&Event),
    ) -> io::Result<Drained> {
        let mut raw = [0; 8];
        file.read(HEAD_OFFSET as u64, &mut raw)?;
        let head = u64::from_ne_bytes(raw) & !GAP_BIT;
        let mut drained = Drained::default();
        let waiting = head.checked_sub(self.next).filter(|waiting| *waiting <= SLOTS as u64);
        let Some(waiting) = waiting else {
            // No library wrote that; it is begun anew from here.
            let missing = head.checked_sub(self.next).unwrap_or(1);
            self.lost = self.lost.saturating_add(missing);
            each(&Event::gap(head.saturating_sub(1), self.lost));
            self.next = head;
            file.write(TAIL_OFFSET as u64, &self.next.to_ne_bytes())?;
            return Ok(drained);
        };
        let mut bytes = [0; CHUNK as usize * EVENT_BYTES];
        let end = self.next + waiting;
        let mut was_lost = false;
        while self.next < end {
            let first = self.next % SLOTS as u64;
            let count = (end - self.next).min(CHUNK).min(SLOTS as u64 - first);
            let chunk = &mut bytes[..count as usize * EVENT_BYTES];
            file.read(RING_OFFSET as u64 + first * EVENT_BYTES as u64, chunk)?;
            for slot in chunk.chunks_exact(EVENT_BYTES) {
                let mut words = [0u64; WORDS];
                for (word, raw) in words.iter_mut().zip(slot.chunks_exact(8)) {
                    *word = u64::from_ne_bytes(raw.try_into().unwrap_or_default());
                }
                let is_complete = words[0] == self.next.wrapping_add(1);
                if !is_complete && !is_over && self.stuck < MAX_STUCK {
                    self.stuck += 1;
                    file.write(TAIL_OFFSET as u64, &self.next.to_ne_bytes())?;
                    return Ok(drained);
                }
                self.stuck = 0;
                match Event::decode(&words).filter(|_| is_complete) {
                    Some(event) => {
                        drained.events += 1;
                        was_lost = false;
                        each(&event);
                    }
                    None => {
                        self.lost = self.lost.saturating_add(1);
                        if !was_lost {
                            each(&Event::gap(self.next, self.lost));
                        }
                        was_lost = true;
                    }
                }
                self.next += 1;
            }
            file.write(TAIL_OFFSET as u64, &self.next.to_ne_bytes())?;
        }
        drained.is_full = waiting > SLOTS as u64 / 2;
        Ok(drained)
    }
}
