//! Links between processes of the same user: UNIX sockets of type SOCK_SEQPACKET, over which words and descriptors go.
//!
//! Their descriptors belong to the thread that makes them.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use core::ffi::CStr;

/// Words of a message, at most.
pub const MAX_WORDS: usize = 16;

const KIND: i32 = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
/// Links that wait to be accepted.
const BACKLOG: i32 = 64;

fn close(fd: i32) {
    // SAFETY: callers pass descriptors that they made or were sent.
    unsafe { kernel!(Close, syscall!(libc::SYS_close, fd)) };
}

fn address(path: &CStr) -> Result<libc::sockaddr_un, Errno> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.to_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

fn socket() -> Result<i32, Errno> {
    // SAFETY: makes a descriptor, touches no memory.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_socket, libc::AF_UNIX, KIND, 0)) }).map(|fd| fd as i32)
}

/// Waits for links under this name, which must not exist. It comes into being once there can be links: whoever finds a name
/// under which nobody waits may remove it.
///
/// # Errors
/// What socket, bind, listen and rename say.
pub fn listen(path: &CStr) -> Result<i32, Errno> {
    let mut before = path.to_bytes().to_vec();
    before.extend_from_slice(b"~\0");
    let before = CStr::from_bytes_with_nul(&before).map_err(|_| Errno(libc::EINVAL))?;
    let address = address(before)?;
    let fd = socket()?;
    let len_bytes = size_of_val(&address);
    // SAFETY: the address is valid for its length.
    let bound = check(unsafe { kernel!(Name, syscall!(libc::SYS_bind, fd, &raw const address, len_bytes)) });
    // SAFETY: touches no memory.
    let listening =
        bound.and_then(|_| check(unsafe { kernel!(Open, syscall!(libc::SYS_listen, fd, BACKLOG)) }));
    let from = (libc::AT_FDCWD, before.as_ptr());
    let to = (libc::AT_FDCWD, path.as_ptr());
    let flags = libc::RENAME_NOREPLACE;
    let named = listening.and_then(|_| {
        // SAFETY: terminated paths.
        let renamed =
            unsafe { kernel!(Name, syscall!(libc::SYS_renameat2, from.0, from.1, to.0, to.1, flags)) };
        check(renamed).inspect_err(|_| crate::mem::unlink(before))
    });
    named.map(|_| fd).inspect_err(|_| close(fd))
}

/// A link of this process with itself: one end is for somebody else.
///
/// # Errors
/// What socketpair says.
pub fn pair() -> Result<[i32; 2], Errno> {
    crate::unix::pair_of(KIND)
}

/// Links with whoever waits under this name, if it is a process of the same user.
///
/// # Errors
/// EPERM if it is another user's; ECONNREFUSED if nobody waits any more; else what socket and connect say.
pub fn connect(path: &CStr) -> Result<i32, Errno> {
    let address = address(path)?;
    let fd = socket()?;
    let len_bytes = size_of_val(&address);
    // SAFETY: the address is valid for its length.
    let linked =
        check(unsafe { kernel!(Open, syscall!(libc::SYS_connect, fd, &raw const address, len_bytes)) });
    linked.and_then(|_| same_user(fd)).map(|()| fd).inspect_err(|_| close(fd))
}

/// Whether a descriptor is a link with whoever waits under this name, or did.
#[must_use]
pub fn is_with(fd: i32, path: &CStr) -> bool {
    // It had another name when it began to wait: see `listen`.
    let bound = crate::unix::peer_name(fd);
    bound.is_some_and(|name| name.bytes().strip_suffix(b"~") == Some(path.to_bytes()))
}

/// Takes a link that a process of the same user has made. Others are closed.
///
/// # Errors
/// What accept4 says: EAGAIN where there is none; EPERM if it is another user's.
pub fn accept(listener: i32) -> Result<i32, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: asks for no address.
    let accepted =
        check(unsafe { kernel!(Open, syscall!(libc::SYS_accept4, listener, 0, 0, flags)) })? as i32;
    same_user(accepted).map(|()| accepted).inspect_err(|_| close(accepted))
}

/// Whether the process at the other end had this process's effective user when it made or took the link.
fn same_user(fd: i32) -> Result<(), Errno> {
    let user = credentials(fd)?.uid;
    // SAFETY: no requirements.
    if user == unsafe { libc::geteuid() } { Ok(()) } else { Err(Errno(libc::EPERM)) }
}

/// Id of the process at the other end, as this process sees it; `None`: it is in a namespace that this one does not see.
#[must_use]
pub fn process_of(fd: i32) -> Option<u32> {
    credentials(fd).ok().and_then(|credentials| u32::try_from(credentials.pid).ok()).filter(|pid| *pid > 0)
}

/// Of the process at the other end when it made or took the link.
fn credentials(fd: i32) -> Result<libc::ucred, Errno> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len_bytes = size_of_val(&credentials) as u32;
    // SAFETY: room for as many bytes as is said.
    check(unsafe {
        kernel!(
            Ask,
            syscall!(
                libc::SYS_getsockopt,
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                &raw mut credentials,
                &raw mut len_bytes
            )
        )
    })?;
    Ok(credentials)
}

/// Room for the control data of one descriptor, aligned as its head is.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Sends words, and a descriptor with them if one is given (-1: none).
///
/// # Errors
/// What sendmsg says: EAGAIN where the other end does not read.
pub fn send(fd: i32, words: &[u64], with: i32) -> Result<(), Errno> {
    let part = crate::iovec::Part { address: words.as_ptr() as usize, len_bytes: size_of_val(words) };
    let mut control = Control([0; 24]);
    // SAFETY: all-zero bytes are a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = (&raw const part).cast_mut().cast();
    header.msg_iovlen = 1;
    if with >= 0 {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        // SAFETY: there is room for one head and one descriptor behind it (CMSG_SPACE(4) is 24).
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const header);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(head).cast::<i32>().write_unaligned(with);
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header names words and control data that are valid during the call.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_sendmsg, fd, &raw const header, flags)) }).map(drop)
}

/// What came over a link.
#[derive(Debug)]
pub struct Came {
    /// Words of the message; 0: the other end is closed.
    pub words: usize,
    /// The descriptor that came with it, the caller's to close; -1: none.
    pub fd: i32,
}

/// Receives one message, without waiting. One that is longer than `words`, or not of whole words, or has more than one
/// descriptor, is EPROTO.
///
/// # Errors
/// What recvmsg says: EAGAIN where there is none.
pub fn receive(fd: i32, words: &mut [u64; MAX_WORDS]) -> Result<Came, Errno> {
    let part = crate::iovec::Part { address: words.as_mut_ptr() as usize, len_bytes: size_of_val(words) };
    let mut control = Control([0; 24]);
    // SAFETY: all-zero bytes are a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = (&raw const part).cast_mut().cast();
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names room that is valid during the call.
    let got = check(unsafe { kernel!(Ask, syscall!(libc::SYS_recvmsg, fd, &raw mut header, flags)) })?;
    let mut came = Came { words: got as usize / 8, fd: -1 };
    let mut descriptors = 0;
    // SAFETY: the kernel has filled the control data that the header names.
    unsafe {
        each_descriptor(&header, |fd| {
            descriptors += 1;
            // One that nobody asked for must not stay open: a peer could exhaust them.
            if came.fd >= 0 {
                close(came.fd);
            }
            came.fd = fd;
        });
    }
    let is_cut = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    if is_cut || descriptors > 1 || !(got as usize).is_multiple_of(8) {
        if came.fd >= 0 {
            close(came.fd);
        }
        return Err(Errno(libc::EPROTO));
    }
    Ok(came)
}

/// Calls `each` with every descriptor that came with a message. The kernel puts as many of them into the process as the control data
/// has room for, padding included (unix(7)).
///
/// # Safety
/// A header whose control data recvmsg has just filled.
unsafe fn each_descriptor(header: &libc::msghdr, mut each: impl FnMut(i32)) {
    // SAFETY: the heads lie within the control data, as CMSG_FIRSTHDR and CMSG_NXTHDR check, and each says how long it is.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(header);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let len_bytes = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(head).cast::<i32>();
                (0..len_bytes / size_of::<i32>()).for_each(|index| each(first.add(index).read_unaligned()));
            }
            head = libc::CMSG_NXTHDR(header, head);
        }
    }
}

/// Whether the other end is not closed.
#[must_use]
pub fn is_open(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one valid structure.
    let ready = unsafe { kernel!(Poll, syscall!(libc::SYS_poll, &raw mut poll, 1, 0)) };
    ready == 0
        || ready == 1
            && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
}

/// Ends a link, or a wait for links.
pub fn end(fd: i32) {
    close(fd);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// Sends a message of one word with this many descriptors, as no function of this module does.
    fn send_with_descriptors(fd: i32, descriptors: &[i32]) {
        let (word, mut control) = (7u64, [0u64; 16]);
        let part = crate::iovec::Part { address: &raw const word as usize, len_bytes: 8 };
        // SAFETY: the control data has room for one head and 16 descriptors; all of it is valid during the call.
        unsafe {
            let mut header: libc::msghdr = core::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = ((&raw const part).cast_mut().cast(), 1);
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(size_of_val(descriptors) as u32) as _;
            let head = libc::CMSG_FIRSTHDR(&raw const header);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size_of_val(descriptors) as u32) as _;
            libc::CMSG_DATA(head).copy_from(descriptors.as_ptr().cast(), size_of_val(descriptors));
            assert_eq!(libc::sendmsg(fd, &raw const header, 0), 8);
        }
    }

    #[test]
    fn a_message_with_more_than_one_descriptor_is_refused_and_leaves_none_open() {
        let [near, far] = pair().expect("a link");
        let mut words = [0; MAX_WORDS];
        for count in 2..=6 {
            let mut ends = [0; 2];
            // SAFETY: room for two descriptors.
            assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) }, 0);
            send_with_descriptors(near, &[ends[1]; 6][..count]);
            close(ends[1]);
            assert_eq!(receive(far, &mut words).err(), Some(Errno(libc::EPROTO)), "{count} descriptors");
            // Nobody has the pipe's other end any more: its end has come, and not EAGAIN.
            // SAFETY: room for one byte.
            assert_eq!(unsafe { libc::read(ends[0], (&raw mut words).cast(), 1) }, 0, "{count} descriptors");
            close(ends[0]);
        }
        send(near, &[8], -1).expect("sent");
        assert_eq!(receive(far, &mut words).expect("received").words, 1);
        [near, far].into_iter().for_each(end);
    }

    #[test]
    fn words_and_a_descriptor_go_over_a_link_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("uncopy-link-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let listener = listen(&name).expect("a socket");
        assert_eq!(listen(&name).err(), Some(Errno(libc::EEXIST)));
        assert_eq!(accept(listener).err(), Some(Errno(libc::EAGAIN)));
        let near = connect(&name).expect("a link");
        assert!(is_with(near, &name) && !is_with(near, c"/elsewhere") && !is_with(listener, &name));
        let far = accept(listener).expect("a link");
        let mut words = [0; MAX_WORDS];
        assert_eq!(receive(far, &mut words).err(), Some(Errno(libc::EAGAIN)));
        send(near, &[5, 6], -1).expect("sent");
        send(near, &[7], near).expect("sent");
        let came = receive(far, &mut words).expect("received");
        assert_eq!((came.words, came.fd, &words[..2]), (2, -1, &[5, 6][..]));
        let came = receive(far, &mut words).expect("received");
        assert_eq!((came.words, words[0]), (1, 7));
        assert!(came.fd > far);
        close(came.fd);
        send(near, &[0; MAX_WORDS + 1], near).expect("sent");
        assert_eq!(receive(far, &mut words).err(), Some(Errno(libc::EPROTO)), "too long");
        // SAFETY: three bytes that are readable.
        assert_eq!(unsafe { libc::write(near, b"abc".as_ptr().cast(), 3) }, 3);
        assert_eq!(receive(far, &mut words).err(), Some(Errno(libc::EPROTO)), "no whole words");
        assert!(is_open(far));
        end(near);
        assert!(!is_open(far));
        assert_eq!(receive(far, &mut words).expect("closed").words, 0);
        end(far);
        let [near, far] = pair().expect("a link");
        send(near, &[8], -1).expect("sent");
        assert_eq!(receive(far, &mut words).expect("received").words, 1);
        [near, far].into_iter().for_each(end);
        end(listener);
        std::fs::remove_file(&path).expect("the name");
        assert!(connect(&name).is_err());
    }
}
