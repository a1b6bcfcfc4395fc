//! Whether twin memory is sent by reference, and if not, why.

use core::fmt;
use uncopy_sys::errno::Errno;

/// Why nothing is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Why {
    /// userfaultfd was refused.
    Refused = 1,
    /// userfaultfd cannot protect pages (Linux 5.7).
    NoFeature = 2,
    /// The memory could not be registered.
    NotRegistered = 3,
    /// The handler thread could not be started.
    NoHandler = 4,
    /// The kernel cannot keep what belongs to one process from its children (Linux 4.14).
    NotWiped = 5,
    /// A seccomp filter ends processes for calls that this needs.
    Filtered = 6,
    /// The kernel's pages have another size.
    PageSize = 7,
    /// No memory for what is needed.
    NoMemory = 8,
    /// The program closed the descriptor, or the kernel refused to protect pages.
    NotProtected = 9,
    /// The program asked for it.
    Asked = 10,
}

impl Why {
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
        Self::Asked,
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
            Self::Asked => "switched off",
        }
    }
}

/// Whether twin memory is sent by reference in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing has been lent yet.
    Dormant,
    /// It is.
    Active,
    /// It is copied, for good.
    Inactive {
        /// Why.
        why: Why,
        /// What the kernel said; 0: nothing.
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
