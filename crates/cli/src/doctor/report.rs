//! Report as a table for people and as JSON for programs.

use super::verdict::Verdict;
use super::{Check, State};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::IsTerminal as _;

const HEADINGS: [&str; 3] = ["check", "state", "found"];

/// Checks and verdict of one `uncopy doctor`.
pub struct Report {
    /// Checks, in the order of the table.
    pub checks: Vec<Check>,
    /// Whether uncopy is worth trying for CMD, if known.
    pub verdict: Option<Verdict>,
    /// CMD and its arguments; empty if none was given.
    pub command: Vec<OsString>,
}

/// Whether standard output is a terminal with colours and the user has not disabled them.
pub fn wants_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal()
        && !is_set("NO_COLOR")
        && std::env::var_os("TERM").is_some_and(|terminal| terminal != "dumb")
}

/// Quotes a word for the shell if necessary.
pub fn shell_word(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Escapes control characters, which would break the line or control the terminal.
fn on_one_line(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let escaped = character.is_control().then(|| character.escape_default());
            let plain = escaped.is_none().then_some(character);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

impl Report {
    /// Whether `run` will be active.
    pub fn is_active(&self) -> bool {
        self.first_missing().is_none()
    }

    fn first_missing(&self) -> Option<&Check> {
        self.checks.iter().find(|check| check.state == State::Missing)
    }

    /// Returns the verdict on CMD, unless it is positive and something missing must be fixed first.
    fn trial_verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref().filter(|verdict| self.is_active() || !verdict.is_worth_trying)
    }

    /// Returns the verdict as one sentence.
    fn verdict_text(&self) -> String {
        if let Some(verdict) = self.trial_verdict() {
            return format!("{}: {}", verdict.name(), verdict.why);
        }
        let program = self.command.first().map_or(String::new(), |name| format!(" for {}", shell_word(name)));
        match self.first_missing() {
            None => format!("uncopy run will be active{program}"),
            Some(check) if check.found.starts_with(check.name) || check.name == "command" => {
                format!("uncopy run will be inactive{program}: {}", check.found)
            }
            Some(check) => {
                format!("uncopy run will be inactive{program}: {}: {}", check.name, check.found)
            }
        }
    }

    /// Returns the command to type next.
    fn next(&self) -> String {
        if let Some(verdict) = self.trial_verdict() {
            return verdict.next.clone();
        }
        let words: Vec<String> = self.command.iter().map(|word| shell_word(word)).collect();
        let command = if words.is_empty() { "CMD".to_string() } else { words.join(" ") };
        if self.is_active() {
            return format!("uncopy run -- {command}");
        }
        let fixes = self.checks.iter().filter(|check| check.state == State::Missing);
        match fixes.filter_map(|check| check.fix.clone()).next() {
            Some(fix) => fix,
            None if words.is_empty() => "uncopy run --help".to_string(),
            None => command,
        }
    }

    /// Returns the table, whose last line is the verdict.
    pub fn to_table(&self, colour: bool) -> String {
        let width = |of: &dyn Fn(&Check) -> usize, heading: &str| {
            self.checks.iter().map(of).chain([heading.len()]).max().unwrap_or(0)
        };
        let names = width(&|check| check.name.len(), HEADINGS[0]);
        let states = width(&|check| check.state.name().len(), HEADINGS[1]);
        let mut table = format!("{:names$}  {:states$}  {}\n", HEADINGS[0], HEADINGS[1], HEADINGS[2]);
        for check in &self.checks {
            let (on, off) = if colour { (escape(check.state), "\x1b[0m") } else { ("", "") };
            let found = on_one_line(&check.found);
            // Writing to a String cannot fail.
            let _ =
                writeln!(table, "{:names$}  {on}{:states$}{off}  {found}", check.name, check.state.name());
            if let Some(fix) = &check.fix {
                let _ = writeln!(table, "{:names$}  {:states$}  fix: {}", "", "", on_one_line(fix));
            }
        }
        let _ = writeln!(
            table,
            "\nverdict: {}; next: {}",
            on_one_line(&self.verdict_text()),
            on_one_line(&self.next())
        );
        table
    }

    /// Returns one JSON object.
    pub fn to_json(&self) -> Value {
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|check| {
                json!({
                    "check": check.name,
                    "state": check.state.name(),
                    "found": check.found,
                    "mend": check.fix,
                })
            })
            .collect();
        json!({
            "schema": uncopy_core::schema::DOCTOR,
            "checks": checks,
            "active": self.is_active(),
            "worth": self.verdict.as_ref().map(Verdict::name),
            "verdict": self.verdict_text(),
            "next": self.next(),
        })
    }
}

const fn escape(state: State) -> &'static str {
    match state {
        State::Ok => "\x1b[32m",
        State::Warning => "\x1b[33m",
        State::Missing => "\x1b[31m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(states: &[State], command: &[&str]) -> Report {
        let checks = states.iter().map(|state| Check::new("kernel", *state, "what was\nfound")).collect();
        Report { checks, verdict: None, command: command.iter().map(OsString::from).collect() }
    }

    #[test]
    fn warnings_leave_run_active_and_one_missing_thing_does_not() {
        assert!(report(&[State::Ok, State::Warning], &[]).is_active());
        assert!(!report(&[State::Ok, State::Missing], &[]).is_active());
    }

    #[test]
    fn last_line_says_the_verdict_and_what_to_type() {
        let last = |report: &Report| report.to_table(false).lines().last().map(ToOwned::to_owned);
        assert_eq!(
            last(&report(&[State::Ok], &["./my server", "--port", "1"])).as_deref(),
            Some(
                "verdict: uncopy run will be active for './my server'; \
                 next: uncopy run -- './my server' --port 1"
            )
        );
        let mut subject = report(&[State::Missing], &[]);
        subject.checks[0].fix = Some("sudo true".to_string());
        assert_eq!(
            last(&subject).as_deref(),
            Some("verdict: uncopy run will be inactive: kernel: what was\\nfound; next: sudo true")
        );
    }

    #[test]
    fn what_is_missing_is_fixed_before_anything_is_tried() {
        let verdict = |is_worth_trying| {
            Some(Verdict { is_worth_trying, why: "so".into(), next: "uncopy profile -- x".into() })
        };
        for (state, is_worth_trying, start, word) in [
            (State::Ok, true, "worth trying: so", "worth trying"),
            (State::Ok, false, "probably not: so", "probably not"),
            (State::Missing, true, "uncopy run will be inactive for x", "worth trying"),
            (State::Missing, false, "probably not: so", "probably not"),
        ] {
            let report = Report { verdict: verdict(is_worth_trying), ..report(&[state], &["x"]) };
            assert!(report.verdict_text().starts_with(start), "{}", report.verdict_text());
            assert_eq!(report.to_json()["worth"], word);
        }
    }

    #[test]
    fn each_check_is_one_line_and_its_fix_another() {
        let mut subject = report(&[State::Warning], &[]);
        subject.checks[0].fix = Some("sudo true".to_string());
        let table = subject.to_table(false);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "kernel  warning  what was\\nfound");
        assert_eq!(lines[2], "                 fix: sudo true");
        assert!(!table.contains('\x1b') && subject.to_table(true).contains("\x1b[33m"));
    }

    #[test]
    fn json_holds_the_same() {
        let json = report(&[State::Missing], &[]).to_json();
        assert_eq!(json["active"], false);
        assert_eq!(json["checks"][0]["state"], "missing");
        assert_eq!(json["checks"][0]["mend"], Value::Null);
        assert!(json["verdict"].as_str().is_some_and(|verdict| verdict.contains("inactive")));
    }

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        assert_eq!(shell_word("redis-server".as_ref()), "redis-server");
        assert_eq!(shell_word("".as_ref()), "''");
        assert_eq!(shell_word("it's".as_ref()), r"'it'\''s'");
    }
}
