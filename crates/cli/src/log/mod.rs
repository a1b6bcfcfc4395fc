//! `uncopy log`: shows the logs of `run --log`, and recovers them after a crash.

pub mod keeper;
mod mapped;
pub mod memory;
mod wait;

use crate::args;
use crate::os;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Quoted, Reason};
use clap::ArgMatches;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use uncopy_store::layout::{Identity, SuperblockError};
use uncopy_store::log_files::{self, LogSummary, Outcome, Recovered, RecoveryOptions};
use uncopy_store::logs;
use uncopy_store::mapped::file::is_mapped;
use uncopy_store::recovery::Unreadable;
use uncopy_sys::errno::Errno;

/// Runs the command line `log …`.
pub fn main(matches: &ArgMatches) -> u8 {
    let Some((name, matches)) = matches.subcommand() else { return EXIT_USAGE };
    let path = PathBuf::from(matches.get_one::<OsString>(args::DIRECTORY).cloned().unwrap_or_default());
    match name {
        "keep" => keeper::run(&path, matches),
        "sync" => sync(&path),
        "wait" => wait::wait(&path, matches),
        _ => match logs::paths(&path) {
            Err(error) => {
                output::print_message(format_args!(
                    "{} cannot be read: {}",
                    Quoted(path.as_os_str()),
                    Reason(&error)
                ));
                EXIT_FAILURE
            }
            Ok(logs) => match name {
                "ls" => list(&logs, matches.get_flag(args::JSON)),
                "check" => check(&logs),
                "recover" => {
                    let search = matches.get_many::<OsString>(args::SEARCH).unwrap_or_default();
                    let search = search.map(PathBuf::from).collect();
                    let gives_up = matches.get_flag(args::GIVE_UP);
                    let overwrites = matches.get_flag(args::OVERWRITE);
                    if recover(&logs, &RecoveryOptions { search, overwrites, gives_up }, true) {
                        EXIT_OK
                    } else {
                        EXIT_FAILURE
                    }
                }
                _ => remove(&logs, matches.get_flag(args::GIVE_UP)),
            },
        },
    }
}

fn path_of(identity: &Identity) -> &OsStr {
    OsStr::from_bytes(&identity.path)
}

fn name_of(log: &Path) -> String {
    log.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn unreadable_reason(unreadable: Unreadable) -> String {
    match unreadable {
        Unreadable::Device(errno) => Reason(&errno.into()).to_string(),
        Unreadable::Superblock(SuperblockError::Foreign) => "it is not a log".to_owned(),
        Unreadable::Superblock(SuperblockError::Damaged) => {
            "its first block is damaged; its files have what the keeper synced".to_owned()
        }
        Unreadable::Superblock(SuperblockError::Version(version)) => {
            format!("it has version {version}; use the version of uncopy that wrote it")
        }
        Unreadable::NoCheckpoint => {
            "both checkpoints are damaged; its files have what the keeper synced".to_owned()
        }
    }
}

/// Returns the state of a log in a word or two.
fn state(contents: &LogSummary) -> &'static str {
    match contents {
        _ if contents.is_in_use => "in use",
        _ if contents.checkpoint.process == 0 => "empty",
        _ if contents.is_damaged => "damaged",
        _ => "to recover",
    }
}

fn age(time_ns: u64) -> Duration {
    let then = SystemTime::UNIX_EPOCH + Duration::from_nanos(time_ns);
    then.elapsed().unwrap_or_default()
}

fn describe(path: &Path) -> (Value, String) {
    let name = name_of(path);
    match log_files::inspect(path) {
        Ok(contents) => {
            let LogSummary { superblock, checkpoint, survey, .. } = &contents;
            let (records, bytes) = (survey.records, survey.bytes);
            let seconds = age(checkpoint.time_ns).as_secs();
            let files: Vec<String> =
                survey.files.iter().map(|file| path_of(file).to_string_lossy().into_owned()).collect();
            let row = format!(
                "{name}  {:<10}  {:>7}  {:>5}  {records:>8}  {bytes:>12}  {seconds:>8}{}\n",
                state(&contents),
                checkpoint.process,
                superblock.len_bytes >> 20,
                if contents.is_emulated { "  emulates DAX" } else { "" },
            );
            let failure = checkpoint.failure.map(|failure| Reason(&Errno(failure.errno).into()).to_string());
            let row = match &failure {
                Some(why) => row + "    kept, because a file could not be written: " + why + "\n",
                None => row,
            };
            let rows = files
                .iter()
                .fold(row, |rows, file| rows + "    " + &Quoted(OsStr::new(file)).to_string() + "\n");
            let object = json!({
                "log": name, "mode": "beside", "state": state(&contents), "pid": checkpoint.process, "bytes": superblock.len_bytes,
                "records": records, "record_bytes": bytes, "files": files, "checkpoint_age_s": seconds,
                "emulates_dax": contents.is_emulated, "failure": failure,
            });
            (object, rows)
        }
        Err(unreadable) => {
            let why = unreadable_reason(unreadable);
            (
                json!({"log": name, "mode": "beside", "state": "unreadable", "reason": why}),
                format!("{name}  unreadable: {why}\n"),
            )
        }
    }
}

fn list(logs: &[PathBuf], as_json: bool) -> u8 {
    let describe_any = |log: &Path| if is_mapped(log) { mapped::describe(log) } else { describe(log) };
    let described: Vec<(Value, String)> = logs.iter().map(|log| describe_any(log)).collect();
    let text = if as_json {
        let objects: Vec<Value> = described.into_iter().map(|(object, _)| object).collect();
        format!("{}\n", json!({ "schema": uncopy_core::schema::LOG, "logs": objects }))
    } else {
        let head = "log               state           pid    MiB   records         bytes  age, s\n";
        described.into_iter().fold(head.to_owned(), |text, (_, rows)| text + &rows)
    };
    output::print(text.as_bytes(), EXIT_OK)
}

fn check(logs: &[PathBuf]) -> u8 {
    let (mut text, mut status) = (String::new(), EXIT_OK);
    for log in logs {
        let name = name_of(log);
        if is_mapped(log) {
            let (is_intact, line) = mapped::check(log);
            status = if is_intact { status } else { EXIT_FAILURE };
            let _ = writeln!(text, "{name}: {line}");
            continue;
        }
        let _ = match log_files::inspect(log) {
            Ok(contents) if contents.is_damaged => {
                status = EXIT_FAILURE;
                writeln!(
                    text,
                    "{name}: {} records are intact, and the records after them are damaged and lost; \
                     'uncopy log recover --give-up' writes the intact ones to their files",
                    contents.survey.records
                )
            }
            Ok(contents) => {
                writeln!(text, "{name}: {}, {} records are intact", state(&contents), contents.survey.records)
            }
            Err(unreadable) => {
                status = EXIT_FAILURE;
                writeln!(text, "{name}: {}", unreadable_reason(unreadable))
            }
        };
    }
    output::print(text.as_bytes(), status)
}

/// Recovers logs and reports those that had anything to recover; with `is_verbose`, all. Returns
/// whether nothing is left in logs that no process uses.
pub fn recover(logs: &[PathBuf], ways: &RecoveryOptions, is_verbose: bool) -> bool {
    let mut is_done = true;
    for log in logs {
        let name = name_of(log);
        wait::until_released(log);
        let result = logs::recover(log, ways);
        is_done &= matches!(&result, Ok(Outcome::InUse | Outcome::Empty))
            || matches!(&result, Ok(Outcome::Recovered(recovered)) if recovered.unresolved.is_empty() || ways.gives_up);
        match result {
            Ok(Outcome::InUse) if is_verbose => output::print_message(format_args!("log {name} is in use")),
            Ok(Outcome::Empty) if is_verbose => output::print_message(format_args!("log {name} is empty")),
            Ok(Outcome::InUse | Outcome::Empty) => {}
            Ok(Outcome::Recovered(recovered)) => print_recovered(&name, &recovered, ways),
            Ok(Outcome::Damaged) => output::print_message(format_args!(
                "log {name} is damaged and was not recovered; see 'uncopy log check'"
            )),
            Ok(Outcome::OtherMachine) => output::print_message(format_args!(
                "log {name} was made on another machine and was not recovered; if its files were moved with it, type: \
                 uncopy log recover --give-up DIR"
            )),
            Ok(Outcome::Unreadable(unreadable)) => {
                output::print_message(format_args!(
                    "log {name} cannot be read: {}; it is unchanged",
                    unreadable_reason(unreadable)
                ));
            }
            Ok(Outcome::UnreadableMapped(why)) => {
                let why = mapped::unreadable_reason(why);
                output::print_message(format_args!("log {name} cannot be read: {why}; it is unchanged"));
            }
            Err(errno) => output::print_message(format_args!(
                "log {name} was not recovered: {}; it is unchanged, so recovery can be repeated",
                Reason(&errno.into())
            )),
        }
    }
    is_done
}

fn print_recovered(name: &str, recovered: &Recovered, ways: &RecoveryOptions) {
    let Recovered { records, bytes, files, gone_records, unresolved } = recovered;
    output::print_message(format_args!(
        "log {name} is recovered: {records} records, {bytes} bytes, in {files} files; {gone_records} records were not needed"
    ));
    for file in unresolved {
        let path = Quoted(path_of(file));
        if ways.gives_up {
            output::print_message(format_args!("log {name}: the records for {path} are discarded"));
        } else {
            output::print_message(format_args!(
                "log {name}: {path} is missing or was modified since, so the log keeps its records; add to 'uncopy log \
                 recover': --search DIR if the file was moved, --overwrite to replace newer bytes, --give-up to discard \
                 the records"
            ));
        }
    }
}

fn remove(logs: &[PathBuf], gives_up: bool) -> u8 {
    let mut status = EXIT_OK;
    for log in logs {
        if let Err(errno) = logs::remove(log, gives_up) {
            status = EXIT_FAILURE;
            let name = name_of(log);
            match errno.0 {
                libc::EAGAIN => output::print_message(format_args!("log {name} is in use")),
                libc::ENOTEMPTY => output::print_message(format_args!(
                    "log {name} has records that are not in their files; first type 'uncopy log recover', or discard them \
                     with --give-up"
                )),
                _ => output::print_message(format_args!("log {name}: {}", Reason(&errno.into()))),
            }
        }
    }
    status
}

/// Waits until the file system has the files' bytes. Opening a file waits until its keeper has
/// synced it.
fn sync(path: &Path) -> u8 {
    let files: Vec<PathBuf> = if path.is_dir() {
        let logs = log_files::logs(path).unwrap_or_default();
        let in_use =
            logs.iter().filter_map(|log| log_files::inspect(log).ok()).filter(|contents| contents.is_in_use);
        let files = in_use.flat_map(|contents| contents.survey.files);
        files.map(|file| PathBuf::from(path_of(&file))).chain(mapped::files_in_use(path)).collect()
    } else {
        vec![path.to_owned()]
    };
    let mut status = EXIT_OK;
    for file in files {
        let synced = os::open_regular(&file).and_then(|file| file.sync_all());
        match synced {
            Err(error) if error.kind() != io::ErrorKind::NotFound || path.as_os_str() == file.as_os_str() => {
                status = EXIT_FAILURE;
                output::print_message(format_args!("{}: {}", Quoted(file.as_os_str()), Reason(&error)));
            }
            _ => {}
        }
    }
    status
}
