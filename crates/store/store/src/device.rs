//! The device of a log, and memory from which it can be written with O_DIRECT.

use uncopy_sys::descriptor::OwnRef;
use uncopy_sys::errno::Errno;
use uncopy_sys::file;

/// A run of bytes that survives power loss once it is flushed. Offsets and lengths are whole granules.
pub trait Device {
    /// Reads `into.len()` bytes at `offset`.
    ///
    /// # Errors
    /// The error of the read; EIO if the device has fewer bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes all of `bytes` at `offset`. Each sector may be lost until [`Device::flush`] has returned.
    ///
    /// # Errors
    /// The error of the write; the content of this range is then unknown.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Waits until all completed writes are durable.
    ///
    /// # Errors
    /// The error of the flush; the content of everything written since the last flush is then unknown.
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

/// Alignment of memory for O_DIRECT, bytes.
const PAGE_BYTES: usize = 4096;

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE_BYTES]);

/// A buffer aligned for O_DIRECT.
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
    /// An empty buffer without memory.
    pub const NONE: Self = Self { pages: Vec::new(), len_bytes: 0 };

    /// Sets the length. The contents are unspecified afterwards.
    pub fn resize(&mut self, len_bytes: usize) {
        let pages = len_bytes.div_ceil(PAGE_BYTES);
        if pages > self.pages.len() {
            self.pages.reserve_exact(pages - self.pages.len());
            self.pages.resize(pages, Page([0; PAGE_BYTES]));
        }
        self.len_bytes = len_bytes;
    }

    /// Returns the memory that the buffer takes, bytes.
    #[must_use]
    pub const fn capacity_bytes(&self) -> usize {
        self.pages.capacity() * PAGE_BYTES
    }
}

impl core::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Page` is an array of bytes without padding, and `resize` keeps at least `len_bytes` bytes of
        // initialised pages, which `&self` borrows.
        unsafe { core::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len_bytes) }
    }
}

impl core::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, with the initialised pages borrowed exclusively by `&mut self`.
        unsafe { core::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.len_bytes) }
    }
}

/// A log in a file, open for direct writes or for a recovery.
#[derive(Clone, Copy, Debug)]
pub struct LogFile {
    /// Descriptor of the log, opened with `O_DIRECT` except for a recovery.
    pub fd: OwnRef,
    /// Required alignment of memory, bytes.
    pub granule_bytes: usize,
}

impl LogFile {
    /// Returns a log whose required alignment is not known yet: a page is assumed.
    #[must_use]
    pub const fn new(fd: OwnRef) -> Self {
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
