//! Evaluates an earlier profile of the program, from the default path of `uncopy profile`.

use super::Check;
use super::verdict::Verdict;
use crate::output::Quoted;
use crate::profile::file::{ReadError, default_name, read_profile};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use uncopy_profile::format::percent;
use uncopy_profile::verdict::{self, verdict};

/// Returns the check of the profile, and its verdict if it has one. `None` if no profile exists.
pub fn check(name: &OsStr, program: &Path, command: &str) -> Option<(Check, Option<Verdict>)> {
    const NAME: &str = "profile";
    let out = default_name(name);
    let quoted = super::report::shell_word(&out);
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&out);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            return Some((Check::warning(NAME, format!("{} {}", Quoted(&out), ReadError::Io(error))), None));
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
        let check = Check::warning(NAME, format!("{told}; but the program is newer than this profile"));
        return Some((check, None));
    }
    let implied = match found.benefit {
        verdict::Benefit::Unknown => None,
        verdict::Benefit::Saves => Some(Verdict {
            is_worth_trying: true,
            why: format!(
                "its profile predicts a saving of {} of its CPU time",
                percent(1.0 - verdict::cpu_ratio(&profile).0)
            ),
            next: format!("uncopy run -- {command}"),
        }),
        verdict::Benefit::Little => Some(Verdict {
            is_worth_trying: false,
            why: "its profile predicts little difference".to_owned(),
            next: format!("uncopy report {quoted}"),
        }),
    };
    Some((Check::ok(NAME, told), implied))
}
