//! Memory of the block heap: two reservations, for the blocks and for their records.

use crate::state::gate::HEAP_LEN_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::{Advice, Reservation};
use uncopy_sys::sync::atomic::Ordering::Acquire;
use uncopy_sys::sync::{Peek, UnsafeCell};

/// The two reservations, once they are made.
pub struct HeapMemory(UnsafeCell<Option<(Reservation, Reservation)>>);

// SAFETY: the value is written once, before `HEAP_LEN_BYTES` is published, and read only after that.
unsafe impl Sync for HeapMemory {}

uncopy_sys::statics! {
    /// The heap's memory in this process.
    pub static HEAP_MEMORY: HeapMemory = HeapMemory(UnsafeCell::new(None));
}

impl HeapMemory {
    /// Sets the reservations of the blocks and of their records.
    ///
    /// # Safety
    /// To be called once, before `HEAP_LEN_BYTES` is published.
    pub(super) unsafe fn set(&self, blocks: Reservation, records: Reservation) {
        // SAFETY: readers first check `HEAP_LEN_BYTES`, which the caller publishes after this call; there
        // is no other writer.
        unsafe { *self.0.get() = Some((blocks, records)) };
    }

    pub(super) fn reservations(&self) -> Option<(Reservation, Reservation)> {
        if HEAP_LEN_BYTES.load(Acquire) == 0 {
            return None;
        }
        // SAFETY: the value was written before the length was published, and is never written again.
        unsafe { *self.0.peek() }
    }

    /// Makes the pages of a plain block present.
    ///
    /// # Errors
    /// ENOMEM without a heap; the errors of the kernel.
    pub fn populate(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        blocks.populate(address, len_bytes)
    }

    /// Replaces the mapping of a block by a fresh one without huge pages.
    ///
    /// # Errors
    /// ENOMEM without a heap; the errors of mmap(2). Nothing has changed then.
    ///
    /// # Safety
    /// The block must be free and in no list, and only mappings of the heap may be there.
    pub(super) unsafe fn renew(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        // SAFETY: the caller promises that the block is free, so that the mapping's bytes are not needed.
        unsafe { blocks.renew(address, len_bytes) }?;
        blocks.advise(address, len_bytes, Advice::NoHugePages);
        Ok(())
    }

    /// Replaces pages of a block by an inaccessible reservation, so that no other mapping is placed there.
    ///
    /// # Errors
    /// ENOMEM without a heap; the errors of mmap(2). Nothing has changed then.
    ///
    /// # Safety
    /// The bytes at these addresses must not be needed any more.
    pub(super) unsafe fn withdraw(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        // SAFETY: the caller promises that the bytes at these addresses are not needed.
        unsafe { blocks.withdraw(address, len_bytes) }
    }

    /// Gives pages of a block back to the kernel.
    ///
    /// # Errors
    /// ENOMEM without a heap; the errors of madvise(2), EINVAL for locked memory.
    pub fn discard(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        // SAFETY: callers pass pages whose bytes are not needed: of blocks that were never touched, or are
        // free and in no list, or pages about to be overwritten whole, under the block's lock.
        unsafe { blocks.discard(address, len_bytes) }
    }
}
