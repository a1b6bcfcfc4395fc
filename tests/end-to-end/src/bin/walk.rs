//! Random operations on a set of buffers, checked against byte arrays, in one thread, with every call.
//!
//! ```text
//! walk SEED STEPS FILE [foreign]
//! ```
//!
//! The other ends of the sockets and pipes are driven by bare system calls, so that the oracle alone knows the
//! bytes. FILE is a scratch file. With `foreign`, the walk also unmaps, moves and protects its own mappings.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libc::iovec;
use uncopy_tests::calls::{CopyCall, FileInput, FileOutput, InputCall, OutputCall, wait_ready};
use uncopy_tests::connected_pairs::{ConnectedPair, connected_pairs};
use uncopy_tests::mirror::{Buffer, Origin, STATIC_BYTES};
use uncopy_tests::oracle::{self, OracleBytes};
use uncopy_tests::random::Random;

/// Largest heap buffer of the walk.
const BUFFER_LIMIT: usize = 1 << 20;
/// Maximum length of one input or output, bytes.
const TRANSFER_LIMIT: usize = 600_000;
/// Maximum size of the scratch file.
const FILE_LIMIT: usize = 2 << 20;

/// The last operations, printed when a check fails.
static LOG: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

fn log(line: String) {
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    if log.len() == 25 {
        log.pop_front();
    }
    log.push_back(line);
}

/// The oracle's bytes.
#[derive(Clone, Copy)]
enum ByteSource {
    Wire,
    File,
}

struct Walk {
    random: Random,
    buffers: Vec<Buffer>,
    /// Ranges that were recently received or copied, and have views.
    recent: VecDeque<(usize, usize, usize)>,
    duplex: Vec<ConnectedPair>,
    pipes_in: Vec<ConnectedPair>,
    pipes_out: Vec<ConnectedPair>,
    wire: OracleBytes,
    file: File,
    append: File,
    direct: Option<File>,
    content: OracleBytes,
    size: usize,
    foreign: bool,
}

impl Walk {
    fn new(seed: u64, path: &Path, foreign: bool) -> Self {
        let (duplex, pipe_in, pipe_out) = connected_pairs();
        let mut random = Random::new(seed);
        let mut buffers: Vec<Buffer> = Origin::ALLOCATED
            .iter()
            .map(|origin| Buffer::new(*origin, random.between(20_000, BUFFER_LIMIT)))
            .collect();
        for _ in 0..4 {
            buffers.push(Buffer::new(Origin::Malloc, BUFFER_LIMIT));
        }
        buffers.push(Buffer::new(Origin::Static, STATIC_BYTES.min(BUFFER_LIMIT)));
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(path)
        };
        let file = open(0).expect("scratch file");
        file.set_len(0).expect("truncate");
        Self {
            random,
            buffers,
            recent: VecDeque::new(),
            duplex,
            pipes_in: vec![pipe_in],
            pipes_out: vec![pipe_out],
            wire: OracleBytes::new(2 * TRANSFER_LIMIT),
            file,
            append: open(libc::O_APPEND).expect("scratch file"),
            // Not every file system supports O_DIRECT.
            direct: open(libc::O_DIRECT).ok(),
            content: OracleBytes::new(FILE_LIMIT),
            size: 0,
            foreign,
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..20 => self.receive(),
            20..50 => self.copy(),
            50..66 => self.send(),
            66..72 => self.read_file(),
            72..78 => self.write_file(),
            78..82 => self.access_without_hooks(),
            82..90 => self.touch(),
            90..94 => self.check_one(),
            94..98 => self.replace(),
            _ if self.foreign => self.remap(),
            _ => self.nothing_to_receive(),
        }
    }

    fn remember(&mut self, index: usize, at: usize, len: usize) {
        if len >= 4096 {
            if self.recent.len() == 6 {
                self.recent.pop_front();
            }
            self.recent.push_back((index, at, len));
        }
    }

    /// Returns a recently received or copied part, or a part of it.
    fn recent_part(&mut self, limit: usize) -> (usize, usize, usize) {
        if !self.recent.is_empty() && !self.random.one_in(4) {
            let (index, at, len) = self.recent[self.random.below(self.recent.len())];
            if at + len <= self.buffers[index].len() {
                let skip = self.random.pick(&[0, 0, 0, 16, 45, 4096]).min(len - 1);
                return (index, at + skip, (len - skip).min(limit));
            }
        }
        self.part(limit)
    }

    /// Returns a random part of a random buffer: index, offset, length.
    fn part(&mut self, limit: usize) -> (usize, usize, usize) {
        let index = self.random.below(self.buffers.len());
        let (at, len) = self.random.range(self.buffers[index].len());
        (index, at, len.min(limit))
    }

    /// Returns parts for a vector call (one for a plain call), together at most `limit` bytes.
    /// Parts to write into are in different buffers.
    fn parts(&mut self, vector: bool, limit: usize, writable: bool) -> Vec<(usize, usize, usize)> {
        let count = if vector { self.random.between(1, 6) } else { 1 };
        let mut parts: Vec<(usize, usize, usize)> = Vec::new();
        let mut left = limit;
        for _ in 0..count {
            if left == 0 {
                break;
            }
            let part = if writable { self.part(left) } else { self.recent_part(left) };
            if writable && parts.iter().any(|other| other.0 == part.0) {
                continue;
            }
            left -= part.2;
            parts.push(part);
        }
        parts
    }

    fn vectors(&self, parts: &[(usize, usize, usize)]) -> Vec<iovec> {
        parts.iter().map(|(index, at, len)| self.buffers[*index].part(*at, *len)).collect()
    }

    /// Records `count` bytes that arrived in `parts`, taken from the wire or the file at `from`.
    fn scatter(&mut self, parts: &[(usize, usize, usize)], source: ByteSource, from: usize, count: usize) {
        let mut done = 0;
        for (index, at, len) in parts {
            let now = (*len).min(count - done);
            let bytes = match source {
                ByteSource::Wire => self.wire.slice(from + done, now),
                ByteSource::File => self.content.slice(from + done, now),
            };
            self.buffers[*index].note_received(*at, bytes);
            self.remember(*index, *at, now);
            done += now;
        }
    }

    /// Fails unless `count` bytes at `found` equal the mirrors of `parts`.
    fn expect_gathered(
        &self,
        parts: &[(usize, usize, usize)],
        found: *const u8,
        count: usize,
        what: &dyn Debug,
    ) {
        let mut done = 0;
        for (index, at, len) in parts {
            let now = (*len).min(count - done);
            // SAFETY: `found` has `count` bytes; the mirror has the part's.
            let wrong = unsafe {
                oracle::first_difference(found.add(done), self.buffers[*index].mirror_at(*at), now)
            };
            assert_eq!(
                wrong,
                None,
                "{what:?} sent a wrong byte of buffer {index} {at}+{len} ({:?})",
                self.buffers[*index].origin()
            );
            done += now;
        }
    }

    fn receive(&mut self) {
        let choice = self.random.below(3);
        let pair = if choice == 2 { self.pipes_in[0] } else { self.duplex[choice] };
        let len = self.random.length(TRANSFER_LIMIT);
        let seed = self.random.next_u64();
        self.wire.fill(0, len, seed, 0);
        // SAFETY: the wire was filled with `len` bytes.
        let ready = unsafe { oracle::raw_write(pair.far, self.wire.pointer(), len) }
            .expect("an empty queue takes some");
        let mut got = 0;
        while got < ready {
            let call = self.random.pick(if pair.is_socket { InputCall::SOCKET } else { InputCall::ANY });
            let with_flags = InputCall::WITH_FLAGS.contains(&call);
            let mut flags = 0;
            if with_flags && self.random.one_in(3) {
                flags |= libc::MSG_PEEK;
            }
            if with_flags && self.random.one_in(4) {
                flags |= libc::MSG_WAITALL;
            }
            let discards = !pair.is_exact && with_flags && self.random.one_in(10);
            if discards {
                flags = libc::MSG_TRUNC;
            }
            let parts = self.parts(call.is_vector(), TRANSFER_LIMIT, true);
            let capacity: usize = parts.iter().map(|part| part.2).sum();
            let mut vectors = self.vectors(&parts);
            log(format!("{call:?} {flags:#x} of {got}..{ready} on {pair:?} into {parts:?}"));
            // SAFETY: the parts are inside the buffers.
            match unsafe { call.input(pair.near, &mut vectors, flags) } {
                Err(libc::EAGAIN) if !pair.is_exact => wait_ready(pair.near, libc::POLLIN),
                Ok(count) => {
                    let max_len = capacity.min(ready - got);
                    assert!(count > 0 && count <= max_len, "{call:?} gave {count} of {max_len}");
                    assert!(!pair.is_exact || count == max_len, "{call:?} gave {count} of {max_len}");
                    if !discards {
                        self.scatter(&parts, ByteSource::Wire, got, count);
                    }
                    if flags & libc::MSG_PEEK == 0 {
                        got += count;
                    }
                }
                Err(error) => panic!("{call:?}: errno {error}"),
            }
        }
    }

    /// An input call without any data changes nothing.
    fn nothing_to_receive(&mut self) {
        let pair = self.duplex[0];
        let call = self.random.pick(InputCall::SOCKET);
        let parts = self.parts(call.is_vector(), TRANSFER_LIMIT, true);
        let mut vectors = self.vectors(&parts);
        log(format!("{call:?} of nothing into {parts:?}"));
        // SAFETY: the parts are inside the buffers.
        assert_eq!(unsafe { call.input(pair.near, &mut vectors, 0) }, Err(libc::EAGAIN), "{call:?}");
        // SAFETY: the part has no bytes, so the kernel writes none.
        let nothing = unsafe {
            InputCall::Read.input(self.file.as_raw_fd(), &mut [iovec { iov_len: 0, ..vectors[0] }], 0)
        };
        assert_eq!(nothing, Ok(0), "read of no bytes");
        for (index, at, len) in parts {
            self.buffers[index].check(at, len, "a buffer that received nothing");
        }
    }

    fn copy(&mut self) {
        let (source, from, len) = self.recent_part(BUFFER_LIMIT);
        if self.random.one_in(4) {
            let call = self.random.pick(CopyCall::OVERLAPPING);
            let max_start = self.buffers[source].len() - len;
            let near = self.random.pick(&[1, 45, 4095, 4096, 4097, 65536]);
            let to = match self.random.below(3) {
                0 => from.saturating_sub(near).min(max_start),
                1 => (from + near).min(max_start),
                _ => self.random.below(max_start + 1),
            };
            log(format!("{call:?} within {source}: {from}+{len} to {to}"));
            self.buffers[source].copy_within(call, to, from, len);
            self.remember(source, to, len);
            return;
        }
        let target = (source + 1 + self.random.below(self.buffers.len() - 1)) % self.buffers.len();
        let len = len.min(self.buffers[target].len());
        let max_start = self.buffers[target].len() - len;
        let to = if self.random.one_in(3) { from.min(max_start) } else { self.random.below(max_start + 1) };
        let call = self.random.pick(CopyCall::ALL);
        log(format!("{call:?} {source}: {from}+{len} to {target}: {to}"));
        self.remember(target, to, len);
        let [target, source] = self.buffers.get_disjoint_mut([target, source]).expect("different");
        target.copy_from(call, to, source, from, len);
    }

    fn send(&mut self) {
        let choice = self.random.below(3);
        let pair = if choice == 2 { self.pipes_out[0] } else { self.duplex[choice] };
        let call = self.random.pick(if pair.is_socket { OutputCall::SOCKET } else { OutputCall::ANY });
        let parts = self.parts(call.is_vector(), TRANSFER_LIMIT, false);
        let total_len: usize = parts.iter().map(|part| part.2).sum();
        let mut vectors = self.vectors(&parts);
        log(format!("{call:?} on {pair:?} from {parts:?}"));
        // SAFETY: the parts are inside the buffers.
        let sent = unsafe { call.output(pair.near, &mut vectors, libc::MSG_NOSIGNAL) };
        let sent = sent.unwrap_or_else(|error| panic!("{call:?}: errno {error}"));
        assert!(sent > 0 && sent <= total_len, "{call:?} sent {sent} of {total_len}");
        let mut got = 0;
        while got < sent {
            wait_ready(pair.far, libc::POLLIN);
            // SAFETY: the wire has room for everything that was sent.
            got += unsafe { oracle::raw_read(pair.far, self.wire.at(got), self.wire.len() - got) }
                .expect("bytes");
        }
        assert_eq!(got, sent, "{call:?} sent more than it said");
        self.expect_gathered(&parts, self.wire.pointer(), sent, &call);
    }

    fn read_file(&mut self) {
        let call = self.random.pick(FileInput::ALL);
        let at = self.random.below(self.size + 5000);
        let parts = self.parts(call.is_vector(), TRANSFER_LIMIT, true);
        let capacity: usize = parts.iter().map(|part| part.2).sum();
        log(format!("{call:?} at {at} of {} into {parts:?}", self.size));
        let offset = i64::try_from(at).expect("small");
        // SAFETY: the parts are inside the buffers.
        let got = unsafe { call.input(self.file.as_raw_fd(), &self.vectors(&parts), offset) };
        let got = got.unwrap_or_else(|error| panic!("{call:?}: errno {error}"));
        assert_eq!(got, capacity.min(self.size.saturating_sub(at)), "{call:?} at {at}");
        self.scatter(&parts, ByteSource::File, at.min(self.size), got);
    }

    fn write_file(&mut self) {
        if self.random.one_in(4) && self.direct.is_some() {
            self.direct_io();
            return;
        }
        let append = self.random.one_in(3);
        let at = if append { self.size } else { self.random.below(self.size + 1) };
        let space = FILE_LIMIT - at;
        if space < TRANSFER_LIMIT {
            self.file.set_len(0).expect("truncate");
            self.size = 0;
            return;
        }
        let (parts, written) = if append {
            let call = self.random.pick(OutputCall::ANY);
            let parts = self.parts(call.is_vector(), TRANSFER_LIMIT, false);
            log(format!("append {call:?} at {at} from {parts:?}"));
            // SAFETY: the parts are inside the buffers.
            let written = unsafe { call.output(self.append.as_raw_fd(), &mut self.vectors(&parts), 0) };
            (parts, written)
        } else {
            let call = self.random.pick(FileOutput::ALL);
            let parts = self.parts(call.is_vector(), TRANSFER_LIMIT, false);
            log(format!("{call:?} at {at} from {parts:?}"));
            let offset = i64::try_from(at).expect("small");
            // SAFETY: the parts are inside the buffers.
            let written = unsafe { call.output(self.file.as_raw_fd(), &self.vectors(&parts), offset) };
            (parts, written)
        };
        let total_len: usize = parts.iter().map(|part| part.2).sum();
        assert_eq!(written, Ok(total_len), "a file takes everything");
        let mut done = 0;
        for (index, from, len) in &parts {
            // SAFETY: the content has room for the transfer; the mirror has the part.
            unsafe { oracle::copy(self.content.at(at + done), self.buffers[*index].mirror_at(*from), *len) };
            done += len;
        }
        self.size = self.size.max(at + total_len);
        self.expect_file(at, total_len);
    }

    /// Compares a range of the file, read by the bare system call, with the expected bytes.
    fn expect_file(&mut self, at: usize, len: usize) {
        let offset = i64::try_from(at).expect("small");
        // SAFETY: the wire has room for the transfer.
        let got = unsafe {
            libc::syscall(libc::SYS_pread64, self.file.as_raw_fd(), self.wire.pointer(), len, offset)
        };
        assert_eq!(usize::try_from(got), Ok(len), "the file is shorter than it must be");
        // SAFETY: the wire holds the `len` bytes that were read, and `content` has the range.
        let wrong = unsafe { oracle::first_difference(self.wire.pointer(), self.content.at(at), len) };
        assert_eq!(wrong, None, "the file holds a wrong byte (offset in {at}+{len})");
    }

    /// `O_DIRECT` requires addresses, offsets and lengths in whole blocks.
    fn direct_io(&mut self) {
        let (Some(direct), Some(index)) =
            (&self.direct, self.buffers.iter().position(|buffer| buffer.origin() == Origin::Aligned))
        else {
            return;
        };
        let buffer = &mut self.buffers[index];
        let pages = buffer.len() / 4096;
        if pages == 0 {
            return;
        }
        let from = self.random.below(pages) * 4096;
        let len = (self.random.between(1, 64) * 4096).min(pages * 4096 - from);
        let at = self.random.below(self.size / 4096 + 1) * 4096;
        if at + len > FILE_LIMIT {
            return;
        }
        let offset = i64::try_from(at).expect("small");
        log(format!("direct {from}+{len} of {index} at {at}"));
        if self.random.one_in(2) && at + len <= self.size {
            let call = self.random.pick(FileInput::ALL);
            // SAFETY: the part is inside the buffer.
            let got = unsafe { call.input(direct.as_raw_fd(), &[buffer.part(from, len)], offset) };
            assert_eq!(got, Ok(len), "{call:?} with O_DIRECT");
            buffer.note_received(from, self.content.slice(at, len));
        } else {
            let call = self.random.pick(FileOutput::ALL);
            // SAFETY: the part is inside the buffer.
            let written = unsafe { call.output(direct.as_raw_fd(), &[buffer.part(from, len)], offset) };
            assert_eq!(written, Ok(len), "{call:?} with O_DIRECT");
            // SAFETY: the content has room for the transfer; the mirror has the part.
            unsafe { oracle::copy(self.content.at(at), buffer.mirror_at(from), len) };
            self.size = self.size.max(at + len);
            self.expect_file(at, len);
        }
    }

    /// Calls that reach the kernel without an interposed function: stdio, another process's access to memory.
    fn access_without_hooks(&mut self) {
        let (index, at, len) = self.part(TRANSFER_LIMIT);
        let buffer = &mut self.buffers[index];
        if self.random.one_in(2) {
            log(format!("process_vm_readv of {index}: {at}+{len}"));
            let local = iovec { iov_base: self.wire.pointer().cast(), iov_len: len };
            let remote = buffer.part(at, len);
            // SAFETY: both ranges are this process's and big enough.
            let got = unsafe {
                libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
            };
            assert_eq!(usize::try_from(got), Ok(len), "process_vm_readv");
            self.expect_gathered(&[(index, at, len)], self.wire.pointer(), len, &"process_vm_readv");
            return;
        }
        log(format!("fwrite and fread of {index}: {at}+{len}"));
        // SAFETY: the stream is closed at the end; the range is inside the buffer, and `half` is
        // inside the range.
        unsafe {
            let stream = libc::tmpfile();
            assert!(!stream.is_null(), "tmpfile");
            assert_eq!(libc::fwrite(buffer.at(at).cast(), 1, len, stream), len, "fwrite");
            assert_eq!(libc::fflush(stream), 0, "fflush");
            libc::rewind(stream);
            let half = len / 2;
            buffer.set(at, half, 0x11);
            assert_eq!(libc::fread(self.wire.pointer().cast(), 1, half, stream), half, "fread");
            libc::rewind(stream);
            assert_eq!(libc::fread(buffer.at(at).cast(), 1, half, stream), half, "fread");
            buffer.note_received(at, self.wire.slice(0, half));
            libc::fclose(stream);
        }
        self.expect_gathered(&[(index, at, len / 2)], self.wire.pointer(), len / 2, &"fwrite");
    }

    fn touch(&mut self) {
        let (index, at, len) = self.part(BUFFER_LIMIT);
        let seed = self.random.next_u64();
        let short = len.min(self.random.between(1, 200));
        match self.random.below(6) {
            0 => {
                log(format!("store {index}: {at}+{len}"));
                self.buffers[index].store(at, len, seed);
            }
            1..4 => {
                log(format!("store {index}: {at}+{short}"));
                self.buffers[index].store(at, short, seed);
            }
            4 => {
                log(format!("memset {index}: {at}+{len}"));
                self.buffers[index].set(at, len, seed.to_le_bytes()[0]);
            }
            _ => self.buffers[index].check(at, short, "a few bytes"),
        }
    }

    fn check_one(&mut self) {
        let (index, at, len) = self.part(BUFFER_LIMIT);
        log(format!("check {index}: {at}+{len}"));
        self.buffers[index].check(at, len, "a range");
    }

    fn replace(&mut self) {
        let index = self.random.below(self.buffers.len());
        let len = self.random.length(BUFFER_LIMIT).max(100);
        let origin = self.buffers[index].origin();
        if origin == Origin::Static {
            return;
        }
        if origin == Origin::Malloc && self.random.one_in(2) {
            log(format!("realloc {index} from {} to {len}", self.buffers[index].len()));
            self.buffers[index].resize(len);
        } else if origin == Origin::Malloc {
            let source = (index + 1) % self.buffers.len();
            let len = self.buffers[source].len();
            log(format!("malloc {index} as a copy of {source}, {len} bytes"));
            self.buffers[index] = Buffer::copy_of(CopyCall::Memcpy, &self.buffers[source], 0, len);
        } else {
            log(format!("replace {index} ({origin:?}) by one of {len} bytes"));
            self.buffers[index] = Buffer::new(origin, len);
        }
    }

    /// Memory management calls on a mapping of the program's own.
    fn remap(&mut self) {
        let Some(index) = self.buffers.iter().position(|buffer| buffer.origin() == Origin::Mapped) else {
            return;
        };
        let len = self.random.between(1, 64) * 4096;
        let choice = self.random.below(4);
        log(format!("memory management {choice} on {index}, {len} bytes"));
        let buffer = &mut self.buffers[index];
        let pages = buffer.len() / 4096;
        if pages == 0 {
            return;
        }
        let at = self.random.below(pages) * 4096;
        let range = len.min(pages * 4096 - at);
        match choice {
            0 => buffer.discard(at, range),
            1 => buffer.protect_temporarily(at, range),
            2 => buffer.move_mapping(len),
            _ => buffer.map_over(at, range),
        }
        buffer.check(
            at.min(buffer.len()),
            range.min(buffer.len() - at.min(buffer.len())),
            "a remapped range",
        );
    }

    fn finish(&mut self) {
        for (index, buffer) in self.buffers.iter().enumerate() {
            buffer.check_all(&format!("buffer {index} at the end"));
        }
        let mut at = 0;
        while at < self.size {
            let len = (self.size - at).min(TRANSFER_LIMIT);
            self.expect_file(at, len);
            at += len;
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (seed, steps) = (arguments[0].parse().expect("seed"), arguments[1].parse().expect("steps"));
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |information| {
        show(information);
        for line in LOG.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            eprintln!("  {line}");
        }
    }));
    let foreign = arguments.get(3).is_some_and(|word| word == "foreign");
    let mut walk = Walk::new(seed, Path::new(&arguments[2]), foreign);
    for step in 0..steps {
        log(format!("step {step}"));
        walk.step();
    }
    walk.finish();
    println!("{steps} steps of seed {seed}");
}
