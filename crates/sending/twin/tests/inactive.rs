//! Without userfaultfd everything works and the status gives the reason. Needs a process of its own.

mod common;

use common::{exclusive, in_child, lend_all, pattern};
use uncopy_twin::{Buffer, InactiveReason, Status, Until, status};

/// Prevents any further descriptor from being opened.
fn refuse_descriptors() {
    let limit = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
    // SAFETY: setrlimit(2) reads `limit`, which outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

#[test]
fn without_userfaultfd_memory_is_ordinary_and_the_reason_is_known() {
    let _guard = exclusive();
    let child = in_child(|| {
        refuse_descriptors();
        let mut buffer = Buffer::copy_of(&pattern(1, 100_000)).expect("memory");
        assert_eq!(status(), Status::Dormant);
        assert!(lend_all(&buffer, Until::Dropped).is_none());
        let Status::Inactive { why, errno } = status() else { return false };
        assert_eq!((why, errno), (InactiveReason::Refused, libc::EMFILE));
        assert_eq!(
            status().to_string(),
            "inactive: userfaultfd was refused: Too many open files (os error 24)"
        );
        buffer.fill(2);
        let more: Vec<Buffer> =
            (0..200).map(|seed| Buffer::copy_of(&pattern(seed, 3000)).expect("memory")).collect();
        assert!(lend_all(&more[0], Until::Completed).is_none());
        more.iter().enumerate().all(|(seed, object)| **object == pattern(seed, 3000)[..])
    });
    assert_eq!(child, 0);
}

#[test]
fn switched_off_nothing_is_lent() {
    let _guard = exclusive();
    let child = in_child(|| {
        let buffer = Buffer::copy_of(&pattern(1, 100_000)).expect("memory");
        uncopy_twin::switch_off();
        assert_eq!(status().to_string(), "inactive: switched off");
        lend_all(&buffer, Until::Dropped).is_none()
    });
    assert_eq!(child, 0);
}

#[test]
fn a_descriptor_that_the_program_closes_ends_lending_and_nothing_else() {
    let Some(_guard) = common::can_lend("a_descriptor_that_the_program_closes_ends_lending_and_nothing_else")
    else {
        return;
    };
    let child = in_child(|| {
        let mut buffers: Vec<Buffer> =
            (0..8).map(|seed| Buffer::copy_of(&pattern(seed, 100_000)).expect("memory")).collect();
        let mut small: Vec<Buffer> =
            (0..100).map(|seed| Buffer::copy_of(&pattern(seed, 2000)).expect("memory")).collect();
        small.iter().for_each(|object| drop(lend_all(object, Until::Dropped)));
        drop(lend_all(&buffers[0], Until::Dropped).expect("lent"));
        // SAFETY: close_range(2) accesses no memory, and nothing in this process relies on these descriptors.
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
        assert!(lend_all(&buffers[1], Until::Dropped).is_none());
        assert!(status().to_string().starts_with("inactive: pages could not be protected"));
        buffers[0].fill(1);
        assert!(buffers[0].iter().all(|byte| *byte == 1));
        small.truncate(30);
        small.extend((0..200).map(|seed| Buffer::copy_of(&pattern(seed, 2000)).expect("memory")));
        small[30..].iter().enumerate().all(|(seed, object)| **object == pattern(seed, 2000)[..])
            && small[..30].iter().enumerate().all(|(seed, object)| **object == pattern(seed, 2000)[..])
    });
    assert_eq!(child, 0);
}
