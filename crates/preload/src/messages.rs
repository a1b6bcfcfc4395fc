//! The messages of recvmmsg and sendmmsg.

use libc::mmsghdr;
use uncopy_record::Part;

/// The parts of each of the first `count` messages, and how many bytes of them were transferred.
///
/// # Safety
/// The kernel has just transferred so many messages.
pub unsafe fn each<'a>(
    messages: *const mmsghdr,
    count: usize,
) -> impl Iterator<Item = (&'a [Part], usize)> + Clone {
    (0..count).map(move |index| {
        // SAFETY: the caller's promise: the kernel has read the headers and their vectors, which have the layout of
        // `Part`.
        unsafe {
            let message = &*messages.add(index);
            let header = &message.msg_hdr;
            let parts = if header.msg_iovlen == 0 {
                &[]
            } else {
                core::slice::from_raw_parts(header.msg_iov.cast::<Part>(), header.msg_iovlen)
            };
            (parts, message.msg_len as usize)
        }
    })
}
