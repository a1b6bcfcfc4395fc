//! Describes entries of the ledger in words.

use std::fmt::Write as _;
use uncopy_core::ledger::{Entry, Field};
use uncopy_core::policy::SiteKind;
use uncopy_profile::format::bytes;

/// Returns the range of sizes of a class, such as `64K-128K`.
pub fn size_range(size_class: u32) -> String {
    let power = |exponent: u32| bytes(1u64.checked_shl(exponent).unwrap_or(u64::MAX));
    match size_class {
        0 => "0".to_owned(),
        class => format!("{}-{}", power(class - 1), power(class)),
    }
}

/// Formats a number with its noun: `1 call`, `2 calls`.
fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Returns the policy's state for the site, in a word or two.
pub fn state(entry: &Entry) -> &'static str {
    let elided = entry.get(Field::Elided);
    if entry.kind == SiteKind::Allocation {
        return if entry.balance() > 0 { "ready for views" } else { "ordinary" };
    }
    match entry.get(Field::OffCalls) {
        1.. => "off",
        0 if elided == 0 => "copying",
        0 if entry.get(Field::LearnedBytes) > 0 => "eliding in part",
        0 => "eliding",
    }
}

/// Returns the reasons for the state, as a sentence without a full stop.
pub fn reason(entry: &Entry) -> String {
    if entry.kind == SiteKind::Allocation {
        return allocation(entry);
    }
    let get = |field| entry.get(field);
    let mut parts = Vec::new();
    if get(Field::Elided) > 0 {
        parts.push(describe_balance(entry));
    }
    let (head, tail) = (get(Field::LearnedHead), get(Field::LearnedTail));
    if head | tail != 0 {
        parts.push(learned(head, tail));
    }
    let refusals = [
        (Field::Plain, plain_reason(entry.kind)),
        (Field::Small, "too little of it could be elided to pay for the tracking"),
        (
            Field::Withheld,
            "not elided because trials found that it does not pay, or to measure whether it does",
        ),
        (Field::Off, "switched off, because it cost more than it saved"),
        (Field::Refused, "the buffer cannot hold views, or memory ran out"),
        (Field::Roomy, "the buffer is far larger than what arrives in it"),
    ];
    for (field, why) in refusals {
        match get(field) {
            0 => {}
            calls if calls == get(Field::Calls) => parts.push(why.to_owned()),
            calls => parts.push(format!("{}: {why}", count(calls, "call"))),
        }
    }
    if get(Field::SwitchedOff) > 0 {
        let again = match get(Field::OffCalls) {
            0 => String::new(),
            calls => format!(", tried again in {}", count(calls, "call")),
        };
        parts.push(format!("switched off {}{again}", count(get(Field::SwitchedOff), "time")));
    }
    if get(Field::Shared) > 0 {
        parts.push("several sites share this entry, because the table is full".to_owned());
    }
    parts.join("; ")
}

const fn plain_reason(kind: SiteKind) -> &'static str {
    match kind {
        SiteKind::Copy => "the program made these bytes itself, so they are not a view of an input",
        SiteKind::Input | SiteKind::Allocation => "nothing to elide",
    }
}

/// Describes the balance of the calls that elided.
fn describe_balance(entry: &Entry) -> String {
    let (saved, spent) = (entry.get(Field::SavedNs), entry.get(Field::SpentNs));
    let (elided, faults) = (entry.get(Field::Elided), entry.get(Field::Faults));
    let mut text = match (saved > spent, entry.kind) {
        (true, _) => "estimated to have saved more than it cost".to_owned(),
        (false, SiteKind::Input) if saved == 0 => "no copy of what was received here was elided".to_owned(),
        (false, _) => "estimated to have cost more than it saved".to_owned(),
    };
    if faults > 0 {
        let pages = entry.get(Field::FaultPages);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            ": the program caused {} on {} after {}",
            count(faults, "fault"),
            count(pages, "page"),
            count(elided, "elided call")
        );
    }
    text
}

fn learned(head: u64, tail: u64) -> String {
    let ends = [(head, "first"), (tail, "last")].map(|(mask, end)| match mask.count_ones() {
        0 => None,
        pages => {
            Some(format!("{pages} of the {end} {}", count(u64::from(64 - mask.leading_zeros()), "page")))
        }
    });
    let ends: Vec<String> = ends.into_iter().flatten().collect();
    format!("copies the pages that the program touches ({})", ends.join(" and "))
}

fn allocation(entry: &Entry) -> String {
    let (calls, held) = (entry.get(Field::Calls), entry.get(Field::Elided));
    let mut text = match held {
        0 => "no block still held a view when freed".to_owned(),
        _ => format!("{held} of {} still held a view when freed", count(calls, "block")),
    };
    let (faults, pages) = (entry.get(Field::Faults), entry.get(Field::FaultPages));
    if faults > 0 {
        let _ = write!(text, "; {} on {} that were empty", count(faults, "fault"), count(pages, "page"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_by_their_bounds() {
        assert_eq!([0, 1, 17, 64].map(size_range), ["0", "1-2", "64K-128K", "8192P-16383P"]);
    }

    #[test]
    fn learned_pages_are_counted_from_both_ends() {
        assert_eq!(learned(0b1011, 0), "copies the pages that the program touches (3 of the first 4 pages)");
        assert_eq!(
            learned(1, 1),
            "copies the pages that the program touches (1 of the first 1 page and 1 of the last 1 page)"
        );
    }
}
