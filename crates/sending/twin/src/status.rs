//! Whether twin memory is sent by reference, and if not, why.

use core::fmt;
use uncopy_sys::errno::Errno;

/// Reason why nothing is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum InactiveReason {
    /// The kernel refused userfaultfd.
    Refused = 1,
    /// userfaultfd lacks write protection (Linux 5.7).
    NoFeature = 2,
    /// The memory could not be registered with userfaultfd.
    NotRegistered = 3,
    /// The handler thread could not be started.
    NoHandler = 4,
    /// The kernel cannot wipe memory in forked children (Linux 4.14).
    NotWiped = 5,
    /// A seccomp filter kills the process for system calls that are needed.
    Filtered = 6,
    /// The kernel's page size is not 4 KiB.
    PageSize = 7,
    /// There is no memory for the allocator's buffers.
    NoMemory = 8,
    /// The program closed the descriptor, or the kernel refused to protect pages.
    NotProtected = 9,
    /// The program switched lending off.
    SwitchedOff = 10,
}

impl InactiveReason {
    pub(crate) const ALL: [Self; 10] = [
        Self::Refused,
        Self::NoFeature,
        Self::NotRegistered,
        Self::NoHandler,
        Self::NotWiped,
        Self::Filtered,
        Self::PageSize,
        Self::NoMemory,
        Self::NotProtected,
        Self::SwitchedOff,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Refused => "userfaultfd was refused",
            Self::NoFeature => "userfaultfd lacks write protection (Linux 5.7)",
            Self::NotRegistered => "the memory could not be registered with userfaultfd",
            Self::NoHandler => "the handler thread could not be started",
            Self::NotWiped => "memory cannot be wiped in forked children (Linux 4.14)",
            Self::Filtered => "a seccomp filter ends processes for calls that uncopy makes",
            Self::PageSize => "the kernel's pages have not 4096 bytes",
            Self::NoMemory => "no memory for the allocator's own data",
            Self::NotProtected => "pages could not be protected against writes",
            Self::SwitchedOff => "switched off",
        }
    }
}

/// Whether twin memory is sent by reference in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing has been lent yet.
    Dormant,
    /// Memory is sent by reference.
    Active,
    /// Memory is always copied.
    Inactive {
        /// Reason why memory is copied.
        why: InactiveReason,
        /// Error number from the kernel; 0 for none.
        errno: i32,
    },
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dormant => f.write_str("dormant: nothing has been lent yet"),
            Self::Active => f.write_str("active"),
            Self::Inactive { why, errno: 0 } => write!(f, "inactive: {}", why.text()),
            Self::Inactive { why, errno } => write!(f, "inactive: {}: {}", why.text(), Errno(*errno)),
        }
    }
}
