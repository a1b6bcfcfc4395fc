//! The messages of recvmmsg and sendmmsg, their parts, and what calls have moved.

use core::ffi::c_int;
use libc::{mmsghdr, msghdr, ssize_t};
use uncopy_engine::range::carrying;
use uncopy_engine::state::gate;
use uncopy_sys::iovec::{Part, parts};
use uncopy_sys::readable::is_readable;

/// The first `count` messages; `None` where they cannot be read, which is the kernel's to say.
///
/// # Safety
/// Nobody else uses them: the program does not during the call that it passed them to.
pub unsafe fn given<'a>(messages: *mut mmsghdr, count: usize) -> Option<&'a mut [mmsghdr]> {
    let len_bytes = count.checked_mul(size_of::<mmsghdr>())?;
    // SAFETY: aligned, readable just now; that the kernel may write their lengths is what the call asks for.
    (messages.is_aligned() && is_readable(messages as usize, len_bytes))
        .then(|| unsafe { core::slice::from_raw_parts_mut(messages, count) })
}

/// The parts of a message; `None` where they cannot be read or are more than `max_parts`.
///
/// # Safety
/// Nobody changes its vector meanwhile: the program does not during its call.
pub unsafe fn parts_of(header: &msghdr, max_parts: usize) -> Option<&[Part]> {
    if header.msg_iovlen > max_parts {
        return None;
    }
    // SAFETY: the caller answers for the vector: nobody changes it.
    unsafe { parts(header.msg_iov, header.msg_iovlen) }
}

/// Puts the parts of all messages into one array and notes how many each has; how many there are in all. `None` where
/// they are more than there is room for, or cannot be read.
///
/// # Safety
/// Nobody changes their vectors meanwhile: the program does not during its call.
pub unsafe fn flatten(messages: &[mmsghdr], into: &mut [Part], counts: &mut [usize]) -> Option<usize> {
    let mut used = 0;
    for (message, count) in messages.iter().zip(counts) {
        // SAFETY: the caller answers for the vectors: nobody changes them.
        let parts = unsafe { parts_of(&message.msg_hdr, into.len() - used) }?;
        for (slot, part) in into[used..].iter_mut().zip(parts) {
            *slot = *part;
        }
        *count = parts.len();
        used += parts.len();
    }
    Some(used)
}

/// Copies of the headers that name `parts` instead of the program's own: of each message as many as `counts` says.
pub fn over<const MAX: usize>(messages: &[mmsghdr], mut parts: &[Part], counts: &[usize]) -> [mmsghdr; MAX] {
    // SAFETY: all-zero headers are valid: no name, no parts, no control data.
    let mut replaced = [const { unsafe { core::mem::zeroed::<mmsghdr>() } }; MAX];
    for ((replacement, message), count) in replaced.iter_mut().zip(messages).zip(counts) {
        let (own, rest) = parts.split_at(*count);
        *replacement = *message;
        replacement.msg_hdr.msg_iov = own.as_ptr().cast_mut().cast();
        replacement.msg_hdr.msg_iovlen = own.len() as _;
        parts = rest;
    }
    replaced
}

/// Whether the kernel may be asked what the header at `message` says: it is aligned, and can be read.
pub fn is_header(message: *const msghdr) -> bool {
    message.is_aligned() && is_readable(message as usize, size_of::<msghdr>())
}

/// The parts of each of the first `count` messages, and how many bytes of them were transferred. The parts are looked up
/// when they are asked for.
///
/// # Safety
/// The kernel has just transferred so many messages: it has read the headers and their vectors.
pub unsafe fn transferred<'a>(
    messages: *const mmsghdr,
    count: usize,
) -> impl Iterator<Item = (impl FnOnce() -> &'a [Part], usize)> + Clone {
    let count = if messages.is_aligned() { count } else { 0 };
    (0..count).map(move |index| {
        // SAFETY: the kernel has just read these headers and their vectors, which are aligned, and nobody changes them
        // during the program's call.
        let message = unsafe { &*messages.add(index) };
        // SAFETY: as said, nobody changes the vector.
        let parts = move || unsafe { parts_of(&message.msg_hdr, usize::MAX) }.unwrap_or(&[]);
        (parts, message.msg_len as usize)
    })
}

/// Counts what a call has moved, by its result.
#[inline(always)]
pub fn note_moved(result: ssize_t) {
    if result > 0 {
        uncopy_trials::moved(result as usize);
    }
}

/// Notes that a call has received `got` bytes into these buffers of the program, in order. `errno` stays.
#[inline(always)]
pub fn note_arrival(fd: c_int, is_socket: bool, caller: usize, parts: &[Part], got: ssize_t) {
    let min_bytes = gate::min_size_bytes();
    if usize::try_from(got).is_ok_and(|got_bytes| got_bytes >= min_bytes) {
        note_large_arrival(fd, is_socket, caller, parts, min_bytes);
    }
}

#[cold]
fn note_large_arrival(fd: c_int, is_socket: bool, caller: usize, parts: &[Part], min_bytes: usize) {
    if let Some(part) = parts.iter().find(|part| part.len_bytes >= min_bytes) {
        let errno = uncopy_sys::errno::get();
        carrying::received(fd, is_socket, part.address, part.len_bytes, caller);
        uncopy_sys::errno::set(errno);
    }
}

/// Bytes in the first `count` messages.
///
/// # Safety
/// The kernel has just transferred so many messages.
pub unsafe fn moved_bytes(messages: *const mmsghdr, count: c_int) -> ssize_t {
    // SAFETY: the caller says that the kernel has transferred them.
    let transferred = unsafe { transferred(messages, usize::try_from(count).unwrap_or(0)) };
    transferred.map(|(_, len_bytes)| len_bytes as ssize_t).sum()
}

/// Calls `each` with every descriptor in a message's control data.
///
/// # Safety
/// Nobody changes the control data meanwhile: the program does not during its call.
pub unsafe fn each_descriptor(header: &msghdr, mut each: impl FnMut(c_int)) {
    let (control, len_bytes) = (header.msg_control as usize, header.msg_controllen);
    let head_bytes = size_of::<libc::cmsghdr>();
    if len_bytes < head_bytes || !is_readable(control, len_bytes) {
        return;
    }
    // SAFETY: the control data can be read.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !head.is_null() {
        // SAFETY: a head within the control data, as CMSG_FIRSTHDR and CMSG_NXTHDR check.
        let (level, kind, whole_bytes) =
            unsafe { ((*head).cmsg_level, (*head).cmsg_type, (*head).cmsg_len as usize) };
        let left_bytes = control + len_bytes - head as usize;
        if level == libc::SOL_SOCKET
            && kind == libc::SCM_RIGHTS
            && (head_bytes..=left_bytes).contains(&whole_bytes)
        {
            // SAFETY: descriptors follow the head.
            let descriptors = unsafe { libc::CMSG_DATA(head) }.cast::<c_int>();
            for index in 0..(whole_bytes - head_bytes) / size_of::<c_int>() {
                // SAFETY: as many as the head says.
                each(unsafe { descriptors.add(index).read_unaligned() });
            }
        }
        // SAFETY: as above.
        head = unsafe { libc::CMSG_NXTHDR(header, head) };
    }
}
