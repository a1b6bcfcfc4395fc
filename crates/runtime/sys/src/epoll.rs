//! Registrations of a descriptor with the epolls of this process, read from `/proc`.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor as _, ProgramFd};
use crate::errno::{Errno, check};
use crate::{fd, file};
use std::ffi::CString;

/// Target of an epoll's link in `/proc/self/fd`.
const EPOLL: &[u8] = b"anon_inode:[eventpoll]";
/// Bytes of one read of a registration list.
const READ_BYTES: usize = 64 << 10;

/// A registration of a descriptor with an epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Descriptor of the epoll.
    pub epoll: ProgramFd,
    /// The descriptor that is registered.
    pub fd: ProgramFd,
    /// The events that are reported, as in epoll_ctl(2).
    pub events: u32,
    /// The data that the epoll returns with events.
    pub data: u64,
}

/// Returns the registrations of a descriptor with all epolls of this process.
///
/// # Errors
/// Errors of reading `/proc`.
pub fn registrations_of(watched: ProgramFd) -> Result<Vec<Registration>, Errno> {
    let mut open = Vec::new();
    fd::each_open(|fd| open.push(fd))?;
    let mut found = Vec::new();
    for epoll in open {
        if is_epoll(epoll) {
            each_registration(epoll, |registration| {
                if registration.fd == watched {
                    found.push(registration);
                }
            })?;
        }
    }
    Ok(found)
}

fn is_epoll(fd: ProgramFd) -> bool {
    let mut path = [0; EPOLL.len() + 1];
    file::path_of(fd, &mut path).is_ok_and(|len| path[..len] == *EPOLL)
}

/// Calls `each` with every registration of an epoll.
///
/// # Errors
/// Errors of reading `/proc`.
pub fn each_registration(epoll: ProgramFd, mut each: impl FnMut(Registration)) -> Result<(), Errno> {
    let path =
        CString::new(format!("/proc/thread-self/fdinfo/{}", epoll.number())).map_err(|_| Errno::EINVAL)?;
    let list = file::open(&path, libc::O_RDONLY, 0)?;
    let mut text = Vec::new();
    let read = loop {
        let begin = text.len();
        text.resize(begin + READ_BYTES, 0);
        match file::read_at(&list, begin as u64, &mut text[begin..]) {
            Ok(got) => {
                text.truncate(begin + got);
                if got < READ_BYTES {
                    break Ok(());
                }
            }
            Err(errno) => break Err(errno),
        }
    };
    read?;
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter_map(|line| parse(epoll, line)).for_each(&mut each);
    Ok(())
}

/// Parses a line of an epoll's fdinfo, such as
/// `tfd:        5 events:       19 data:                5  pos:0 ino:3d61 sdev:7`.
fn parse(epoll: ProgramFd, line: &str) -> Option<Registration> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    let fd = ProgramFd::new(words.next()?.parse().ok()?);
    let mut value = |name| (words.next() == Some(name)).then(|| words.next()).flatten();
    let events = u32::from_str_radix(value("events:")?, 16).ok()?;
    let data = u64::from_str_radix(value("data:")?, 16).ok()?;
    Some(Registration { epoll, fd, events, data })
}

/// Removes the registration of a descriptor with an epoll.
///
/// # Errors
/// Errors of epoll_ctl(2).
pub fn epoll_remove(epoll: ProgramFd, fd: ProgramFd) -> Result<(), Errno> {
    // SAFETY: EPOLL_CTL_DEL ignores the event pointer, which is null here.
    check(unsafe { kernel!(Poll, syscall!(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0)) })
        .map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptor::OwnFd;
    use crate::tcp::epoll_add;

    #[test]
    fn registrations_are_found_as_they_were_made() {
        // SAFETY: epoll_create1(2) takes only flags and returns a new descriptor, which nothing else owns.
        let mut epolls = [(); 2].map(|()| OwnFd::new(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }));
        // Another test may have closed a lower number in between.
        epolls.sort_unstable_by_key(OwnFd::as_program);
        let numbers = [&epolls[0], &epolls[1]].map(OwnFd::as_program);
        let pair = crate::unix::pair().expect("sockets");
        let [one, other] = [&pair[0], &pair[1]].map(OwnFd::as_program);
        let edge = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let data = 0xfedc_ba98_7654_3210;
        epoll_add(numbers[0], one, edge, data).expect("watched");
        epoll_add(numbers[1], one, libc::EPOLLOUT as u32, 7).expect("watched");
        epoll_add(numbers[1], other, libc::EPOLLIN as u32, 8).expect("watched");
        let mut found = registrations_of(one).expect("found");
        found.sort_by_key(|registration| registration.epoll);
        // EPOLLERR and EPOLLHUP are always reported.
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let expected = [
            Registration { epoll: numbers[0], fd: one, events: edge | always, data },
            Registration { epoll: numbers[1], fd: one, events: libc::EPOLLOUT as u32 | always, data: 7 },
        ];
        assert_eq!(found, expected);
        epoll_remove(numbers[1], one).expect("not watched");
        assert_eq!(registrations_of(one).expect("found"), expected[..1]);
        assert_eq!(parse(ProgramFd::new(3), "pos:\t0"), None);
        assert_eq!(parse(ProgramFd::new(3), "tfd: x events: 1 data: 2"), None);
    }
}
