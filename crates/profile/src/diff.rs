//! Two profiles of one program beside each other: what it copies in one and in the other, by site and by chain.
//!
//! Sites are told apart by the function that is called and the place that calls it, not by line or stack, which change with
//! every build; a chain is a class of operations with the same calls at the same places.

mod text;

use crate::model::{Call, Operation, Profile, Site};
use crate::verdict::program;
use crate::words::{bytes, percent};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// What [`Diff::format`] says.
pub const FORMAT: &str = "uncopy-profile-diff";
/// Recordings whose lengths differ by more than this part are said to.
const MAX_LENGTH_PART: f64 = 0.05;

/// Two profiles beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// [`FORMAT`].
    pub format: &'static str,
    /// [`uncopy_core::schema::DIFF`].
    pub schema: u32,
    /// The first profile.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// Where bytes are copied, the largest change of the CPU share first.
    pub sites: Vec<Entry>,
    /// What happens to the bytes of one message, in the same order.
    pub chains: Vec<Entry>,
    /// What a reader should know before believing the figures, each a sentence without its full stop.
    pub notes: Vec<String>,
}

/// One of two profiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Side {
    /// Its file.
    pub file: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long the recording took, seconds.
    pub seconds: f64,
    /// Processor time of the recorded processes, seconds.
    pub cpu_seconds: f64,
    /// All its copies.
    pub copied: Amount,
    /// Estimated processor time for the same work with uncopy, as a part of that without.
    pub cpu_ratio: f64,
}

/// How much was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Amount {
    /// Calls; of a chain: operations.
    pub calls: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// The part of the processor time of its own recording that the copies took.
    pub cpu_share: f64,
}

/// A site or a chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Entry {
    /// `memcpy in FUNCTION`; of a chain `socket → file: read, memcpy in FUNCTION, write`.
    pub name: String,
    /// `FILE:LINE` of a site, in one of the profiles, if debug information tells.
    pub line: Option<String>,
    /// In the first profile, if it has it.
    pub a: Option<Amount>,
    /// In the second.
    pub b: Option<Amount>,
}

/// Why two profiles are not compared. `Display` is a whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlike {
    /// They recorded calls of other sizes.
    MinSize(u64, u64),
    /// They are of different programs, and no call is in both.
    Programs(String, String),
}

impl fmt::Display for Unlike {
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

impl std::error::Error for Unlike {}

impl Amount {
    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.cpu_share += other.cpu_share;
    }
}

impl Entry {
    /// What the CPU share is in the second profile less what it is in the first.
    #[must_use]
    pub fn change(&self) -> f64 {
        let share = |amount: Option<Amount>| amount.map_or(0.0, |amount| amount.cpu_share);
        share(self.b) - share(self.a)
    }

    fn changed_bytes(&self) -> u64 {
        let bytes = |amount: Option<Amount>| amount.map_or(0, |amount| amount.bytes);
        bytes(self.a).abs_diff(bytes(self.b))
    }

    /// The largest change first.
    fn order(&self, other: &Self) -> Ordering {
        let by_share = other.change().abs().total_cmp(&self.change().abs());
        by_share
            .then(other.changed_bytes().cmp(&self.changed_bytes()))
            .then_with(|| self.name.cmp(&other.name))
    }
}

/// The part of the processor time of a recording that `ns` are.
fn share(ns: f64, profile: &Profile) -> f64 {
    if profile.cpu_seconds > 0.0 { ns / 1e9 / profile.cpu_seconds } else { 0.0 }
}

fn amount(site: &Site, profile: &Profile) -> Amount {
    Amount { calls: site.events, bytes: site.bytes, cpu_share: share(site.ns as f64, profile) }
}

/// What is copied in all operations of a class. A site's time is shared out among its operations by bytes.
fn copied(operation: &Operation, profile: &Profile) -> Amount {
    let mut copied = Amount { calls: operation.count, ..Amount::default() };
    for step in &operation.steps {
        let site = &profile.sites[step.site];
        if site.call != Call::Copy {
            continue;
        }
        let moved = step.bytes.max(0.0) * operation.count as f64;
        // Not below 0; a float that is too large becomes the largest number.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bytes = moved.round() as u64;
        copied.bytes = copied.bytes.saturating_add(bytes);
        let part = if site.bytes > 0 { (moved / site.bytes as f64).min(1.0) } else { 0.0 };
        copied.cpu_share += share(site.ns as f64 * part, profile);
    }
    copied
}

/// `memcpy in FUNCTION`.
fn site_name(site: &Site) -> String {
    format!("{} in {}", site.name, site.place)
}

/// Entries by what tells them apart.
type Entries = BTreeMap<String, Entry>;
/// The side of an entry that a profile stands on.
type OfSide = fn(&mut Entry) -> &mut Option<Amount>;

fn add(entries: &mut Entries, key: String, name: String, line: Option<&String>, of: OfSide, amount: Amount) {
    let entry = entries.entry(key).or_insert_with(|| Entry { name, ..Entry::default() });
    if entry.line.is_none() {
        entry.line = line.cloned();
    }
    of(entry).get_or_insert_default().add(amount);
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
    if (a.seconds - b.seconds).abs() > MAX_LENGTH_PART * a.seconds.max(b.seconds) {
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
    /// Puts two profiles, each with the name of its file, beside each other.
    ///
    /// # Errors
    /// What they are too unlike in for that.
    pub fn between((a, a_file): (&Profile, &str), (b, b_file): (&Profile, &str)) -> Result<Self, Unlike> {
        if a.min_size_bytes != b.min_size_bytes {
            return Err(Unlike::MinSize(a.min_size_bytes, b.min_size_bytes));
        }
        let calls = |profile: &Profile| profile.sites.iter().map(site_name).collect::<Vec<_>>();
        let (a_program, b_program) = (program(a), program(b));
        if a_program != b_program {
            let of_a = calls(a);
            if !calls(b).iter().any(|call| of_a.contains(call)) {
                return Err(Unlike::Programs(a_program, b_program));
            }
        }
        let (mut sites, mut chains) = (Entries::new(), Entries::new());
        let sides: [(&Profile, OfSide); 2] = [(a, |entry| &mut entry.a), (b, |entry| &mut entry.b)];
        for (profile, of) in sides {
            for site in profile.sites.iter().filter(|site| site.call == Call::Copy) {
                let name = site_name(site);
                add(&mut sites, name.clone(), name, site.line.as_ref(), of, amount(site, profile));
            }
            for operation in profile.operations.iter().filter(|operation| operation.copies_in_application > 0)
            {
                let steps = || operation.steps.iter().map(|step| &profile.sites[step.site]);
                let places: Vec<String> = steps().map(site_name).collect();
                // The places of inputs and outputs are in the key alone: names would be long.
                let calls = steps()
                    .map(|site| if site.call == Call::Copy { site_name(site) } else { site.name.clone() });
                let calls: Vec<String> = calls.collect();
                let key = format!("{}: {}", operation.name, places.join("\n"));
                let name = format!("{}: {}", operation.name, calls.join(", "));
                add(&mut chains, key, name, None, of, copied(operation, profile));
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

    /// One sentence.
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
            points(b - a)
        )
    }

    /// As JSON for programs.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and numbers only: nothing in it cannot be written.
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }
}

/// A change of a share in points of percent: `+1.3`.
#[must_use]
pub fn points(change: f64) -> String {
    let shown = format!("{:+.1}", change * 100.0);
    if matches!(shown.as_str(), "+0.0" | "-0.0") { "0".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Profile {
        Profile::parse(include_bytes!("../samples/redis-set.json")).expect("well-formed")
    }

    fn between(a: &Profile, b: &Profile) -> Result<Diff, Unlike> {
        Diff::between((a, "a.json"), (b, "b.json"))
    }

    /// The sample, with a copy gone, another one moved elsewhere, and one that takes twice the time.
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
        let sum = |of: fn(&Amount) -> u64| {
            diff.sites.iter().filter_map(|entry| entry.a.as_ref()).map(of).sum::<u64>()
        };
        assert_eq!(sum(|amount| amount.bytes), copies().map(|site| site.bytes).sum::<u64>());
        assert_eq!(sum(|amount| amount.calls), copies().map(|site| site.events).sum::<u64>());
        assert!((diff.a.copied.cpu_share - profile.prediction.cpu_share).abs() < 0.01);
        let chain = diff.chains[0].a.expect("in both");
        assert_eq!(chain.calls, profile.operations[0].count);
    }

    #[test]
    fn what_is_in_one_only_is_shown_and_the_largest_change_comes_first() {
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
    fn what_cannot_be_compared_is_refused_with_the_reason() {
        let larger = Profile { min_size_bytes: 65536, ..sample() };
        assert!(matches!(between(&sample(), &larger), Err(Unlike::MinSize(_, 65536))));
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
        assert_eq!([0.0131, -0.2, 0.0001, -0.0].map(points), ["+1.3", "-20.0", "0", "0"]);
    }
}
