//! Tests whether another process of the user could read this one's memory anyway, as in ptrace(2),
//! "Ptrace access mode checking", except that group ids are not compared and security modules not asked.

use crate::call::{kernel, syscall};
use crate::file;
use std::ffi::CString;

/// The users and permitted capabilities in `/proc/PID/status`.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    /// Real, effective, saved and file system user ids.
    users: [u32; 4],
    permitted: u64,
}

impl Rights {
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let mut users = field("Uid:")?.split_ascii_whitespace().map(str::parse);
        let users = [users.next()?.ok()?, users.next()?.ok()?, users.next()?.ok()?, users.next()?.ok()?];
        let permitted = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
        Some(Self { users, permitted })
    }

    /// Whether a process with these rights could access one with `others`: all user ids are equal,
    /// and it has every capability of the other.
    fn could_access(&self, others: &Self) -> bool {
        let user = self.users[0];
        self.users.iter().chain(&others.users).all(|other| *other == user)
            && others.permitted & !self.permitted == 0
    }
}

/// Rights of a process and the user namespace in which they hold.
struct ScopedRights {
    rights: Rights,
    /// Inode of the user namespace.
    user_namespace: u64,
}

impl ScopedRights {
    /// Reads the rights of a process by its name in `/proc`.
    fn read(process: &str) -> Option<Self> {
        let path = |what: &str| CString::new(format!("/proc/{process}/{what}")).ok();
        let mut text = [0u8; 4096];
        let len_bytes = file::read_start(&path("status")?, &mut text)?;
        let rights = Rights::parse(core::str::from_utf8(&text[..len_bytes]).ok()?)?;
        // Opening `ns/user` succeeds only if *this* process may ptrace that one; the reverse is what
        // `Rights::could_access` estimates.
        let namespace = file::open(&path("ns/user")?, libc::O_RDONLY | libc::O_CLOEXEC, 0).ok()?;
        let found = file::status(&namespace);
        Some(Self { rights, user_namespace: found.ok()?.inode })
    }
}

/// Whether other processes of its user may access this one: it is dumpable (`PR_SET_DUMPABLE`) and
/// gained no privileges when it was executed.
#[must_use]
pub fn is_accessible() -> bool {
    // SAFETY: PR_GET_DUMPABLE takes only integers, and accesses no memory of the process.
    unsafe { kernel!(Ask, syscall!(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0)) == 1 }
}

/// Whether the process with this id could access this one: both have one user in one user
/// namespace, it has every capability of this one, and this one is dumpable. False if unknown.
#[must_use]
pub fn may_access_this_process(process: u32) -> bool {
    let (Some(own), Some(theirs)) = (ScopedRights::read("self"), ScopedRights::read(&process.to_string()))
    else {
        return false;
    };
    is_accessible() && theirs.rights.could_access(&own.rights) && own.user_namespace == theirs.user_namespace
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t1\t2\t3\t4\nCapInh:\t0000000000000001\n\
                          CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n";

    #[test]
    fn users_and_capabilities_are_read_from_the_kernels_text() {
        let rights = Rights::parse(STATUS).expect("whole");
        assert_eq!(rights, Rights { users: [7; 4], permitted: 0x1ff_ffff_ffff });
        let with = |from: &str, to: &str| Rights::parse(&STATUS.replace(from, to)).expect("whole");
        let (fewer, another) = (with("000001ff", "000001fe"), with("\t7", "\t8"));
        assert!(rights.could_access(&rights) && rights.could_access(&fewer) && !fewer.could_access(&rights));
        assert!(!rights.could_access(&another) && !another.could_access(&rights));
        let two = with("\t7\t7\n", "\t7\t8\n");
        assert!(!two.could_access(&two) && !two.could_access(&rights) && !rights.could_access(&two));
        for cut in ["Uid:", "CapPrm:"] {
            assert_eq!(Rights::parse(&STATUS.replace(cut, "Other:")), None);
        }
        assert_eq!(Rights::parse(&STATUS.replace("\t7\t7\n", "\n")), None);
    }

    #[test]
    fn a_process_may_look_into_itself_and_nobody_else_may() {
        assert!(is_accessible() && may_access_this_process(std::process::id()));
        assert!(!may_access_this_process(u32::MAX));
    }
}
