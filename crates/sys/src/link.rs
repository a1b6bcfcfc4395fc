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
    let listening = bound
        .and_then(|_| tell_users(fd))
        // SAFETY: touches no memory.
        .and_then(|()| check(unsafe { kernel!(Open, syscall!(libc::SYS_listen, fd, BACKLOG)) }));
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

/// Each message that is received tells who has sent it (unix(7), `SO_PASSCRED`). Links that a listener accepts do as the listener
/// does (Linux 3.13), so that no message comes before they do; `a_message_tells_who_has_sent_it_not_who_has_made_the_link` checks it.
fn tell_users(fd: i32) -> Result<(), Errno> {
    let (level, name, yes) = (libc::SOL_SOCKET, libc::SO_PASSCRED, 1i32);
    // SAFETY: a valid integer.
    check(unsafe {
        kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, &raw const yes, size_of_val(&yes)))
    })
    .map(drop)
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

/// Room for the sender's credentials and for one descriptor, aligned as their heads are.
#[repr(C, align(8))]
struct Received([u8; RECEIVED_BYTES]);

/// `CMSG_SPACE` of a `ucred` and of a descriptor.
const RECEIVED_BYTES: usize = 32 + 24;

/// Control data that came with a message.
#[derive(Debug)]
struct Attached {
    /// The first descriptor; -1: none came.
    fd: i32,
    /// There were more descriptors, which are closed.
    has_more: bool,
    user: Option<u32>,
}

impl Attached {
    /// Takes the control data of a message apart. Each descriptor in it is open in this process from now on: one is kept, the kernel has
    /// put as many more there as the alignment left room for.
    ///
    /// # Safety
    /// The kernel has filled the control data that the header names.
    unsafe fn of(header: &libc::msghdr) -> Self {
        let mut attached = Self { fd: -1, has_more: false, user: None };
        // SAFETY: filled by the kernel, says the caller; these macros stay within what the header says.
        unsafe {
            let mut head = libc::CMSG_FIRSTHDR(header);
            while !head.is_null() {
                let data = libc::CMSG_DATA(head);
                let len_bytes = ((*head).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                match ((*head).cmsg_level, (*head).cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                        for at in 0..len_bytes / size_of::<i32>() {
                            attached.add(data.cast::<i32>().add(at).read_unaligned());
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

    fn add(&mut self, fd: i32) {
        if self.fd < 0 {
            self.fd = fd;
        } else {
            self.has_more = true;
            close(fd);
        }
    }
}

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
    /// Real user of the process that sent this message, whoever made the link; `None`: the link does not tell, which those of
    /// [`accept`] do.
    pub user: Option<u32>,
}

/// Receives one message, without waiting. One that is longer than `words`, or not of whole words, or has more than one
/// descriptor, or nothing but a descriptor, is EPROTO: no descriptor of it stays open.
///
/// # Errors
/// What recvmsg says: EAGAIN where there is none.
pub fn receive(fd: i32, words: &mut [u64; MAX_WORDS]) -> Result<Came, Errno> {
    let part = crate::iovec::Part { address: words.as_mut_ptr() as usize, len_bytes: size_of_val(words) };
    let mut control = Received([0; RECEIVED_BYTES]);
    // SAFETY: all-zero bytes are a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = (&raw const part).cast_mut().cast();
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names room that is valid during the call.
    let got = check(unsafe { kernel!(Ask, syscall!(libc::SYS_recvmsg, fd, &raw mut header, flags)) })?;
    // SAFETY: recvmsg has succeeded with this header.
    let attached = unsafe { Attached::of(&header) };
    let is_cut = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let is_bare = got == 0 && attached.fd >= 0;
    if is_cut || attached.has_more || is_bare || !(got as usize).is_multiple_of(8) {
        if attached.fd >= 0 {
            close(attached.fd);
        }
        return Err(Errno(libc::EPROTO));
    }
    Ok(Came { words: got as usize / 8, fd: attached.fd, user: attached.user })
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

/// Nothing goes over a link any more, in neither direction: whoever is at the other end finds it closed. The descriptor stays.
pub fn shut(fd: i32) {
    // SAFETY: touches no memory.
    unsafe { kernel!(Close, syscall!(libc::SYS_shutdown, fd, libc::SHUT_RDWR)) };
}

/// Ends a link, or a wait for links.
pub fn end(fd: i32) {
    close(fd);
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
        assert!(came.fd >= 0 && ![near, far, listener].contains(&came.fd), "{}", came.fd);
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

    /// Sends words with these descriptors, as many messages of control data as there are slices: what no link of ours does.
    fn send_many(fd: i32, words: &[u64], slices: &[&[i32]]) {
        let mut control: Vec<u64> = Vec::new();
        for fds in slices {
            let mut message = vec![0u8; size_of::<libc::cmsghdr>()];
            fds.iter().for_each(|fd| message.extend_from_slice(&fd.to_ne_bytes()));
            let head = libc::cmsghdr {
                cmsg_len: message.len(),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            };
            // SAFETY: the head is plain numbers without padding.
            let head =
                unsafe { core::slice::from_raw_parts((&raw const head).cast::<u8>(), size_of_val(&head)) };
            message[..head.len()].copy_from_slice(head);
            message.resize(message.len().next_multiple_of(8), 0);
            control.extend(message.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())));
        }
        let part = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: size_of_val(words) };
        // SAFETY: all-zero bytes are a valid header; what it names is valid during the call.
        unsafe {
            let mut header: libc::msghdr = core::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = ((&raw const part).cast_mut(), 1);
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), control.len() * 8);
            assert!(libc::sendmsg(fd, &raw const header, 0) >= 0, "{}", std::io::Error::last_os_error());
        }
    }

    /// Whether the open file of `of` is open under another descriptor: other tests open and close files of their own meanwhile.
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
        // A pipe is known by its number, and nobody else has this one.
        let mut pipe = [-1; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        close(pipe[1]);
        let (given, mut words) = (pipe[0], [0; MAX_WORDS]);
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
            send_many(near, &[1, 2], slices);
            assert_eq!(receive(far, &mut words).err(), Some(Errno(libc::EPROTO)), "{slices:?}");
            assert!(!is_open_elsewhere(given), "{slices:?}");
        }
        // Nor of a message without words, which looks like the end of the link.
        send_many(near, &[], &[&[given]]);
        assert_eq!(receive(far, &mut words).err(), Some(Errno(libc::EPROTO)));
        assert!(!is_open_elsewhere(given));
        send_many(near, &[3], &[&[given]]);
        let came = receive(far, &mut words).expect("received");
        assert_eq!((came.words, words[0], came.user), (1, 3, None));
        assert!(came.fd >= 0 && is_open_elsewhere(given));
        [came.fd, given, near, far].into_iter().for_each(close);
    }

    #[test]
    fn a_message_tells_who_has_sent_it_not_who_has_made_the_link() {
        let path = std::env::temp_dir().join(format!("uncopy-link-user-{}", std::process::id()));
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let listener = listen(&name).expect("a socket");
        let near = connect(&name).expect("a link");
        // Before it is accepted, and after.
        send(near, &[1], near).expect("sent");
        let far = accept(listener).expect("a link");
        send(near, &[2], -1).expect("sent");
        let own = crate::ids::effective_user();
        // SAFETY: the child makes system calls, of this thread alone, and ends.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                let is_other = own != 0 || syscall!(libc::SYS_setuid, 65_534) == 0;
                let is_sent = is_other && send(near, &[3], -1).is_ok();
                libc::_exit(i32::from(!is_sent));
            }
            child
        };
        let mut status = -1;
        // SAFETY: a child of this process's.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has sent");
        let mut words = [0; MAX_WORDS];
        let mut next = || {
            let came = receive(far, &mut words).expect("received");
            if came.fd >= 0 {
                close(came.fd);
            }
            (words[0], came.user, came.fd >= 0)
        };
        assert_eq!(next(), (1, Some(own), true));
        assert_eq!(next(), (2, Some(own), false));
        assert_eq!(next(), (3, Some(if own == 0 { 65_534 } else { own }), false));
        [near, far, listener].into_iter().for_each(close);
        std::fs::remove_file(&path).expect("the name");
    }
}
