//! Comparison of two profiles for the terminal.

use super::{Amount, Diff, Entry, Side, percentage_points};
use crate::format::{bytes, one_line, percent};
use crate::text::{len_chars, paragraph, wrap};
use std::fmt::Write as _;

const MAX_LINES: usize = 20;
/// Placeholder for an amount missing in a profile.
const ABSENT: &str = "–";

impl Diff {
    /// Returns the tables for a terminal `width` columns wide.
    #[must_use]
    pub fn text(&self, width: usize) -> String {
        let width = width.clamp(60, 200);
        let mut text = String::new();
        paragraph(&mut text, &one_line(&self.sentence()), width);
        for (name, side) in [("A", &self.a), ("B", &self.b)] {
            wrap(&mut text, &format!("{name}  "), &of_side(side), 3, width);
        }
        for note in &self.notes {
            paragraph(&mut text, &format!("Note: {}.", one_line(note)), width);
        }
        table(&mut text, "Copies by site", ["calls", "site"], &self.sites, width);
        table(&mut text, "Copies by chain", ["operations", "chain"], &self.chains, width);
        text
    }
}

fn of_side(side: &Side) -> String {
    format!(
        "{}: {:.1} s, {:.1} s of CPU time, {} copied in {} calls; uncopy would need {} of the CPU time",
        one_line(&side.file),
        side.seconds,
        side.cpu_seconds,
        bytes(side.copied.bytes),
        side.copied.calls,
        percent(side.cpu_ratio)
    )
}

fn table(text: &mut String, title: &str, [calls, name]: [&str; 2], entries: &[Entry], width: usize) {
    if entries.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}, the largest change first:");
    let pair = |entry: &Entry, show: &dyn Fn(Amount) -> String| {
        [entry.a, entry.b].map(|amount| amount.map_or_else(|| ABSENT.to_owned(), show))
    };
    let mut rows = vec![
        ["points", "CPU A", "CPU B", "bytes A", "bytes B", &format!("{calls} A"), "B"].map(str::to_owned),
    ];
    for entry in entries.iter().take(MAX_LINES) {
        let [cpu_a, cpu_b] = pair(entry, &|amount| percent(amount.cpu_share));
        let [bytes_a, bytes_b] = pair(entry, &|amount| bytes(amount.bytes));
        let [calls_a, calls_b] = pair(entry, &|amount| amount.calls.to_string());
        rows.push([percentage_points(entry.change()), cpu_a, cpu_b, bytes_a, bytes_b, calls_a, calls_b]);
    }
    let widths: [usize; 7] =
        std::array::from_fn(|column| rows.iter().map(|row| len_chars(&row[column])).max().unwrap_or(0));
    let names = std::iter::once(name.to_owned()).chain(entries.iter().map(|entry| {
        let line = entry.line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
        one_line(&format!("{}{line}", entry.name))
    }));
    for (row, name) in rows.iter().zip(names) {
        let mut start = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(start, "{cell:>width$}  ");
        }
        let indent = len_chars(&start);
        wrap(text, &start, &name, indent, width);
    }
    if let Some(more) = entries.len().checked_sub(MAX_LINES).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} more, which --json has");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Profile;

    fn sample() -> Profile {
        Profile::parse(include_bytes!("../../samples/redis-set.json")).expect("well-formed")
    }

    #[test]
    fn both_sides_of_every_change_are_shown_within_the_width() {
        let mut other = sample();
        other.sites[1].place = format!("evil\n\u{7}{}", "long".repeat(40));
        let diff = Diff::between((&sample(), "a.json"), (&other, "b.json")).expect("alike");
        for width in [80, 120] {
            let text = diff.text(width);
            assert!(text.lines().all(|line| len_chars(line) <= width), "{text}");
            assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text:?}");
            let only: Vec<&str> = text.lines().filter(|line| line.contains(ABSENT)).collect();
            // The moved site and its chain, each missing once in A and once in B.
            assert_eq!(only.len(), 4, "{text}");
            assert!(text.contains("A  a.json: 10.0 s") && text.contains("B  b.json: 10.0 s"), "{text}");
        }
    }
}
