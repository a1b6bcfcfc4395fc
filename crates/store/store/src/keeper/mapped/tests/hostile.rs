//! Programs that do what they may not, and logs that somebody has written to.

use super::*;

#[test]
fn a_truncated_log_ends_logging_and_nothing_else() {
    let (directory, mut program, _guard) = program("truncated");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    assert!(program.write(0, id, 0, b"abc"));
    file::truncate(&program.log_file, 4096).expect("truncated");
    assert_eq!(program.ask(&[MAKE_ROOM], None), [DONE, libc::EIO as u64, 0]);
    program.end();
    assert!(is_marked(&file), "for `log check`");
    assert_eq!(fs::read(&path).expect("read"), b"");
}

#[test]
fn a_scribbled_record_is_noticed_and_its_log_kept() {
    let (directory, mut program, _guard) = program("scribbled");
    let (path, file) = directory.file("a", 0);
    let id = program.adopt(0, &file);
    let first = program.log.head();
    assert!(program.write(0, id, 0, b"abc") && program.write(0, id, 3, b"def"));
    let (log, is_in_use) = MappedLog::open_to_read(&program.log_path()).expect("mapped");
    assert!(is_in_use);
    let at = program.log.superblock().position(first) + 20;
    let mut byte = [0];
    log.memory().load(at, &mut byte);
    log.memory().store(at, &[byte[0] ^ 1]);
    assert_eq!(program.ask(&[MAKE_ROOM], None), [DONE, libc::EUCLEAN as u64, 0]);
    assert_ne!(program.state.slots[0].flags.load(Acquire) & UNRELIABLE, 0);
    assert_eq!(program.ask(&[DROP, 0], None)[0], DONE);
    program.end();
    assert_eq!(fs::read(&path).expect("read"), b"");
    let found = Recovery::open(log.memory(), NO_CHUNKS, boot()).expect("a log");
    assert_eq!(found.damage(), Some(uncopy_mapped::reader::Damage::Record(first)));
    assert!(is_marked(&file));
    // The position is the program's business again.
    assert_eq!((&file).stream_position().expect("a position"), 0);
}

#[test]
fn no_change_of_a_log_makes_a_keeper_panic_or_write_elsewhere() {
    let mut state = 3u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below) as usize
    };
    for turn in 0..60 {
        let (directory, mut program, _guard) = program("scribbles");
        let (other_path, other) = directory.file("other", 0);
        let (path, file) = directory.file("a", 0);
        let id = program.adopt(0, &file);
        let other_id = program.register(1, &other);
        let first = program.log.superblock().position(program.log.head());
        for at in 0..10 {
            program.write(0, id, at * 50, &[1; 100]);
        }
        let (log, _) = MappedLog::open_to_read(&program.log_path()).expect("mapped");
        for _ in 0..=random(4) {
            // The superblock, the checkpoints and two entries, or the records.
            let at = if random(2) == 0 { random(4096 + 2 * 4160) } else { first + random(2500) };
            log.memory().store(at, &[random(256) as u8]);
        }
        if turn % 4 == 0 {
            // A record of a file that the keeper does not hold.
            let _ = program.log.append(NO_CHUNKS, other_id, 0, &[Part::Bytes(b"stolen")]);
            program.log.commit();
        }
        for words in [[MAKE_ROOM, 0], [DROP, 0], [MAKE_ROOM, 0]] {
            assert_eq!(program.ask(&words, None)[0], DONE);
        }
        program.end();
        assert_eq!(other_path.metadata().expect("known").len(), 0, "turn {turn}");
        assert!(path.metadata().expect("known").len() <= 550, "turn {turn}");
    }
}

#[test]
fn a_message_of_another_protocol_is_refused() {
    let (_directory, program, _guard) = program("protocol");
    assert_eq!(program.ask(&[HELLO, PROTOCOL], None), [REFUSED, libc::EPROTO as u64, 0]);
}

#[test]
fn files_that_may_not_be_logged_are_refused_and_unchanged() {
    let (directory, mut program, _guard) = program("refused");
    let (path, file) = directory.file("a", libc::O_APPEND);
    let id = program.register(0, &file);
    let adopt = |slot: u64, entry: u64| [ADOPT, slot, entry, id.incarnation.0];
    let refused = |errno: i32| [REFUSED, errno as u64, 0];
    let (adopt_it, entry) = (adopt(0, id.entry.into()), u64::from(id.entry));
    // Another registration, an entry that cannot be, a slot that cannot be, and no registration at all.
    assert_eq!(program.ask(&adopt(0, entry + 1), Some(&file)), refused(libc::EINVAL));
    assert_eq!(program.ask(&adopt(0, 1 << 16), Some(&file)), refused(libc::EINVAL));
    assert_eq!(program.ask(&adopt(64, entry), Some(&file)), refused(libc::EPROTO));
    assert_eq!(program.ask(&[ADOPT, 0], Some(&file)), refused(libc::EPROTO));
    assert_eq!(program.ask(&adopt_it, None), refused(libc::EPROTO));
    let other = File::open(&path).expect("opened");
    assert_eq!(program.ask(&adopt_it, Some(&other)), refused(libc::EBADF));
    assert_eq!(program.ask(&adopt_it, Some(&file)), refused(libc::EAGAIN), "open elsewhere");
    drop(other);
    let link = directory.0.join("b");
    fs::hard_link(&path, &link).expect("linked");
    assert_eq!(program.ask(&adopt_it, Some(&file)), refused(libc::EINVAL), "two links");
    fs::remove_file(&link).expect("removed");
    for mode in [0o4600, 0o2600] {
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("its owner");
        assert_eq!(program.ask(&adopt_it, Some(&file)), refused(libc::EINVAL), "{mode:o}");
    }
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its owner");
    program.state.slots[0].is_append.store(0, Release);
    assert_eq!(
        program.ask(&adopt_it, Some(&file)),
        refused(libc::EINVAL),
        "O_APPEND is not what the slot says"
    );
    program.state.slots[0].is_append.store(1, Release);
    let owner = Owner { log: 1, path: program.log_path() };
    mark::set(file.as_fd(), &owner).expect("marked");
    assert_eq!(
        program.ask(&adopt_it, Some(&file)),
        refused(libc::EEXIST),
        "a log in use may have records for it"
    );
    mark::remove(file.as_fd()).expect("removed");
    assert_eq!(file::flags(file.as_fd()).expect("flags") & libc::O_APPEND, libc::O_APPEND);
    assert!(!is_marked(&file) && File::open(&path).is_ok());
    assert_eq!(program.ask(&adopt_it, Some(&file)), [ADOPTED, 0, 0]);
    let again = [ADOPT, 1, entry, id.incarnation.0];
    program.state.slots[1].is_append.store(0, Release);
    assert_eq!(program.ask(&again, Some(&file)), refused(libc::EEXIST), "it is logged already");
    assert_eq!(program.ask(&[99, 0], None), refused(libc::EPROTO));
}
