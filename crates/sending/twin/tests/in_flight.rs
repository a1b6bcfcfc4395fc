//! Bytes that were sent arrive unchanged, whatever happens to the memory afterwards. Data is really sent by
//! reference, and really read afterwards.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod common;

use common::{Pipe, can_lend, connection, lend_all, pattern, receive};
use std::io::Write;
use std::os::fd::AsRawFd;
use uncopy_twin::{Buffer, Until, statistics};

const LARGE: usize = 64 << 10;

/// Sends by reference, passes the buffer to `modify`, and only then reads.
fn sent_then(len: usize, modify: impl FnOnce(Buffer)) {
    let bytes = pattern(1, len);
    let buffer = Buffer::copy_of(&bytes).expect("memory");
    let (socket, mut receiver) = connection();
    let pipe = Pipe::new();
    let loan = lend_all(&buffer, Until::Dropped).expect("lent");
    pipe.vmsplice(&buffer);
    pipe.splice_to(socket.as_raw_fd(), len);
    drop(loan);
    modify(buffer);
    assert!(receive(&mut receiver, len) == bytes, "other bytes arrived");
}

#[test]
fn without_protection_the_hazard_is_real() {
    let mut memory = vec![0u8; 3 * 4096];
    let offset = memory.as_ptr().align_offset(4096);
    let page = &mut memory[offset..offset + 4096];
    page.fill(1);
    let (socket, mut receiver) = connection();
    let pipe = Pipe::new();
    pipe.vmsplice(page);
    pipe.splice_to(socket.as_raw_fd(), 4096);
    page.fill(2);
    assert_eq!(receive(&mut receiver, 4096), vec![2; 4096], "if not, the tests here prove nothing");
}

#[test]
fn overwritten_bytes_arrive_as_they_were_sent() {
    let Some(_guard) = can_lend("overwritten_bytes_arrive_as_they_were_sent") else { return };
    for len in [4097, LARGE, LARGE + 123, 1 << 20] {
        let before = statistics().replaced_pages;
        sent_then(len, |mut buffer| {
            buffer.fill(0xEE);
            assert!(buffer.iter().all(|byte| *byte == 0xEE));
        });
        let replaced = statistics().replaced_pages - before;
        assert!(replaced >= (len / 4096) as u64, "{replaced} pages of {len} bytes were replaced");
    }
}

#[test]
fn a_single_write_replaces_one_page_and_keeps_its_other_bytes() {
    let Some(_guard) = can_lend("a_single_write_replaces_one_page_and_keeps_its_other_bytes") else { return };
    sent_then(LARGE, |mut buffer| {
        buffer[5 * 4096 + 7] ^= 0xFF;
        let mut expected = pattern(1, LARGE);
        expected[5 * 4096 + 7] ^= 0xFF;
        assert!(*buffer == expected[..]);
        let again = lend_all(&buffer, Until::Dropped);
        drop(again);
        assert!(*buffer == expected[..]);
    });
}

#[test]
fn freed_and_allocated_again_what_was_sent_arrives() {
    let Some(_guard) = can_lend("freed_and_allocated_again_what_was_sent_arrives") else { return };
    sent_then(LARGE, |buffer| {
        let address = buffer.as_ptr() as usize;
        drop(buffer);
        let mut others: Vec<Buffer> = (0..64).map(|_| Buffer::zeroed(LARGE).expect("memory")).collect();
        // Freed pages are merged with adjacent free runs, so a buffer that reuses them may begin elsewhere.
        assert!(
            others.iter().any(|other| (other.as_ptr() as usize).abs_diff(address) < LARGE),
            "the same pages are used again"
        );
        for other in &mut others {
            assert!(other.iter().all(|byte| *byte == 0), "calloc's zeroes");
            other.fill(0xDD);
        }
    });
}

#[test]
fn what_the_kernel_reads_into_the_buffer_does_not_change_what_was_sent() {
    let Some(_guard) = can_lend("what_the_kernel_reads_into_the_buffer_does_not_change_what_was_sent") else {
        return;
    };
    sent_then(LARGE, |mut buffer| {
        let new = pattern(9, LARGE);
        let (mut read, mut write) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let writer = std::thread::spawn({
            let new = new.clone();
            move || write.write_all(&new).expect("written")
        });
        std::io::Read::read_exact(&mut read, &mut buffer).expect("read");
        writer.join().expect("the writer ends");
        assert!(*buffer == new[..]);
    });
}

#[test]
fn small_objects_in_a_full_pageblock_are_sent_by_reference_and_stay_as_they_were() {
    let Some(_guard) =
        can_lend("small_objects_in_a_full_pageblock_are_sent_by_reference_and_stay_as_they_were")
    else {
        return;
    };
    const SIZE: usize = 2000;
    let mut objects: Vec<Buffer> =
        (0..200).map(|index| Buffer::copy_of(&pattern(index, SIZE)).expect("memory")).collect();
    let (socket, mut receiver) = connection();
    let pipe = Pipe::new();
    let mut sent = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        let Some(loan) = lend_all(object, Until::Dropped) else { continue };
        pipe.vmsplice(object);
        pipe.splice_to(socket.as_raw_fd(), SIZE);
        drop(loan);
        sent.push(index);
    }
    assert!(sent.len() >= 150, "{} of 200 objects were in full pageblocks", sent.len());
    // Overwrites every other object, frees the rest and reuses their slots.
    for (index, object) in objects.iter_mut().enumerate().filter(|(index, _)| index % 2 == 0) {
        object.copy_from_slice(&pattern(index + 1000, SIZE));
    }
    let mut index = 0;
    objects.retain(|_| {
        index += 1;
        index % 2 == 1
    });
    let fresh: Vec<Buffer> = (0..100).map(|_| Buffer::copy_of(&[0xCC; SIZE]).expect("memory")).collect();
    for (place, object) in objects.iter().enumerate() {
        assert!(**object == pattern(place * 2 + 1000, SIZE)[..], "object {place}");
    }
    assert!(fresh.iter().all(|object| object.iter().all(|byte| *byte == 0xCC)));
    for index in sent {
        assert!(receive(&mut receiver, SIZE) == pattern(index, SIZE), "object {index} as it was sent");
    }
}

#[test]
fn a_write_between_lending_and_the_end_of_the_call_does_not_open_the_page_for_later_ones() {
    let Some(_guard) =
        can_lend("a_write_between_lending_and_the_end_of_the_call_does_not_open_the_page_for_later_ones")
    else {
        return;
    };
    for until in [Until::Dropped, Until::Completed] {
        let mut buffer = Buffer::copy_of(&pattern(3, LARGE)).expect("memory");
        let (socket, mut receiver) = connection();
        let pipe = Pipe::new();
        let loan = lend_all(&buffer, until).expect("lent");
        // The kernel gets the copy made by this write.
        buffer[0] = 77;
        pipe.vmsplice(&buffer);
        pipe.splice_to(socket.as_raw_fd(), LARGE);
        loan.confirm();
        buffer[0] = 78;
        buffer[1] = 79;
        assert_eq!(receive(&mut receiver, LARGE)[..2], [77, pattern(3, 2)[1]]);
        uncopy_twin::settle(loan);
    }
}

#[test]
fn completed_loans_let_their_pages_be_written_in_place() {
    let Some(_guard) = can_lend("completed_loans_let_their_pages_be_written_in_place") else { return };
    let mut buffer = Buffer::zeroed(16 * LARGE).expect("memory");
    let before = statistics();
    let loan = lend_all(&buffer, Until::Completed).expect("lent");
    loan.confirm();
    uncopy_twin::settle(loan);
    buffer.fill(1);
    let after = statistics();
    assert_eq!(after.replaced_pages, before.replaced_pages);
    assert!(after.lifted_pages > before.lifted_pages);
    // A loan that is still pending prevents writing in place.
    let loan = lend_all(&buffer, Until::Completed).expect("lent");
    buffer.fill(2);
    assert!(statistics().replaced_pages > after.replaced_pages);
    uncopy_twin::settle(loan);
}

#[test]
fn an_object_that_is_written_after_every_send_is_lent_ever_more_rarely() {
    let Some(_guard) = can_lend("an_object_that_is_written_after_every_send_is_lent_ever_more_rarely") else {
        return;
    };
    let mut buffer = Buffer::zeroed(8192).expect("memory");
    let mut lent = 0;
    for round in 0..1000 {
        lent += u32::from(lend_all(&buffer, Until::Dropped).is_some());
        buffer[0] = round as u8;
    }
    assert!((1..20).contains(&lent), "{lent} of 1000");
    // After a time without writes the object is lent again.
    let mut lent = 0;
    for _ in 0..20_000 {
        lent += u32::from(lend_all(&buffer, Until::Dropped).is_some());
    }
    assert!(lent > 1000, "{lent} of 20000");
}

#[test]
fn memory_that_is_not_within_one_object_is_not_lent() {
    let large = Buffer::zeroed(LARGE).expect("memory");
    let end = large.as_ptr() as usize + LARGE;
    assert!(uncopy_twin::lend(end - 10, 20, Until::Dropped).is_none());
    assert!(uncopy_twin::lend(end, 0, Until::Dropped).is_none());
    assert!(uncopy_twin::lend(end - 1, usize::MAX, Until::Dropped).is_none());
    assert!(uncopy_twin::lend(usize::MAX, 1, Until::Dropped).is_none());
    let other = vec![0u8; 8192];
    assert!(uncopy_twin::lend(other.as_ptr() as usize, 8192, Until::Dropped).is_none());
    assert!(!uncopy_twin::contains(other.as_ptr() as usize) && uncopy_twin::contains(end - 1));
}

#[test]
fn objects_that_were_never_touched_or_given_back_to_the_kernel_are_written_like_others() {
    let Some(_guard) =
        can_lend("objects_that_were_never_touched_or_given_back_to_the_kernel_are_written_like_others")
    else {
        return;
    };
    const LONG: usize = 8 << 20;
    let object = uncopy_twin::allocate(LONG);
    assert!(!object.is_null());
    drop(uncopy_twin::lend(object as usize, LONG, Until::Dropped).expect("lent"));
    // SAFETY: the test owns the object, which has LONG bytes; untouched pages read as zeroes.
    let bytes = unsafe { core::slice::from_raw_parts_mut(object, LONG) };
    bytes[..LONG / 2].fill(1);
    assert!(bytes[LONG / 2..].iter().all(|byte| *byte == 0));
    bytes[LONG / 2..].fill(2);
    assert!(
        bytes[..LONG / 2].iter().all(|byte| *byte == 1) && bytes[LONG / 2..].iter().all(|byte| *byte == 2)
    );
    for _ in 0..100 {
        drop(uncopy_twin::lend(object as usize, LONG, Until::Dropped));
    }
    // SAFETY: madvise(2) with MADV_DONTNEED discards pages within the object, whose bytes are written to
    // before they are relied on, or expected to be zero.
    unsafe { libc::madvise(object.add(4096 * 100).cast(), 4096 * 100, libc::MADV_DONTNEED) };
    bytes[4096 * 50..4096 * 150].fill(3);
    assert!(bytes[4096 * 150..4096 * 200].iter().all(|byte| *byte == 0));
    assert!(bytes[4096 * 200..LONG / 2].iter().all(|byte| *byte == 1));
    assert!(bytes[4096 * 50..4096 * 150].iter().all(|byte| *byte == 3));
    // SAFETY: the test owns the object, and does not use it afterwards.
    unsafe { uncopy_twin::deallocate(object) };
}
