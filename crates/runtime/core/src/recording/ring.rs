//! Reader of a recording's ring of events.

use super::event::{Event, WORDS};
use super::{EVENT_BYTES, GAP_BIT, HEAD_OFFSET, RING_OFFSET, SLOTS, TAIL_OFFSET};

extern crate std;
use std::io;
use std::vec::Vec;

/// A recording's file, or memory that stands for one in tests.
pub trait Memory {
    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// The error of reading, also if the file is too short.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// The error of writing.
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

const CHUNK_EVENTS: u64 = 1024;
/// Number of drains that wait for an incomplete event: a second, at 20 drains per second. A thread that was
/// killed while writing an event leaves one incomplete for good.
const MAX_STUCK: u32 = 20;

/// Result of one [`Ring::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Number of events passed on.
    pub events: u64,
    /// Whether the ring was more than half full, so that the next drain should come soon.
    pub is_full: bool,
}

/// Read position in a ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring {
    next: u64,
    stuck: u32,
    lost: u64,
}

impl Ring {
    /// Returns a reader at position 0.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0, stuck: 0, lost: 0 }
    }

    /// Returns the number of events that were unreadable. Each run of them was reported as a Gap.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Passes new events to `each` in order, and frees their slots for the process. With `is_over` the
    /// process has ended, so an incomplete event will stay incomplete.
    ///
    /// Takes a bounded time, whatever the contents of the file.
    ///
    /// # Errors
    /// The error of reading or writing the file.
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
        let unread = head.checked_sub(self.next).filter(|unread| *unread <= SLOTS as u64);
        let Some(unread) = unread else {
            // The library never writes such a head: start again from there.
            let missing = head.checked_sub(self.next).unwrap_or(1);
            self.lost = self.lost.saturating_add(missing);
            each(&Event::gap(head.saturating_sub(1), self.lost));
            self.next = head;
            file.write(TAIL_OFFSET as u64, &self.next.to_ne_bytes())?;
            return Ok(drained);
        };
        let mut bytes = [0; CHUNK_EVENTS as usize * EVENT_BYTES];
        let end = self.next + unread;
        let mut was_lost = false;
        while self.next < end {
            let first = self.next % SLOTS as u64;
            let count = (end - self.next).min(CHUNK_EVENTS).min(SLOTS as u64 - first);
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
        drained.is_full = unread > SLOTS as u64 / 2;
        Ok(drained)
    }
}
