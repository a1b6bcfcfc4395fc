//! A socket of AF_XDP in copy mode (Documentation/networking/af_xdp.rst): frames in memory that it shares with the kernel, and four rings
//! that say whose each is.
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

/// A frame of shared memory, bytes: a page, which the kernel wants where frames are aligned.
const FRAME_BYTES: usize = 4096;
/// Of a frame, what the kernel keeps in front of what it receives (XDP_PACKET_HEADROOM), bytes.
const HEADROOM_BYTES: usize = 256;
/// The longest Ethernet frame, bytes.
pub(super) const MAX_FRAME_BYTES: usize = FRAME_BYTES - HEADROOM_BYTES;
/// Frames of each direction, a power of two.
const FRAMES: u32 = 2048;
/// Calls in a row that have the kernel send; it sends 32 frames in each (TX_BATCH_SIZE, Linux 6.18).
const MAX_KICKS: u32 = 2 * FRAMES / 32;

/// Memory that is mapped as long as this is there.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
}

impl Mapping {
    /// Of a socket at an offset, or memory of nobody's.
    fn new(len_bytes: usize, socket: Option<(&OwnedFd, i64)>) -> io::Result<Self> {
        let (flags, fd, offset) = match socket {
            Some((fd, offset)) => (libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes; nothing else is changed.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: NonNull::new(base.cast()).expect("no mapping begins at 0"), len_bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; whoever has pointers into it has it as a field.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// A ring of entries, of which one side writes and the other reads. Counts wrap.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    /// What this side has written or read.
    own: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(socket: &OwnedFd, at: i64, offsets: &libc::xdp_ring_offset) -> io::Result<Self> {
        let len_bytes = offsets.desc as usize + FRAMES as usize * size_of::<T>();
        let mapping = Mapping::new(len_bytes, Some((socket, at)))?;
        let [producer, consumer, entries] =
            [offsets.producer, offsets.consumer, offsets.desc].map(|offset| offset as usize);
        Ok(Self { mapping, producer, consumer, entries, own: 0, kind: std::marker::PhantomData })
    }

    fn count(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the kernel has said that an aligned count of 32 bits is there; both sides access it as an atomic one.
        unsafe { AtomicU32::from_ptr(self.mapping.base.as_ptr().add(offset).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the mapping has FRAMES entries from there on.
        unsafe {
            self.mapping.base.as_ptr().add(self.entries).cast::<T>().add((index & (FRAMES - 1)) as usize)
        }
    }

    /// Of a ring that this side writes: whether it took the entry.
    fn put(&mut self, entry: T) -> bool {
        if self.own.wrapping_sub(self.count(self.consumer).load(Ordering::Acquire)) >= FRAMES {
            return false;
        }
        // SAFETY: the kernel reads this entry only once the count says that it is there.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        self.count(self.producer).store(self.own, Ordering::Release);
        true
    }

    /// Of a ring that this side writes: entries that the kernel has not read.
    fn waiting(&self) -> u32 {
        self.own.wrapping_sub(self.count(self.consumer).load(Ordering::Acquire))
    }

    /// Of a ring that this side reads.
    fn take(&mut self) -> Option<T> {
        if self.count(self.producer).load(Ordering::Acquire) == self.own {
            return None;
        }
        // SAFETY: the kernel has written this entry, and writes it again only once the count says that it was read.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        self.count(self.consumer).store(self.own, Ordering::Release);
        Some(entry)
    }
}

/// What could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Socket,
    Memory,
    Binding,
}

/// A socket with its rings and frames.
#[derive(Debug)]
pub(super) struct Socket {
    // The kernel lets go of the memory when the last descriptor is closed.
    fd: OwnedFd,
    fill: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    frames: Mapping,
    /// Beginnings of frames to send from.
    free: Vec<u64>,
}

/// A socket that is bound to nothing.
///
/// # Errors
/// EAFNOSUPPORT: the kernel has no AF_XDP. EPERM: it takes `CAP_NET_RAW`.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: touches no memory; the descriptor is new.
    match unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: just made.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
    // SAFETY: callers pass the structure that the option asks for, valid during the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, len) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// How long the kernel may take to release the queue of a process that was killed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

impl Socket {
    /// A socket for one queue of a device.
    ///
    /// # Errors
    /// Of the binding, EBUSY: the queue has a socket; EINVAL: there is no such queue. Of memory, ENOBUFS: more than may be locked.
    pub(super) fn bind(device: u32, queue: u32) -> Result<Self, (Part, io::Error)> {
        let fd = socket().map_err(|error| (Part::Socket, error))?;
        let memory = |error| (Part::Memory, error);
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
        // SAFETY: all-zero bytes are a valid structure; the kernel writes at most its length.
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
            fill.put(frame(index));
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
        // SAFETY: the address is valid during the call.
        while unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } == -1 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) || begun.elapsed() >= RELEASE_TIMEOUT {
                return Err((Part::Binding, error));
            }
            std::thread::sleep(RELEASE_TIMEOUT / 100);
        }
        let free = (FRAMES..2 * FRAMES).map(frame).collect();
        Ok(Self { fd, fill, receive, transmit, completion, frames, free })
    }

    /// Hands the next received frame to `with`, then the memory back to the kernel. `None`: there is none.
    pub(super) fn receive<T>(&mut self, with: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let entry = self.receive.take()?;
        let (at, len) = (entry.addr as usize, entry.len as usize);
        assert!(
            at < FRAMES as usize * FRAME_BYTES && at % FRAME_BYTES + len <= FRAME_BYTES,
            "a frame of ours"
        );
        // SAFETY: within the mapping, as was just verified; the frame is ours until it is in the fill ring again.
        let frame = unsafe { std::slice::from_raw_parts(self.frames.base.as_ptr().add(at), len) };
        let result = with(frame);
        // There is room: as many frames as entries.
        self.fill.put((at - at % FRAME_BYTES) as u64);
        Some(result)
    }

    /// Has `with` write a frame, which it says the length of in bytes, and puts it in line; `false`: there is no room.
    pub(super) fn put(&mut self, with: impl FnOnce(&mut [u8]) -> usize) -> bool {
        while let Some(at) = self.completion.take() {
            self.free.push(at);
        }
        let Some(at) = self.free.pop() else { return false };
        // SAFETY: a frame of the mapping that is ours, as it is in no ring.
        let frame = unsafe {
            std::slice::from_raw_parts_mut(self.frames.base.as_ptr().add(at as usize), FRAME_BYTES)
        };
        let len = with(&mut frame[..MAX_FRAME_BYTES]) as u32;
        // There is room: as many frames as entries.
        self.transmit.put(libc::xdp_desc { addr: at, len, options: 0 })
    }

    /// Has the kernel send what is in line. What it has no room for waits until the next call, or until somebody polls.
    ///
    /// # Errors
    /// ENETDOWN: the device is down. ENXIO: it is gone.
    pub(super) fn kick(&self) -> io::Result<()> {
        for _ in 0..MAX_KICKS {
            let before = self.transmit.waiting();
            if before == 0 {
                break;
            }
            let nothing = std::ptr::null();
            // SAFETY: an empty message.
            let sent = unsafe {
                libc::sendto(self.fd.as_raw_fd(), nothing, 0, libc::MSG_DONTWAIT, nothing.cast(), 0)
            };
            if sent == -1 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {
                        if self.transmit.waiting() == before {
                            break;
                        }
                    }
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// What has happened to the socket itself.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn verify(&self) -> io::Result<()> {
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
