//! Aims from the papers' results and of this project, each hit or missed.

use crate::kit::Interval;
use crate::kit::verdict::MIN_ROUNDS;
use crate::results::model::{Quantity, Results};
use crate::results::pool::Pooled;

/// A ratio that a case is meant to reach.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// The paper and its figure; empty for this project's own aims.
    source: &'static str,
    /// Description of the ratio, without the number in `bound`.
    what: &'static str,
    /// The experiment and the title of the case.
    case: (&'static str, &'static str),
    /// The side of uncopy that is judged.
    side: &'static str,
    /// The quantity, and the side that the ratio is over.
    ratio: (Quantity, &'static str),
    /// Bound that the ratio must meet.
    bound: Bound,
}

/// Bound on a ratio, from below or above.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// At least this much.
    AtLeast(f64),
    /// At most this much.
    AtMost(f64),
}

/// The result of an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The whole interval meets the bound.
    Hit,
    /// No part of the interval meets the bound.
    Missed,
    /// The bound lies within the interval.
    Open,
    /// Nothing was measured, or too few rounds.
    NotMeasured,
}

impl Outcome {
    /// Returns the text in tables.
    const fn words(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Missed => "**missed**",
            Self::Open => "open: within the interval",
            Self::NotMeasured => "not measured",
        }
    }
}

const RATE: (Quantity, &str) = (Quantity::Rate, "plain");

const fn aim(
    source: &'static str,
    what: &'static str,
    case: (&'static str, &'static str),
    ratio: (Quantity, &'static str),
    bound: Bound,
) -> Aim {
    Aim { source, what, case, side: "uncopy", ratio, bound }
}

const fn rate(
    source: &'static str,
    what: &'static str,
    case: (&'static str, &'static str),
    at_least: f64,
) -> Aim {
    aim(source, what, case, RATE, Bound::AtLeast(at_least))
}

/// Results of the papers. Each figure was measured on the paper's own stack and machine.
pub const OF_PAPERS: &[Aim] = &[
    rate("zIO, Figure 4", "echo of 512 KiB, 12 copies: rate", ("copies", "echo 512 KiB, 12 copies"), 3.8),
    aim(
        "zIO, Figure 4",
        "the same: rate over that without copies",
        ("copies", "echo 512 KiB, 12 copies"),
        (Quantity::Rate, "0 copies"),
        Bound::AtLeast(0.97),
    ),
    rate("zIO, Figure 6", "echo of 512 KiB, 5 copies: rate", ("sizes", "echo 512 KiB, 5 copies"), 2.9),
    rate(
        "zIO, Figure 10",
        "echo, 6.7 % of the copied bytes touched: rate",
        ("touched", "echo 256 KiB, 3 copies, 20 % read"),
        1.0,
    ),
    rate("zIO, Figure 11", "Redis SET 1 MiB: rate", ("redis-set", "redis SET 1 MiB"), 1.8),
    rate("zIO, Figure 12", "Redis YCSB A 1 MiB: rate", ("redis-ycsb-a", "redis YCSB A 1 MiB"), 1.3),
    rate("zIO, §5.2.1", "Redis SET 8 KiB: rate", ("redis-set", "redis SET 8 KiB"), 0.98),
    rate(
        "zIO, Table 3",
        "Icecast, a file of 1.1 MB: rate",
        ("apps-icecast", "icecast file of 1100000 B, 8 listeners"),
        1.25,
    ),
    rate(
        "zIO, Table 3",
        "Icecast, relayed stream: listeners",
        ("apps-icecast", "icecast relay, listeners of 2 MiB/s"),
        1.16,
    ),
    rate("zIO, §5.4", "a store that checksums all: rate", ("checksum", "store 1 MiB, 2 copies"), 0.98),
    Aim {
        side: "twin",
        ..rate(
            "ZCopy, Figure 8",
            "memcached by TCP, 64 KiB: rate",
            ("memcached", "memcached GET 64 KiB"),
            1.4,
        )
    },
    rate("ZCopy, Figure 10", "Varnish 6 KiB: rate", ("apps-varnish", "varnish 6 KiB"), 1.07),
    aim(
        "Zero-Copy lab",
        "a file by read and send: time",
        ("lab", "file of 1 GiB"),
        (Quantity::Time, "plain"),
        Bound::AtMost(0.52),
    ),
];

/// Returns an aim of this project: a lower bound on a rate.
const fn own(what: &'static str, case: (&'static str, &'static str), at_least: f64) -> Aim {
    rate("", what, case, at_least)
}

const fn twin(what: &'static str, case: (&'static str, &'static str), at_least: f64) -> Aim {
    Aim { side: "twin", ..own(what, case, at_least) }
}

const fn own_cost(what: &'static str, case: (&'static str, &'static str), of: Quantity, at_most: f64) -> Aim {
    aim("", what, case, (of, "plain"), Bound::AtMost(at_most))
}

const MIXED_VALUES: (&str, &str) = ("memory", "redis memory, mixed values");

/// Further aims of this project.
pub const OWN: &[Aim] = &[
    own("echo of 8 KiB, 5 copies: rate", ("sizes", "echo 8 KiB, 5 copies"), 0.98),
    aim(
        "",
        "echo of 64 KiB, 5 copies: rate over that without copies",
        ("sizes", "echo 64 KiB, 5 copies"),
        (Quantity::Rate, "0 copies"),
        Bound::AtLeast(0.95),
    ),
    own("Redis SET 64 KiB: rate", ("redis-set", "redis SET 64 KiB"), 1.15),
    own("Redis SET 256 KiB: rate", ("redis-set", "redis SET 256 KiB"), 1.5),
    own("Redis SET 1 MiB: rate", ("redis-set", "redis SET 1 MiB"), 2.0),
    own("Redis YCSB A 256 KiB: rate", ("redis-ycsb-a", "redis YCSB A 256 KiB"), 1.3),
    own("Redis YCSB A 1 MiB: rate", ("redis-ycsb-a", "redis YCSB A 1 MiB"), 1.5),
    own("Redis SET 64 B: rate", ("small", "redis SET 64 B"), 0.99),
    own("memcached GET 100 B: rate", ("small", "memcached GET 100 B"), 0.99),
    own("nginx 1 KiB: rate", ("small", "nginx 1 KiB, sendfile on"), 0.99),
    own_cost("Redis, mixed values: memory", MIXED_VALUES, Quantity::Memory, 1.15),
    own_cost("Redis, mixed values: processor time", MIXED_VALUES, Quantity::Cpu, 1.03),
    twin("memcached GET 1 KiB, twin memory: rate", ("memcached", "memcached GET 1 KiB"), 0.99),
    twin("memcached GET 1 MiB, twin memory: rate", ("memcached", "memcached GET 1 MiB"), 1.5),
];

impl Aim {
    /// Returns the measured ratio, and whether it meets the aim.
    fn outcome(&self, results: &Results) -> (Option<Interval>, Outcome) {
        let (id, title) = self.case;
        let (of, over) = self.ratio;
        let ratio = Pooled::find(results, id, title)
            .filter(|case| case.obstacle().is_none() && case.rounds() >= MIN_ROUNDS)
            .and_then(|case| case.ratio(self.side, of, over));
        (ratio, ratio.map_or(Outcome::NotMeasured, |ratio| self.bound.outcome(ratio)))
    }
}

/// Returns the results of `aims` as table rows below a heading.
#[must_use]
pub fn table(aims: &[Aim], results: &Results) -> String {
    let mut lines = vec!["| | what, over plain | aim | measured | |\n|---|---|---|---|---|".to_owned()];
    for aim in aims {
        let (ratio, outcome) = aim.outcome(results);
        let ratio = ratio.map_or_else(String::new, |ratio| ratio.to_string());
        // Text of our own needs no escaping.
        let Aim { source, what, bound, .. } = aim;
        lines.push(format!("| {source} | {what} | {} | {ratio} | {} |", bound.words(), outcome.words()));
    }
    lines.join("\n")
}

/// Returns the numbers of `aims` hit, missed, and neither.
#[must_use]
pub fn count(aims: &[Aim], results: &Results) -> [usize; 3] {
    let mut counts = [0; 3];
    for aim in aims {
        counts[match aim.outcome(results).1 {
            Outcome::Hit => 0,
            Outcome::Missed => 1,
            Outcome::Open | Outcome::NotMeasured => 2,
        }] += 1;
    }
    counts
}

impl Bound {
    fn outcome(self, ratio: Interval) -> Outcome {
        let (is_hit, is_missed) = match self {
            Self::AtLeast(least) => (ratio.low >= least, ratio.high < least),
            Self::AtMost(most) => (ratio.high <= most, ratio.low > most),
        };
        match () {
            () if is_hit => Outcome::Hit,
            () if is_missed => Outcome::Missed,
            () => Outcome::Open,
        }
    }

    /// Returns the text in tables.
    fn words(self) -> String {
        match self {
            Self::AtLeast(least) => format!("at least {least}"),
            Self::AtMost(most) => format!("at most {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::judge::is_uncopy;
    use crate::results::pool::tests::{case, results};
    use crate::results::register::find;

    #[test]
    fn every_aim_is_in_an_entry() {
        for aim in OF_PAPERS.iter().chain(OWN) {
            assert!(find(aim.case.0).is_some() && is_uncopy(aim.side), "{}: {}", aim.source, aim.what);
        }
    }

    #[test]
    fn an_aim_is_hit_only_by_the_whole_interval() {
        let interval = Interval { median: 1.2, low: 1.1, high: 1.3 };
        for (bound, outcome) in [
            (Bound::AtLeast(1.1), Outcome::Hit),
            (Bound::AtLeast(1.2), Outcome::Open),
            (Bound::AtLeast(1.31), Outcome::Missed),
            (Bound::AtMost(1.3), Outcome::Hit),
            (Bound::AtMost(1.2), Outcome::Open),
            (Bound::AtMost(1.0), Outcome::Missed),
        ] {
            assert_eq!(bound.outcome(interval), outcome, "{bound:?}");
        }
        let aim = rate("paper", "what", ("redis-get", "get"), 0.5);
        let results = results("redis-get", &[vec![case("get", "uncopy", &[0.9; 5])]]);
        assert_eq!((aim.outcome(&results).1, count(&[aim], &results)), (Outcome::Hit, [1, 0, 0]));
        assert_eq!(aim.outcome(&Results::default()), (None, Outcome::NotMeasured));
        assert!(
            table(&[aim], &results).ends_with("| paper | what | at least 0.5 | 0.99 [0.99–0.99] | hit |")
        );
    }
}
