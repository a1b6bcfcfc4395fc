//! Events of a recording: what a call did to which bytes.

use super::EVENT_BYTES;

/// Number of words in an event.
pub const WORDS: usize = EVENT_BYTES / 8;

/// Defines an enumeration with a code and a name for each variant.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$each])* $variant = $code,)* }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the variant with this code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// Returns the name in tables and JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

codes! {
    /// Effect of a call on the program's memory.
    Call {
        /// Bytes came from the kernel to `to`.
        Input = 1, "input";
        /// Bytes were copied from `from` to `to`, which may overlap (memmove).
        Copy = 2, "copy";
        /// Bytes at `from` went to the kernel.
        Output = 3, "output";
        /// The contents of the memory at `from` are gone: freed, unmapped, mapped over or dropped.
        Forget = 4, "forget";
        /// Pages moved from `from` to `to` without a copy. `from` is forgotten.
        Relocate = 5, "relocate";
        /// Events are missing before this one, so the reader must forget all flows. `len_bytes` is the
        /// number of events that the process has dropped so far.
        Gap = 6, "gap";
    }
}

codes! {
    /// Source of an input or destination of an output.
    Object {
        /// Memory: copies and changes of mappings.
        None = 0, "memory";
        /// A stream socket (TCP or UNIX).
        Socket = 1, "socket";
        /// A datagram or seqpacket socket.
        Datagram = 2, "datagram";
        /// A file on a disk.
        File = 3, "file";
        /// A pipe or FIFO.
        Pipe = 4, "pipe";
        /// A terminal or pseudo-terminal.
        Terminal = 5, "terminal";
        /// Anything else, such as a device or a pseudo file.
        Other = 6, "other";
        /// A stream socket whose peer is on this host.
        Near = 7, "near-socket";
    }
}

codes! {
    /// Function that the program called.
    Function {
        /// No object, or an unknown one.
        None = 0, "";
        /// `memcpy`.
        Memcpy = 1, "memcpy";
        /// `memmove`.
        Memmove = 2, "memmove";
        /// `mempcpy`.
        Mempcpy = 3, "mempcpy";
        /// `bcopy`.
        Bcopy = 4, "bcopy";
        /// `realloc`, `reallocarray`.
        Realloc = 5, "realloc";
        /// `free`.
        Free = 6, "free";
        /// `munmap`.
        Munmap = 7, "munmap";
        /// `mmap` over existing mappings.
        Mmap = 8, "mmap";
        /// `mremap`.
        Mremap = 9, "mremap";
        /// `madvise`, if it drops pages.
        Madvise = 10, "madvise";
        /// `read`.
        Read = 16, "read";
        /// `pread`.
        Pread = 17, "pread";
        /// `readv`.
        Readv = 18, "readv";
        /// `preadv`, `preadv2`.
        Preadv = 19, "preadv";
        /// `recv`.
        Recv = 20, "recv";
        /// `recvfrom`.
        Recvfrom = 21, "recvfrom";
        /// `recvmsg`.
        Recvmsg = 22, "recvmsg";
        /// `recvmmsg`.
        Recvmmsg = 23, "recvmmsg";
        /// `fread`, beyond the stream's buffer.
        Fread = 24, "fread";
        /// `write`.
        Write = 32, "write";
        /// `pwrite`.
        Pwrite = 33, "pwrite";
        /// `writev`.
        Writev = 34, "writev";
        /// `pwritev`, `pwritev2`.
        Pwritev = 35, "pwritev";
        /// `send`.
        Send = 36, "send";
        /// `sendto`.
        Sendto = 37, "sendto";
        /// `sendmsg`.
        Sendmsg = 38, "sendmsg";
        /// `sendmmsg`.
        Sendmmsg = 39, "sendmmsg";
        /// `fwrite`, beyond the stream's buffer.
        Fwrite = 40, "fwrite";
        /// `sendfile`.
        Sendfile = 48, "sendfile";
        /// `splice`.
        Splice = 49, "splice";
        /// `copy_file_range`.
        CopyFileRange = 50, "copy_file_range";
        /// `vmsplice`.
        Vmsplice = 51, "vmsplice";
    }
}

/// Flags of an event, as a bit mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The bytes never were in the program's memory (sendfile, splice). `from` and `to` are 0.
    pub const IN_KERNEL: Self = Self(1);
    /// Another part of the call that the thread's previous event describes. The duration is 0.
    pub const CONTINUES: Self = Self(1 << 1);
    /// The call was elided to see what the program touches, so the duration is not that of a copy.
    pub const SAMPLED: Self = Self(1 << 2);
    /// The bytes stay in the socket and will be received again (MSG_PEEK).
    pub const PEEKED: Self = Self(1 << 3);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both masks.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Effect of a call on a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Position in the process's order of effects, from 0.
    pub sequence: u64,
    /// Start of the call, ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Duration, ns; for an input with the time spent waiting.
    pub duration_ns: u64,
    /// Effect of the call on memory.
    pub call: Call,
    /// Source or destination of the bytes.
    pub object: Object,
    /// Function that was called.
    pub function: Function,
    /// Flags of the event.
    pub flags: Flags,
    /// File descriptor, or -1.
    pub fd: i32,
    /// Number of the thread (gettid(2)).
    pub thread: u32,
    /// Id of the caller's stack; 0 if unknown.
    pub stack: u32,
    /// Destination address; 0 if not in memory.
    pub to: u64,
    /// Source address; 0 if not in memory.
    pub from: u64,
    /// Number of bytes.
    pub len_bytes: u64,
}

impl Event {
    /// Encodes the event as the words of a slot. The first word must be written last.
    #[inline]
    #[must_use]
    pub const fn encode(&self) -> [u64; WORDS] {
        [
            self.sequence.wrapping_add(1),
            self.start_ns,
            self.duration_ns,
            self.call as u64
                | (self.object as u64) << 8
                | (self.function as u64) << 16
                | (self.flags.0 as u64) << 24
                | (self.fd as u32 as u64) << 32,
            self.thread as u64 | (self.stack as u64) << 32,
            self.to,
            self.from,
            self.len_bytes,
        ]
    }

    /// Decodes the words of a slot; `None` if they are not an event.
    #[must_use]
    pub fn decode(words: &[u64; WORDS]) -> Option<Self> {
        let [published, start_ns, duration_ns, what, who, to, from, len_bytes] = *words;
        Some(Self {
            sequence: published.checked_sub(1)?,
            start_ns,
            duration_ns,
            call: Call::from_code(what as u8)?,
            object: Object::from_code((what >> 8) as u8)?,
            function: Function::from_code((what >> 16) as u8)?,
            flags: Flags((what >> 24) as u8),
            fd: ((what >> 32) as u32).cast_signed(),
            thread: who as u32,
            stack: (who >> 32) as u32,
            to,
            from,
            len_bytes,
        })
    }

    /// Returns an event that stands for `missing` missing events.
    #[must_use]
    pub const fn gap(sequence: u64, missing: u64) -> Self {
        Self {
            sequence,
            start_ns: 0,
            duration_ns: 0,
            call: Call::Gap,
            object: Object::None,
            function: Function::None,
            flags: Flags(0),
            fd: -1,
            thread: 0,
            stack: 0,
            to: 0,
            from: 0,
            len_bytes: missing,
        }
    }
}
