//! Where a log lies, and memory that can be written to it directly.

use uncopy_sys::errno::Errno;
use uncopy_sys::file;

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

/// Alignment of memory that is written directly, bytes.
const PAGE_BYTES: usize = 4096;

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE_BYTES]);

/// Bytes in memory that can be written directly.
#[derive(Default)]
pub struct Aligned {
    pages: Vec<Page>,
    len_bytes: usize,
}

impl core::fmt::Debug for Aligned {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes", self.len_bytes)
    }
}

impl Aligned {
    /// No byte.
    pub const NONE: Self = Self { pages: Vec::new(), len_bytes: 0 };

    /// Makes it so long; what it holds is unspecified.
    pub fn resize(&mut self, len_bytes: usize) {
        let pages = len_bytes.div_ceil(PAGE_BYTES);
        if pages > self.pages.len() {
            self.pages.reserve_exact(pages - self.pages.len());
            self.pages.resize(pages, Page([0; PAGE_BYTES]));
        }
        self.len_bytes = len_bytes;
    }

    /// Memory that it takes, bytes.
    #[must_use]
    pub const fn capacity_bytes(&self) -> usize {
        self.pages.capacity() * PAGE_BYTES
    }
}

impl core::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: pages are bytes without padding, and there are at least so many.
        unsafe { core::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len_bytes) }
    }
}

impl core::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`.
        unsafe { core::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.len_bytes) }
    }
}

/// A log in a file, which is written directly, or recovered.
#[derive(Clone, Copy, Debug)]
pub struct LogFile {
    /// A descriptor, closed by its owner; with `O_DIRECT` but for a recovery.
    pub fd: i32,
    /// What memory has to be aligned to, bytes.
    pub granule_bytes: usize,
}

impl LogFile {
    /// A log of which it is not known yet what memory has to be aligned to.
    #[must_use]
    pub const fn new(fd: i32) -> Self {
        Self { fd, granule_bytes: PAGE_BYTES }
    }
}

impl Device for LogFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let read = |into: &mut [u8]| {
            let is_whole = file::read_at(self.fd, offset, into)? == into.len();
            if is_whole { Ok(()) } else { Err(Errno(libc::EIO)) }
        };
        if (into.as_ptr() as usize).is_multiple_of(self.granule_bytes) {
            return read(into);
        }
        let mut aligned = Aligned::default();
        aligned.resize(into.len());
        read(&mut aligned)?;
        into.copy_from_slice(&aligned);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        if (bytes.as_ptr() as usize).is_multiple_of(self.granule_bytes) {
            return file::write_at(self.fd, offset, bytes);
        }
        let mut aligned = Aligned::default();
        aligned.resize(bytes.len());
        aligned.copy_from_slice(bytes);
        file::write_at(self.fd, offset, &aligned)
    }

    fn flush(&self) -> Result<(), Errno> {
        file::sync_data(self.fd)
    }
}
