//! Files that cannot be written at a digest.

use super::*;
use std::process::Stdio;

/// Runs a test in a process of its own, where it may change the limits. Returns whether this is that process.
fn is_in_child(test: &str, before: &[&str]) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut command = child(&format!("keeper::mapped::tests::failing::{test}"), before);
    let started = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let output = started.wait_with_output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

/// Sets the maximum length of files that this process writes (RLIMIT_FSIZE).
fn limit_files(len_bytes: u64) {
    let limit = libc::rlimit { rlim_cur: len_bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: setrlimit(2) reads `limit`; no handler is installed.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

#[test]
fn a_file_that_cannot_be_written_stays_logged_until_it_can() {
    if !is_in_child("a_file_that_cannot_be_written_stays_logged_until_it_can", &[]) {
        return;
    }
    let (directory, mut program, _guard) = program("later");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    assert!(program.write(0, id, 0, b"abc") && program.write(0, id, 2 * LOG_BYTES, b"d"));
    limit_files(LOG_BYTES);
    for _ in 0..2 {
        assert_eq!(program.ask(&[MAKE_ROOM], None), [DONE, libc::EFBIG as u64, 0]);
        assert_eq!(program.ask(&[DROP, 0], None), [DONE, libc::EFBIG as u64, 0]);
        assert!(is_marked(&file) && program.write(0, id, 1, b"B"), "still logged");
    }
    limit_files(libc::RLIM_INFINITY);
    assert_eq!(program.ask(&[DROP, 0], None), [DONE, 0, 0]);
    let found = fs::read(&path).expect("read");
    assert_eq!(
        (&found[..4], found.len() as u64, found.last()),
        (&b"aBc\0"[..], 2 * LOG_BYTES + 1, Some(&b'd'))
    );
    program.end();
    assert_eq!((program.checkpoint().process, program.checkpoint().failure), (0, 0));
}

#[test]
fn a_file_that_is_given_up_keeps_the_log_and_others_get_their_bytes() {
    if !is_in_child("a_file_that_is_given_up_keeps_the_log_and_others_get_their_bytes", &[]) {
        return;
    }
    let (directory, mut program, _guard) = program("given-up");
    let (path, file) = directory.file("a", 0);
    let (bad_path, bad) = directory.file("b", 0);
    let (late_path, late) = directory.file("c", 0);
    let (id, bad_id) = (program.adopt(0, &file), program.adopt(1, &bad));
    assert!(program.write(0, id, 0, b"abc") && program.write(1, bad_id, 2 * LOG_BYTES, b"d"));
    limit_files(LOG_BYTES);
    let reader = thread::spawn(move || File::open(bad_path).expect("opened"));
    while file_lock::has_unbroken_lease(bad.as_fd()) {
        thread::yield_now();
    }
    program.ring();
    let _open = reader.join().expect("opened");
    assert_eq!(program.state.slots[1].error.load(Acquire), libc::EFBIG as u32);
    assert_ne!(program.state.slots[1].flags.load(Acquire) & GIVEN_UP, 0);
    // No file is logged any more, and the others have left the log.
    assert_eq!(program.ask(&[DROP, 0], None), [DONE, 0, 0]);
    assert_eq!(fs::read(&path).expect("read"), b"abc");
    let late_id = program.register(2, &late);
    let adopt = [ADOPT, 2, late_id.entry.into(), late_id.incarnation.0];
    assert_eq!(program.ask(&adopt, Some(&late)), [REFUSED, libc::EFBIG as u64, 0]);
    assert_eq!(program.ask(&[DROP, 1], None), [DONE, libc::EFBIG as u64, 0]);
    program.end();
    assert!(is_marked(&bad) && !is_marked(&file) && !is_marked(&late) && late_path.exists());
    let found = program.checkpoint();
    assert_eq!((found.failure, found.process), (libc::EFBIG as u32, u64::from(std::process::id())));
    let (log, _) = MappedLog::open_to_read(&program.log_path()).expect("mapped");
    let mut recovery = Recovery::open(log.memory(), NO_CHUNKS, boot()).expect("a log");
    let batch = recovery.plan(NO_CHUNKS, Limits::default()).expect("no damage").expect("records");
    assert_eq!((batch.files.len(), batch.files[0].file), (1, bad_id));
}

#[test]
fn a_full_file_system_keeps_records_until_there_is_room() {
    let namespace = ["unshare", "--map-root-user", "--mount"];
    let mut command = Command::new(namespace[0]);
    let is_permitted = spawn(command.args(&namespace[1..]).arg("true")).wait();
    if !is_permitted.is_ok_and(|status| status.success()) {
        eprintln!("no user namespaces here: not tested");
        return;
    }
    if !is_in_child("a_full_file_system_keeps_records_until_there_is_room", &namespace) {
        return;
    }
    let directory = Arc::new(Directory::new("full"));
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=12m", "none"]).arg(&directory.0).status();
    assert!(mounted.expect("started").success());
    let too_large = mapped_file::open_or_create_empty(&directory.0, 16 << 20, true, &|| true);
    assert_eq!(too_large.map(drop), Err(Errno(libc::ENOSPC)));
    assert!(mapped_file::logs(&directory.0).expect("a directory").is_empty(), "nothing is left of it");
    let mut program = Program::new(&directory);
    let (path, file) = directory.file("a", 0);
    let (filler, mut full) = directory.file("filler", 0);
    let id = program.adopt(0, &file);
    let bytes = vec![5; 1 << 20];
    assert!(program.write(0, id, 0, &bytes) && program.write(0, id, 1 << 20, &bytes));
    // All but a megabyte is taken.
    full.write_all(&vec![0; 3 << 20]).expect("written");
    while full.write(&[0; 4096]).is_ok() {}
    full.set_len(full.metadata().expect("known").len() - (1 << 20)).expect("truncated");
    for _ in 0..2 {
        assert_eq!(program.ask(&[MAKE_ROOM], None), [DONE, libc::ENOSPC as u64, 0]);
        assert_eq!(program.ask(&[DROP, 0], None), [DONE, libc::ENOSPC as u64, 0]);
        assert!(program.write(0, id, 10, b"logged"), "memory is no disk");
    }
    fs::remove_file(filler).expect("removed");
    drop(full);
    assert_eq!(program.ask(&[DROP, 0], None), [DONE, 0, 0]);
    let mut wanted = vec![5; 2 << 20];
    wanted[10..16].copy_from_slice(b"logged");
    assert!(fs::read(&path).expect("read") == wanted);
    program.end();
    assert_eq!((program.checkpoint().process, program.checkpoint().failure), (0, 0));
    drop((program, file));
    // A mount point cannot be removed.
    let unmounted = Command::new("umount").arg(&directory.0).status();
    assert!(unmounted.expect("started").success());
}
