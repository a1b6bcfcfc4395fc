//! `uncopy top` on a terminal.

use crate::stage::{Background, Stage, finish, finish_started};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Types `keys` at `uncopy top WORDS`, on a terminal of 80 columns and 24 lines that script(1)
/// creates. Returns the output and the exit status.
fn typed(stage: &Stage, words: &str, keys: &[u8]) -> (String, Option<i32>) {
    let command = format!("stty rows 24 cols 80; exec '{}' top {words}", stage.command().display());
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script(1)");
    script.stdin.take().expect("piped").write_all(keys).expect("typed");
    let finished = finish_started(script);
    (String::from_utf8_lossy(&finished.output).into_owned(), finished.code)
}

#[test]
fn the_list_is_shown_and_a_key_gives_the_terminal_back() {
    let Some(stage) = Stage::with_library("top") else { return };
    let mut command = stage.uncopy(&["run", "--off", "--", "sh", "-c", "echo ready; read line"]);
    command.stderr(Stdio::null());
    let program = Background::start(command);
    let (picture, code) = typed(&stage, "sh", b" \x1b[B>+q");
    assert_eq!(code, Some(0), "{picture}");
    assert!(picture.contains("\x1b[?1049h"), "a screen of its own: {picture}");
    let end = picture.rfind("\x1b[?1049l").expect("the usual screen is back");
    assert!(picture[end..].len() < 20 && picture.contains("\x1b[?25h"), "and the cursor: {picture}");
    for word in ["uncopy", "COMMAND", &program.pid().to_string(), "idle", "quit", "--explain"] {
        assert!(picture.contains(word), "{word}: {picture}");
    }
}

#[test]
fn without_a_terminal_it_says_what_to_type() {
    let stage = Stage::new("top-pipe");
    let finished = finish(&mut stage.uncopy(&["top"]));
    let message = "uncopy: top needs a terminal; without one: uncopy ps\n";
    assert_eq!((finished.code, finished.errors.as_str()), (Some(1), message));
    let finished = finish(&mut stage.uncopy(&["top", "--interval", "0"]));
    assert_eq!(finished.code, Some(2), "{}", finished.errors);
}
