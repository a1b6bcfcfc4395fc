//! The terminal report: a one-sentence summary, chains, counts, the predicted gain, copies that would stay
//! and why, and the command to try next.

use crate::format::{bytes, duration, one_line, percent};
use crate::model::{Call, OperationClass, Profile, Site, Step};
use crate::verdict::{Benefit, program_name, verdict};
use std::fmt::Write as _;

const MAX_CHAINS: usize = 4;
const MAX_CLASSES: usize = 12;
const MAX_LOSERS: usize = 8;
/// Classes with less than this fraction of all bytes moved are omitted.
const MIN_PART: f64 = 0.01;
/// Maximum width of running text in columns.
const MAX_TEXT: usize = 100;

/// Returns the report for a terminal `width` columns wide. `file` is the profile's path.
#[must_use]
pub fn report(profile: &Profile, file: &str, width: usize) -> String {
    let width = width.clamp(60, 200);
    let mut text = String::new();
    paragraph(&mut text, &sentence(profile), width);
    for warning in &profile.warnings {
        paragraph(&mut text, &format!("Note: {warning}."), width);
    }
    let shown = shown(profile);
    for operation in shown.iter().take(MAX_CHAINS) {
        text.push('\n');
        chain(&mut text, profile, operation, width);
    }
    if !shown.is_empty() {
        text.push('\n');
        counts(&mut text, &shown, profile.operations.len() - shown.len());
        text.push('\n');
        gain(&mut text, profile, width);
        losers(&mut text, profile, width);
    }
    text.push('\n');
    paragraph(&mut text, &next_command(profile, file), width);
    text
}

/// Returns the significant classes, most bytes moved first.
fn shown(profile: &Profile) -> Vec<&OperationClass> {
    let moved = |operation: &OperationClass| {
        operation.count as f64 * operation.steps.iter().map(|step| step.bytes).sum::<f64>()
    };
    let all: f64 = profile.operations.iter().map(moved).sum();
    profile.operations.iter().filter(|operation| moved(operation) >= all * MIN_PART).collect()
}

/// Returns a one-sentence summary.
#[must_use]
pub fn sentence(profile: &Profile) -> String {
    let program = program_name(profile);
    let least = bytes(profile.min_size_bytes);
    let shown = shown(profile);
    // Pick the class with the most copied bytes; on a tie, such as no copies at all, the one that moves the most: `max_by_key` returns
    // the last of equal elements.
    let copied = |operation: &&&OperationClass| {
        round(operation.moves_each * operation.bytes_each * operation.count as f64)
    };
    let Some(main) = shown.iter().rev().max_by_key(copied) else {
        return format!("{program} moved nothing of {least} or more between memory, sockets and files.");
    };
    let mut text = String::new();
    let name = &main.name;
    if main.copies_in_application == 0 {
        let _ = write!(
            text,
            "{program} does not copy what it moves: {} of {} each go {name} without a copy of {least} or more in \
             between; uncopy has nothing to elide there.",
            main.count,
            bytes(round(main.bytes_each))
        );
        return text;
    }
    let _ = write!(
        text,
        "Each {name} operation moves its {} {:.1} times inside {program} ({} of CPU time in copies of {least} or more); \
         uncopy would elide {} of {}",
        bytes(round(main.bytes_each)),
        main.moves_each,
        percent(profile.prediction.cpu_share),
        main.elidable_copies,
        main.copies_in_application
    );
    match profile.prediction.touched_share {
        Some(share) => {
            let _ = write!(text, "; {} of the copied bytes are touched afterwards.", percent(share));
        }
        None => text.push_str("; how much is touched afterwards is not known."),
    }
    text
}

/// Writes a chain as in zIO's Table 2.
fn chain(text: &mut String, profile: &Profile, operation: &OperationClass, width: usize) {
    let per_second = operation.count as f64 / profile.seconds.max(1e-9);
    let heading = format!(
        "{}: {} operations of {} ({per_second:.0}/s)",
        operation.name,
        operation.count,
        bytes(round(operation.bytes_each))
    );
    paragraph(text, &heading, width);
    let head = ["#", "source", "destination", "bytes", "share", "uncopy"];
    let rows: Vec<[String; 6]> = operation.steps.iter().map(|step| cells(step, profile)).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            rows.iter().map(|row| len_chars(&row[column])).chain([head[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[&str], last: &str, text: &mut String| {
        let mut line = String::from(" ");
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let _ = match column {
                3 | 4 => write!(line, " {cell:>width$} "),
                _ => write!(line, " {cell:<width$} "),
            };
        }
        let indent = len_chars(&line) + 1;
        wrap(text, &format!("{line} "), last, indent, width);
    };
    line(&head, "call site", text);
    for (row, step) in rows.iter().zip(&operation.steps) {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        line(&cells, &call(step, &profile.sites[step.site]), text);
    }
}

fn cells(step: &Step, profile: &Profile) -> [String; 6] {
    let is_copy = profile.sites[step.site].call == Call::Copy;
    [
        one_line(&step.label),
        one_line(&step.source),
        one_line(&step.destination),
        bytes(round(step.bytes)),
        percent(step.share),
        match (is_copy, step.elidable) {
            (true, true) => "elides",
            (true, false) => "copies",
            (false, _) => "",
        }
        .to_owned(),
    ]
}

/// Formats a step's call: `memmove by -45 in FUNCTION (FILE:LINE), 2.0 calls`.
fn call(step: &Step, site: &Site) -> String {
    let mut text = one_line(&site.name);
    if let Some(shift) = step.shift {
        let _ = write!(text, " by {shift}");
    }
    let _ = write!(text, " in {}", place(site));
    if (step.calls_each - 1.0).abs() >= 0.05 {
        let _ = write!(text, ", {:.1} calls", step.calls_each);
    }
    text
}

/// Formats a location: `FUNCTION (FILE:LINE)`.
fn place(site: &Site) -> String {
    match &site.line {
        Some(line) => format!("{} ({})", one_line(&site.place), one_line(line)),
        None => one_line(&site.place),
    }
}

/// Writes the counts of zIO's Table 1.
fn counts(text: &mut String, shown: &[&OperationClass], others: usize) {
    let head = ["operation", "count", "bytes each", "copies in app", "at I/O stack", "elided"];
    let rows: Vec<[String; 6]> = shown
        .iter()
        .take(MAX_CLASSES)
        .map(|operation| {
            [
                one_line(&operation.name),
                operation.count.to_string(),
                bytes(round(operation.bytes_each)),
                operation.copies_in_application.to_string(),
                operation.copies_at_io_stack.to_string(),
                operation.elidable_copies.to_string(),
            ]
        })
        .collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            rows.iter().map(|row| len_chars(&row[column])).chain([head[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let mut line = |cells: &[&str]| {
        let mut line = format!("{:<1$}", cells[0], widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    };
    line(&head);
    for row in &rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let left_out = others + shown.len().saturating_sub(MAX_CLASSES);
    if left_out > 0 {
        let _ = writeln!(text, "({left_out} smaller classes are left out)");
    }
}

fn gain(text: &mut String, profile: &Profile, width: usize) {
    let prediction = &profile.prediction;
    paragraph(text, "What eliding would give, estimated:", width);
    let mut line = |what: &str, value: String| {
        let start = format!("  {what:<10}");
        wrap(text, &start, &value, 12, width.min(MAX_TEXT));
    };
    line(
        "copies",
        format!(
            "{} of {} ({} of {} copied)",
            prediction.copies,
            prediction.of_copies,
            bytes(prediction.bytes),
            bytes(copied_bytes(profile))
        ),
    );
    line(
        "time",
        format!(
            "{} that these copies take, less {} for tracking and faults",
            duration(prediction.copy_ns),
            duration(prediction.cost_ns)
        ),
    );
    line(
        "result",
        format!(
            "{} of the processor time for the same work; {:.2} times the throughput where the processor limits it",
            percent(prediction.cpu_ratio),
            prediction.ratio
        ),
    );
    let touched = match prediction.touched_share {
        Some(share) => format!("{} of the sampled bytes are touched after they were copied", percent(share)),
        None => "not known: no input was sampled; every copied byte that is touched makes it less".to_owned(),
    };
    line("touched", touched);
    if let Some(lanes) = &prediction.lanes {
        line(
            "lanes",
            format!(
                "{} of {} that went to or came from programs on this host are in parts of 32 KiB and more: with uncopy run \
                 --lanes at both ends they would pass by reference, for {} of processor time less at both together, or more",
                bytes(lanes.bytes),
                bytes(lanes.of_bytes),
                duration(lanes.saved_ns)
            ),
        );
    }
    for measured in &profile.measured {
        line("measured", format!("{}: {}", one_line(&measured.what), one_line(&measured.text)));
    }
    if profile.measured.is_empty() {
        line("measured", "not yet: run it by uncopy run, and see uncopy stats PID".to_owned());
    }
}

fn copied_bytes(profile: &Profile) -> u64 {
    let copies = profile.sites.iter().filter(|site| site.call == Call::Copy);
    copies.fold(0, |sum, site| sum.saturating_add(site.bytes))
}

/// Writes the sites that would lose, with reasons.
fn losers(text: &mut String, profile: &Profile, width: usize) {
    let all = copied_bytes(profile);
    let losers: Vec<_> = profile
        .prediction
        .losers
        .iter()
        .filter(|loser| profile.sites[loser.site].bytes as f64 >= all as f64 * MIN_PART / 10.0)
        .collect();
    if losers.is_empty() {
        return;
    }
    text.push('\n');
    paragraph(text, "Copies that would stay:", width);
    for loser in losers.iter().take(MAX_LOSERS) {
        let site = &profile.sites[loser.site];
        let start = format!("  {:>6}  {:<14}", bytes(site.bytes), loser.verdict.name());
        let why = format!("{} in {}: {}", one_line(&site.name), place(site), one_line(&loser.why));
        wrap(text, &start, &why, 24, width);
    }
    let more = losers.len().saturating_sub(MAX_LOSERS);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
}

fn next_command(profile: &Profile, file: &str) -> String {
    let command: Vec<String> = profile.command.iter().map(|word| shell_quote(word)).collect();
    let command = command.join(" ");
    match verdict(profile).benefit {
        Benefit::Unknown => {
            format!("Next: give it work while it is recorded:\n  uncopy profile -- {command}")
        }
        Benefit::Little => format!(
            "uncopy would make little difference here. To see where the bytes go:\n  uncopy report {} --html {}",
            shell_quote(file),
            shell_quote(&html_name(file))
        ),
        Benefit::Saves => format!("Next, with these copies elided:\n  uncopy run -- {command}"),
    }
}

/// Returns the path of the HTML page for a profile's path.
fn html_name(file: &str) -> String {
    format!("{}.html", file.strip_suffix(".json").unwrap_or(file))
}

/// Quotes a word for a shell.
#[must_use]
pub fn shell_quote(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./=:,+@%".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", one_line(word).replace('\'', "'\\''"))
}

/// Rounds an average to whole bytes.
fn round(value: f64) -> u64 {
    // Values are not negative, and the cast saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let value = value.max(0.0).round() as u64;
    value
}

pub(crate) fn len_chars(text: &str) -> usize {
    text.chars().count()
}

/// Writes text, wrapped at the margin; line breaks in `words` are preserved.
pub(crate) fn paragraph(text: &mut String, words: &str, width: usize) {
    for line in words.lines() {
        let indent = line.len() - line.trim_start().len();
        // An indented line is a command to type, which is not wrapped.
        if indent > 0 {
            let _ = writeln!(text, "{line}");
        } else {
            wrap(text, "", line, 0, width.min(MAX_TEXT));
        }
    }
}

/// Writes `start` followed by `words`, continuation lines indented by `indent` columns. Splits words longer
/// than a line.
pub(crate) fn wrap(text: &mut String, start: &str, words: &str, indent: usize, width: usize) {
    let room = width.saturating_sub(indent).max(16);
    let mut line = start.to_owned();
    let mut used = len_chars(start).saturating_sub(indent);
    let mut is_first = true;
    let mut emit = |line: &mut String| {
        let _ = writeln!(text, "{}", line.trim_end());
        line.clear();
        let _ = write!(line, "{:indent$}", "");
    };
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let mut word: Vec<char> = word.chars().collect();
        let gap = usize::from(!is_first);
        if used > 0 && used + gap + word.len() > room && word.len() <= room {
            emit(&mut line);
            used = 0;
            is_first = true;
        }
        if !is_first {
            line.push(' ');
            used += 1;
        }
        while used + word.len() > room {
            let rest = word.split_off(room.saturating_sub(used).min(word.len()));
            line.extend(word);
            emit(&mut line);
            used = 0;
            word = rest;
        }
        used += word.len();
        line.extend(word);
        is_first = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Profile {
        Profile::parse(include_bytes!("../samples/redis-set.json")).expect("well-formed")
    }

    #[test]
    fn the_report_fits_its_width_and_says_what_matters_first() {
        for width in [80, 120] {
            let text = report(&sample(), "redis.json", width);
            for line in text.lines().filter(|line| !line.starts_with("  uncopy ")) {
                assert!(len_chars(line) <= width, "{line}");
            }
            let whole = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                whole.starts_with("Each socket → file operation moves its 256K 3.0 times inside"),
                "{text}"
            );
            assert!(whole.contains("uncopy would elide 3 of 3; 4 % of the copied bytes"), "{text}");
            assert!(whole.contains("memmove by -45 in sdsrange (sds.c:560)"), "{text}");
            assert!(text.contains("\n  uncopy run -- redis-server --port 7000 --appendonly yes\n"), "{text}");
            assert!(whole.contains("socket → file 20000 256K 3 2 3"), "{text}");
            assert!(whole.contains("measured not yet: run it by uncopy run"), "{text}");
        }
    }

    #[test]
    fn measurements_are_shown_beside_the_estimate() {
        let measurement = crate::model::Measurement {
            what: "eliding inputs and copies".to_owned(),
            text: "saves 23.1 % ± 3.0".to_owned(),
            ..Default::default()
        };
        let text = report(&Profile { measured: vec![measurement], ..sample() }, "redis.json", 80);
        assert!(text.contains("\n  measured  eliding inputs and copies: saves 23.1 % ± 3.0\n"), "{text}");
    }

    #[test]
    fn names_from_a_program_cannot_control_the_terminal() {
        let mut profile = sample();
        profile.command = vec!["a b".into(), "x'y".into(), "\u{1b}[2J".into()];
        profile.sites[1].place = "evil\n\u{7}name".to_owned();
        let text = report(&profile, "x.json", 80);
        assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text:?}");
        assert!(text.contains("uncopy run -- 'a b' 'x'\\''y' '\u{fffd}[2J'"), "{text}");
    }

    #[test]
    fn long_names_are_wrapped_and_cut() {
        let mut text = String::new();
        wrap(&mut text, "  a ", &format!("{} {}", "b ".repeat(30), "c".repeat(100)), 4, 40);
        assert!(text.lines().all(|line| len_chars(line) <= 40), "{text}");
        assert_eq!(text.matches('c').count(), 100);
        assert_eq!(text.matches('b').count(), 30);
    }

    #[test]
    fn a_program_that_moves_nothing_is_told_so() {
        let profile =
            Profile { command: vec!["/bin/true".into()], min_size_bytes: 16384, ..Profile::default() };
        let text = report(&profile, "true.json", 80);
        assert!(text.starts_with("true moved nothing of 16K or more"), "{text}");
        assert!(text.contains("\n  uncopy profile -- /bin/true\n"), "{text}");
    }
}
