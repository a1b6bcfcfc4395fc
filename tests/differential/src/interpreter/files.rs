//! The worker's file: operations that read and write it, and its expected contents.

use std::ffi::c_int;

use uncopy_tests::calls::{FileInput, FileOutput, InputCall, OutputCall};
use uncopy_tests::oracle::{OracleBytes, errno};

use super::{MAX_PARTS_BYTES, Part, Verdict, Worker};
use crate::model::Mirror;
use crate::program::NUMBERS;

/// Largest size of the file, bytes.
const MAX_FILE: usize = 3 << 20;

/// The worker's file with its expected contents.
pub(super) struct WorkerFile {
    pub(super) fd: c_int,
    append_fd: c_int,
    pub(super) content: Mirror,
    pub(super) size: usize,
}

impl WorkerFile {
    pub(super) fn new() -> Self {
        // SAFETY: the name is a NUL-terminated literal.
        let fd = unsafe { libc::memfd_create(c"machine".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "memfd: errno {}", errno());
        let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).expect("no zero in it");
        // SAFETY: `path` is a NUL-terminated `CString` that lives through the call.
        let append_fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_APPEND | libc::O_CLOEXEC) };
        assert!(append_fd >= 0, "the file a second time: errno {}", errno());
        Self { fd, append_fd, content: Mirror::new(MAX_FILE), size: 0 }
    }

    /// Compares a range of the file with the model, read by the bare system call.
    fn check(&self, at: usize, len: usize, scratch: &OracleBytes) -> Verdict {
        // SAFETY: the scratch is writable for `len` bytes: it is at least as long as the file.
        let got = unsafe { libc::syscall(libc::SYS_pread64, self.fd, scratch.pointer(), len, at) };
        if usize::try_from(got) != Ok(len) {
            return Err(format!("the file gave {got} of {len} bytes at {at}"));
        }
        // SAFETY: the scratch holds `len` bytes that were just read.
        match unsafe { self.content.difference(scratch.pointer(), at, len) } {
            None => Ok(()),
            Some(difference) => Err(format!("the file: {difference} (checked {at}+{len})")),
        }
    }

    pub(super) fn check_all(&self, scratch: &OracleBytes) -> Verdict {
        if self.size == 0 { Ok(()) } else { self.check(0, self.size, scratch) }
    }

    /// Replaces the file that a forked child shares with its parent by a copy.
    pub(super) fn unshare_from_parent(&mut self) {
        let fresh = Self::new();
        let from = self.content.pointer(0);
        // SAFETY: the mirror is readable for `self.size` bytes, the file's length.
        let written = unsafe { libc::syscall(libc::SYS_pwrite64, fresh.fd, from, self.size, 0) };
        assert_eq!(usize::try_from(written), Ok(self.size), "the child's file");
        for (own, other) in [(self.fd, fresh.fd), (self.append_fd, fresh.append_fd)] {
            // SAFETY: both descriptors are open, and only this worker uses them.
            unsafe {
                libc::syscall(libc::SYS_dup3, other, own, libc::O_CLOEXEC);
                libc::close(other);
            }
        }
    }
}

impl Worker<'_> {
    pub(super) fn read_file(&mut self, numbers: [usize; NUMBERS]) -> Verdict {
        let [call, offset, slot, at, len, count, seed, ..] = numbers;
        let at_offset = call % 14 < FileInput::ALL.len();
        let file_call = FileInput::ALL[call % FileInput::ALL.len()];
        let stream_call = InputCall::ANY[call % InputCall::ANY.len()];
        let vector = if at_offset { file_call.is_vector() } else { stream_call.is_vector() };
        let parts = self.parts(Part { slot, at, len }, if vector { count } else { 1 }, seed, true);
        if parts.is_empty() {
            return Ok(());
        }
        let offset = offset % (self.file.size + 5000);
        let mut vectors = self.vectors(&parts);
        let file_offset = i64::try_from(offset).expect("small");
        // SAFETY: the parts lie inside the worker's buffers.
        let got = unsafe {
            if at_offset {
                file_call.input(self.file.fd, &vectors, file_offset)
            } else {
                assert_eq!(libc::lseek(self.file.fd, file_offset, libc::SEEK_SET), file_offset, "lseek");
                stream_call.input(self.file.fd, &mut vectors, 0)
            }
        };
        let capacity: usize = parts.iter().map(|part| part.len).sum();
        let max_bytes = capacity.min(self.file.size.saturating_sub(offset));
        if got != Ok(max_bytes) {
            return Err(format!(
                "{file_call:?} or {stream_call:?} of the file gave {got:?}, must be {max_bytes}"
            ));
        }
        let mut done = 0;
        for part in &parts {
            let now = part.len.min(max_bytes - done);
            if let Some(buffer) = &mut self.slots[part.slot] {
                buffer.mirror.copy_from(part.at, &self.file.content, (offset + done).min(MAX_FILE), now);
            }
            done += now;
        }
        Ok(())
    }

    pub(super) fn write_file(&mut self, numbers: [usize; NUMBERS]) -> Verdict {
        let [call, offset, slot, at, len, count, seed, ..] = numbers;
        let how = call % 14;
        let file_call = FileOutput::ALL[call % FileOutput::ALL.len()];
        let stream_call = OutputCall::ANY[call % OutputCall::ANY.len()];
        let vector = if how < 6 { file_call.is_vector() } else { stream_call.is_vector() };
        let parts = self.parts(Part { slot, at, len }, if vector { count } else { 1 }, seed, false);
        if parts.is_empty() {
            return Ok(());
        }
        if self.file.size + MAX_PARTS_BYTES > MAX_FILE {
            // SAFETY: ftruncate(2) takes integers only, and the descriptor is the worker's own.
            assert_eq!(unsafe { libc::ftruncate(self.file.fd, 0) }, 0, "ftruncate");
            self.file.size = 0;
        }
        let offset = if how < 11 { offset % (self.file.size + 1) } else { self.file.size };
        let mut vectors = self.vectors(&parts);
        let file_offset = i64::try_from(offset).expect("small");
        // SAFETY: the parts lie inside the worker's buffers.
        let written = unsafe {
            match how {
                0..6 => file_call.output(self.file.fd, &vectors, file_offset),
                6..11 => {
                    assert_eq!(libc::lseek(self.file.fd, file_offset, libc::SEEK_SET), file_offset, "lseek");
                    stream_call.output(self.file.fd, &mut vectors, 0)
                }
                _ => stream_call.output(self.file.append_fd, &mut vectors, 0),
            }
        };
        let total_bytes: usize = parts.iter().map(|part| part.len).sum();
        if written != Ok(total_bytes) {
            return Err(format!(
                "{file_call:?} or {stream_call:?} of {total_bytes} bytes to the file: {written:?}"
            ));
        }
        let mut done = 0;
        for part in &parts {
            if let Some(buffer) = &self.slots[part.slot] {
                self.file.content.copy_from(offset + done, &buffer.mirror, part.at, part.len);
            }
            done += part.len;
        }
        self.file.size = self.file.size.max(offset + total_bytes);
        self.file.check(offset, total_bytes, &self.scratch)
    }
}
