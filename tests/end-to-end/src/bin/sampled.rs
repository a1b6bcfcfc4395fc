//! Passes messages on and touches a known share of each: `sampled MESSAGES PAGES_OF_FIRST PAGES_OF_LAST`.
//!
//! A message of 64 pages is read into the first buffer, copied to the second and the third. Then pages of the
//! first are read, and pages of the third written, never of the second. Every byte read is checked.

use std::os::fd::AsRawFd;
use std::process::ExitCode;
use uncopy_core::addr::PAGE_BYTES;

const PAGES: usize = 64;
/// First touched page: pages at the edges are copied in any case.
const FIRST: usize = 4;

#[inline(never)]
fn receive(file: &std::fs::File, buffer: &mut [u8]) {
    // SAFETY: `buffer` has room for the `buffer.len()` bytes that pread(2) writes.
    let got = unsafe { libc::pread(file.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    assert_eq!(usize::try_from(got), Ok(buffer.len()));
}

#[inline(never)]
fn forward(to: &mut [u8], from: &[u8]) {
    // SAFETY: both are of the same length and lie apart.
    unsafe { libc::memcpy(to.as_mut_ptr().cast(), from.as_ptr().cast(), to.len()) };
    std::hint::black_box(to);
}

#[inline(never)]
fn forward_again(to: &mut [u8], from: &[u8]) {
    // SAFETY: both slices have the same length and do not overlap.
    unsafe { libc::memcpy(to.as_mut_ptr().cast(), from.as_ptr().cast(), to.len()) };
    std::hint::black_box(to);
}

fn byte_at(offset: usize) -> u8 {
    u8::try_from(offset % 251).expect("small")
}

fn main() -> ExitCode {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [messages, of_first, of_last] = numbers[..] else {
        eprintln!("usage: sampled MESSAGES PAGES_OF_FIRST PAGES_OF_LAST");
        return ExitCode::from(2);
    };
    let len = PAGES * PAGE_BYTES;
    let bytes: Vec<u8> = (0..len).map(byte_at).collect();
    // SAFETY: memfd_create(2) reads the name, a NUL-terminated literal; the descriptor has no other owner.
    let file = unsafe {
        use std::os::fd::FromRawFd as _;
        std::fs::File::from_raw_fd(libc::memfd_create(c"message".as_ptr(), libc::MFD_CLOEXEC))
    };
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).expect("written");
    let mut buffers = [vec![0u8; len], vec![0u8; len], vec![0u8; len]];
    let [first, second, third] = &mut buffers;
    for message in 0..messages {
        receive(&file, first);
        forward(second, first);
        forward_again(third, second);
        for page in FIRST..FIRST + of_first {
            let offset = page * PAGE_BYTES + message % PAGE_BYTES;
            // SAFETY: inside the buffer; volatile, so that it is read whatever the compiler knows.
            assert_eq!(unsafe { first.as_ptr().add(offset).read_volatile() }, byte_at(offset));
        }
        for page in FIRST..FIRST + of_last {
            let offset = page * PAGE_BYTES + message % PAGE_BYTES;
            // SAFETY: `offset` is inside the buffer; volatile, so that the compiler removes neither access.
            unsafe {
                assert_eq!(third.as_ptr().add(offset).read_volatile(), byte_at(offset));
                third.as_mut_ptr().add(offset).write_volatile(0);
            }
        }
    }
    forward(second, third);
    for (offset, byte) in second.iter().enumerate() {
        let page = offset / PAGE_BYTES;
        let is_written =
            (FIRST..FIRST + of_last).contains(&page) && offset % PAGE_BYTES == (messages - 1) % PAGE_BYTES;
        assert_eq!(*byte, if is_written { 0 } else { byte_at(offset) }, "at {offset}");
    }
    ExitCode::SUCCESS
}
