//! Ring of records, shared with the kernel (perf_event_open(2), "MMAP layout").
//!
//! ```text
//! | header page | data: a power of two of bytes                      |
//!                  ^ tail: next to consume   ^ head: next to be written
//! ```
//!
//! `tail ≤ head ≤ tail + data`; both only grow. The kernel writes only outside `tail..head`, and drops and
//! counts records that do not fit.
#![allow(unsafe_code)]

use linux_perf_event_reader::{RawData, RawEventRecord, RecordParseInfo, RecordType};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, ptr, slice};

/// Bytes of the header of a record: type, flags, size.
const HEADER_BYTES: u64 = size_of::<u64>() as u64;
/// Smallest size of a ring that is tried, bytes. Users without CAP_IPC_LOCK may map
/// `kernel.perf_event_mlock_kb` for each processor, by default 512 KiB and a page.
const MIN_BYTES: usize = 64 << 10;
/// Size of the largest ring, a power of two.
const MAX_BYTES: usize = 4 << 20;

/// Ring of one event, unmapped when dropped.
pub struct Ring {
    header: *mut perf_event_mmap_page,
    page_bytes: usize,
    data_bytes: usize,
}

impl Ring {
    /// Maps the largest ring up to `max_bytes` that the kernel allows.
    ///
    /// # Errors
    /// The error for the smallest ring.
    pub fn map(event: &OwnedFd, max_bytes: usize) -> io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let mut error = io::Error::from_raw_os_error(libc::EPERM);
        let sizes = std::iter::successors(Some(MAX_BYTES), |size| Some(size / 2));
        let sizes = sizes.take_while(|size| *size >= MIN_BYTES);
        for data_bytes in sizes.filter(|size| *size <= max_bytes.max(MIN_BYTES)) {
            // SAFETY: without an address hint the kernel chooses an unused range, which affects no other
            // mapping.
            let mapped = unsafe {
                rustix::mm::mmap(
                    ptr::null_mut(),
                    page_bytes + data_bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    event,
                    0,
                )
            };
            match mapped {
                Ok(start) => return Ok(Self { header: start.cast(), page_bytes, data_bytes }),
                Err(refused) => error = refused.into(),
            }
        }
        Err(error)
    }

    /// Size of the ring's data, bytes.
    pub const fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    fn position(&self, of: *mut u64) -> &AtomicU64 {
        debug_assert!(of.addr() - self.header.addr() < self.page_bytes);
        // SAFETY: `of` points to an aligned field of the header page, which is mapped as long as `self`
        // lives and which this process accesses only by such references.
        unsafe { AtomicU64::from_ptr(of) }
    }

    fn head(&self) -> u64 {
        // SAFETY: computes the address of a field of the header, which is mapped.
        let field = unsafe { &raw mut (*self.header).data_head };
        self.position(field).load(Ordering::Acquire)
    }

    fn tail(&self) -> &AtomicU64 {
        // SAFETY: computes the address of a field of the header, which is mapped.
        let field = unsafe { &raw mut (*self.header).data_tail };
        self.position(field)
    }

    /// Bytes from `from` to `to`, which wrap around at the end of the ring.
    fn bytes(&self, from: u64, to: u64) -> RawData<'_> {
        let data = self.header.cast::<u8>().wrapping_add(self.page_bytes);
        let len = usize::try_from(to - from).unwrap_or(0).min(self.data_bytes);
        let start = usize::try_from(from % self.data_bytes as u64).unwrap_or(0);
        let first = len.min(self.data_bytes - start);
        // SAFETY: both parts lie in the mapping, which lives as long as `self`, and between tail and head:
        // the kernel does not write there until `self.consume` moves the tail, which needs `&mut self`.
        let part = |start: usize, len: usize| unsafe { slice::from_raw_parts(data.add(start), len) };
        match len - first {
            0 => RawData::Single(part(start, first)),
            rest => RawData::Split(part(start, first), part(0, rest)),
        }
    }

    /// Passes the records from `from` on until one is refused, and returns the position after the last that
    /// was taken.
    fn each(
        &self,
        from: u64,
        info: &RecordParseInfo,
        take: &mut dyn FnMut(&RawEventRecord<'_>) -> bool,
    ) -> u64 {
        let head = self.head();
        let mut at = from;
        while head - at >= HEADER_BYTES {
            let mut header = self.bytes(at, at + HEADER_BYTES);
            let mut bytes = [0; size_of::<u64>()];
            if header.read_exact(&mut bytes).is_err() {
                break;
            }
            let kind = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let flags = u16::from_ne_bytes([bytes[4], bytes[5]]);
            let size = u64::from(u16::from_ne_bytes([bytes[6], bytes[7]]));
            if size < HEADER_BYTES || size > head - at {
                // Not a record; what follows cannot be found.
                return head;
            }
            let data = self.bytes(at + HEADER_BYTES, at + size);
            let record = RawEventRecord::new(RecordType(kind), flags, data, *info);
            if !take(&record) {
                break;
            }
            at += size;
        }
        at
    }

    /// Passes records until one is refused, and frees the bytes of those taken.
    pub fn consume(&mut self, info: &RecordParseInfo, mut take: impl FnMut(&RawEventRecord<'_>) -> bool) {
        let tail = self.tail().load(Ordering::Relaxed);
        let end = self.each(tail, info, &mut take);
        self.tail().store(end, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and no borrow of it outlives `self`. If
        // munmap(2) fails, the mapping is leaked.
        let _ = unsafe { rustix::mm::munmap(self.header.cast(), self.page_bytes + self.data_bytes) };
    }
}
