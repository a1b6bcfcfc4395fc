//! Checks whether a library can be preloaded into CMD, and whether uncopy is worth trying for it.

use super::binary::Binary;
use super::report::shell_word;
use super::verdict::Verdict;
use super::{Check, profile};
use crate::elf::{Image, Kind};
use crate::output::Quoted;
use crate::program::{self, Obstacle, Step};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Maximum number of times that `env` is followed to the program it starts.
const MAX_ENV_STEPS: usize = 4;

/// Returns the checks of CMD, and the verdict if there is one.
pub fn checks(name: &OsStr, command: &[OsString], search: Option<&[u8]>) -> (Vec<Check>, Option<Verdict>) {
    const NAME: &str = "command";
    let path = match program::find(name, search) {
        Ok(path) => path,
        Err(unfound) => return (vec![Check::missing(NAME, unfound.to_string())], None),
    };
    let steps = every_step(&path, command, search);
    let Some(last) = steps.last() else { return (Vec::new(), None) };
    let chain: Vec<String> = steps.iter().map(|step| Quoted(step.path.as_os_str()).to_string()).collect();
    let chain = chain.join(", run by ");
    let reach = reach(NAME, &steps, &chain);
    let words: Vec<String> = command.iter().map(|word| shell_word(word)).collect();
    let words = words.join(" ");
    if reach.state == super::State::Missing {
        let next = reach.fix.clone().unwrap_or(words);
        let verdict = Verdict { is_worth_trying: false, why: reach.found.clone(), next };
        return (vec![reach], Some(verdict));
    }
    let is_ok = reach.state == super::State::Ok;
    let mut checks = vec![reach];
    let mut verdict = None;
    if is_ok && let Some(file) = &last.file {
        let image = Image::read(file);
        let (more, findings) = Binary::inspect(&image, &last.path).checks();
        checks.extend(more);
        verdict = Some(Verdict::from_findings(findings, &shell_word(name), &words));
    }
    if let Some((check, profile_verdict)) = profile::check(name, &path, &words) {
        checks.push(check);
        verdict = profile_verdict.or(verdict);
    }
    (checks, verdict)
}

/// Returns the steps of CMD and its interpreter, and where that is `env`, of the program it starts.
fn every_step(path: &Path, command: &[OsString], search: Option<&[u8]>) -> Vec<Step> {
    let mut steps = program::interpreter_chain(path);
    for round in 0..MAX_ENV_STEPS {
        let last = steps.len() - 1;
        if steps[last].path.file_name() != Some("env".as_ref()) {
            break;
        }
        let arguments: Vec<OsString> = match last.checked_sub(1).map(|script| &steps[script].kind) {
            Some(Kind::Script { argument: Some(argument), .. }) => argument
                .split(|byte| *byte == b' ')
                .map(|word| OsStr::from_bytes(word).to_os_string())
                .collect(),
            None if round == 0 => command.iter().skip(1).cloned().collect(),
            _ => break,
        };
        let Some(next) = started_by_env(&arguments).and_then(|name| program::find(name, search).ok()) else {
            break;
        };
        steps.extend(program::interpreter_chain(&next));
    }
    steps
}

/// Returns the program that `env ARGUMENTS` starts.
fn started_by_env(arguments: &[OsString]) -> Option<&OsStr> {
    arguments.iter().map(OsString::as_os_str).find(|argument| {
        let bytes = argument.as_bytes();
        !bytes.is_empty() && !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    })
}

fn reach(name: &'static str, steps: &[Step], chain: &str) -> Check {
    // An obstacle at any step keeps the library out, since each step starts the next one.
    for step in steps {
        let Some(obstacle) = step.obstacle() else { continue };
        let is_go = step.file.as_ref().is_some_and(|file| Image::read(file).is_go());
        let found = if steps.len() == 1 {
            format!("{chain} {obstacle}")
        } else {
            format!("{chain}: {} {obstacle}", Quoted(step.path.as_os_str()))
        };
        let check = Check::missing(name, if is_go { format!("{found} (a Go program)") } else { found });
        return match fix_for(&obstacle, &step.path, is_go) {
            Some(command) => check.with_fix(command),
            None => check,
        };
    }
    match steps.last() {
        Some(step) if step.file.is_none() => {
            Check::warning(name, format!("{chain} cannot be read, so it was not checked"))
        }
        Some(step) if step.kind == Kind::Native => Check::ok(name, format!("{chain}, dynamically linked")),
        _ => Check::warning(name, format!("{chain}: unknown kind of file")),
    }
}

/// Returns the fix for an obstacle, if one applies to everybody.
fn fix_for(obstacle: &Obstacle, path: &Path, is_go: bool) -> Option<String> {
    let quoted = shell_word(path.as_os_str());
    match obstacle {
        Obstacle::Capabilities => Some(format!("sudo uncopy run -- {quoted}")),
        Obstacle::Static if !is_go => Some("use a build that is not linked with -static".to_string()),
        Obstacle::Bits32 => Some("use a 64-bit build".to_string()),
        Obstacle::OtherLoader(_) => Some("use a build that is linked with glibc".to_string()),
        Obstacle::Sanitizer(_) => Some("use a build without -fsanitize".to_string()),
        Obstacle::Static | Obstacle::SetUserId | Obstacle::SetGroupId | Obstacle::OtherMachine(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_starts_its_first_word_that_is_neither_option_nor_assignment() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, expected) in [
            ("python3", Some("python3")),
            ("-S python3 -u", Some("python3")),
            ("-i A=1 node", Some("node")),
            ("-S", None),
        ] {
            assert_eq!(started_by_env(&words(line)), expected.map(OsStr::new), "{line}");
        }
    }

    #[test]
    fn env_is_looked_through() {
        let command = ["env", "sh", "-c", "true"].map(OsString::from);
        let env = program::find("env".as_ref(), None).expect("env");
        let steps = every_step(&env, &command, None);
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[1].path.file_name(), Some(OsStr::new("sh")));
    }

    #[test]
    fn unknown_programs_are_missing_and_shells_are_reached() {
        use super::super::State;
        let (checks, verdict) = super::checks("no-such-program-anywhere".as_ref(), &[], None);
        assert_eq!((checks.len(), checks[0].state, verdict), (1, State::Missing, None));
        let (checks, verdict) = super::checks("sh".as_ref(), &["sh".into()], None);
        assert_eq!(verdict.map(|verdict| verdict.next).as_deref(), Some("uncopy profile -- sh"));
        assert_eq!(checks[0].state, State::Ok, "{}", checks[0].found);
        assert!(checks.iter().any(|check| check.name == "allocator" && check.found.starts_with("glibc")));
    }
}
