//! Messages of recvmmsg and sendmmsg: their headers, their parts, and the bytes transferred.

use core::ffi::c_int;
use libc::{mmsghdr, msghdr, ssize_t};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::iovec::{Part, parts};
use uncopy_sys::readable::is_readable;

/// Returns the first `count` messages; `None` if they cannot be read, which the kernel is to report.
///
/// # Safety
/// Nobody else uses the messages: the program does not during the call that it passed them to.
pub unsafe fn given<'a>(messages: *mut mmsghdr, count: usize) -> Option<&'a mut [mmsghdr]> {
    let len_bytes = count.checked_mul(size_of::<mmsghdr>())?;
    // SAFETY: the messages are aligned and readable; the program passed them to a call that writes their lengths,
    // and the caller guarantees that nobody else uses them.
    (messages.is_aligned() && is_readable(messages as usize, len_bytes))
        .then(|| unsafe { core::slice::from_raw_parts_mut(messages, count) })
}

/// Returns the parts of a message; `None` if they cannot be read or exceed `max_parts`.
///
/// # Safety
/// Nobody changes the message's vector: the program does not during its call.
pub unsafe fn parts_of(header: &msghdr, max_parts: usize) -> Option<&[Part]> {
    if header.msg_iovlen > max_parts {
        return None;
    }
    // SAFETY: nobody changes the vector, by contract; `parts` checks that it is aligned and readable.
    unsafe { parts(header.msg_iov, header.msg_iovlen) }
}

/// Copies the parts of all messages into one array and their numbers into `counts`; returns the total number.
/// `None` if there are too many or they cannot be read.
///
/// # Safety
/// Nobody changes the messages' vectors: the program does not during its call.
pub unsafe fn flatten(messages: &[mmsghdr], into: &mut [Part], counts: &mut [usize]) -> Option<usize> {
    let mut used = 0;
    for (message, count) in messages.iter().zip(counts) {
        // SAFETY: the caller guarantees that nobody changes the vectors.
        let parts = unsafe { parts_of(&message.msg_hdr, into.len() - used) }?;
        for (slot, part) in into[used..].iter_mut().zip(parts) {
            *slot = *part;
        }
        *count = parts.len();
        used += parts.len();
    }
    Some(used)
}

/// Returns copies of the headers that name `parts` in place of the program's own, `counts` for each.
pub fn over<const MAX: usize>(messages: &[mmsghdr], mut parts: &[Part], counts: &[usize]) -> [mmsghdr; MAX] {
    // SAFETY: mmsghdr has only pointers and integers, for which zero is valid.
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

/// True if `message` is aligned and readable.
pub fn is_header(message: *const msghdr) -> bool {
    message.is_aligned() && is_readable(message as usize, size_of::<msghdr>())
}

/// Returns the parts of each of the first `count` messages, looked up on demand, and the number of bytes
/// transferred.
///
/// # Safety
/// The kernel has just transferred that many messages, so it has read the headers and their vectors.
pub unsafe fn transferred<'a>(
    messages: *const mmsghdr,
    count: usize,
) -> impl Iterator<Item = (impl FnOnce() -> &'a [Part], usize)> + Clone {
    let count = if messages.is_aligned() { count } else { 0 };
    (0..count).map(move |index| {
        // SAFETY: the caller guarantees that the kernel has just read this header, so it is readable; it is
        // aligned, and nobody changes it during the program's call.
        let message = unsafe { &*messages.add(index) };
        // SAFETY: by contract the kernel has just read the vector, and the program does not change it.
        let parts = move || unsafe { parts_of(&message.msg_hdr, usize::MAX) }.unwrap_or(&[]);
        (parts, message.msg_len as usize)
    })
}

/// Counts the bytes that a call has transferred, from its result.
#[inline(always)]
pub fn note_moved(result: ssize_t) {
    if result > 0 {
        uncopy_trials::record_transfer(result as usize);
    }
}

/// Returns the number of bytes transferred by the first `count` messages.
///
/// # Safety
/// The kernel has just transferred that many messages.
pub unsafe fn moved_bytes(messages: *const mmsghdr, count: c_int) -> ssize_t {
    // SAFETY: the caller guarantees that the kernel has just transferred that many messages.
    let transferred = unsafe { transferred(messages, usize::try_from(count).unwrap_or(0)) };
    transferred.map(|(_, len_bytes)| len_bytes as ssize_t).sum()
}

/// Calls `each` with every descriptor in a message's control data.
///
/// # Safety
/// The control data are readable and nobody changes them: the program does not during its call.
pub unsafe fn each_descriptor(header: &msghdr, mut each: impl FnMut(ProgramFd)) {
    let (control, len_bytes) = (header.msg_control as usize, header.msg_controllen);
    let head_bytes = size_of::<libc::cmsghdr>();
    if len_bytes < head_bytes || !is_readable(control, len_bytes) {
        return;
    }
    // SAFETY: the caller guarantees that the control data are readable.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !head.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return only heads that lie within the control data.
        let (level, kind, whole_bytes) =
            unsafe { ((*head).cmsg_level, (*head).cmsg_type, (*head).cmsg_len as usize) };
        let left_bytes = control + len_bytes - head as usize;
        if level == libc::SOL_SOCKET
            && kind == libc::SCM_RIGHTS
            && (head_bytes..=left_bytes).contains(&whole_bytes)
        {
            // SAFETY: `head` is a head within the control data; CMSG_DATA only computes the address after it.
            let descriptors = unsafe { libc::CMSG_DATA(head) }.cast::<ProgramFd>();
            for index in 0..(whole_bytes - head_bytes) / size_of::<ProgramFd>() {
                // SAFETY: the length in the head, which lies within the control data, covers this descriptor.
                each(unsafe { descriptors.add(index).read_unaligned() });
            }
        }
        // SAFETY: `header` and `head` are valid, as for the first head; nobody changes the control data.
        head = unsafe { libc::CMSG_NXTHDR(header, head) };
    }
}
