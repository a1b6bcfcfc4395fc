//! The memory of the block heap: two reservations, of the blocks and of their records.

use crate::state::gate::HEAP_LEN_BYTES;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::{Advice, Reservation};
use uncopy_sys::sync::atomic::Ordering::Acquire;
use uncopy_sys::sync::{Peek, UnsafeCell};

/// The reservations, once there are any.
pub struct HeapMemory(UnsafeCell<Option<(Reservation, Reservation)>>);

// SAFETY: written once, before `HEAP_LEN_BYTES` is published, and only read after that.
unsafe impl Sync for HeapMemory {}

uncopy_sys::statics! {
    /// The process's.
    pub static HEAP_MEMORY: HeapMemory = HeapMemory(UnsafeCell::new(None));
}

impl HeapMemory {
    /// Sets the reservations of the blocks and of their records.
    ///
    /// # Safety
    /// Once, and before `HEAP_LEN_BYTES` is published.
    pub(super) unsafe fn set(&self, blocks: Reservation, records: Reservation) {
        // SAFETY: nobody reads it before the length is published, which the caller does after this.
        unsafe { *self.0.get() = Some((blocks, records)) };
    }

    /// The reservations of the blocks and of their records.
    pub(super) fn reservations(&self) -> Option<(Reservation, Reservation)> {
        if HEAP_LEN_BYTES.load(Acquire) == 0 {
            return None;
        }
        // SAFETY: written before the length was published, never again.
        unsafe { *self.0.peek() }
    }

    /// Makes the pages of a plain block present.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn populate(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        blocks.populate(address, len_bytes)
    }

    /// Puts a fresh mapping, without huge pages, in the place of a block's.
    ///
    /// # Errors
    /// What the kernel says; nothing has changed then.
    ///
    /// # Safety
    /// The block must be free and in no list, and nothing but the heap's mappings may be there.
    pub(super) unsafe fn renew(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        // SAFETY: the caller says that nobody needs what is there.
        unsafe { blocks.renew(address, len_bytes) }?;
        blocks.advise(address, len_bytes, Advice::NoHugePages);
        Ok(())
    }

    /// Reserves addresses of a block again: nothing is there any more, and nobody else's mapping will be.
    ///
    /// # Errors
    /// What the kernel says; nothing has changed then.
    ///
    /// # Safety
    /// Nobody may need what is there.
    pub(super) unsafe fn withdraw(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        // SAFETY: the caller says that nobody needs what is there.
        unsafe { blocks.withdraw(address, len_bytes) }
    }

    /// Gives pages of a block back to the kernel.
    ///
    /// # Errors
    /// What the kernel says; EINVAL for locked memory.
    pub fn discard(&self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let (blocks, _) = self.reservations().ok_or(Errno::ENOMEM)?;
        // SAFETY: called for what holds nothing: blocks that were never touched, or are free and in no list, and pages whose
        // bytes are about to be overwritten whole, under the block's lock.
        unsafe { blocks.discard(address, len_bytes) }
    }
}
