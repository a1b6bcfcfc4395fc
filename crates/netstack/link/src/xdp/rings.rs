//! An AF_XDP socket in copy mode (Documentation/networking/af_xdp.rst): frames in memory shared
//! with the kernel, and four rings that pass ownership of frames.
//!
//! ```text
//!   frames of receiving:  fill ring ──► kernel ──► receive ring ──► ours ──► fill ring
//!   frames of sending:    free ──► transmit ring ──► kernel ──► completion ring ──► free
//! ```
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Size of a frame of shared memory, in bytes: a page, as aligned mode requires.
const FRAME_BYTES: usize = 4096;
/// Space that the kernel reserves at the start of received frames (XDP_PACKET_HEADROOM), in bytes.
const HEADROOM_BYTES: usize = 256;
pub(super) const MAX_FRAME_BYTES: usize = FRAME_BYTES - HEADROOM_BYTES;
/// Number of frames per direction, a power of two.
const FRAMES: u32 = 2048;
/// Maximum number of send calls in a row; the kernel sends 32 frames in each (TX_BATCH_SIZE, Linux 6.18).
const MAX_KICKS: u32 = 2 * FRAMES / 32;

/// A memory mapping, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
}

impl Mapping {
    /// Maps a socket's memory at an offset, or anonymous memory.
    fn new(len_bytes: usize, socket: Option<(&OwnedFd, i64)>) -> io::Result<Self> {
        let (flags, fd, offset) = match socket {
            Some((fd, offset)) => (libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced; `fd` is open or -1.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: NonNull::new(base.cast()).expect("no mapping begins at 0"), len_bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is that of a successful mmap; pointers into the mapping do not outlive `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// A ring with one producer and one consumer. Counters wrap.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    /// This side's counter: entries produced or consumed.
    cursor: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(socket: &OwnedFd, at: i64, offsets: &libc::xdp_ring_offset) -> io::Result<Self> {
        let len_bytes = offsets.desc as usize + FRAMES as usize * size_of::<T>();
        let mapping = Mapping::new(len_bytes, Some((socket, at)))?;
        let [producer, consumer, entries] =
            [offsets.producer, offsets.consumer, offsets.desc].map(|offset| offset as usize);
        Ok(Self { mapping, producer, consumer, entries, cursor: 0, kind: std::marker::PhantomData })
    }

    fn count(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `xdp_ring_offset` places an aligned 32-bit counter in the mapping, which both
        // sides access atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.base.as_ptr().add(offset).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the mapping has FRAMES entries from `entries` on, and the masked index is below FRAMES.
        unsafe {
            self.mapping.base.as_ptr().add(self.entries).cast::<T>().add((index & (FRAMES - 1)) as usize)
        }
    }

    /// Produces an entry. Returns false if the ring is full.
    fn produce(&mut self, entry: T) -> bool {
        if self.cursor.wrapping_sub(self.count(self.consumer).load(Ordering::Acquire)) >= FRAMES {
            return false;
        }
        // SAFETY: `entry` is in the mapping, and the kernel reads the slot only after the store below.
        unsafe { self.entry(self.cursor).write(entry) };
        self.cursor = self.cursor.wrapping_add(1);
        self.count(self.producer).store(self.cursor, Ordering::Release);
        true
    }

    /// Returns the number of produced entries that the kernel has not consumed.
    fn unconsumed(&self) -> u32 {
        self.cursor.wrapping_sub(self.count(self.consumer).load(Ordering::Acquire))
    }

    fn consume(&mut self) -> Option<T> {
        if self.count(self.producer).load(Ordering::Acquire) == self.cursor {
            return None;
        }
        // SAFETY: the kernel wrote this slot before its counter, and waits for the store below to reuse it.
        let entry = unsafe { self.entry(self.cursor).read() };
        self.cursor = self.cursor.wrapping_add(1);
        self.count(self.consumer).store(self.cursor, Ordering::Release);
        Some(entry)
    }
}

/// The step of [`Socket::bind`] that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindStep {
    Socket,
    Memory,
    Binding,
}

#[derive(Debug)]
pub(super) struct Socket {
    // The kernel releases the memory when the last descriptor is closed.
    fd: OwnedFd,
    fill: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    frames: Mapping,
    /// Offsets of frames free for sending.
    free: Vec<u64>,
}

/// Returns an unbound AF_XDP socket.
///
/// # Errors
/// EAFNOSUPPORT: the kernel has no AF_XDP. EPERM: requires `CAP_NET_RAW`.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes integers only.
    match unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: `fd` is a new descriptor without another owner.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
    // SAFETY: `value` is valid for `len` bytes during the call; callers pass the type that `option` requires.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, len) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Maximum time that the kernel needs to release the queue of a killed process.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

impl Socket {
    /// Binds a socket to one queue of a device.
    ///
    /// # Errors
    /// When binding, EBUSY: the queue is in use; EINVAL: no such queue. For memory, ENOBUFS: RLIMIT_MEMLOCK.
    pub(super) fn bind(device: u32, queue: u32) -> Result<Self, (BindStep, io::Error)> {
        let fd = socket().map_err(|error| (BindStep::Socket, error))?;
        let memory = |error| (BindStep::Memory, error);
        let frames = Mapping::new(2 * FRAMES as usize * FRAME_BYTES, None).map_err(memory)?;
        let registered = libc::xdp_umem_reg_v1 {
            addr: frames.base.as_ptr() as u64,
            len: frames.len_bytes as u64,
            chunk_size: FRAME_BYTES as u32,
            headroom: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &registered).map_err(memory)?;
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            set(&fd, ring, &FRAMES).map_err(memory)?;
        }
        // SAFETY: all-zero bytes are valid for a struct of integers; the kernel writes at most `len` bytes.
        let offsets = unsafe {
            let mut offsets: libc::xdp_mmap_offsets = std::mem::zeroed();
            let mut len = size_of::<libc::xdp_mmap_offsets>() as u32;
            let to = (&raw mut offsets).cast();
            match libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, to, &raw mut len) {
                -1 => return Err(memory(io::Error::last_os_error())),
                _ => offsets,
            }
        };
        let (filling, completing) =
            (libc::XDP_UMEM_PGOFF_FILL_RING as i64, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64);
        let mut fill = Ring::new(&fd, filling, &offsets.fr).map_err(memory)?;
        let completion = Ring::new(&fd, completing, &offsets.cr).map_err(memory)?;
        let receive = Ring::new(&fd, libc::XDP_PGOFF_RX_RING, &offsets.rx).map_err(memory)?;
        let transmit = Ring::new(&fd, libc::XDP_PGOFF_TX_RING, &offsets.tx).map_err(memory)?;
        let frame = |index: u32| u64::from(index) * FRAME_BYTES as u64;
        for index in 0..FRAMES {
            fill.produce(frame(index));
        }
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: device,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of::<libc::sockaddr_xdp>() as u32;
        let begun = Instant::now();
        // SAFETY: `address` is a `sockaddr_xdp` of `len` bytes that outlives the call.
        while unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } == -1 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) || begun.elapsed() >= RELEASE_TIMEOUT {
                return Err((BindStep::Binding, error));
            }
            std::thread::sleep(RELEASE_TIMEOUT / 100);
        }
        let free = (FRAMES..2 * FRAMES).map(frame).collect();
        Ok(Self { fd, fill, receive, transmit, completion, frames, free })
    }

    /// Passes the next received frame to `with`, then its memory to the kernel. `None` if there is none.
    pub(super) fn receive<T>(&mut self, with: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let entry = self.receive.consume()?;
        let (at, len) = (entry.addr as usize, entry.len as usize);
        assert!(
            at < FRAMES as usize * FRAME_BYTES && at % FRAME_BYTES + len <= FRAME_BYTES,
            "a frame of ours"
        );
        // SAFETY: the range was checked above; this side owns the frame until the fill ring has it.
        let frame = unsafe { std::slice::from_raw_parts(self.frames.base.as_ptr().add(at), len) };
        let result = with(frame);
        // Cannot fail: the ring has an entry for every frame.
        self.fill.produce((at - at % FRAME_BYTES) as u64);
        Some(result)
    }

    /// Queues a frame that `with` writes, returning its length in bytes. Returns false if there is no room.
    pub(super) fn enqueue(&mut self, with: impl FnOnce(&mut [u8]) -> usize) -> bool {
        while let Some(at) = self.completion.consume() {
            self.free.push(at);
        }
        let Some(at) = self.free.pop() else { return false };
        // SAFETY: `free` has offsets within the mapping of frames that are in no ring, so nobody
        // else uses them.
        let frame = unsafe {
            std::slice::from_raw_parts_mut(self.frames.base.as_ptr().add(at as usize), FRAME_BYTES)
        };
        let len = with(&mut frame[..MAX_FRAME_BYTES]) as u32;
        // Cannot fail: the ring has an entry for every frame.
        self.transmit.produce(libc::xdp_desc { addr: at, len, options: 0 })
    }

    /// Makes the kernel send the queued frames. Frames without room wait for the next call or poll.
    ///
    /// # Errors
    /// ENETDOWN: the device is down. ENXIO: the device is gone.
    pub(super) fn kick(&self) -> io::Result<()> {
        for _ in 0..MAX_KICKS {
            let before = self.transmit.unconsumed();
            if before == 0 {
                break;
            }
            let nothing = std::ptr::null();
            // SAFETY: the message and the address are null with length 0, so sendto(2) reads no memory.
            let sent = unsafe {
                libc::sendto(self.fd.as_raw_fd(), nothing, 0, libc::MSG_DONTWAIT, nothing.cast(), 0)
            };
            if sent == -1 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {
                        if self.transmit.unconsumed() == before {
                            break;
                        }
                    }
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Returns the pending error of the socket.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn take_error(&self) -> io::Result<()> {
        match rustix::net::sockopt::socket_error(&self.fd)? {
            Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
