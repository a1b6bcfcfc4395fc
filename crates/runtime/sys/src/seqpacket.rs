//! Local connections between processes of one user: UNIX sockets of type SOCK_SEQPACKET, which
//! carry 64-bit words and descriptors.
//!
//! Each descriptor belongs to the thread that makes it.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};
use core::ffi::CStr;

/// Maximum number of words in a message.
pub const MAX_WORDS: usize = 16;

const SOCKET_TYPE: i32 = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
/// Maximum number of connections that wait to be accepted, see listen(2).
const BACKLOG: i32 = 64;

fn address(path: &CStr) -> Result<libc::sockaddr_un, Errno> {
    // SAFETY: `sockaddr_un` consists of integers, for which all-zero bytes are valid.
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

fn socket() -> Result<OwnFd, Errno> {
    // SAFETY: socket(2) takes only integers and returns a new descriptor.
    OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_socket, libc::AF_UNIX, SOCKET_TYPE, 0)) })
}

/// Listens for connections at `path`, which must not exist. The socket is bound to another name and
/// renamed once it listens, so that a name without a listener is stale and may be removed.
///
/// # Errors
/// Errors of socket(2), bind(2), listen(2) and rename(2).
pub fn listen(path: &CStr) -> Result<OwnFd, Errno> {
    let mut temporary_name = path.to_bytes().to_vec();
    temporary_name.extend_from_slice(b"~\0");
    let temporary_name = CStr::from_bytes_with_nul(&temporary_name).map_err(|_| Errno(libc::EINVAL))?;
    let address = address(temporary_name)?;
    let fd = socket()?;
    let len_bytes = size_of_val(&address);
    // SAFETY: `address` lives through the call and is `len_bytes` long; bind(2) only reads it.
    let bound = check(unsafe { kernel!(Name, syscall!(libc::SYS_bind, &fd, &raw const address, len_bytes)) });
    let listening = bound
        .and_then(|_| pass_credentials(&fd))
        // SAFETY: listen(2) takes only integers here, and accesses no memory of the process.
        .and_then(|()| check(unsafe { kernel!(Open, syscall!(libc::SYS_listen, &fd, BACKLOG)) }));
    let from = (libc::AT_FDCWD, temporary_name.as_ptr());
    let to = (libc::AT_FDCWD, path.as_ptr());
    let flags = libc::RENAME_NOREPLACE;
    let named = listening.and_then(|_| {
        // SAFETY: `temporary_name` and `path` are NUL-terminated, and renameat2(2) only reads them.
        let renamed =
            unsafe { kernel!(Name, syscall!(libc::SYS_renameat2, from.0, from.1, to.0, to.1, flags)) };
        check(renamed).inspect_err(|_| crate::mem::unlink(temporary_name))
    });
    named.map(|_| fd)
}

/// Makes each received message carry its sender's credentials (unix(7), `SO_PASSCRED`). Accepted
/// sockets inherit the option from the listener (Linux 3.13), so that it applies to the first
/// message too; `a_message_tells_who_has_sent_it_not_who_has_made_the_link` checks this.
fn pass_credentials(fd: impl Descriptor) -> Result<(), Errno> {
    let (level, name, yes) = (libc::SOL_SOCKET, libc::SO_PASSCRED, 1i32);
    // SAFETY: `yes` lives through the call and its size is passed; setsockopt(2) only reads it.
    check(unsafe {
        kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, &raw const yes, size_of_val(&yes)))
    })
    .map(drop)
}

/// Makes a pair of connected sockets, one of which is for another process.
///
/// # Errors
/// Errors of socketpair(2).
pub fn pair() -> Result<[OwnFd; 2], Errno> {
    crate::unix::pair_of(SOCKET_TYPE)
}

/// Connects to the listener at `path`, which must belong to a process of the same user.
///
/// # Errors
/// EPERM if the listener is another user's, ECONNREFUSED if the name has no listener; else errors
/// of socket(2) and connect(2).
pub fn connect(path: &CStr) -> Result<OwnFd, Errno> {
    let address = address(path)?;
    let fd = socket()?;
    let len_bytes = size_of_val(&address);
    // SAFETY: `address` lives through the call and is `len_bytes` long; connect(2) only reads it.
    let connection =
        check(unsafe { kernel!(Open, syscall!(libc::SYS_connect, &fd, &raw const address, len_bytes)) });
    connection.and_then(|_| same_user(&fd)).map(|()| fd)
}

/// Whether a descriptor is connected to the socket that listens, or listened, at `path`.
#[must_use]
pub fn is_connected_to(fd: impl Descriptor, path: &CStr) -> bool {
    // The socket was bound under this temporary name: see `listen`.
    let bound = crate::unix::peer_name(fd);
    bound.is_some_and(|name| name.bytes().strip_suffix(b"~") == Some(path.to_bytes()))
}

/// Returns the connection to the listener at `path` that the process kept open through execve(2).
#[must_use]
pub fn inherited_connection(path: &CStr) -> Option<OwnFd> {
    let mut kept = None;
    let _ = crate::fd::each_open(|fd| {
        if is_connected_to(fd, path) {
            kept = Some(fd);
        }
    });
    kept.map(|fd| OwnFd::new(fd.number()))
}

/// Accepts a connection from a process of the same user, and closes one from any other.
///
/// # Errors
/// Errors of accept4(2): EAGAIN if none waits. EPERM if the peer is another user's.
pub fn accept(listener: impl Descriptor) -> Result<OwnFd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: accept4(2) writes no address through a null pointer, and returns a new descriptor.
    let accepted =
        OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_accept4, listener, 0, 0, flags)) })?;
    same_user(&accepted).map(|()| accepted)
}

/// Checks that the peer had the effective user of this process when it connected, or accepted.
fn same_user(fd: impl Descriptor) -> Result<(), Errno> {
    let user = credentials(fd)?.uid;
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    if user == unsafe { libc::geteuid() } { Ok(()) } else { Err(Errno(libc::EPERM)) }
}

/// Process id of the peer as this process sees it; `None` if the peer is in a foreign pid namespace.
#[must_use]
pub fn peer_process(fd: impl Descriptor) -> Option<u32> {
    credentials(fd).ok().and_then(|credentials| u32::try_from(credentials.pid).ok()).filter(|pid| *pid > 0)
}

/// Credentials of the peer at the time when it connected, or accepted (`SO_PEERCRED`).
fn credentials(fd: impl Descriptor) -> Result<libc::ucred, Errno> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len_bytes = size_of_val(&credentials) as u32;
    // SAFETY: getsockopt(2) writes at most `len_bytes` bytes, the size of `credentials`.
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

/// Control data of one descriptor, with the alignment of `cmsghdr`.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Control data of the sender's credentials and one descriptor, with the alignment of `cmsghdr`.
#[repr(C, align(8))]
struct Received([u8; RECEIVED_BYTES]);

/// `CMSG_SPACE` of a `ucred` plus that of a descriptor.
const RECEIVED_BYTES: usize = 32 + 24;

/// Control data that came with a message.
#[derive(Debug)]
struct Attached {
    /// The first descriptor that came.
    fd: Option<OwnFd>,
    /// Whether more descriptors came, which are closed.
    has_more: bool,
    user: Option<u32>,
}

impl Attached {
    /// Parses the control data of a message. The kernel has already opened every descriptor in it,
    /// as many as the alignment left room for: all but the first are closed.
    ///
    /// # Safety
    /// The header must be one that recvmsg(2) has filled, and its control data must still be there.
    unsafe fn of(header: &libc::msghdr) -> Self {
        let mut attached = Self { fd: None, has_more: false, user: None };
        // SAFETY: the caller passes a header that recvmsg(2) has filled: the CMSG macros stay within
        // `msg_controllen`, and each message's data has `len_bytes` bytes, which bounds the reads.
        unsafe {
            let mut head = libc::CMSG_FIRSTHDR(header);
            while !head.is_null() {
                let data = libc::CMSG_DATA(head);
                let len_bytes = ((*head).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                match ((*head).cmsg_level, (*head).cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                        for at in 0..len_bytes / size_of::<i32>() {
                            attached.add(OwnFd::new(data.cast::<i32>().add(at).read_unaligned()));
                        }
                    }
                    (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len_bytes >= size_of::<libc::ucred>() => {
                        attached.user = Some(data.cast::<libc::ucred>().read_unaligned().uid);
                    }
                    _ => {}
                }
                head = libc::CMSG_NXTHDR(header, head);
            }
        }
        attached
    }

    fn add(&mut self, fd: OwnFd) {
        self.has_more = self.fd.is_some();
        self.fd.get_or_insert(fd);
    }
}

/// Sends a message of words.
///
/// # Errors
/// Errors of sendmsg(2): EAGAIN if the peer's queue is full.
pub fn send(fd: impl Descriptor, words: &[u64]) -> Result<(), Errno> {
    send_with(fd, words, None::<ProgramFd>)
}

/// Sends a message of words, with a descriptor if one is given.
///
/// # Errors
/// See [`send`].
pub fn send_with(fd: impl Descriptor, words: &[u64], with: Option<impl Descriptor>) -> Result<(), Errno> {
    let part = crate::iovec::Part { address: words.as_ptr() as usize, len_bytes: size_of_val(words) };
    let mut control = Control([0; 24]);
    // SAFETY: `msghdr` consists of integers and pointers, for which all-zero bytes are valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = (&raw const part).cast_mut().cast();
    header.msg_iovlen = 1;
    if let Some(with) = with {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        // SAFETY: `control` is aligned as `cmsghdr` and has room for one head and one descriptor
        // (CMSG_SPACE(4) is 24), so that CMSG_FIRSTHDR is not null.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const header);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(head).cast::<i32>().write_unaligned(with.number());
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header refers to `part`, its words and `control`, which live through the call.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_sendmsg, fd, &raw const header, flags)) }).map(drop)
}

/// Description of a received message.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// Words of the message; 0 if the peer has closed the connection.
    pub words: usize,
    /// The descriptor that came with the message.
    pub fd: Option<OwnFd>,
    /// Real user of the process that sent this message, which need not be the one that connected.
    /// `None` on sockets that do not report credentials; those of [`accept`] do.
    pub user: Option<u32>,
}

/// Receives one message, without waiting. A message is refused with EPROTO if it is longer than
/// `words`, is not whole words, carries more than one descriptor, or a descriptor without words;
/// its descriptors are closed.
///
/// # Errors
/// Errors of recvmsg(2): EAGAIN if there is no message.
pub fn receive(fd: impl Descriptor, words: &mut [u64; MAX_WORDS]) -> Result<ReceivedMessage, Errno> {
    let part = crate::iovec::Part { address: words.as_mut_ptr() as usize, len_bytes: size_of_val(words) };
    let mut control = Received([0; RECEIVED_BYTES]);
    // SAFETY: `msghdr` consists of integers and pointers, for which all-zero bytes are valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = (&raw const part).cast_mut().cast();
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header refers to `part`, `words` and `control`, which live through the call and
    // have the lengths that are passed.
    let got = check(unsafe { kernel!(Ask, syscall!(libc::SYS_recvmsg, fd, &raw mut header, flags)) })?;
    // SAFETY: recvmsg(2) has just succeeded with this header, whose control data is in `control`.
    let attached = unsafe { Attached::of(&header) };
    let is_cut = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let is_bare = got == 0 && attached.fd.is_some();
    if is_cut || attached.has_more || is_bare || !(got as usize).is_multiple_of(8) {
        return Err(Errno(libc::EPROTO));
    }
    Ok(ReceivedMessage { words: got as usize / 8, fd: attached.fd, user: attached.user })
}

/// Whether the peer has not closed the connection.
#[must_use]
pub fn is_open(fd: impl Descriptor) -> bool {
    const GONE: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
    crate::fd::poll(fd, libc::POLLRDHUP, 0).is_ok_and(|events| events & GONE == 0)
}

/// Shuts a connection down in both directions: the peer finds it closed. The descriptor stays open.
pub fn shut_down(fd: impl Descriptor) {
    // SAFETY: shutdown(2) takes only integers here, and accesses no memory of the process.
    unsafe { kernel!(Close, syscall!(libc::SYS_shutdown, fd, libc::SHUT_RDWR)) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn words_and_a_descriptor_go_over_a_link_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("uncopy-link-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let listener = listen(&name).expect("a socket");
        assert_eq!(listen(&name).err(), Some(Errno(libc::EEXIST)));
        assert_eq!(accept(&listener).err(), Some(Errno(libc::EAGAIN)));
        let near = connect(&name).expect("a link");
        assert!(
            is_connected_to(&near, &name)
                && !is_connected_to(&near, c"/elsewhere")
                && !is_connected_to(&listener, &name)
        );
        let far = accept(&listener).expect("a link");
        let mut words = [0; MAX_WORDS];
        assert_eq!(receive(&far, &mut words).err(), Some(Errno(libc::EAGAIN)));
        send(&near, &[5, 6]).expect("sent");
        send_with(&near, &[7], Some(&near)).expect("sent");
        let came = receive(&far, &mut words).expect("received");
        assert_eq!((came.words, came.fd, &words[..2]), (2, None, &[5, 6][..]));
        let came = receive(&far, &mut words).expect("received");
        assert_eq!((came.words, words[0]), (1, 7));
        assert!(came.fd.is_some_and(|fd| ![&near, &far, &listener].contains(&&fd)));
        send_with(&near, &[0; MAX_WORDS + 1], Some(&near)).expect("sent");
        assert_eq!(receive(&far, &mut words).err(), Some(Errno(libc::EPROTO)), "too long");
        // SAFETY: the literal has the three bytes that write(2) reads.
        assert_eq!(unsafe { libc::write((&near).number(), b"abc".as_ptr().cast(), 3) }, 3);
        assert_eq!(receive(&far, &mut words).err(), Some(Errno(libc::EPROTO)), "no whole words");
        assert!(is_open(&far));
        drop(near);
        assert!(!is_open(&far));
        assert_eq!(receive(&far, &mut words).expect("closed").words, 0);
        drop(far);
        let [near, far] = pair().expect("a link");
        send(&near, &[8]).expect("sent");
        assert_eq!(receive(&far, &mut words).expect("received").words, 1);
        drop((near, far, listener));
        std::fs::remove_file(&path).expect("the name");
        assert!(connect(&name).is_err());
    }

    /// Sends words with descriptors in one control message for each slice, which [`send`] and
    /// [`send_with`] never do.
    fn send_many(fd: &OwnFd, words: &[u64], slices: &[&[i32]]) {
        let mut control: Vec<u64> = Vec::new();
        for fds in slices {
            let mut message = vec![0u8; size_of::<libc::cmsghdr>()];
            fds.iter().for_each(|fd| message.extend_from_slice(&fd.to_ne_bytes()));
            let head = libc::cmsghdr {
                cmsg_len: message.len(),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            };
            // SAFETY: `head` is a `cmsghdr`, which has no padding, and is read for its size.
            let head =
                unsafe { core::slice::from_raw_parts((&raw const head).cast::<u8>(), size_of_val(&head)) };
            message[..head.len()].copy_from_slice(head);
            message.resize(message.len().next_multiple_of(8), 0);
            control.extend(message.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())));
        }
        let part = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: size_of_val(words) };
        // SAFETY: all-zero bytes are a valid `msghdr`; the buffers that it refers to live through the call.
        unsafe {
            let mut header: libc::msghdr = core::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = ((&raw const part).cast_mut(), 1);
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), control.len() * 8);
            assert!(
                libc::sendmsg(fd.number(), &raw const header, 0) >= 0,
                "{}",
                std::io::Error::last_os_error()
            );
        }
    }

    /// Whether the open file of `of` is open under another descriptor. Other tests run meanwhile.
    fn is_open_elsewhere(of: i32) -> bool {
        let link = |fd: &str| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
        let wanted = link(&of.to_string());
        let all = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        all.flatten().any(|entry| {
            let name = entry.file_name().into_string().expect("digits");
            name != of.to_string() && link(&name) == wanted
        })
    }

    #[test]
    fn of_a_message_with_several_descriptors_none_stays_open() {
        let [near, far] = pair().expect("a link");
        // A pipe is identified by its inode number, which no other test's has.
        let mut pipe = [-1; 2];
        // SAFETY: pipe2(2) writes two descriptors, for which `pipe` has room.
        assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        let [read, write] = pipe.map(OwnFd::new);
        drop(write);
        let (given, mut words) = ((&read).number(), [0; MAX_WORDS]);
        let many = [given; 200];
        let hostile: [&[&[i32]]; 6] = [
            &[&[given, given]],
            &[&[given, given, given]],
            &[&[given], &[given]],
            &[&[given], &[given], &[given, given]],
            &[&many],
            &[&many[..3], &many[..100]],
        ];
        for slices in hostile {
            send_many(&near, &[1, 2], slices);
            assert_eq!(receive(&far, &mut words).err(), Some(Errno(libc::EPROTO)), "{slices:?}");
            assert!(!is_open_elsewhere(given), "{slices:?}");
        }
        // A message without words looks like the end of the connection; its descriptor is closed too.
        send_many(&near, &[], &[&[given]]);
        assert_eq!(receive(&far, &mut words).err(), Some(Errno(libc::EPROTO)));
        assert!(!is_open_elsewhere(given));
        send_many(&near, &[3], &[&[given]]);
        let came = receive(&far, &mut words).expect("received");
        assert_eq!((came.words, words[0], came.user), (1, 3, None));
        assert!(came.fd.is_some() && is_open_elsewhere(given));
    }

    #[test]
    fn a_message_tells_who_has_sent_it_not_who_has_made_the_link() {
        let path = std::env::temp_dir().join(format!("uncopy-link-user-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let listener = listen(&name).expect("a socket");
        let near = connect(&name).expect("a link");
        // One message is sent before the connection is accepted, one after.
        send_with(&near, &[1], Some(&near)).expect("sent");
        let far = accept(&listener).expect("a link");
        send(&near, &[2]).expect("sent");
        let own = crate::ids::effective_user();
        // SAFETY: the child has one thread, makes only system calls, and exits.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                let is_other = own != 0 || syscall!(libc::SYS_setuid, 65_534) == 0;
                let is_sent = is_other && send(&near, &[3]).is_ok();
                libc::_exit(i32::from(!is_sent));
            }
            child
        };
        let mut status = -1;
        // SAFETY: waitpid(2) writes one int to `status`, which lives through the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has sent");
        let mut words = [0; MAX_WORDS];
        let mut next = || {
            let came = receive(&far, &mut words).expect("received");
            (words[0], came.user, came.fd.is_some())
        };
        assert_eq!(next(), (1, Some(own), true));
        assert_eq!(next(), (2, Some(own), false));
        assert_eq!(next(), (3, Some(if own == 0 { 65_534 } else { own }), false));
        drop((near, far, listener));
        std::fs::remove_file(&path).expect("the name");
    }
}
