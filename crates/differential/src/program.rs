//! Random programs as data: operations with plain numbers, and their text form.
//!
//! Every list of operations is a legal program. What an operation means follows from its numbers and
//! from what the interpreter holds when it comes to it: a slot is taken modulo the number of slots,
//! an offset modulo the buffer's length, and an operation on an empty slot does nothing. So
//! operations can be taken out and numbers made smaller, and what is left still runs.
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

/// Most numbers of one operation.
pub const NUMBERS: usize = 9;
/// Most workers of a program.
pub const MAX_WORKERS: usize = 4;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident $name:literal: $($operand:ident)*;)*) => {
        /// What an operation does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Kind { $($(#[$doc])* $variant,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its word in the text form.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Names of its numbers, in order.
            #[must_use]
            pub const fn operands(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$(stringify!($operand)),*],)* }
            }
        }
    };
}

kinds! {
    /// Puts a new buffer into a slot (freeing the one that was there) by one of the calls that give memory.
    Allocate "allocate": slot call len align;
    /// Frees or unmaps a slot's buffer.
    Free "free": slot;
    /// `realloc`, `reallocarray`.
    Resize "resize": slot call len;
    /// `malloc_usable_size`; the program then uses all of it.
    Usable "usable": slot;
    /// A copy between two buffers.
    Copy "copy": call from at to to_at len;
    /// A copy inside one buffer, ranges overlapping or not.
    Move "move": call slot at to_at len;
    /// Stores of the program's own: memset, whole words, single bytes.
    Fill "fill": how slot at len seed;
    /// Loads of the program's own, compared with the model.
    Check "check": slot at len;
    /// Bytes go into a link's queue.
    Feed "feed": link len seed;
    /// Feeds a link and receives from it, into one or more parts.
    Receive "receive": link call flags feed slot at len parts seed;
    /// Feeds a link with several messages and receives them with one `recvmmsg`.
    ReceiveMany "receive_many": link flags feed messages slot at len parts seed;
    /// Sends one or more parts.
    Send "send": link call flags slot at len parts seed;
    /// Sends several messages with one `sendmmsg`.
    SendMany "send_many": link messages slot at len parts seed;
    /// The peer takes what was sent to it and compares it with the model.
    Drain "drain": link len;
    /// Reads the file.
    FileRead "file_read": call offset slot at len parts seed;
    /// Writes the file.
    FileWrite "file_write": call offset slot at len parts seed;
    /// The kernel reads or writes the buffer by a way that nobody interposes on.
    Kernel "kernel": how slot at len seed;
    /// Calls whose result is an error, nothing, or the end of a stream.
    Odd "odd": how slot at len seed;
    /// `mprotect`, and back.
    Protect "protect": how slot at len;
    /// `madvise`.
    Advise "advise": advice slot at len;
    /// `mremap`, `munmap`, `mmap` over: on the program's own mappings.
    Remap "remap": how slot at len;
    /// `mmap` with MAP_FIXED, `mremap` with MREMAP_FIXED, `shmat` with SHM_REMAP over any buffer.
    Cover "cover": how slot at len seed;
    /// `madvise` and `process_madvise` with advice that is not about bytes alone.
    AdviseOtherwise "advise_otherwise": by advice slot at len;
    /// `mlock`, `mlock2`, `munlock`.
    Lock "lock": how slot at len;
    /// Allocates, alters and frees memory many times: nothing piles up.
    Churn "churn": how len;
    /// Forks; the child runs the next operations, checks everything and ends.
    Fork "fork": count wait;
    /// Hands a buffer over to another worker.
    Give "give": slot to;
    /// Takes a buffer that was handed over, if there is one.
    Take "take": slot;
    /// A signal whose handler copies and touches buffers of its own.
    Raise "raise": times;
    /// The signal handler's buffers get new bytes from a socket.
    Arm "arm": seed;
    // What programs of files do: see `files`.
    /// `open`, `openat`, `creat` of a name.
    Open "open": slot name call flags;
    /// Opens what a slot has by `/proc/self/fd`.
    Reopen "reopen": slot from flags;
    /// `close`, `close_range`, and closing what is not open.
    Close "close": slot how;
    /// `dup`, `dup2`, `dup3`, `F_DUPFD`, and over a socket to itself.
    Duplicate "duplicate": how from to;
    /// `write`, `writev`, `pwrite`, `pwritev`, `pwritev2`.
    Put "put": call slot at len parts seed;
    /// `read`, `readv`, `pread`, `preadv`.
    Get "get": call slot at len parts;
    /// Writes and syncs, several times.
    Steady "steady": slot times len how seed;
    /// `lseek`.
    Seek "seek": slot whence at;
    /// `fsync`, `fdatasync`, `sync_file_range`, `syncfs`, `sync`.
    Sync "sync": slot how at len;
    /// `ftruncate`, `truncate`, `posix_fallocate`.
    Length "length": how slot name len;
    /// `fallocate`.
    Reserve "reserve": slot mode at len;
    /// `rename`, `link`, `unlink` and their like.
    Name "name": how from to;
    /// `F_SETFL`, `F_SETFD`, locks of `flock` and of `fcntl`, `fchmod`.
    Control "control": slot how argument;
    /// `stat`, `access` and their like of a name.
    Look "look": name how;
    /// `sendfile`, `splice`, `copy_file_range`.
    Pass "pass": how from to at to_at len;
    /// `mmap` of what a slot has.
    Map "map": place slot how at len;
    /// Reads, writes, syncs, or takes away a mapping.
    Mapped "mapped": place how at len seed;
    /// A forked child, or another program that goes on with the descriptors, runs the next operations.
    Child "child": how count;
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The worker that runs it.
    pub worker: usize,
    /// What it does.
    pub kind: Kind,
    /// Its numbers, in the order of [`Kind::operands`]; the others are zero.
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

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// What it was generated from (0: by hand).
    pub seed: u64,
    /// Microseconds between two alarm signals; 0: none.
    pub alarm_us: usize,
    /// What it does.
    pub operations: Vec<Operation>,
}

impl Program {
    /// How many workers it needs: at least one.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.operations.iter().map(|operation| operation.worker + 1).max().unwrap_or(1)
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// The line's number and what is wrong with it.
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
        let place = kind.operands().iter().position(|operand| *operand == name).ok_or_else(|| bad(word))?;
        numbers[place] = value.parse().map_err(|_| bad(word))?;
    }
    Ok(Operation { worker, kind: *kind, numbers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::generate;

    #[test]
    fn the_text_form_reads_back() {
        let program = generate(5, 2000);
        assert_eq!(Program::parse(&program.to_string()), Ok(program));
    }

    #[test]
    fn every_kind_has_room_for_its_numbers() {
        for kind in Kind::ALL {
            assert!(kind.operands().len() <= NUMBERS, "{}", kind.name());
        }
    }

    #[test]
    fn damaged_text_is_refused_with_its_line() {
        for text in
            ["9 free slot=1", "0 fly", "0 free slot", "0 free place=1", "0 free slot=x", "program x=1"]
        {
            let refused = Program::parse(&format!("# comment\n{text}\n"));
            assert!(refused.as_ref().is_err_and(|what| what.starts_with("line 2: ")), "{text}: {refused:?}");
        }
    }
}
