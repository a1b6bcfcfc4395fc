//! The keeper serves a program that the test plays itself, with a log and files on tmpfs.

use super::*;
use crate::log_files::{boot, c_path};
use crate::mapped::file as mapped_file;
use crate::mapped::file::NO_CHUNKS;
use crate::mapped::service_memory::FILE_BYTES;
use crate::mapped::testing::{Directory, no_forks, spawn};
use crate::messages::{DONE, HELLO, PROTOCOL};
use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, RwLockReadGuard};
use std::thread::{self, JoinHandle};
use uncopy_mapped::log::Log;
use uncopy_mapped::mapping::Flushing;
use uncopy_mapped::parts::Part;
use uncopy_mapped::reader::Reader;
use uncopy_mapped::record::Reference;
use uncopy_mapped::recovery::Recovery;
use uncopy_mapped::table::Identity;
use uncopy_sys::background::{notifier, notify};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::{mem, memory_file};

mod failing;
mod hostile;
#[cfg(feature = "inject")]
mod kills;

const LOG_BYTES: u64 = 4 << 20;

/// A program with a keeper of its own.
struct Program {
    link: Option<OwnFd>,
    bell: Arc<OwnFd>,
    state: &'static State,
    log: Log<Mapping>,
    keeper: Option<JoinHandle<bool>>,
    log_file: OwnFd,
    /// Address and length of the mapped log.
    mapped: (usize, usize),
    /// Directory of the log, which is outlived by the keeper.
    directory: Arc<Directory>,
}

/// Receives a message; `None`: the keeper has closed the connection.
fn receive(link: &OwnFd) -> Option<([u64; MAX_WORDS], Option<OwnFd>)> {
    let mut words = [0; MAX_WORDS];
    loop {
        match seqpacket::receive(link, &mut words) {
            Err(Errno::EAGAIN) => wait::for_any([link].into_iter(), 100),
            received => {
                let message = received.ok().filter(|message| message.words > 0)?;
                return Some((words, message.fd));
            }
        }
    }
}

impl Program {
    fn new(directory: &Arc<Directory>) -> Self {
        // A lease that breaks sends SIGIO to the process: `contend` rings the bell instead.
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let log =
            mapped_file::open_or_create_empty(&directory.0, 2 * LOG_BYTES, true, &|| true).expect("a log");
        let name = std::ffi::CString::new(format!("{}.socket", log.path.display())).expect("no NUL");
        let listener = seqpacket::listen(&name).expect("a listener");
        let link = seqpacket::connect(&name).expect("a connection");
        let theirs = seqpacket::accept(&listener).expect("a connection");
        mem::unlink(&name);
        let bell = Arc::new(notifier().expect("a bell"));
        let keeper = thread::spawn({
            let bell = Arc::clone(&bell);
            move || serve(&theirs, &bell, &log)
        });
        let welcome = receive(&link).expect("a keeper");
        let mut program = Self::attach(link, welcome, bell, directory).expect("a keeper");
        program.keeper = Some(keeper);
        program
    }

    /// Attaches to the log that a keeper has given with its answer to [`HELLO`]; `None`: it has ended.
    fn attach(
        link: OwnFd,
        ([word, id, len_bytes, is_persistent, ..], state_fd): ([u64; MAX_WORDS], Option<OwnFd>),
        bell: Arc<OwnFd>,
        directory: &Arc<Directory>,
    ) -> Option<Self> {
        assert_eq!((word, is_persistent), (WELCOME_MAPPED, 0), "tmpfs only emulates");
        let joint = JointMemory::map(&state_fd.expect("the state"), STATE_BYTES).expect("mapped");
        // SAFETY: all fields are atomics; the mapping stays.
        let state: &'static State = unsafe { joint.as_ref() };
        let ([LOG, ..], Some(log_file)) = receive(&link)? else { return None };
        let base = mem::map_shared(&log_file, len_bytes as usize).expect("mapped");
        // SAFETY: mapped above, until `drop`; the test appends in one thread.
        let mapping = unsafe { Mapping::new(base as *mut u8, len_bytes as usize, Flushing::NotNeeded) };
        let recovery = Recovery::open(mapping.expect("aligned"), NO_CHUNKS, boot()).expect("a log");
        let empty = recovery.finish().expect("no records");
        assert_eq!(empty.superblock().log, id);
        let log = Log::attach(empty, boot(), u64::from(std::process::id()));
        let directory = Arc::clone(directory);
        let mapped = (base, len_bytes as usize);
        Some(Self { link: Some(link), bell, state, log, keeper: None, log_file, mapped, directory })
    }

    fn link(&self) -> &OwnFd {
        self.link.as_ref().expect("a connection")
    }

    fn ask(&self, words: &[u64], file: Option<&File>) -> [u64; 3] {
        let fd = file.map(ProgramFd::of);
        seqpacket::send_with(self.link(), words, fd).expect("sent");
        let (words, _) = receive(self.link()).expect("an answer");
        [words[0], words[1], words[2]]
    }

    fn register(&mut self, slot: usize, file: &File) -> FileId {
        let status = file::status(file.as_fd()).expect("known");
        let identity = Identity {
            device: status.device,
            inode: status.inode,
            generation: file::generation(file.as_fd()),
            path: mark::path_of(file.as_fd()).expect("a path"),
        };
        let known = &self.state.slots[slot];
        let flags = file::flags(file.as_fd()).expect("flags");
        known.is_append.store(u32::from(flags & libc::O_APPEND != 0), Release);
        known.size.store(status.len_bytes, Release);
        known.position.store(file::position(file.as_fd()).expect("a position"), Release);
        self.log.register(&identity).expect("a free entry")
    }

    fn adopt(&mut self, slot: usize, file: &File) -> FileId {
        let id = self.register(slot, file);
        let answer = self.ask(&[ADOPT, slot as u64, id.entry.into(), id.incarnation.0], Some(file));
        assert_eq!(answer, [ADOPTED, 0, 0]);
        id
    }

    /// Appends a committed record; false: the keeper has taken the file.
    fn write(&mut self, slot: usize, file: FileId, offset: u64, bytes: &[u8]) -> bool {
        let Some(_append) = self.state.slots[slot].begin_append() else { return false };
        let end = self.log.append(NO_CHUNKS, file, offset, &[Part::Bytes(bytes)]).expect("room");
        self.log.commit();
        self.state.set_moment(crate::state::Moment { head: end.0, sequence: 0 });
        self.state.slots[slot].position.store(offset + bytes.len() as u64, Release);
        true
    }

    /// Tells the keeper that a lease breaks, as its main thread does at SIGIO.
    fn ring(&self) {
        notify(&*self.bell);
    }

    /// Ends the program, and waits for the keeper.
    fn end(&mut self) {
        drop(self.link.take());
        if let Some(keeper) = self.keeper.take() {
            keeper.join().expect("no panic");
        }
    }

    fn checkpoint(&self) -> uncopy_mapped::layout::Checkpoint {
        let (log, _) = MappedLog::open_to_read(&self.log_path()).expect("mapped");
        *Reader::open(log.memory()).expect("a log").checkpoint()
    }

    fn log_path(&self) -> PathBuf {
        let paths = mapped_file::logs(&self.directory.0).expect("a directory");
        assert_eq!(paths.len(), 1);
        paths[0].clone()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.link.take());
        let (base, len_bytes) = self.mapped;
        // SAFETY: `log` is not used any more. The mapping would keep the log locked.
        unsafe { mem::unmap_shared(base, len_bytes) };
        if let Some(keeper) = self.keeper.take()
            && !thread::panicking()
        {
            keeper.join().expect("no panic");
        }
    }
}

/// Returns a directory and a program that logs there, while no test starts children.
fn program(name: &str) -> (Arc<Directory>, Program, RwLockReadGuard<'static, ()>) {
    let guard = no_forks();
    let directory = Arc::new(Directory::new(name));
    let program = Program::new(&directory);
    (directory, program, guard)
}

fn is_marked(file: &File) -> bool {
    mark::is_marked(file.as_fd()).expect("known")
}

#[test]
fn a_dropped_file_has_its_bytes_its_offset_and_its_flags() {
    let (directory, mut program, _guard) = program("dropped");
    let (path, mut file) = directory.file("a", libc::O_APPEND);
    file.write_all(b"before ").expect("written");
    let id = program.adopt(0, &file);
    assert!(is_marked(&file));
    assert_eq!(file::flags(file.as_fd()).expect("flags") & libc::O_APPEND, 0);
    assert!(program.write(0, id, 7, b"logged") && program.write(0, id, 13, b" twice"));
    assert_eq!(fs::metadata(&path).expect("known").len(), 7, "nothing is digested without a reason");
    let reserved_bytes = 1 << 20;
    // SAFETY: fallocate(2) takes integers only.
    let reserved = unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        libc::fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, reserved_bytes)
    };
    assert_eq!(reserved, 0);
    assert_eq!(program.ask(&[DROP, 0], None), [DONE, 0, 0]);
    assert_eq!(fs::read(&path).expect("read"), b"before logged twice");
    assert!(!is_marked(&file));
    assert_eq!(file::flags(file.as_fd()).expect("flags") & libc::O_APPEND, libc::O_APPEND);
    assert_eq!(file::position(file.as_fd()), Ok(19));
    assert_eq!(file::status(file.as_fd()).expect("known").blocks, 8, "nothing is reserved behind the end");
    assert_eq!(program.state.slots[0].flags.load(Acquire), 0);
    program.log.leave(id);
    // The file can be logged again at once, and is not touched by the old records.
    file.set_len(3).expect("truncated");
    let id = program.adopt(5, &file);
    assert!(program.write(5, id, 3, b"!"));
    program.end();
    assert_eq!(fs::read(&path).expect("read"), b"bef!");
    assert_eq!(program.checkpoint().process, 0);
}

#[test]
fn room_is_made_by_digesting_and_acknowledged_writes_survive_the_end() {
    let (directory, mut program, _guard) = program("room");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(3, &file);
    let bytes: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    let mut wanted = Vec::new();
    // Three laps of the ring.
    while wanted.len() < 3 * LOG_BYTES as usize {
        let part = [Part::Bytes(&bytes)];
        let appended = program.log.append(NO_CHUNKS, id, wanted.len() as u64, &part);
        if appended.is_err() {
            program.log.commit();
            assert_eq!(program.ask(&[MAKE_ROOM], None), [DONE, 0, 0]);
            assert_eq!(fs::metadata(&path).expect("known").len(), wanted.len() as u64);
            continue;
        }
        wanted.extend_from_slice(&bytes);
    }
    program.state.slots[3].position.store(77, Release);
    // The last records are written, and not committed.
    program.end();
    assert!(fs::read(&path).expect("read") == wanted);
    assert!(!is_marked(&file));
    assert_eq!((program.checkpoint().process, file::position(file.as_fd())), (0, Ok(77)));
    let recovered = MappedLog::open(&program.log_path());
    assert!(
        matches!(recovered, Err(mapped_file::Unreadable::File(Errno::EAGAIN))),
        "the program has it open"
    );
}

#[test]
fn a_closed_file_is_digested_and_an_unlinked_one_is_not() {
    let (directory, mut program, _guard) = program("closed");
    let (path, file) = directory.file("a", 0);
    let (gone_path, gone) = directory.file("b", 0);
    let (id, gone_id) = (program.adopt(0, &file), program.adopt(1, &gone));
    assert!(program.write(0, id, 4, b"abc") && program.write(1, gone_id, 0, b"abc"));
    let kept = gone.try_clone().expect("a duplicate");
    drop((file, gone));
    fs::remove_file(gone_path).expect("removed");
    for slot in [0, 1] {
        assert_eq!(program.ask(&[CLOSED, slot], None), [DONE, 0, 0]);
    }
    assert_eq!(program.ask(&[MAKE_ROOM], None), [DONE, 0, 0]);
    assert_eq!(fs::read(&path).expect("read"), b"\0\0\0\0abc");
    assert_eq!(kept.metadata().expect("known").len(), 0);
    assert!(program.state.slots[..2].iter().all(|slot| slot.flags.load(Acquire) == 0));
    assert!(!is_marked(&File::open(&path).expect("opened")));
}

#[test]
fn another_process_that_opens_a_file_finds_all_bytes() {
    let (directory, mut program, _guard) = program("contended");
    let (path, mut file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    assert!(program.write(0, id, 0, b"abc"));
    let append = program.state.slots[0].begin_append().expect("logged");
    let reader = thread::spawn({
        let path = path.clone();
        move || fs::read(path).expect("read")
    });
    while file_lock::has_unbroken_lease(file.as_fd()) {
        thread::yield_now();
    }
    program.ring();
    while program.state.slots[0].flags.load(Acquire) & UNRELIABLE == 0 {
        thread::yield_now();
    }
    // The reader waits until the append in progress has ended.
    assert_eq!(program.ask(&[MAKE_ROOM], None), [DONE, 0, 0]);
    assert!(!reader.is_finished());
    program.log.append(NO_CHUNKS, id, 3, &[Part::Bytes(b"def")]).expect("room");
    program.log.commit();
    program.state.slots[0].position.store(6, Release);
    drop(append);
    assert_eq!(reader.join().expect("read"), b"abcdef");
    assert!(!program.write(0, id, 6, b"lost"), "the file is the kernel's");
    assert_eq!(program.ask(&[DROP, 0], None), [DONE, 0, 0]);
    assert_eq!(file.stream_position().expect("a position"), 6);
    file.write_all(b"!").expect("written");
    program.end();
    assert_eq!(fs::read(&path).expect("read"), b"abcdef!");
}

/// Variable that is set in a child of the tests.
const CHILD: &str = "UNCOPY_TEST_CHILD";

/// Returns a command that runs one test in another process; `before` is put in front of it.
fn child(test: &str, before: &[&str]) -> Command {
    let executable = std::env::current_exe().expect("a path");
    let mut words = before.iter().map(std::ffi::OsStr::new).chain([executable.as_os_str()]);
    let mut child = Command::new(words.next().expect("a program"));
    child.args(words).args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    child
}

#[test]
fn records_refer_to_memory_behind_the_log() {
    let (directory, mut program, _guard) = program("references");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    let (log, _) = MappedLog::open_to_read(&program.log_path()).expect("mapped");
    let memory = log.contents().expect("a log");
    let chunk_bytes = memory.pool_bytes();
    let chunk_at = log.memory().len_bytes() - chunk_bytes;
    for (round, words) in [[MAKE_ROOM, 0], [DROP, 0]].into_iter().enumerate() {
        let received = [b'0' + round as u8; 10_000];
        let at = (chunk_bytes - received.len()) * round;
        log.memory().store(chunk_at + at, &received);
        let len_bytes = received.len() as u32;
        let reference = Part::Reference(Reference { chunk: 0, at: at as u64, len_bytes });
        let parts = [Part::Bytes(b"head"), reference, Part::Bytes(b"tail")];
        let offset = round as u64 * 10_008;
        program.log.append(&memory, id, offset, &parts).expect("room");
        program.log.commit();
        assert_eq!(program.ask(&words, None)[..2], [DONE, 0]);
        let found = fs::metadata(&path).expect("known").len();
        assert_eq!(found, offset + 10_008);
    }
    let found = fs::read(&path).expect("read");
    let wanted = ["0", "1"].map(|byte| format!("head{}tail", byte.repeat(10_000))).concat();
    assert!(found == wanted.as_bytes());
    // Chunks and ranges that do not exist are damage.
    for (chunk, at) in [(1, 0), (0, chunk_bytes as u64), (0, u64::MAX - 5)] {
        let reference = Part::Reference(Reference { chunk, at, len_bytes: 4 });
        assert!(program.log.append(&memory, id, 0, &[reference]).is_err(), "{chunk} {at}");
    }
}

#[test]
fn records_refer_to_files_of_the_service_until_the_log_is_empty() {
    let (directory, mut program, _guard) = program("service");
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o700)).expect("permissions");
    let folder = c_path(&directory.0).expect("no NUL");
    let made = memory_file::create(&folder, FILE_BYTES as u64).expect("a file");
    let received = [b'r'; 10_000];
    file::write_at(&made.locked, 5000, &received).expect("written");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    let (log, _) = MappedLog::open_to_read(&program.log_path()).expect("mapped");
    let reference = Part::Reference(Reference { chunk: 1, at: 5000, len_bytes: received.len() as u32 });
    let append = |program: &mut Program| {
        let memory = log.contents().expect("a log");
        let appended = program.log.append(&memory, id, 0, &[reference]);
        program.log.commit();
        appended
    };
    assert!(append(&mut program).is_err(), "the keeper has not given the file a name");
    assert_eq!(program.ask(&[ADOPT_MEMORY, made.inode + 1, 77], None)[..2], [REFUSED, libc::ENOENT as u64]);
    assert_eq!(program.ask(&[ADOPT_MEMORY, made.inode, 77], None), [ADOPTED, 0, 0]);
    append(&mut program).expect("room");
    // The service ends, and the next one removes its name.
    drop(made);
    assert_eq!(memory_file::remove_stale(&folder), Ok(1));
    let names = || memory_file::log_names(&memory_file::open(&folder).expect("opened")).expect("names");
    assert_eq!(names().iter().map(|name| (name.holder, name.number)).collect::<Vec<_>>(), [(77, 0)]);
    drop(log);
    program.end();
    assert_eq!(fs::read(&path).expect("read"), received);
    assert_eq!(names(), []);
}

#[test]
fn a_file_that_others_rename_leaves_the_log() {
    let (directory, mut program, _guard) = program("renamed");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    assert!(program.write(0, id, 0, b"abc"));
    let renamed = directory.0.join("b");
    fs::rename(&path, &renamed).expect("renamed");
    // At the next digest at the latest.
    while program.state.slots[0].flags.load(Acquire) & SETTLED == 0 {
        thread::yield_now();
    }
    assert_eq!(fs::read(&renamed).expect("read"), b"abc");
    assert_eq!(program.ask(&[DROP, 0], None), [DONE, 0, 0]);
    program.log.leave(id);
    let id = program.adopt(0, &file);
    assert!(program.write(0, id, 3, b"def"));
    program.end();
    assert_eq!(fs::read(&renamed).expect("read"), b"abcdef");
}

#[test]
fn a_child_that_wants_a_file_gets_it_from_the_kernel() {
    let (directory, mut program, _guard) = program("touched");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    assert!(program.write(0, id, 0, b"abc"));
    let flags = &program.state.slots[0].flags;
    flags.fetch_or(TOUCHED, AcqRel);
    // At the next digest at the latest.
    while flags.load(Acquire) & SETTLED == 0 {
        thread::yield_now();
    }
    assert_eq!(fs::read(&path).expect("read"), b"abc");
    assert_eq!(program.ask(&[DROP, 0], None), [DONE, 0, 0]);
    assert_eq!(program.state.slots[0].flags.load(Acquire), 0);
}

#[test]
fn a_program_that_outlives_its_keeper_knows_what_was_settled() {
    let (directory, mut program, _guard) = program("outlived");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    assert!(program.write(0, id, 0, b"abc"));
    program.end();
    assert_eq!(fs::read(&path).expect("read"), b"abc");
    assert_ne!(program.state.slots[0].flags.load(Acquire) & SETTLED, 0);
    assert!(!program.write(0, id, 3, b"lost"), "nobody digests the log");
}
