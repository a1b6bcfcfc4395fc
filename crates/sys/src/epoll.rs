//! Which epolls of this process watch a descriptor, and for what. `/proc` says it, whoever has registered the descriptor.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::{fd, file};
use std::ffi::CString;

/// Where a link of `/proc/self/fd` leads for an epoll.
const EPOLL: &[u8] = b"anon_inode:[eventpoll]";
/// Bytes of one read of a registration list.
const READ_BYTES: usize = 64 << 10;

/// A registration of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The epoll.
    pub epoll: i32,
    /// The descriptor that it watches.
    pub fd: i32,
    /// The events that it was told.
    pub events: u32,
    /// What it gives with them.
    pub data: u64,
}

/// The registrations of a descriptor with all epolls of this process.
///
/// # Errors
/// What reading `/proc` says.
pub fn registrations_of(watched: i32) -> Result<Vec<Registration>, Errno> {
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

fn is_epoll(fd: i32) -> bool {
    let mut path = [0; EPOLL.len() + 1];
    file::path_of(fd, &mut path).is_ok_and(|len| path[..len] == *EPOLL)
}

/// Calls `each` with every registration of an epoll.
///
/// # Errors
/// What reading `/proc` says.
pub fn each_registration(epoll: i32, mut each: impl FnMut(Registration)) -> Result<(), Errno> {
    let path = CString::new(format!("/proc/thread-self/fdinfo/{epoll}")).map_err(|_| Errno::EINVAL)?;
    let list = file::open(&path, libc::O_RDONLY, 0)?;
    let mut text = Vec::new();
    let read = loop {
        let begin = text.len();
        text.resize(begin + READ_BYTES, 0);
        match file::read_at(list, begin as u64, &mut text[begin..]) {
            Ok(got) => {
                text.truncate(begin + got);
                if got < READ_BYTES {
                    break Ok(());
                }
            }
            Err(errno) => break Err(errno),
        }
    };
    file::close(list);
    read?;
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter_map(|line| parse(epoll, line)).for_each(&mut each);
    Ok(())
}

/// A line of an epoll's fdinfo: `tfd:        5 events:       19 data:                5  pos:0 ino:3d61 sdev:7`.
fn parse(epoll: i32, line: &str) -> Option<Registration> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let mut value = |name| (words.next() == Some(name)).then(|| words.next()).flatten();
    let events = u32::from_str_radix(value("events:")?, 16).ok()?;
    let data = u64::from_str_radix(value("data:")?, 16).ok()?;
    Some(Registration { epoll, fd, events, data })
}

/// Has an epoll watch a descriptor no more.
///
/// # Errors
/// What epoll_ctl says.
pub fn unwatch(epoll: i32, fd: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Poll, syscall!(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0)) })
        .map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tcp::watch;

    #[test]
    fn registrations_are_found_as_they_were_made() {
        // SAFETY: no requirements.
        let mut epolls = [(); 2].map(|()| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        // Another test may have closed a lower one in between.
        epolls.sort_unstable();
        let [one, other] = crate::unix::pair().expect("sockets");
        let edge = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let data = 0xfedc_ba98_7654_3210;
        watch(epolls[0], one, edge, data).expect("watched");
        watch(epolls[1], one, libc::EPOLLOUT as u32, 7).expect("watched");
        watch(epolls[1], other, libc::EPOLLIN as u32, 8).expect("watched");
        let mut found = registrations_of(one).expect("found");
        found.sort_by_key(|registration| registration.epoll);
        // ERR and HUP are always told.
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let expected = [
            Registration { epoll: epolls[0], fd: one, events: edge | always, data },
            Registration { epoll: epolls[1], fd: one, events: libc::EPOLLOUT as u32 | always, data: 7 },
        ];
        assert_eq!(found, expected);
        unwatch(epolls[1], one).expect("not watched");
        assert_eq!(registrations_of(one).expect("found"), expected[..1]);
        assert_eq!(parse(3, "pos:\t0"), None);
        assert_eq!(parse(3, "tfd: x events: 1 data: 2"), None);
        [epolls[0], epolls[1], one, other].into_iter().for_each(file::close);
    }
}
