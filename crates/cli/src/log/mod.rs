//! `uncopy log`: what the logs of `run --log` hold, and putting that into files after a crash.

pub mod keeping;
mod waiting;

use crate::line;
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
use uncopy_store::layout::{Identity, NoLog};
use uncopy_store::places::{self, Contents, Outcome, Recovered, Ways};
use uncopy_store::recovery::Unreadable;
use uncopy_sys::errno::Errno;

/// Runs the command line `log …`.
pub fn main(matches: &ArgMatches) -> u8 {
    let Some((name, matches)) = matches.subcommand() else { return EXIT_USAGE };
    let place = PathBuf::from(matches.get_one::<OsString>(line::DIRECTORY).cloned().unwrap_or_default());
    match name {
        "keep" => keeping::keep(&place, matches),
        "sync" => sync(&place),
        "wait" => waiting::wait(&place, matches),
        _ => match places::logs(&place) {
            Err(error) => {
                output::complain(format_args!(
                    "{} cannot be read: {}",
                    Quoted(place.as_os_str()),
                    Reason(&error)
                ));
                EXIT_FAILURE
            }
            Ok(logs) => match name {
                "ls" => list(&logs, matches.get_flag(line::JSON)),
                "check" => check(&logs),
                "recover" => {
                    let search = matches.get_many::<OsString>(line::SEARCH).unwrap_or_default();
                    let search = search.map(PathBuf::from).collect();
                    let gives_up = matches.get_flag(line::GIVE_UP);
                    let overwrites = matches.get_flag(line::OVERWRITE);
                    if recover(&logs, &Ways { search, overwrites, gives_up }, true) {
                        EXIT_OK
                    } else {
                        EXIT_FAILURE
                    }
                }
                _ => remove(&logs, matches.get_flag(line::GIVE_UP)),
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

fn why(unreadable: Unreadable) -> String {
    match unreadable {
        Unreadable::Device(errno) => Reason(&errno.into()).to_string(),
        Unreadable::No(NoLog::Foreign) => "it is no log".to_owned(),
        Unreadable::No(NoLog::Damaged) => {
            "its first block is damaged; its files have what was digested".to_owned()
        }
        Unreadable::No(NoLog::Version(version)) => {
            format!("it is of version {version}; use the uncopy that wrote it")
        }
        Unreadable::NoCheckpoint => {
            "both checkpoints are damaged; its files have what was digested".to_owned()
        }
    }
}

/// What a log is to somebody who wonders whether to worry.
fn state(contents: &Contents) -> &'static str {
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
    match places::look(path) {
        Ok(contents) => {
            let Contents { superblock, checkpoint, survey, .. } = &contents;
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
                "log": name, "state": state(&contents), "pid": checkpoint.process, "bytes": superblock.len_bytes,
                "records": records, "record_bytes": bytes, "files": files, "checkpoint_age_s": seconds,
                "emulates_dax": contents.is_emulated, "failure": failure,
            });
            (object, rows)
        }
        Err(unreadable) => {
            let why = why(unreadable);
            (
                json!({"log": name, "state": "unreadable", "reason": why}),
                format!("{name}  unreadable: {why}\n"),
            )
        }
    }
}

fn list(logs: &[PathBuf], as_json: bool) -> u8 {
    let described: Vec<(Value, String)> = logs.iter().map(|log| describe(log)).collect();
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
        let _ = match places::look(log) {
            Ok(contents) if contents.is_damaged => {
                status = EXIT_FAILURE;
                writeln!(
                    text,
                    "{name}: {} records are whole, and behind them records that had survived are damaged; what follows is \
                     lost, and 'uncopy log recover --give-up' puts the whole ones into their files",
                    contents.survey.records
                )
            }
            Ok(contents) => {
                writeln!(text, "{name}: {}, {} records are whole", state(&contents), contents.survey.records)
            }
            Err(unreadable) => {
                status = EXIT_FAILURE;
                writeln!(text, "{name}: {}", why(unreadable))
            }
        };
    }
    output::print(text.as_bytes(), status)
}

/// Recovers logs, and says so where there was something to do. Whether nothing is left of those that nobody uses.
pub fn recover(logs: &[PathBuf], ways: &Ways, tells_all: bool) -> bool {
    let mut is_done = true;
    for log in logs {
        let name = name_of(log);
        let outcome = places::recover(log, ways);
        is_done &= matches!(&outcome, Ok(Outcome::InUse | Outcome::Empty))
            || matches!(&outcome, Ok(Outcome::Recovered(recovered)) if recovered.unsure.is_empty() || ways.gives_up);
        match outcome {
            Ok(Outcome::InUse) if tells_all => output::complain(format_args!("log {name} is in use")),
            Ok(Outcome::Empty) if tells_all => output::complain(format_args!("log {name} is empty")),
            Ok(Outcome::InUse | Outcome::Empty) => {}
            Ok(Outcome::Recovered(recovered)) => tell(&name, &recovered, ways),
            Ok(Outcome::Damaged) => output::complain(format_args!(
                "log {name} is damaged: records that had survived are not whole; it stays as it is, see 'uncopy log check'"
            )),
            Ok(Outcome::OtherMachine) => output::complain(format_args!(
                "log {name} was made on another machine; it stays as it is: 'uncopy log recover --give-up' if its files came along"
            )),
            Ok(Outcome::Unreadable(unreadable)) => {
                output::complain(format_args!(
                    "log {name} cannot be read: {}; it stays as it is",
                    why(unreadable)
                ));
            }
            Err(errno) => output::complain(format_args!(
                "log {name} was not recovered: {}; it stays as it is, and can be recovered again",
                Reason(&errno.into())
            )),
        }
    }
    is_done
}

fn tell(name: &str, recovered: &Recovered, ways: &Ways) {
    let Recovered { records, bytes, files, gone_records, unsure } = recovered;
    output::complain(format_args!(
        "log {name} is recovered: {records} records, {bytes} bytes, in {files} files; {gone_records} records were not needed"
    ));
    for file in unsure {
        let path = Quoted(path_of(file));
        if ways.gives_up {
            output::complain(format_args!("log {name}: what it had for {path} is given up"));
        } else {
            output::complain(format_args!(
                "log {name}: {path} is not there, or was written to since; the log keeps what it has: 'uncopy log recover \
                 --search DIR' if it was moved, '--overwrite' if what the log has counts, '--give-up' if it is not needed"
            ));
        }
    }
}

fn remove(logs: &[PathBuf], gives_up: bool) -> u8 {
    let mut status = EXIT_OK;
    for log in logs {
        if let Err(errno) = places::remove(log, gives_up) {
            status = EXIT_FAILURE;
            let name = name_of(log);
            match errno.0 {
                libc::EAGAIN => output::complain(format_args!("log {name} is in use")),
                libc::ENOTEMPTY => output::complain(format_args!(
                    "log {name} has bytes that are not in their files: 'uncopy log recover' first, or '--give-up'"
                )),
                _ => output::complain(format_args!("log {name}: {}", Reason(&errno.into()))),
            }
        }
    }
    status
}

/// Waits until files are the file system's: opening one does.
fn sync(place: &Path) -> u8 {
    let files: Vec<PathBuf> = if place.is_dir() {
        let logs = places::logs(place).unwrap_or_default();
        let in_use =
            logs.iter().filter_map(|log| places::look(log).ok()).filter(|contents| contents.is_in_use);
        in_use.flat_map(|contents| contents.survey.files).map(|file| PathBuf::from(path_of(&file))).collect()
    } else {
        vec![place.to_owned()]
    };
    let mut status = EXIT_OK;
    for file in files {
        let synced = os::open_regular(&file).and_then(|file| file.sync_all());
        match synced {
            Err(error)
                if error.kind() != io::ErrorKind::NotFound || place.as_os_str() == file.as_os_str() =>
            {
                status = EXIT_FAILURE;
                output::complain(format_args!("{}: {}", Quoted(file.as_os_str()), Reason(&error)));
            }
            _ => {}
        }
    }
    status
}
