//! A keeper in another process is killed at every call that it makes, or one of its calls fails. Whatever it did until
//! then, the files have all that was acknowledged: after a recovery, or once the program has settled them itself.

use super::*;
use crate::keeper::{Keeper, Settings};
use crate::log_files::RecoveryOptions;
use crate::logs;
use crate::messages::{HELLO, UNAVAILABLE};
use std::ffi::CString;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Child;
use uncopy_core::options::LogMode;

const DIRECTORY: &str = "UNCOPY_TEST_DIRECTORY";
/// File in which a child counts its calls.
const CALLS: &str = "calls";
/// Number of calls of a run; more are made only if the run is slow and the keeper wakes for it.
const MAX_CALLS: usize = 2000;

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("socket")
}

/// The keeper or the recovery, in a child of the tests below. Without their variable it does nothing.
#[test]
fn in_a_child() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    uncopy_sys::inject::begin();
    let socket = CString::new(socket_in(&directory).into_os_string().into_encoded_bytes()).expect("no NUL");
    let root_pid = uncopy_sys::ids::parent();
    let log_bytes = LOG_BYTES;
    let settings =
        Settings { directory, log_bytes, emulates_dax: true, mode: LogMode::Only, socket, root_pid };
    if let Ok(keeper) = Keeper::begin(settings) {
        keeper.keep();
    }
}

#[test]
fn recovery_in_a_child() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    uncopy_sys::inject::begin();
    for path in logs::paths(&directory).expect("a directory") {
        // Errors are injected: the test looks at what is left.
        let _ = logs::recover(&path, &RecoveryOptions::default());
    }
}

/// Starts a test in a child with a fault: see `uncopy_sys::inject`.
fn start(test: &str, directory: &Path, fault: &str) -> Child {
    let mut command = child(&format!("keeper::mapped::tests::kills::{test}"), &[]);
    command.env(DIRECTORY, directory).env("INJECT_FAULT", fault).stdout(std::process::Stdio::null());
    command.env("INJECT_FAULT_LOG", directory.join(CALLS));
    // SAFETY: between fork and exec this only makes calls that are safe in signal handlers.
    unsafe {
        command.pre_exec(|| {
            // The harness's threads must not die by SIGIO, which the keeper's threads take by signalfd.
            let mut set: libc::sigset_t = core::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGIO);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
            Ok(())
        });
    }
    spawn(&mut command)
}

/// Returns the number of calls that a child has made.
fn calls_in(directory: &Path) -> usize {
    let mut count = [0; 8];
    let read = File::open(directory.join(CALLS)).and_then(|mut file| file.read_exact(&mut count));
    read.expect("a count");
    u64::from_ne_bytes(count) as usize
}

/// A file's path and expected contents.
type Wanted = (PathBuf, Vec<u8>);

/// A keeper that may die at any time, and a program.
struct Game {
    program: Program,
    directory: Arc<Directory>,
    files: Vec<Player>,
}

/// A file of the program.
struct Player {
    path: PathBuf,
    file: Option<File>,
    id: Option<FileId>,
    wanted: Vec<u8>,
}

/// Sends a request; `None`: the keeper has ended.
fn ask(link: &OwnFd, words: &[u64], file: Option<&File>) -> Option<([u64; MAX_WORDS], Option<OwnFd>)> {
    seqpacket::send_with(link, words, file.map(ProgramFd::of)).ok()?;
    receive(link)
}

impl Game {
    /// Connects to a keeper; `None`: it has ended, or has no log.
    fn begin(directory: &Arc<Directory>, keeper: &mut Child) -> Option<Self> {
        let socket =
            CString::new(socket_in(&directory.0).into_os_string().into_encoded_bytes()).expect("no NUL");
        let link = loop {
            match seqpacket::connect(&socket) {
                Ok(link) => break link,
                Err(_) if keeper.try_wait().expect("a child").is_some() => return None,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        let welcome = loop {
            match ask(&link, &[HELLO, PROTOCOL], None)? {
                ([WELCOME_MAPPED, ..], None) => return None,
                welcome @ ([WELCOME_MAPPED, ..], _) => break welcome,
                ([UNAVAILABLE, 0, ..], _) => thread::sleep(Duration::from_millis(1)),
                _ => return None,
            }
        };
        let bell = Arc::new(notifier().expect("a bell"));
        let program = Program::attach(link, welcome, bell, directory)?;
        Some(Self { program, directory: Arc::clone(directory), files: Vec::new() })
    }

    fn ask(&self, words: &[u64], file: Option<&File>) -> Option<[u64; 2]> {
        let (words, _) = ask(self.program.link(), words, file)?;
        Some([words[0], words[1]])
    }

    fn open(&mut self, name: &str, flags: i32) -> Option<usize> {
        let (path, file) = self.directory.file(name, flags);
        self.files.push(Player { path, file: Some(file), id: None, wanted: Vec::new() });
        let index = self.files.len() - 1;
        self.adopt(index).map(|()| index)
    }

    fn adopt(&mut self, index: usize) -> Option<()> {
        if self.files[index].id.is_some() {
            return Some(());
        }
        let file = self.files[index].file.as_ref().expect("open");
        let id = self.program.register(index, file);
        let words = [ADOPT, index as u64, id.entry.into(), id.incarnation.0];
        // Before the answer, as a keeper that dies may have adopted the file.
        self.files[index].id = Some(id);
        let answer = self.ask(&words, self.files[index].file.as_ref())?;
        if answer[0] != ADOPTED {
            self.files[index].id = None;
            self.program.log.leave(id);
            self.program.state.slots[index].clear();
        }
        Some(())
    }

    /// Takes a file out of the log.
    fn leave(&mut self, index: usize) -> Option<()> {
        let Some(id) = self.files[index].id else { return Some(()) };
        if self.ask(&[DROP, index as u64], None)? == [DONE, 0] {
            self.files[index].id = None;
            self.program.log.leave(id);
        }
        Some(())
    }

    fn write(&mut self, index: usize, at: usize, bytes: &[u8]) -> Option<()> {
        let mut is_written =
            self.files[index].id.is_some_and(|id| self.program.write(index, id, at as u64, bytes));
        if !is_written {
            self.leave(index)?;
            let Player { file, id, .. } = &self.files[index];
            if id.is_none() {
                let mut file = file.as_ref().expect("open");
                file.seek(std::io::SeekFrom::Start(at as u64)).expect("a position");
                file.write_all(bytes).expect("written");
                is_written = true;
            }
        }
        if is_written {
            let wanted = &mut self.files[index].wanted;
            wanted.resize(wanted.len().max(at + bytes.len()), 0);
            wanted[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Some(())
    }

    /// Uses everything that a keeper does; `None`: it has ended meanwhile.
    fn play(&mut self, fault: &str) -> Option<()> {
        let first = self.open("a", libc::O_APPEND)?;
        let second = self.open("b", 0)?;
        self.write(first, 0, b"abc")?;
        self.write(second, 5, b"de")?;
        self.ask(&[MAKE_ROOM], None)?;
        self.write(first, 3, &[7; 5000])?;
        self.leave(first)?;
        self.write(first, 5003, b"by the kernel")?;
        self.adopt(first)?;
        self.write(first, 5016, b"logged again")?;
        self.write(second, 3, b"DE")?;
        self.files[second].file = None;
        self.ask(&[CLOSED, second as u64], None)?;
        let third = self.open("c", 0)?;
        self.write(third, 0, b"contended")?;
        let reader = thread::spawn({
            let path = self.files[third].path.clone();
            move || fs::read(path).expect("read")
        });
        // The keeper is told by SIGIO.
        while !reader.is_finished() && seqpacket::is_open(self.program.link()) {
            thread::sleep(Duration::from_millis(1));
        }
        if !seqpacket::is_open(self.program.link()) {
            // Not settled yet: the reader sees what there is.
            file_lock::release_lease(self.files[third].file.as_ref().expect("open").as_fd());
        }
        let found = reader.join().expect("read");
        let has_failed = self.program.state.slots[third].flags.load(Acquire) & FAILED != 0;
        if seqpacket::is_open(self.program.link()) && !has_failed {
            assert_eq!(found, b"contended", "{fault}");
        }
        self.write(third, 9, b"!")?;
        self.ask(&[MAKE_ROOM], None).map(drop)
    }

    /// Takes all files out of the log without the keeper, which has died.
    fn settle_all(&mut self) {
        let (log, _) = MappedLog::open_to_read(&self.program.log_path()).expect("mapped");
        let mut digester = Digester::open(log.memory()).expect("a log");
        let memory = log.contents().expect("a log");
        for (slot, player) in self.files.iter().enumerate() {
            let (Some(file), Some(id)) = (&player.file, player.id) else { continue };
            let known = &self.program.state.slots[slot];
            digest::settle(file.as_fd(), known, &mut digester, &memory, id, self.program.log.committed())
                .expect("settled");
            file_lock::release_lease(file.as_fd());
            assert!(fs::read(&player.path).expect("read") == player.wanted, "{}", player.path.display());
        }
    }

    /// Ends the program. Returns the files and their expected contents.
    fn end(self) -> Vec<Wanted> {
        self.files.into_iter().map(|player| (player.path, player.wanted)).collect()
    }
}

/// Waits until no process uses a log of a directory. Returns false if that lasts: a keeper that cannot unmap its log
/// keeps it locked.
fn wait_for_logs(directory: &Path) -> bool {
    (0..2000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        let paths = logs::paths(directory).expect("a directory");
        !paths.iter().any(|path| logs::is_in_use(path))
    })
}

/// Recovers the logs of a directory, and compares the files.
fn check(directory: &Path, files: &[Wanted], fault: &str) {
    let _guard = no_forks();
    assert!(wait_for_logs(directory), "{fault}: the log is still in use");
    for path in logs::paths(directory).expect("a directory") {
        let outcome = logs::recover(&path, &RecoveryOptions::default()).expect("no error");
        let is_done = match &outcome {
            crate::log_files::Outcome::Empty => true,
            crate::log_files::Outcome::Recovered(recovered) => recovered.unresolved.is_empty(),
            _ => false,
        };
        assert!(is_done, "{fault}: {outcome:?}");
    }
    for (path, wanted) in files {
        let mut found = Vec::new();
        let mut file = File::open(path).expect("opened");
        file.read_to_end(&mut found).expect("read");
        if found != *wanted {
            let b = fs::read(directory.join(CALLS)).expect("x");
            for (i, w) in b.chunks(8).enumerate().skip(1).take(200) {
                if w[0] != 0 {
                    eprintln!("{i} {}", String::from_utf8_lossy(w));
                }
            }
        }
        assert!(
            found == *wanted,
            "{fault}: {}: {} bytes, {} wanted",
            path.display(),
            found.len(),
            wanted.len()
        );
        let owner = mark::owner_of(file.as_fd()).expect("known");
        assert!(owner.is_none_or(|owner| !may_have(&owner)), "{fault}: {}", path.display());
    }
}

/// Plays with a keeper that suffers a fault. Returns whether the keeper lived to the end, and the files.
fn played(fault: &str, settles: bool) -> (bool, Vec<Wanted>, Arc<Directory>) {
    let directory = Arc::new(Directory::new("kills"));
    let mut keeper = start("in_a_child", &directory.0, fault);
    let (mut has_lived, mut files) = (false, Vec::new());
    if let Some(mut game) = Game::begin(&directory, &mut keeper) {
        has_lived = game.play(fault).is_some();
        if !has_lived && settles {
            game.settle_all();
        }
        files = game.end();
    }
    if has_lived {
        let is_free = wait_for_logs(&directory.0);
        assert!(is_free || !fault.ends_with(":0"), "{fault}: the log is still in use");
    }
    // It may be dead already.
    let _ = keeper.kill();
    keeper.wait().expect("a child");
    (has_lived, files, directory)
}

#[test]
fn a_keeper_that_is_killed_at_any_call_loses_nothing() {
    for at in 1..MAX_CALLS {
        let fault = format!("{at}!:0");
        let (has_lived, files, directory) = played(&fault, at % 2 == 0);
        check(&directory.0, &files, &fault);
        if has_lived {
            assert!(at > 100, "a run has more calls");
            return;
        }
    }
    panic!("the keeper makes calls without end");
}

#[test]
fn a_keeper_whose_calls_fail_loses_nothing() {
    let (has_lived, _, directory) = played("0:0", false);
    let calls = calls_in(&directory.0);
    assert!(has_lived && (100..MAX_CALLS).contains(&calls), "{calls}");
    for (at, errno) in (1..calls).zip([libc::ENOSPC, libc::EIO].into_iter().cycle()) {
        for fault in [format!("{at}:{errno}"), format!("{at}+:{errno}")] {
            let (_, files, directory) = played(&fault, false);
            check(&directory.0, &files, &fault);
        }
    }
}

/// Leaves a log with records behind, and recovers it with a fault and then without. Returns the number of calls that the
/// recovery with the fault made.
fn recovered(fault: &str) -> usize {
    let directory = Arc::new(Directory::new("recovery"));
    let mut keeper = start("in_a_child", &directory.0, "0:0");
    let mut game = Game::begin(&directory, &mut keeper).expect("a keeper");
    let (first, second) = (game.open("a", 0), game.open("b", 0));
    let (first, second) = (first.expect("a keeper"), second.expect("a keeper"));
    keeper.kill().expect("alive");
    keeper.wait().expect("a child");
    game.write(first, 2, b"abc").expect("logged");
    game.write(second, 0, &[3; 9000]).expect("logged");
    game.write(first, 0, b"xyz").expect("logged");
    let files = game.end();
    fs::remove_file(directory.0.join(CALLS)).expect("a file");
    start("recovery_in_a_child", &directory.0, fault).wait().expect("a child");
    check(&directory.0, &files, fault);
    calls_in(&directory.0)
}

#[test]
fn a_recovery_that_is_killed_or_fails_at_any_call_can_be_repeated() {
    let calls = recovered("0:0");
    assert!((30..MAX_CALLS).contains(&calls), "{calls}");
    for at in 1..=calls {
        for kind in ["!:0", ":28", "+:5"] {
            recovered(&format!("{at}{kind}"));
        }
    }
}
