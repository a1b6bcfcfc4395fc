//! What a profile says that was made of the program before, where `uncopy profile` puts it by default.

use super::Check;
use super::worth::Worth;
use crate::output::Quoted;
use crate::profile::out::{Unreadable, default_name, read_profile};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use uncopy_profile::verdict::{self, verdict};
use uncopy_profile::words::percent;

/// The check, and what it says of the question if it answers it; nothing if there is no profile.
pub fn check(name: &OsStr, program: &Path, command: &str) -> Option<(Check, Option<Worth>)> {
    const NAME: &str = "profile";
    let out = default_name(name);
    let quoted = super::report::shell_word(&out);
    // A pipe is not waited for.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&out);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            return Some((Check::warning(NAME, format!("{} {}", Quoted(&out), Unreadable::Io(error))), None));
        }
    };
    let written = file.metadata().and_then(|found| found.modified());
    let changed = program.metadata().and_then(|found| found.modified());
    let profile = match read_profile(file) {
        Ok(profile) => profile,
        Err(why) => return Some((Check::warning(NAME, format!("{} {why}", Quoted(&out))), None)),
    };
    let found = verdict(&profile);
    let told = format!("{quoted}: {}", found.sentence.trim_end_matches('.'));
    let is_older = written.ok().zip(changed.ok()).is_some_and(|(written, changed)| written < changed);
    if is_older {
        let check = Check::warning(NAME, format!("{told}; but the program is newer than it"));
        return Some((check, None));
    }
    let worth = match found.worth {
        verdict::Worth::Unknown => None,
        verdict::Worth::Saves => Some(Worth {
            is_worth: true,
            why: format!(
                "its profile says that it saves {} of its CPU time",
                percent(1.0 - verdict::cpu_ratio(&profile).0)
            ),
            next: format!("uncopy run -- {command}"),
        }),
        verdict::Worth::Little => Some(Worth {
            is_worth: false,
            why: "its profile says that it makes little difference".to_owned(),
            next: format!("uncopy report {quoted}"),
        }),
    };
    Some((Check::ok(NAME, told), worth))
}
