//! Random programs as data: operations with plain numbers, and the programs' text form.
//!
//! Every list of operations is a legal program. The meaning of an operation follows from its
//! numbers and from the interpreter's state when it is reached: a slot is taken modulo the number
//! of slots, an offset modulo the buffer's length, and an operation on an empty slot does nothing.
//! So operations can be removed and numbers reduced, and the rest still runs.
//!
//! ```text
//! # comment
//! program seed=7 alarm_us=500
//! 0 allocate slot=3 call=0 len=40960 align=0
//! 0 copy call=1 from=3 at=0 to=4 to_at=45 len=16384
//! 1 check slot=0 at=0 len=4096
//! ```
//!
//! The number in front is the worker (a thread) that runs the operation.

use std::fmt;

/// Maximum count of numbers in one operation.
pub const NUMBERS: usize = 9;
/// Maximum number of workers in a program.
pub const MAX_WORKERS: usize = 4;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident $name:literal: $($operand:ident)*;)*) => {
        /// Kind of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Kind { $($(#[$doc])* $variant,)* }

        impl Kind {
            /// Every kind, in order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the kind's word in the text form.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the names of the kind's numbers, in order.
            #[must_use]
            pub const fn operands(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$(stringify!($operand)),*],)* }
            }
        }
    };
}

kinds! {
    /// Frees a slot's buffer, if any, and allocates another one by one of the allocating calls.
    Allocate "allocate": slot call len align;
    /// Frees or unmaps a slot's buffer.
    Free "free": slot;
    /// Resizes a slot's buffer by `realloc` or `reallocarray`.
    Resize "resize": slot call len;
    /// Extends a slot's buffer to all of `malloc_usable_size`.
    Usable "usable": slot;
    /// Copies between two buffers.
    Copy "copy": call from at to to_at len;
    /// Copies inside one buffer, with ranges that may overlap.
    Move "move": call slot at to_at len;
    /// Stores to a buffer: memset, whole words, single bytes.
    Fill "fill": how slot at len seed;
    /// Loads from a buffer, and compares with the model.
    Check "check": slot at len;
    /// Sends bytes to the program on a channel, whose number the operand `link` has.
    Feed "feed": link len seed;
    /// Feeds a channel and receives from it, into one or more parts.
    Receive "receive": link call flags feed slot at len parts seed;
    /// Feeds a channel with several messages and receives them with one `recvmmsg`.
    ReceiveMany "receive_many": link flags feed messages slot at len parts seed;
    /// Sends one or more parts.
    Send "send": link call flags slot at len parts seed;
    /// Sends several messages with one `sendmmsg`.
    SendMany "send_many": link messages slot at len parts seed;
    /// Receives at the peer what was sent to it, and compares with the model.
    Drain "drain": link len;
    /// Reads the worker's file into a buffer.
    FileRead "file_read": call offset slot at len parts seed;
    /// Writes a buffer to the worker's file.
    FileWrite "file_write": call offset slot at len parts seed;
    /// Lets the kernel read or write a buffer by a call that is not interposed.
    Kernel "kernel": how slot at len seed;
    /// Makes calls that return an error, zero bytes, or the end of a stream.
    Odd "odd": how slot at len seed;
    /// Calls `mprotect`, and restores the protection.
    Protect "protect": how slot at len;
    /// Calls `madvise` on whole pages of a buffer.
    Advise "advise": advice slot at len;
    /// Calls `mremap`, `munmap`, or `mmap` over an old mapping, on the program's own mappings.
    Remap "remap": how slot at len;
    /// Maps over any buffer: `mmap` with MAP_FIXED, `mremap` with MREMAP_FIXED, `shmat` with SHM_REMAP.
    Cover "cover": how slot at len seed;
    /// Calls `madvise` or `process_madvise` with advice that is not about bytes alone.
    AdviseOtherwise "advise_otherwise": by advice slot at len;
    /// Calls `mlock`, `mlock2` or `munlock`.
    Lock "lock": how slot at len;
    /// Allocates, alters and frees memory many times; nothing may pile up.
    Churn "churn": how len;
    /// Forks; the child runs the next operations, checks everything and ends.
    Fork "fork": count wait;
    /// Hands a buffer over to another worker.
    Give "give": slot to;
    /// Takes a buffer that was handed over, if there is one.
    Take "take": slot;
    /// Raises a signal whose handler copies between, and touches, buffers of its own.
    Raise "raise": times;
    /// Refills the signal handler's buffers from a pipe.
    Arm "arm": seed;
    // Operations of programs of files: see `files`.
    /// Opens a name by `open`, `openat` or `creat`.
    Open "open": slot name call flags;
    /// Opens a slot's file again through `/proc/self/fd`.
    Reopen "reopen": slot from flags;
    /// Closes a descriptor by `close` or `close_range`, also one that is not open.
    Close "close": slot how;
    /// Duplicates a descriptor by `dup`, `dup2`, `dup3`, `F_DUPFD`, or over a socket to the process itself.
    Duplicate "duplicate": how from to;
    /// Writes by `write`, `writev`, `pwrite`, `pwritev` or `pwritev2`.
    Put "put": call slot at len parts seed;
    /// Reads by `read`, `readv`, `pread` or `preadv`.
    Get "get": call slot at len parts;
    /// Writes and syncs, several times.
    Steady "steady": slot times len how seed;
    /// Seeks by `lseek`, also with an invalid `whence`.
    Seek "seek": slot whence at;
    /// Syncs by `fsync`, `fdatasync`, `sync_file_range`, `syncfs` or `sync`.
    Sync "sync": slot how at len;
    /// Sets a file's length by `ftruncate`, `truncate` or `posix_fallocate`.
    Length "length": how slot name len;
    /// Calls `fallocate` with any mode.
    Reserve "reserve": slot mode at len;
    /// Changes names by `rename`, `link`, `unlink` and variants of these.
    Name "name": how from to;
    /// Sets flags (`F_SETFL`, `F_SETFD`), locks (`flock`, `fcntl`) or the mode (`fchmod`).
    Control "control": slot how argument;
    /// Queries a name by `stat`, `fstatat` or `access`.
    Look "look": name how;
    /// Copies between files by `sendfile`, `splice` or `copy_file_range`.
    Pass "pass": how from to at to_at len;
    /// Maps the file of a slot.
    Map "map": place slot how at len;
    /// Reads, writes, syncs or unmaps a mapping.
    Mapped "mapped": place how at len seed;
    /// Runs the next operations in a forked child, or in another program that inherits the descriptors.
    Child "child": how count;
}

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The worker that runs the operation.
    pub worker: usize,
    /// Kind of the operation.
    pub kind: Kind,
    /// Numbers, in the order of [`Kind::operands`]; the rest are zero.
    pub numbers: [usize; NUMBERS],
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.worker, self.kind.name())?;
        for (name, number) in self.kind.operands().iter().zip(self.numbers) {
            write!(f, " {name}={number}")?;
        }
        Ok(())
    }
}

/// A program: its operations, and the rate of alarm signals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Seed that the program was generated from; 0 if written by hand.
    pub seed: u64,
    /// Microseconds between alarm signals; 0 for none.
    pub alarm_us: usize,
    /// Operations in program order.
    pub operations: Vec<Operation>,
}

impl Program {
    /// Returns the number of workers that the program needs, at least one.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.operations.iter().map(|operation| operation.worker + 1).max().unwrap_or(1)
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// The line number, and the error in that line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut program = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let parsed = if let Some(header) = line.strip_prefix("program ") {
                program.set_header(header)
            } else {
                parse_operation(line).map(|operation| program.operations.push(operation))
            };
            parsed.map_err(|what| format!("line {}: {what}", index + 1))?;
        }
        Ok(program)
    }

    fn set_header(&mut self, header: &str) -> Result<(), String> {
        for word in header.split_whitespace() {
            match word.split_once('=') {
                Some(("seed", value)) => self.seed = value.parse().map_err(|_| bad(word))?,
                Some(("alarm_us", value)) => self.alarm_us = value.parse().map_err(|_| bad(word))?,
                _ => return Err(bad(word)),
            }
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program seed={} alarm_us={}", self.seed, self.alarm_us)?;
        for operation in &self.operations {
            writeln!(f, "{operation}")?;
        }
        Ok(())
    }
}

fn bad(word: &str) -> String {
    format!("{word:?} is not what the format knows")
}

fn parse_operation(line: &str) -> Result<Operation, String> {
    let mut words = line.split_whitespace();
    let worker = words.next().and_then(|word| word.parse().ok()).ok_or("no worker in front")?;
    if worker >= MAX_WORKERS {
        return Err(format!("worker {worker}; there are at most {MAX_WORKERS}"));
    }
    let name = words.next().ok_or("no operation")?;
    let kind = Kind::ALL.iter().find(|kind| kind.name() == name).ok_or_else(|| bad(name))?;
    let mut numbers = [0; NUMBERS];
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| bad(word))?;
        let index = kind.operands().iter().position(|operand| *operand == name).ok_or_else(|| bad(word))?;
        numbers[index] = value.parse().map_err(|_| bad(word))?;
    }
    Ok(Operation { worker, kind: *kind, numbers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::generate;

    #[test]
    fn program_text_round_trips() {
        let program = generate(5, 2000);
        assert_eq!(Program::parse(&program.to_string()), Ok(program));
    }

    #[test]
    fn operands_of_every_kind_fit() {
        for kind in Kind::ALL {
            assert!(kind.operands().len() <= NUMBERS, "{}", kind.name());
        }
    }

    #[test]
    fn malformed_text_is_rejected_with_its_line_number() {
        for text in
            ["9 free slot=1", "0 fly", "0 free slot", "0 free place=1", "0 free slot=x", "program x=1"]
        {
            let refused = Program::parse(&format!("# comment\n{text}\n"));
            assert!(refused.as_ref().is_err_and(|what| what.starts_with("line 2: ")), "{text}: {refused:?}");
        }
    }
}
