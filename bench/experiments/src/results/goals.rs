//! Goals: ratios that cases are meant to reach, from the papers' results and of this project.

use crate::kit::Interval;
use crate::kit::verdict::MIN_ROUNDS;
use crate::results::model::{Quantity, Results};
use crate::results::pool::PooledCase;

/// A ratio that a case is meant to reach.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The paper and its figure; empty for this project's own goals.
    source: &'static str,
    /// Description of the ratio, without the number in `bound`.
    description: &'static str,
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

/// The result of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoalResult {
    /// The whole interval meets the bound.
    Met,
    /// No part of the interval meets the bound.
    Missed,
    /// The bound lies within the interval.
    Undecided,
    /// Nothing was measured, or too few rounds.
    NotMeasured,
}

impl GoalResult {
    /// Returns the text in tables.
    const fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
        }
    }
}

const RATE: (Quantity, &str) = (Quantity::Rate, "plain");

const fn goal(
    source: &'static str,
    description: &'static str,
    case: (&'static str, &'static str),
    ratio: (Quantity, &'static str),
    bound: Bound,
) -> Goal {
    Goal { source, description, case, side: "uncopy", ratio, bound }
}

const fn rate(
    source: &'static str,
    description: &'static str,
    case: (&'static str, &'static str),
    at_least: f64,
) -> Goal {
    goal(source, description, case, RATE, Bound::AtLeast(at_least))
}

/// Results of the papers. Each figure was measured on the paper's own stack and machine.
pub const PAPER_GOALS: &[Goal] = &[
    rate("zIO, Figure 4", "echo of 512 KiB, 12 copies: rate", ("copies", "echo 512 KiB, 12 copies"), 3.8),
    goal(
        "zIO, Figure 4",
        "echo of 512 KiB, 12 copies: rate over that without copies",
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
    rate("zIO, §5.4", "store that checksums every value: rate", ("checksum", "store 1 MiB, 2 copies"), 0.98),
    Goal {
        side: "twin",
        ..rate(
            "ZCopy, Figure 8",
            "memcached over TCP, 64 KiB: rate",
            ("memcached", "memcached GET 64 KiB"),
            1.4,
        )
    },
    rate("ZCopy, Figure 10", "Varnish 6 KiB: rate", ("apps-varnish", "varnish 6 KiB"), 1.07),
    goal(
        "Zero-Copy lab",
        "a file sent by read and send: time",
        ("lab", "file of 1 GiB"),
        (Quantity::Time, "plain"),
        Bound::AtMost(0.52),
    ),
];

/// Returns a goal of this project: a lower bound on a rate.
const fn project_rate(description: &'static str, case: (&'static str, &'static str), at_least: f64) -> Goal {
    rate("", description, case, at_least)
}

const fn twin(description: &'static str, case: (&'static str, &'static str), at_least: f64) -> Goal {
    Goal { side: "twin", ..project_rate(description, case, at_least) }
}

const fn project_cost(
    description: &'static str,
    case: (&'static str, &'static str),
    of: Quantity,
    at_most: f64,
) -> Goal {
    goal("", description, case, (of, "plain"), Bound::AtMost(at_most))
}

const MIXED_VALUES: (&str, &str) = ("memory", "redis memory, mixed values");

/// Further goals of this project.
pub const PROJECT_GOALS: &[Goal] = &[
    project_rate("echo of 8 KiB, 5 copies: rate", ("sizes", "echo 8 KiB, 5 copies"), 0.98),
    goal(
        "",
        "echo of 64 KiB, 5 copies: rate over that without copies",
        ("sizes", "echo 64 KiB, 5 copies"),
        (Quantity::Rate, "0 copies"),
        Bound::AtLeast(0.95),
    ),
    project_rate("Redis SET 64 KiB: rate", ("redis-set", "redis SET 64 KiB"), 1.15),
    project_rate("Redis SET 256 KiB: rate", ("redis-set", "redis SET 256 KiB"), 1.5),
    project_rate("Redis SET 1 MiB: rate", ("redis-set", "redis SET 1 MiB"), 2.0),
    project_rate("Redis YCSB A 256 KiB: rate", ("redis-ycsb-a", "redis YCSB A 256 KiB"), 1.3),
    project_rate("Redis YCSB A 1 MiB: rate", ("redis-ycsb-a", "redis YCSB A 1 MiB"), 1.5),
    project_rate("Redis SET 64 B: rate", ("small", "redis SET 64 B"), 0.99),
    project_rate("memcached GET 100 B: rate", ("small", "memcached GET 100 B"), 0.99),
    project_rate("nginx 1 KiB: rate", ("small", "nginx 1 KiB, sendfile on"), 0.99),
    project_cost("Redis, mixed values: memory", MIXED_VALUES, Quantity::Memory, 1.15),
    project_cost("Redis, mixed values: processor time", MIXED_VALUES, Quantity::Cpu, 1.03),
    twin("memcached GET 1 KiB, twin memory: rate", ("memcached", "memcached GET 1 KiB"), 0.99),
    twin("memcached GET 1 MiB, twin memory: rate", ("memcached", "memcached GET 1 MiB"), 1.5),
];

impl Goal {
    /// Returns the measured ratio, and whether it meets the goal.
    fn result(&self, results: &Results) -> (Option<Interval>, GoalResult) {
        let (id, title) = self.case;
        let (of, over) = self.ratio;
        let ratio = PooledCase::find(results, id, title)
            .filter(|case| case.obstacle().is_none() && case.round_count() >= MIN_ROUNDS)
            .and_then(|case| case.ratio(self.side, of, over));
        (ratio, ratio.map_or(GoalResult::NotMeasured, |ratio| self.bound.result(ratio)))
    }
}

/// Returns the results of `goals` as table rows below a heading.
#[must_use]
pub fn table(goals: &[Goal], results: &Results) -> String {
    let mut lines = vec!["| ratio over plain | goal | measured | result |\n|---|---|---|---|".to_owned()];
    for goal in goals {
        let (ratio, result) = goal.result(results);
        let ratio = ratio.map_or_else(String::new, |ratio| ratio.to_string());
        // Text of our own needs no escaping.
        let Goal { source, description, bound, .. } = goal;
        let source = if source.is_empty() { String::new() } else { format!(" ({source})") };
        lines.push(format!("| {description}{source} | {} | {ratio} | {} |", bound.text(), result.text()));
    }
    lines.join("\n")
}

/// Returns the numbers of `goals` that are met, missed, and undecided or not measured.
#[must_use]
pub fn count(goals: &[Goal], results: &Results) -> [usize; 3] {
    let mut counts = [0; 3];
    for goal in goals {
        counts[match goal.result(results).1 {
            GoalResult::Met => 0,
            GoalResult::Missed => 1,
            GoalResult::Undecided | GoalResult::NotMeasured => 2,
        }] += 1;
    }
    counts
}

impl Bound {
    fn result(self, ratio: Interval) -> GoalResult {
        let (is_met, is_missed) = match self {
            Self::AtLeast(least) => (ratio.low >= least, ratio.high < least),
            Self::AtMost(most) => (ratio.high <= most, ratio.low > most),
        };
        match () {
            () if is_met => GoalResult::Met,
            () if is_missed => GoalResult::Missed,
            () => GoalResult::Undecided,
        }
    }

    /// Returns the text in tables.
    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("at least {least}"),
            Self::AtMost(most) => format!("at most {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::judge::is_uncopy_side;
    use crate::results::pool::tests::{case, results};
    use crate::results::register::find_entry;

    #[test]
    fn every_goal_is_in_an_entry() {
        for goal in PAPER_GOALS.iter().chain(PROJECT_GOALS) {
            assert!(
                find_entry(goal.case.0).is_some() && is_uncopy_side(goal.side),
                "{}: {}",
                goal.source,
                goal.description
            );
        }
    }

    #[test]
    fn a_goal_is_met_only_by_the_whole_interval() {
        let interval = Interval { median: 1.2, low: 1.1, high: 1.3 };
        for (bound, result) in [
            (Bound::AtLeast(1.1), GoalResult::Met),
            (Bound::AtLeast(1.2), GoalResult::Undecided),
            (Bound::AtLeast(1.31), GoalResult::Missed),
            (Bound::AtMost(1.3), GoalResult::Met),
            (Bound::AtMost(1.2), GoalResult::Undecided),
            (Bound::AtMost(1.0), GoalResult::Missed),
        ] {
            assert_eq!(bound.result(interval), result, "{bound:?}");
        }
        let goal = rate("paper", "what", ("redis-get", "get"), 0.5);
        let results = results("redis-get", &[vec![case("get", "uncopy", &[0.9; 5])]]);
        assert_eq!((goal.result(&results).1, count(&[goal], &results)), (GoalResult::Met, [1, 0, 0]));
        assert_eq!(goal.result(&Results::default()), (None, GoalResult::NotMeasured));
        assert!(
            table(&[goal], &results).ends_with("| what (paper) | at least 0.5 | 0.99 [0.99–0.99] | met |")
        );
    }
}
