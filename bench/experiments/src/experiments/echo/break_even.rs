//! The share of each message from which on reading it costs more than eliding its copies gains (zIO §5.1.4).
//!
//! The share lies at the message's start, and the server reads every byte of it. zIO relates the bytes touched to those
//! that copies did not copy: `share / copies`.

use serde_json::{Value, json};

use super::groups::{Group, groups};
use crate::kit::figures::RATE;
use crate::kit::{Comparison, Side};

/// The break-even of one length and number of copies.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BreakEven {
    /// Largest share at which the median ratio is 1 or above, percent, interpolated; `None` if it never falls below.
    percent: Option<f64>,
    /// Lowest median ratio, and its share, percent.
    lowest: (f64, f64),
}

/// Returns the break-even of `(share, ratio)` in ascending order; `None` for an empty slice.
fn break_even(ratios: &[(f64, f64)]) -> Option<BreakEven> {
    let lowest = ratios.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1))?;
    let below = ratios.iter().position(|(_, ratio)| *ratio < 1.0);
    let percent = below.map(|index| match index.checked_sub(1).map(|before| ratios[before]) {
        None => ratios[index].0.min(0.0),
        Some((share, ratio)) => {
            let (next_share, next_ratio) = ratios[index];
            share + (next_share - share) * (ratio - 1.0) / (ratio - next_ratio)
        }
    });
    Some(BreakEven { percent, lowest: (lowest.1, lowest.0) })
}

/// A group, its break-even, and that as a part of the bytes copied, percent.
type GroupBreakEven<'a> = (Group<'a>, BreakEven, Option<f64>);

/// Returns the groups that have a break-even.
fn group_break_evens<'a>(comparisons: &'a [Comparison]) -> Vec<GroupBreakEven<'a>> {
    let of = |group: Group<'a>| {
        let ratio = |member: &Comparison| Some(member.ratio(Side::Uncopy, RATE)?.median);
        let ratios = group.members.iter().filter_map(|(share, member)| Some((*share, ratio(member)?)));
        let found = break_even(&ratios.collect::<Vec<_>>())?;
        let copies = group.members[0].1.parameter("copies").filter(|copies| *copies > 0.0);
        let of_copied = found.percent.zip(copies).map(|(percent, copies)| percent / copies);
        Some((group, found, of_copied))
    };
    groups(comparisons, "read_percent").into_iter().filter_map(of).collect()
}

/// Renders a line for each group.
pub fn render(comparisons: &[Comparison]) -> String {
    let line = |(group, BreakEven { percent, lowest: (lowest, at) }, of_copied): GroupBreakEven<'_>| {
        let even = percent.map_or_else(
            || "never below plain".to_owned(),
            |percent| format!("break-even at {percent:.0} % of the message"),
        );
        let of_copied =
            of_copied.map_or_else(String::new, |part| format!(" ({part:.0} % of the bytes copied)"));
        format!("{}: {even}{of_copied}; lowest ratio {lowest:.2}, at {at} %\n", group.name)
    };
    group_break_evens(comparisons).into_iter().map(line).collect()
}

/// Returns the break-evens as JSON.
pub fn findings(comparisons: &[Comparison]) -> Vec<Value> {
    let entry = |(group, found, of_copied): GroupBreakEven<'_>| {
        let first = group.members[0].1;
        json!({
            "size_bytes": first.operation_bytes(),
            "copies": first.parameter("copies"),
            "read_percent_of_message": found.percent,
            "read_percent_of_copied_bytes": of_copied,
            "lowest_ratio": found.lowest.0,
            "lowest_ratio_at_read_percent": found.lowest.1,
        })
    };
    group_break_evens(comparisons).into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::echo::report;
    use crate::experiments::echo::sweeps::{SWEEPS, Values};
    use crate::kit::Sample;

    #[test]
    fn the_break_even_lies_where_the_ratio_crosses_one() {
        let found = break_even(&[(0.0, 1.5), (10.0, 1.2), (20.0, 0.8), (40.0, 0.99), (60.0, 1.0)]);
        let found = found.expect("ratios");
        assert!((found.percent.expect("it falls below") - 15.0).abs() < 1e-9, "{found:?}");
        assert_eq!(found.lowest, (0.8, 20.0));
        let never = break_even(&[(0.0, 1.5), (100.0, 1.0)]).expect("ratios");
        assert_eq!(never, BreakEven { percent: None, lowest: (1.0, 100.0) });
        let at_once = break_even(&[(0.0, 0.9), (100.0, 1.0)]).expect("ratios");
        assert_eq!(at_once.percent, Some(0.0));
        assert_eq!(break_even(&[]), None);
    }

    #[test]
    fn each_length_and_number_of_copies_has_a_break_even_of_its_own() {
        let sweep = SWEEPS.iter().find(|sweep| sweep.entry.id == "touched").expect("a sweep");
        let given = Values {
            sizes: vec![65_536, 1 << 20],
            copies: vec![1, 3],
            shares: vec![0, 50, 100],
            ..Values::default()
        };
        let points = sweep.values(&given, false).points();
        assert_eq!((points.len(), points[1].work(Side::Plain).read_bytes), (12, 32_768));
        let mut comparisons: Vec<Comparison> =
            points.iter().map(|point| point.comparison(&[Side::Plain, Side::Uncopy])).collect();
        for comparison in &mut comparisons {
            let gain = 2.0 - comparison.parameter("read_percent").expect("a share") / 50.0;
            comparison.run_round(|side| {
                let rate = if side == Side::Plain { 1.0 } else { gain.max(0.01) };
                let cpu_us = Some(1.0);
                Ok(Sample {
                    operations_per_s: Some(rate),
                    cpu_us,
                    verified_bytes: Some(1),
                    ..Sample::default()
                })
            });
        }
        let text = report::render(&comparisons);
        assert!(text.contains("64 KiB, 3 copies: break-even at 50 % of the message (17 % of the bytes copied); lowest ratio 0.01, at 100 %"), "{text}");
        assert!(
            text.contains("read/copied") && !text.contains("scaling") && !text.contains("of limit"),
            "{text}"
        );
        let findings = report::findings(&comparisons);
        assert_eq!((findings.len(), findings[0].0), (1, "break_even"));
        assert_eq!(findings[0].1.as_array().map(Vec::len), Some(4));
        assert_eq!(findings[0].1[3]["size_bytes"], 1 << 20);
        let series = report::plot(&comparisons, sweep).series;
        assert_eq!((series.len(), series[3].name.as_str()), (4, "uncopy, 1 MiB, 3 copies"));
    }
}
