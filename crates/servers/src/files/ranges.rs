//! Byte ranges (RFC 9110, section 14): which parts of a file a request asks for.

use std::ops::Range;

/// Most ranges that are answered one by one. More of them, or more bytes than the file has, get the whole
/// file, so that a short request cannot ask for a long answer many times over (RFC 9110, section 14.2).
pub const RANGES_LIMIT: usize = 16;

/// What of a file is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of it: nothing else was asked for, or not in words that mean anything.
    Whole,
    /// One part.
    One(Range<u64>),
    /// Two parts or more, in the order asked for.
    Several(Vec<Range<u64>>),
    /// Nothing that was asked for exists.
    Unsatisfiable,
}

/// Reads the value of a Range field for a file of `len_bytes`.
pub fn select(value: &str, len_bytes: u64) -> Selection {
    let Some((unit, list)) = value.split_once('=') else { return Selection::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Selection::Whole;
    }
    let mut parts = Vec::new();
    let mut any = false;
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        any = true;
        match part(word, len_bytes) {
            None => return Selection::Whole,
            Some(part) if part.is_empty() => {}
            Some(part) => parts.push(part),
        }
        if parts.len() > RANGES_LIMIT {
            return Selection::Whole;
        }
    }
    match parts.len() {
        0 if any => Selection::Unsatisfiable,
        0 => Selection::Whole,
        1 => Selection::One(parts.remove(0)),
        _ if parts.iter().map(|part| part.end - part.start).sum::<u64>() > len_bytes => Selection::Whole,
        _ => Selection::Several(parts),
    }
}

/// `first-last`, `first-` or `-count` as a range of the file, empty if it has none of these bytes; `None`
/// where it is none of these.
fn part(word: &str, len_bytes: u64) -> Option<Range<u64>> {
    let (first, last) = word.split_once('-')?;
    if first.is_empty() {
        return Some(len_bytes.saturating_sub(number(last)?)..len_bytes);
    }
    let first = number(first)?;
    let end = match last {
        "" => u64::MAX,
        last => number(last)?.saturating_add(1),
    };
    if end <= first && end != u64::MAX {
        return None;
    }
    Some(first.min(len_bytes)..end.min(len_bytes))
}

/// Digits only; a number too large for any file is as good as the largest.
fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_range_in_each_form() {
        for (value, range) in [
            ("bytes=0-0", 0..1),
            ("bytes=0-", 0..100),
            ("bytes=99-", 99..100),
            ("bytes=10-19", 10..20),
            ("bytes=10-99999999999999999999999", 10..100),
            ("bytes=-1", 99..100),
            ("bytes=-1000", 0..100),
            ("Bytes = , 5-6 ,", 5..7),
            ("bytes=100-200,5-6", 5..7),
            ("bytes=-0,5-6", 5..7),
        ] {
            assert_eq!(select(value, 100), Selection::One(range), "{value}");
        }
    }

    #[test]
    fn several_ranges_keep_their_order() {
        assert_eq!(select("bytes=50-59,0-9", 100), Selection::Several(vec![50..60, 0..10]));
    }

    #[test]
    fn ranges_that_the_file_does_not_have_cannot_be_satisfied() {
        for value in ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=100-,200-300"] {
            assert_eq!(select(value, 100), Selection::Unsatisfiable, "{value}");
        }
        assert_eq!(select("bytes=0-", 0), Selection::Unsatisfiable);
    }

    #[test]
    fn what_means_nothing_is_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=a-b",
            "bytes=5",
            "bytes=-",
            "bytes=9-5",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=0x1-2",
            "bytes=1-2,x",
            "items=0-1",
            "bytes 0-1",
        ] {
            assert_eq!(select(value, 100), Selection::Whole, "{value}");
        }
    }

    #[test]
    fn too_many_or_too_much_gets_the_whole_file() {
        let many = |count: usize| format!("bytes={}", vec!["0-0"; count].join(","));
        assert!(matches!(select(&many(RANGES_LIMIT), 100), Selection::Several(_)));
        assert_eq!(select(&many(RANGES_LIMIT + 1), 100), Selection::Whole);
        assert_eq!(select("bytes=0-,0-", 100), Selection::Whole);
    }

    proptest! {
        #[test]
        fn whatever_is_selected_lies_in_the_file(value in "bytes=[0-9,\\- ]{0,60}", len_bytes in 0u64..1000) {
            let parts = match select(&value, len_bytes) {
                Selection::Whole | Selection::Unsatisfiable => Vec::new(),
                Selection::One(part) => vec![part],
                Selection::Several(parts) => parts,
            };
            prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= len_bytes));
            prop_assert!(parts.iter().map(|part| part.end - part.start).sum::<u64>() <= len_bytes);
        }
    }
}
