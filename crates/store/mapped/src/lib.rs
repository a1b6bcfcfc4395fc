//! A log in mapped persistent memory that has the only copy of what a program writes, until it is digested.
//!
//! ```text
//! write ──► record in the log: inline bytes, or references to chunks ──┐
//! fsync ──► fence, commit word, fence. No system call                  │ digest, later
//!                                                                      ▼
//!                      the file: pwrite and fsync by the digester, then the record is retired
//! ```
//!
//! This is the pure core. The caller maps the memory, makes all system calls, holds a lock around the writer, and
//! decides when to digest. The log beside the page cache is a different crate, `uncopy-store`.
//!
//! | module | what it is |
//! |---|---|
//! | [`memory`], [`mapping`] | contract of persistent memory, and the memory that the caller has mapped |
//! | [`layout`], [`table`], [`record`] | format |
//! | [`chunks`] | memory that records refer to, and pins that keep it from being reused |
//! | [`log`](mod@log), [`parts`] | the writer, and what it appends |
//! | [`overlay`] | what the log holds of a file that the file does not yet |
//! | [`reader`], [`plan`] | validated records; the smallest set of file operations with their result |
//! | [`digest`], [`recovery`] | from records to files, while the writer lives and after its death |
//!
//! # Guarantees
//!
//! | event | result |
//! |---|---|
//! | [`Log::append`](log::Log::append) returned | *written*: the record survives the death of all processes |
//! | [`Log::sync`](log::Log::sync) returned | *committed*: all records of the file survive power loss |
//! | power loss | each file gets all committed records, and of the others a prefix: those before the log's last commit |
//! | kill, also of the digester or during recovery | each file gets all written records |
//! | kill, then power loss during recovery | as after power loss |
//!
//! A file never gets a part of a record, nor bytes that nobody wrote to it.
//!
//! # Roles
//!
//! The *writer* owns the head: records, commit words, entries of the table of files. The *digester* owns the tail:
//! checkpoints, the released word, and the forgetting of files. There is one of each at a time; they may be
//! different processes and run concurrently. A *recovery* is both, after the writer's death. Threads of one role
//! are serialised by the caller. A forked child must not use its parent's writer.
//!
//! # Format
//!
//! The drawings are in [`layout`], [`table`] and [`record`]. A sequence number is a position in the endless sequence of the
//! ring's bytes, so that neither an epoch nor a lap counter is needed. There is no checksum over payload: a commit
//! word is stored after the payload is persistent. A commit word lies in its record instead of at a fixed place,
//! because flushing one line repeatedly is slow on persistent memory (Chen et al., FlatStore, ASPLOS 2020).
//!
//! # Ordering rules
//!
//! The code cites these by number. The crash test leaves out each flush and each fence in turn, and stores each
//! word before the fence in front of it: every such change makes it fail.
//!
//! 1. A record is stored payload first, then head, then commit word (*written*). All of it is flushed, or streamed
//!    past the cache, when the record is appended, except for the first line of the head.
//! 2. Before a commit word becomes *committed*, a fence makes everything before it persistent. The first line of a
//!    head is flushed with the record's own commit word, or when the next record is appended.
//! 3. A sync returns after a commit word is flushed and fenced. It vouches for its record and all before it.
//! 4. An entry of the table is stored and flushed before a record refers to it. The fence of rule 2 covers it.
//! 5. The running kernel's boot is in a checkpoint before the first append. A recovery under the same boot accepts
//!    written records, since nothing visible was lost; otherwise only committed ones. The checkpoint need not be
//!    persistent: power loss ends the boot.
//! 6. Records are retired by a checkpoint with a new tail, after their files were synced. The two checkpoints are
//!    written in turn, each flushed and fenced.
//! 7. The bytes of a reference do not change before its record is retired.
//! 8. The writer takes room only from the released word, which is stored after the checkpoint's fence: the checkpoint
//!    is visible before it is persistent.
//! 9. An entry of the table is reused after all records that refer to it are retired.
//! 10. A file is forgotten, persistently, after it was synced and before others may change it. Its records are void.
//! 11. A file gets bytes of a record only after the commit is persistent, so that power loss leaves no part of a
//!     record in the file: a digester flushes and fences the commit word that it sees, and a recovery after a kill
//!     commits what it accepts.
//! 12. A recovery ends with a tail that is a ring's length behind its last record. No leftover has a number from there
//!     on.
//! 13. Whoever takes a role over makes the superblock and the current checkpoint persistent before storing the other
//!     checkpoint: the predecessor may have been killed before its fence.
//!
//! # Not handled
//!
//! - Payload that the memory itself corrupts. Heads have checksums; machine checks arrive as SIGBUS at the caller.
//! - Memory that is truncated while it is mapped (SIGBUS), buffers of the program that are not readable (EFAULT),
//!   references to memory that is not persistent: the caller checks.
//! - A system call that fails at a digest. The batch is not retired then, and can be planned again.
//! - Reads from the log. The caller digests the file first.
//! - A log larger than the address space, machines that are not little-endian, and logs of other machines
//!   ([`layout::Superblock::machine`] is for the caller to compare).
//! - Records that validate themselves, which would save the first fence of a sync for short writes (Mnemosyne's torn
//!   bits, or a checksum over payload).
#![cfg(all(target_pointer_width = "64", target_endian = "little"))]
#![allow(clippy::cast_possible_truncation, reason = "64-bit machines; lengths of records are checked")]

pub mod chunks;
pub mod digest;
pub mod layout;
pub mod log;
pub mod mapping;
pub mod memory;
pub mod overlay;
pub mod parts;
pub mod plan;
pub mod reader;
pub mod record;
pub mod recovery;
pub mod table;
#[cfg(test)]
mod testing;
