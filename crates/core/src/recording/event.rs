//! One event of a recording: what a call did to which bytes.

use super::EVENT_BYTES;

/// Words of an event.
pub const WORDS: usize = EVENT_BYTES / 8;

/// Makes an enumeration with a code and a name for each variant.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$each])* $variant = $code,)* }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The variant with this code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// Name in tables and JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

codes! {
    /// What a call does to the program's memory.
    Call {
        /// Bytes came from the kernel: `to` is where they are.
        Input = 1, "input";
        /// Bytes were copied from `from` to `to`; the two may overlap (memmove).
        Copy = 2, "copy";
        /// Bytes at `from` went to the kernel.
        Output = 3, "output";
        /// What the memory at `from` holds is nobody's any more: freed, unmapped, mapped over, dropped.
        Forget = 4, "forget";
        /// Bytes are at `to` that were at `from`, moved by page tables: nothing was copied, and `from` is forgotten.
        Relocate = 5, "relocate";
        /// Events before this one are missing: what was known of flows is not known any more. `len_bytes` is how many
        /// the process has dropped so far.
        Gap = 6, "gap";
    }
}

codes! {
    /// What an input came from, or an output went to.
    Object {
        /// Copies and what is done to memory.
        None = 0, "memory";
        /// A stream socket.
        Socket = 1, "socket";
        /// A socket of datagrams or sequenced packets.
        Datagram = 2, "datagram";
        /// A regular file.
        File = 3, "file";
        /// A pipe or FIFO.
        Pipe = 4, "pipe";
        /// A terminal.
        Terminal = 5, "terminal";
        /// Something else: a device, a pseudo file.
        Other = 6, "other";
        /// A stream socket whose other end is on this host.
        Near = 7, "near-socket";
    }
}

codes! {
    /// The function that the program called.
    Function {
        /// None, or not known.
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
        /// `mmap` over what was there.
        Mmap = 8, "mmap";
        /// `mremap`.
        Mremap = 9, "mremap";
        /// `madvise` that drops pages.
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
        /// `fread`, past the stream's buffer.
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
        /// `fwrite`, past the stream's buffer.
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

/// What else is to be known of an event: bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The bytes never were in the program's memory (sendfile, splice): `from` and `to` are 0.
    pub const IN_KERNEL: Self = Self(1);
    /// A further part of the call of the thread's event before: its duration is 0.
    pub const CONTINUES: Self = Self(1 << 1);
    /// The call was made as `uncopy run` makes it, to see what the program touches: its duration is not a copy's.
    pub const SAMPLED: Self = Self(1 << 2);
    /// The bytes stay in the socket and will be received again (MSG_PEEK).
    pub const PEEKED: Self = Self(1 << 3);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a call did to a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Place in the order of effects in the process, from 0.
    pub sequence: u64,
    /// When the call began, ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// How long it took, ns; of an input, with what it waited.
    pub duration_ns: u64,
    /// What it did.
    pub call: Call,
    /// What the bytes came from or went to.
    pub object: Object,
    /// The function.
    pub function: Function,
    /// What else is to be known.
    pub flags: Flags,
    /// The descriptor; -1: none.
    pub fd: i32,
    /// The thread's id, as the kernel counts them.
    pub thread: u32,
    /// Id of the stack that called; 0: not known.
    pub stack: u32,
    /// Where bytes went; 0: nowhere in memory.
    pub to: u64,
    /// Where bytes came from; 0: nowhere in memory.
    pub from: u64,
    /// How many, bytes.
    pub len_bytes: u64,
}

impl Event {
    /// The event as the words of a slot; the first is to be written last.
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

    /// The event in a slot's words; `None` if it is none.
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

    /// What stands for events that are missing, at this place in the order.
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
