//! The experiment of zIO §5.1.4 (Figure 10): an echo server that reads a part of the last copy of
//! every message before it sends it back. From some part on, eliding cannot pay: the break-even.
//!
//! The part that is read lies at the message's start, and every byte of it is read. zIO relates the
//! bytes touched to those that copies did not copy: `part / copies`.

use clap::Args;
use serde_json::{Value, json};

use crate::experiments::echo::point::{self, Point};
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, RATE, of_limit};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Outcome, Plot, Repeat, Report, Result, Scale, Series, Side, claim,
    copies_parser, counted, entry, size, size_parser,
};
use crate::servers::echo::server::Work;

/// Echo server that reads a part of each message; the break-even (zIO, Figure 10)
#[derive(Debug, Args)]
pub struct Touched {
    /// Shares of each message that the server reads, in percent
    #[arg(long, value_name = "PERCENT,...", default_value = "0,5,10,20,30,40,60,80,100",
        default_value_if("quick", "true", "0,20,100"), value_delimiter = ',', value_parser = percent_parser())]
    pub shares: Vec<u8>,
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "262144", value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,...", default_value = "1,3,6", default_value_if("quick", "true", "3"), value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Touched {
    const ENTRIES: &'static [Entry] = &[entry(
        "touched",
        "Echo server, bytes touched",
        &[claim(
            "zIO, Figure 10 (§5.1.4)",
            "zIO gains as long as the bytes touched are less than 6 % of the bytes elided; beyond, it loses.",
        )],
        "touched --sides uncopy --processes 3 --seconds 10",
        "touched --quick --sides uncopy",
    )];
    const PLACE: u8 = 50;

    fn run(&self) -> Result<Outcome> {
        point::run(
            &self.form,
            &points(&self.sizes, &self.copies, &self.shares),
            &self.repeat.slices(),
            |comparisons| Report::of(comparisons, render, plot).finding(findings),
        )
    }
}

fn percent_parser() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(0..=100)
}

/// One point for each length, number of copies and share, in percent, of each message that is read.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn points(sizes_bytes: &[usize], copies: &[usize], shares: &[u8]) -> Vec<Point> {
    let mut points = Vec::new();
    for size_bytes in sizes_bytes {
        for copies in copies {
            for share in shares {
                let group = format!("{}, {}", size(*size_bytes as u64), counted(*copies, "copy", "copies"));
                let read_bytes = size_bytes * usize::from(*share) / 100;
                let work = Work { size_bytes: *size_bytes, copies: *copies, read_bytes, ..Work::default() };
                let point = Point::new(format!("echo {group}, {share} % read"), work)
                    .with("size_bytes", *size_bytes as f64)
                    .with("copies", *copies as f64)
                    .with("read_percent", f64::from(*share));
                points.push(point);
            }
        }
    }
    points
}

/// The comparisons of one length and number of copies, by ascending share.
struct Group<'a> {
    name: String,
    copies: f64,
    members: Vec<(f64, &'a Comparison)>,
}

fn groups(comparisons: &[Comparison]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for comparison in comparisons {
        let (Some(copies), Some(share)) =
            (comparison.parameter("copies"), comparison.parameter("read_percent"))
        else {
            continue;
        };
        let name = format!("{}, {copies} copies", size(comparison.operation_bytes()));
        let group = match groups.iter().position(|group| group.name == name) {
            Some(index) => &mut groups[index],
            None => {
                groups.push(Group { name, copies, members: Vec::new() });
                let last = groups.len() - 1;
                &mut groups[last]
            }
        };
        group.members.push((share, comparison));
        group.members.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    }
    groups
}

/// What follows from the ratios of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BreakEven {
    /// Up to which share the median ratio stays at 1 or above, percent, interpolated; `None`: to the end.
    percent: Option<f64>,
    /// Lowest median ratio, and at which share.
    lowest: (f64, f64),
}

/// The break-even of `(share, ratio)`, ascending; `None` without any.
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

fn ratios(group: &Group<'_>) -> Vec<(f64, f64)> {
    let ratio = |comparison: &Comparison| Some(comparison.ratio(Side::Uncopy, RATE)?.median);
    group.members.iter().filter_map(|(share, comparison)| Some((*share, ratio(comparison)?))).collect()
}

/// The figures, and the break-even of each length and number of copies.
fn render(comparisons: &[Comparison]) -> String {
    let of_elided: figures::Extra<'_> = (
        "read/copied",
        Box::new(|comparison, _| {
            let share = comparison.parameter("read_percent").zip(comparison.parameter("copies"));
            share
                .filter(|(_, copies)| *copies > 0.0)
                .map_or_else(String::new, |(share, copies)| format!("{:.1} %", share / copies))
        }),
    );
    let mut text = figures::table(comparisons, &[of_elided, of_limit()]);
    text.push('\n');
    for group in groups(comparisons) {
        let Some(found) = break_even(&ratios(&group)) else { continue };
        let (lowest, at) = found.lowest;
        let even = match found.percent {
            None => "never below plain".to_owned(),
            Some(percent) if group.copies > 0.0 => format!(
                "break-even at {percent:.0} % of the message ({:.0} % of the bytes copied)",
                percent / group.copies
            ),
            Some(percent) => format!("break-even at {percent:.0} % of the message"),
        };
        text.push_str(&format!("{}: {even}; lowest ratio {lowest:.2}, at {at} %\n", group.name));
    }
    text.push_str(LEGEND);
    text.push_str(LIMIT_LEGEND);
    text.push_str(
        "read/copied: bytes read over bytes copied; break-even: where the median ratio first falls below 1\n",
    );
    text
}

/// The break-evens, for programs.
fn findings(comparisons: &[Comparison]) -> Vec<(&'static str, Value)> {
    let entries = groups(comparisons).into_iter().filter_map(|group| {
        let found = break_even(&ratios(&group))?;
        let (size_bytes, copies) = (group.members.first()?.1.operation_bytes(), group.copies);
        Some(json!({
            "size_bytes": size_bytes,
            "copies": copies,
            "read_percent_of_message": found.percent,
            "read_percent_of_copied_bytes": found.percent.filter(|_| copies > 0.0).map(|percent| percent / copies),
            "lowest_ratio": found.lowest.0,
            "lowest_ratio_at_read_percent": found.lowest.1,
        }))
    });
    vec![("break_even", entries.collect())]
}

/// The ratio to plain over the share that is read.
fn plot(comparisons: &[Comparison]) -> Plot {
    let series = groups(comparisons).into_iter().map(|group| {
        let points = group.members.iter();
        let points =
            points.filter_map(|(share, comparison)| Some((*share, comparison.ratio(Side::Uncopy, RATE)?)));
        Series { points: points.collect(), name: group.name }
    });
    Plot {
        title: "Echo server: touched bytes".to_owned(),
        x: ("share of the message that is read, percent".to_owned(), Scale::Linear),
        y: "throughput over plain".to_owned(),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::sample::Sample;

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
        let points = points(&[65_536, 1 << 20], &[1, 3], &[0, 50, 100]);
        assert_eq!(points.len(), 12);
        assert_eq!(points[1].work.read_bytes, 32_768);
        let comparisons: Vec<Comparison> = points
            .iter()
            .map(|point| {
                let comparison =
                    Comparison::new(&point.title, point.work.size_bytes as u64, &[Side::Plain, Side::Uncopy]);
                let mut comparison =
                    point.parameters.iter().fold(comparison, |all, (name, value)| all.with(name, *value));
                let read = point.work.read_bytes as f64 / point.work.size_bytes as f64;
                let gain = (2.0 - 2.0 * read).max(0.01);
                comparison.round(|side| {
                    let operations_per_s = if side == Side::Plain { 1.0 } else { gain };
                    Ok(Sample {
                        operations_per_s: Some(operations_per_s),
                        cpu_us: Some(1.0),
                        verified_bytes: Some(1),
                        ..Sample::default()
                    })
                });
                comparison
            })
            .collect();
        let text = render(&comparisons);
        assert!(text.contains("64 KiB, 3 copies: break-even at 50 % of the message (17 % of the bytes copied); lowest ratio 0.01, at 100 %"), "{text}");
        let findings = &findings(&comparisons)[0].1;
        assert_eq!(findings.as_array().map(Vec::len), Some(4));
        assert_eq!(findings[3]["size_bytes"], 1 << 20);
        assert_eq!(plot(&comparisons).series.len(), 4);
    }
}
