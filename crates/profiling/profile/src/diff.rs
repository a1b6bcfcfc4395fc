//! Comparison of two profiles of one program, by site and by chain.
//!
//! Sites are identified by the called function and the calling function, not by line or stack, which change
//! with every build. A chain is a class of operations with the same calls at the same locations.

mod text;

use crate::format::{bytes, percent};
use crate::model::{Call, OperationClass, Profile, Site};
use crate::verdict::program_name;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// Value of the field [`Diff::format`].
pub const FORMAT: &str = "uncopy-profile-diff";
/// Maximum relative difference of the recordings' durations that is not noted.
const MAX_DURATION_DIFFERENCE: f64 = 0.05;

/// Comparison of two profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// Format of the document, always [`FORMAT`].
    pub format: &'static str,
    /// Version of the format, [`uncopy_core::schema::DIFF`].
    pub schema: u32,
    /// The first of the two profiles.
    pub a: Side,
    /// The second of the two profiles.
    pub b: Side,
    /// Sites of copies, largest change of the CPU share first.
    pub sites: Vec<Entry>,
    /// Chains, largest change of the CPU share first.
    pub chains: Vec<Entry>,
    /// Caveats about the figures, each a sentence without its full stop.
    pub notes: Vec<String>,
}

/// One of the two profiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Side {
    /// Path of the profile.
    pub file: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Duration of the recording in seconds.
    pub seconds: f64,
    /// CPU time of the recorded processes, in seconds.
    pub cpu_seconds: f64,
    /// Sum of all copies.
    pub copied: Amount,
    /// Estimated CPU time for the same work with uncopy, relative to that without.
    pub cpu_ratio: f64,
}

/// Amount of copying in one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Amount {
    /// Number of calls; for a chain, of operations.
    pub calls: u64,
    /// Bytes that the calls copied.
    pub bytes: u64,
    /// Fraction of the recording's CPU time that the copies took.
    pub cpu_share: f64,
}

/// A site or a chain in both profiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Entry {
    /// Name: `memcpy in FUNCTION`, or for a chain `socket → file: read, memcpy in FUNCTION, write`.
    pub name: String,
    /// `FILE:LINE` of a site in one of the profiles, if debug information is available.
    pub line: Option<String>,
    /// Amount in the first profile, if present.
    pub a: Option<Amount>,
    /// Amount in the second profile, if present.
    pub b: Option<Amount>,
}

/// Reason why two profiles cannot be compared. `Display` gives a complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incomparable {
    /// The minimum sizes of recorded calls differ.
    MinSize(u64, u64),
    /// The profiles are of different programs and have no call in common.
    Programs(String, String),
}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinSize(a, b) => write!(
                f,
                "cannot compare: the first records calls of {} or more, the second of {} or more; record both with the same \
                 --min-size",
                bytes(*a),
                bytes(*b)
            ),
            Self::Programs(a, b) => write!(
                f,
                "cannot compare: the first is of {a}, the second of {b}, and no call is in both; name two profiles of one program"
            ),
        }
    }
}

impl std::error::Error for Incomparable {}

impl Amount {
    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.cpu_share += other.cpu_share;
    }
}

impl Entry {
    /// Returns the CPU share in the second profile minus that in the first.
    #[must_use]
    pub fn change(&self) -> f64 {
        let share = |amount: Option<Amount>| amount.map_or(0.0, |amount| amount.cpu_share);
        share(self.b) - share(self.a)
    }

    fn changed_bytes(&self) -> u64 {
        let bytes = |amount: Option<Amount>| amount.map_or(0, |amount| amount.bytes);
        bytes(self.a).abs_diff(bytes(self.b))
    }

    /// Orders by the size of the change, largest first.
    fn order(&self, other: &Self) -> Ordering {
        let by_share = other.change().abs().total_cmp(&self.change().abs());
        by_share
            .then(other.changed_bytes().cmp(&self.changed_bytes()))
            .then_with(|| self.name.cmp(&other.name))
    }
}

/// Returns `ns` as a fraction of a recording's CPU time.
fn share(ns: f64, profile: &Profile) -> f64 {
    if profile.cpu_seconds > 0.0 { ns / 1e9 / profile.cpu_seconds } else { 0.0 }
}

fn amount(site: &Site, profile: &Profile) -> Amount {
    Amount { calls: site.events, bytes: site.bytes, cpu_share: share(site.ns as f64, profile) }
}

/// Returns how much the operations of a class copied in total. A site's time is divided among its operations in
/// proportion to bytes.
fn chain_amount(operation: &OperationClass, profile: &Profile) -> Amount {
    let mut copied = Amount { calls: operation.count, ..Amount::default() };
    for step in &operation.steps {
        let site = &profile.sites[step.site];
        if site.call != Call::Copy {
            continue;
        }
        let moved = step.bytes.max(0.0) * operation.count as f64;
        // Values are not negative, and the cast saturates.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bytes = moved.round() as u64;
        copied.bytes = copied.bytes.saturating_add(bytes);
        let part = if site.bytes > 0 { (moved / site.bytes as f64).min(1.0) } else { 0.0 };
        copied.cpu_share += share(site.ns as f64 * part, profile);
    }
    copied
}

/// Returns a site's name, such as `memcpy in FUNCTION`.
fn site_name(site: &Site) -> String {
    format!("{} in {}", site.name, site.place)
}

type Entries = BTreeMap<String, Entry>;
/// Selects a profile's side of an entry.
type SelectSide = fn(&mut Entry) -> &mut Option<Amount>;

fn add(
    entries: &mut Entries,
    key: String,
    name: String,
    line: Option<&String>,
    select: SelectSide,
    amount: Amount,
) {
    let entry = entries.entry(key).or_insert_with(|| Entry { name, ..Entry::default() });
    if entry.line.is_none() {
        entry.line = line.cloned();
    }
    select(entry).get_or_insert_default().add(amount);
}

fn sorted(entries: Entries) -> Vec<Entry> {
    let mut entries: Vec<Entry> = entries.into_values().collect();
    entries.sort_by(Entry::order);
    entries
}

fn side(profile: &Profile, file: &str) -> Side {
    let mut copied = Amount::default();
    profile
        .sites
        .iter()
        .filter(|site| site.call == Call::Copy)
        .for_each(|site| copied.add(amount(site, profile)));
    Side {
        file: file.to_owned(),
        command: profile.command.clone(),
        seconds: profile.seconds,
        cpu_seconds: profile.cpu_seconds,
        copied,
        cpu_ratio: profile.prediction.cpu_ratio,
    }
}

fn notes(a: &Profile, b: &Profile) -> Vec<String> {
    let mut notes = Vec::new();
    if (a.seconds - b.seconds).abs() > MAX_DURATION_DIFFERENCE * a.seconds.max(b.seconds) {
        notes.push(format!(
            "A was recorded for {:.1} s, B for {:.1} s: calls and bytes are of all of it, CPU shares of each one's own CPU time",
            a.seconds, b.seconds
        ));
    }
    if a.machine != b.machine {
        notes.push(
            "they were recorded on different machines or kernels, on which copies take different times"
                .to_owned(),
        );
    }
    for (name, profile) in [("A", a), ("B", b)] {
        if profile.dropped_events > 0 {
            notes.push(format!("{} events of {name} were lost", profile.dropped_events));
        }
    }
    notes
}

impl Diff {
    /// Compares two profiles, each given with the path of its file.
    ///
    /// # Errors
    /// Returns the reason why the profiles cannot be compared.
    pub fn between(
        (a, a_file): (&Profile, &str),
        (b, b_file): (&Profile, &str),
    ) -> Result<Self, Incomparable> {
        if a.min_size_bytes != b.min_size_bytes {
            return Err(Incomparable::MinSize(a.min_size_bytes, b.min_size_bytes));
        }
        let calls = |profile: &Profile| profile.sites.iter().map(site_name).collect::<Vec<_>>();
        let (a_program, b_program) = (program_name(a), program_name(b));
        if a_program != b_program {
            let of_a = calls(a);
            if !calls(b).iter().any(|call| of_a.contains(call)) {
                return Err(Incomparable::Programs(a_program, b_program));
            }
        }
        let (mut sites, mut chains) = (Entries::new(), Entries::new());
        let sides: [(&Profile, SelectSide); 2] = [(a, |entry| &mut entry.a), (b, |entry| &mut entry.b)];
        for (profile, select) in sides {
            for site in profile.sites.iter().filter(|site| site.call == Call::Copy) {
                let name = site_name(site);
                add(&mut sites, name.clone(), name, site.line.as_ref(), select, amount(site, profile));
            }
            for operation in profile.operations.iter().filter(|operation| operation.copies_in_application > 0)
            {
                let steps = || operation.steps.iter().map(|step| &profile.sites[step.site]);
                let places: Vec<String> = steps().map(site_name).collect();
                // Locations of inputs and outputs are only part of the key, to keep names short.
                let calls = steps()
                    .map(|site| if site.call == Call::Copy { site_name(site) } else { site.name.clone() });
                let calls: Vec<String> = calls.collect();
                let key = format!("{}: {}", operation.name, places.join("\n"));
                let name = format!("{}: {}", operation.name, calls.join(", "));
                add(&mut chains, key, name, None, select, chain_amount(operation, profile));
            }
        }
        Ok(Self {
            format: FORMAT,
            schema: uncopy_core::schema::DIFF,
            a: side(a, a_file),
            b: side(b, b_file),
            sites: sorted(sites),
            chains: sorted(chains),
            notes: notes(a, b),
        })
    }

    /// Returns a one-sentence summary.
    #[must_use]
    pub fn sentence(&self) -> String {
        let program = self.b.command.first().map_or("the program", String::as_str);
        let program = program.rsplit('/').next().unwrap_or(program);
        let (a, b) = (self.a.copied.cpu_share, self.b.copied.cpu_share);
        if self.sites.is_empty() {
            return format!("{program} makes no large copies in either.");
        }
        format!(
            "Copies take {} of the CPU time of {program} in A and {} in B: {} points.",
            percent(a),
            percent(b),
            percentage_points(b - a)
        )
    }

    /// Serialises the comparison to JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Serialising strings and numbers never fails.
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }
}

/// Formats a change of a share in percentage points: `+1.3`.
#[must_use]
pub fn percentage_points(change: f64) -> String {
    let shown = format!("{:+.1}", change * 100.0);
    if matches!(shown.as_str(), "+0.0" | "-0.0") { "0".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Profile {
        Profile::parse(include_bytes!("../samples/redis-set.json")).expect("well-formed")
    }

    fn between(a: &Profile, b: &Profile) -> Result<Diff, Incomparable> {
        Diff::between((a, "a.json"), (b, "b.json"))
    }

    /// Returns the sample with one copy moved to another function, and one taking twice the time.
    fn changed() -> Profile {
        let mut profile = sample();
        let copies: Vec<usize> =
            profile.sites.iter().filter(|site| site.call == Call::Copy).map(|site| site.id).collect();
        profile.sites[copies[0]].place = "elsewhere".to_owned();
        profile.sites[copies[1]].ns *= 2;
        profile
    }

    #[test]
    fn a_profile_does_not_differ_from_itself() {
        let diff = between(&sample(), &sample()).expect("alike");
        assert!(!diff.sites.is_empty() && !diff.chains.is_empty());
        for entry in diff.sites.iter().chain(&diff.chains) {
            assert!(entry.a.is_some() && entry.a == entry.b && entry.change() == 0.0, "{entry:?}");
        }
        assert!(diff.sentence().ends_with(": 0 points."), "{}", diff.sentence());
        assert_eq!(diff.notes, Vec::<String>::new());
    }

    #[test]
    fn sums_over_sites_are_those_of_the_profile() {
        let profile = sample();
        let diff = between(&profile, &profile).expect("alike");
        let copies = || profile.sites.iter().filter(|site| site.call == Call::Copy);
        let sum = |select: fn(&Amount) -> u64| {
            diff.sites.iter().filter_map(|entry| entry.a.as_ref()).map(select).sum::<u64>()
        };
        assert_eq!(sum(|amount| amount.bytes), copies().map(|site| site.bytes).sum::<u64>());
        assert_eq!(sum(|amount| amount.calls), copies().map(|site| site.events).sum::<u64>());
        assert!((diff.a.copied.cpu_share - profile.prediction.cpu_share).abs() < 0.01);
        let chain = diff.chains[0].a.expect("in both");
        assert_eq!(chain.calls, profile.operations[0].count);
    }

    #[test]
    fn one_sided_entries_are_shown_and_largest_change_comes_first() {
        let (a, b) = (sample(), changed());
        let diff = between(&a, &b).expect("of one program");
        let only = |is: fn(&Entry) -> bool| diff.sites.iter().filter(|entry| is(entry)).count();
        assert_eq!(only(|entry| entry.a.is_none()), 1);
        assert!(diff.sites.iter().any(|entry| entry.name.ends_with(" in elsewhere") && entry.a.is_none()));
        for entries in [&diff.sites, &diff.chains] {
            let changes: Vec<f64> = entries.iter().map(|entry| entry.change().abs()).collect();
            assert!(changes.is_sorted_by(|first, second| first >= second), "{changes:?}");
        }
        let back = between(&b, &a).expect("of one program");
        for (entry, other) in diff.sites.iter().zip(&back.sites) {
            assert_eq!((&entry.name, entry.a, entry.b), (&other.name, other.b, other.a));
        }
    }

    #[test]
    fn incomparable_profiles_are_rejected_with_the_reason() {
        let larger = Profile { min_size_bytes: 65536, ..sample() };
        assert!(matches!(between(&sample(), &larger), Err(Incomparable::MinSize(_, 65536))));
        let renamed = Profile { command: vec!["/opt/redis-new".to_owned()], ..sample() };
        assert!(between(&sample(), &renamed).is_ok(), "the same calls by another name");
        let mut other = renamed;
        other.sites.iter_mut().for_each(|site| site.place = "other".to_owned());
        let why = between(&sample(), &other).expect_err("nothing in common").to_string();
        assert!(why.contains("of redis-server, the second of redis-new"), "{why}");
    }

    #[test]
    fn other_lengths_and_machines_are_noted_and_extremes_are_no_trouble() {
        let mut other = sample();
        other.seconds *= 2.0;
        other.machine.kernel.push('x');
        other
            .sites
            .iter_mut()
            .for_each(|site| (site.bytes, site.events, site.ns) = (u64::MAX, u64::MAX, u64::MAX));
        other.cpu_seconds = 0.0;
        let diff = between(&sample(), &other).expect("of one program");
        assert_eq!(diff.notes.len(), 2, "{:?}", diff.notes);
        assert_eq!(diff.b.copied.bytes, u64::MAX);
        assert!(!diff.to_json().contains("null,\n  \"cpu") && diff.b.copied.cpu_share == 0.0);
    }

    #[test]
    fn changes_are_points_of_percent() {
        assert_eq!([0.0131, -0.2, 0.0001, -0.0].map(percentage_points), ["+1.3", "-20.0", "0", "0"]);
    }
}
