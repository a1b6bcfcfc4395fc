//! Mapped logs in the output of `uncopy log`.

use super::{age, name_of};
use crate::output::{Quoted, Reason};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use uncopy_mapped::layout;
use uncopy_store::mapped::file::{self, Backing, Unreadable};
use uncopy_store::mapped::recover::{Summary, inspect};
use uncopy_sys::errno::Errno;

/// Returns the reason why a mapped log cannot be used, as the rest of a sentence.
pub fn unreadable_reason(why: layout::Unreadable) -> String {
    match why {
        layout::Unreadable::Foreign => "it is not a log".to_owned(),
        layout::Unreadable::Version(version) => {
            format!("it has version {version}; use the version of uncopy that wrote it")
        }
        layout::Unreadable::Superblock => {
            "its superblock is damaged or its end is missing; its files have what the keeper digested"
                .to_owned()
        }
        layout::Unreadable::Checkpoints => {
            "both checkpoints are damaged; its files have what the keeper digested".to_owned()
        }
    }
}

fn reason(why: Unreadable) -> String {
    match why {
        Unreadable::File(errno) => Reason(&errno.into()).to_string(),
        Unreadable::Log(why) => unreadable_reason(why),
    }
}

/// Returns the state of a log in a word or two.
const fn state(contents: &Summary) -> &'static str {
    match contents {
        _ if contents.is_in_use => "in use",
        _ if contents.checkpoint.process == 0 => "empty",
        _ if contents.damage.is_some() => "damaged",
        _ => "to recover",
    }
}

/// Returns the error for which a log was kept.
fn failure(contents: &Summary) -> Option<String> {
    let errno = Errno(contents.checkpoint.failure.cast_signed());
    let is_kept = errno.0 != 0 && contents.checkpoint.process != 0;
    is_kept.then(|| match errno.0 {
        libc::EUCLEAN => "the log is damaged".to_owned(),
        _ => Reason(&errno.into()).to_string(),
    })
}

/// Describes a log as a JSON object and as rows of text.
pub fn describe(path: &Path) -> (Value, String) {
    let name = name_of(path);
    let contents = match inspect(path) {
        Ok(contents) => contents,
        Err(why) => {
            let why = reason(why);
            let object = json!({"log": name, "mode": "only", "state": "unreadable", "reason": why});
            return (object, format!("{name}  unreadable: {why}\n"));
        }
    };
    let Summary { superblock, checkpoint, records, bytes, .. } = &contents;
    let seconds = age(checkpoint.time_ns).as_secs();
    let emulates_dax = contents.backing == Backing::Emulated;
    let files: Vec<String> = contents.files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    let mut rows = format!(
        "{name}  {:<10}  {:>7}  {:>5}  {records:>8}  {bytes:>12}  {seconds:>8}  only copy{}\n",
        state(&contents),
        checkpoint.process,
        superblock.len_bytes >> 20,
        if emulates_dax { ", emulates DAX" } else { "" },
    );
    let failure = failure(&contents);
    if let Some(why) = &failure {
        rows = rows + "    kept, because a file could not be written: " + why + "\n";
    }
    for file in &contents.files {
        rows = rows + "    " + &Quoted(file.as_os_str()).to_string() + "\n";
    }
    let object = json!({
        "log": name, "mode": "only", "state": state(&contents), "pid": checkpoint.process,
        "bytes": superblock.len_bytes, "records": records, "record_bytes": bytes, "files": files,
        "checkpoint_age_s": seconds, "emulates_dax": emulates_dax, "failure": failure,
    });
    (object, rows)
}

/// Checks a log. Returns whether it is intact, and the rest of a line about it.
pub fn check(path: &Path) -> (bool, String) {
    match inspect(path) {
        Ok(contents) => match (contents.damage, contents.records) {
            (Some(damage), records) => {
                let line = format!(
                    "{damage}, and lost like all behind it; {records} records are intact, which 'uncopy log recover \
                     --give-up' writes to their files"
                );
                (false, line)
            }
            (None, records) => (true, format!("{}, {records} records are intact", state(&contents))),
        },
        Err(why) => (false, reason(why)),
    }
}

/// Returns the files of the logs in a directory that are in use.
pub fn files_in_use(directory: &Path) -> Vec<PathBuf> {
    let logs = file::logs(directory).unwrap_or_default();
    let in_use = logs.iter().filter_map(|log| inspect(log).ok()).filter(|contents| contents.is_in_use);
    in_use.flat_map(|contents| contents.files).collect()
}
