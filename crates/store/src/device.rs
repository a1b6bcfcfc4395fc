//! Where a log lies.

use uncopy_sys::errno::Errno;

/// A run of bytes that survives power loss once it is flushed. Offsets and lengths are whole granules.
pub trait Device {
    /// Reads all of `into` from `offset` on.
    ///
    /// # Errors
    /// What the kernel says; EIO where there are fewer bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes all of `bytes` at `offset`; they may be lost, each sector by itself, until [`Device::flush`] has returned.
    ///
    /// # Errors
    /// What the kernel says: then nothing is known of these bytes.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Waits until all that was written before survives.
    ///
    /// # Errors
    /// What the kernel says: then nothing is known of what was written since the last flush.
    fn flush(&self) -> Result<(), Errno>;
}

impl<D: Device> Device for &D {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        (**self).read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        (**self).write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), Errno> {
        (**self).flush()
    }
}
