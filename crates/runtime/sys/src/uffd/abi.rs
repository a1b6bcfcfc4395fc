//! Numbers and structures of include/uapi/linux/userfaultfd.h, because a distribution's headers may
//! be older than the kernel.

pub const API: u64 = 0xAA;
pub const FEATURE_WRITES: u64 = 1;
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
/// Support for `UFFDIO_MOVE` (Linux 6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;
/// The feature that the engine requires: faults report their thread.
pub const NEEDED_FEATURES: u64 = FEATURE_THREAD_ID;
/// Faults inside system calls are not served; needs no privilege (Linux 5.11).
pub const USER_MODE_ONLY: i32 = 1;

pub const IOCTL_NEW: u64 = 0xAA00;
pub const IOCTL_API: u64 = 0xC018_AA3F;
pub const IOCTL_REGISTER: u64 = 0xC020_AA00;
pub const IOCTL_UNREGISTER: u64 = 0x8010_AA01;
pub const IOCTL_WAKE: u64 = 0x8010_AA02;
pub const IOCTL_COPY: u64 = 0xC028_AA03;
pub const IOCTL_ZEROPAGE: u64 = 0xC020_AA04;
pub const IOCTL_MOVE: u64 = 0xC028_AA05;
pub const IOCTL_WRITE_PROTECT: u64 = 0xC018_AA06;

pub const REGISTER_MODE_MISSING: u64 = 1;
pub const REGISTER_MODE_WRITES: u64 = 1 << 1;
/// `UFFDIO_COPY_MODE_WP`: the new pages are write-protected.
pub const COPY_MODE_PROTECTED: u64 = 1 << 1;
pub const WRITE_PROTECT: u64 = 1;
/// `UFFD_PAGEFAULT_FLAG_WP`: a write to a protected page (`uffd_msg.arg.pagefault.flags`).
pub const FLAG_PROTECTED: u64 = 1 << 1;
pub const EVENT_PAGEFAULT: u8 = 0x12;
pub const EVENT_REMAP: u8 = 0x14;
pub const EVENT_REMOVE: u8 = 0x15;
pub const EVENT_UNMAP: u8 = 0x16;
/// Changes of mappings are reported: mremap, munmap, mappings that replace others, and madvise that
/// drops pages (Linux 4.11).
pub const FEATURE_EVENTS: u64 = (1 << 2) | (1 << 3) | (1 << 6);

#[repr(C)]
pub struct ApiArgument {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

#[repr(C)]
pub struct RangeArgument {
    pub start: u64,
    pub len_bytes: u64,
}

#[repr(C)]
pub struct RegisterArgument {
    pub range: RangeArgument,
    pub mode: u64,
    pub ioctls: u64,
}

/// Argument of `UFFDIO_COPY` and of `UFFDIO_MOVE`: both have this shape.
#[repr(C)]
pub struct PlaceArgument {
    pub destination: u64,
    pub source: u64,
    pub len_bytes: u64,
    pub mode: u64,
    /// Bytes placed, or a negated error number.
    pub done: i64,
}

#[repr(C)]
pub struct ZeroArgument {
    pub start: u64,
    pub len_bytes: u64,
    pub mode: u64,
    /// Bytes placed, or a negated error number.
    pub done: i64,
}

#[repr(C)]
pub struct ProtectArgument {
    pub range: RangeArgument,
    pub mode: u64,
}

/// Size of a request's argument, which the request number contains, bytes (include/uapi/asm-generic/ioctl.h).
const fn argument_bytes(request: u64) -> usize {
    (request >> 16) as usize & 0x3FFF
}

const _: () = assert!(
    argument_bytes(IOCTL_API) == size_of::<ApiArgument>()
        && argument_bytes(IOCTL_REGISTER) == size_of::<RegisterArgument>()
        && argument_bytes(IOCTL_UNREGISTER) == size_of::<RangeArgument>()
        && argument_bytes(IOCTL_WAKE) == size_of::<RangeArgument>()
        && argument_bytes(IOCTL_COPY) == size_of::<PlaceArgument>()
        && argument_bytes(IOCTL_ZEROPAGE) == size_of::<ZeroArgument>()
        && argument_bytes(IOCTL_MOVE) == size_of::<PlaceArgument>()
        && argument_bytes(IOCTL_WRITE_PROTECT) == size_of::<ProtectArgument>()
);
