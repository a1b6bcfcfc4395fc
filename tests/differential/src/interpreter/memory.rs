//! Operations on memory alone: allocation, copies, stores and loads.

use std::hint::black_box;
use std::os::raw::{c_int, c_void};

use uncopy_tests::calls::CopyCall;

use super::{GENERAL_SLOTS, SLOTS, Verdict, Worker};
use crate::buffer::{Buffer, MAX_BUFFER, Origin};
use crate::model::{Mirror, pool, pool_offset};

impl Worker<'_> {
    /// Frees a slot's buffer. The static buffer and the one on the stack stay where they are.
    pub(super) fn free_slot(&mut self, slot: usize) {
        if slot % SLOTS < GENERAL_SLOTS
            && let Some(buffer) = self.slots[slot % SLOTS].take()
            && let Some(mirror) = buffer.release()
        {
            self.spare_mirrors.push(mirror);
        }
    }

    pub(super) fn allocate(&mut self, slot: usize, call: usize, len: usize, align: usize) -> Verdict {
        let slot = slot % GENERAL_SLOTS;
        self.check_start(slot)?;
        self.free_slot(slot);
        let mirror = self.spare_mirrors.pop().unwrap_or_else(|| Mirror::new(MAX_BUFFER));
        let buffer = Buffer::allocate(call, len, align, mirror)?;
        self.slots[slot] = Some(buffer);
        Ok(())
    }

    pub(super) fn resize(&mut self, slot: usize, call: usize, len: usize) -> Verdict {
        match &mut self.slots[slot % SLOTS] {
            Some(buffer) if buffer.origin() == Origin::Heap => buffer.resize(call, len),
            _ => Ok(()),
        }
    }

    pub(super) fn extend_to_usable(&mut self, slot: usize) -> Verdict {
        match &mut self.slots[slot % SLOTS] {
            Some(buffer) if buffer.origin() == Origin::Heap => buffer.extend_to_usable(),
            _ => Ok(()),
        }
    }

    pub(super) fn copy(
        &mut self,
        call: usize,
        from: usize,
        at: usize,
        to: usize,
        to_at: usize,
        len: usize,
    ) -> Verdict {
        let (from, to) = (from % SLOTS, to % SLOTS);
        if from == to {
            return self.move_within(call, from, at, to_at, len);
        }
        let Ok([Some(source), Some(target)]) = self.slots.get_disjoint_mut([from, to]) else { return Ok(()) };
        let (at, len) = source.range(at, len);
        let (to_at, len) = target.range(to_at, len);
        let call = CopyCall::ALL[call % CopyCall::ALL.len()];
        // SAFETY: the ranges are inside their buffers, which are different ones.
        unsafe { call.copy(target.at(to_at), source.at(at), len) };
        target.mirror.copy_from(to_at, &source.mirror, at, len);
        Ok(())
    }

    pub(super) fn move_within(
        &mut self,
        call: usize,
        slot: usize,
        at: usize,
        to_at: usize,
        len: usize,
    ) -> Verdict {
        let Some(buffer) = &mut self.slots[slot % SLOTS] else { return Ok(()) };
        let (at, len) = buffer.range(at, len);
        let (to_at, len) = buffer.range(to_at, len);
        let apart = at.abs_diff(to_at) >= len;
        let calls = if apart { CopyCall::ALL } else { CopyCall::OVERLAPPING };
        // SAFETY: both ranges are inside the buffer; only calls that allow overlap get overlapping ranges.
        unsafe { calls[call % calls.len()].copy(buffer.at(to_at), buffer.at(at), len) };
        buffer.mirror.move_within(to_at, at, len);
        Ok(())
    }

    pub(super) fn fill(&mut self, how: usize, slot: usize, at: usize, len: usize, seed: usize) -> Verdict {
        let Some(buffer) = &mut self.slots[slot % SLOTS] else { return Ok(()) };
        let (at, len) = buffer.range(at, len);
        match how % 3 {
            0 => {
                let value = c_int::from(seed.to_le_bytes()[0]);
                // SAFETY: the range is inside the buffer, which is writable.
                unsafe {
                    black_box(libc::memset as unsafe extern "C" fn(_, _, _) -> *mut c_void)(
                        buffer.at(at).cast::<c_void>(),
                        value,
                        len,
                    );
                }
                buffer.mirror.set(at, len, seed.to_le_bytes()[0]);
            }
            how => {
                let pool_offset = pool_offset(seed, len);
                if how == 1 {
                    // SAFETY: the range is inside the buffer, and the pool has `len` bytes from `pool_offset` on.
                    unsafe { uncopy_tests::oracle::copy(buffer.at(at), pool().at(pool_offset), len) };
                } else {
                    for index in 0..len {
                        // SAFETY: the buffer and the pool both have the byte.
                        unsafe {
                            buffer
                                .at(at + index)
                                .write_volatile(pool().at(pool_offset + index).read_volatile())
                        };
                    }
                }
                buffer.mirror.copy_from_pool(at, pool_offset, len);
            }
        }
        Ok(())
    }

    pub(super) fn check(&self, slot: usize, at: usize, len: usize) -> Verdict {
        let Some(buffer) = self.buffer(slot) else { return Ok(()) };
        let (at, len) = buffer.range(at, len);
        self.check_range(slot, at, len)
    }
}
