//! Options that experiments share, and how their values are read.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::kit::rounds::{Rounds, Schedule};
use crate::kit::side::Side;

/// Longest message and value, bytes: the longest string that Redis stores.
const SIZE_LIMIT_BYTES: u64 = 512 << 20;

/// A number of bytes from 1 to `most`: the one place where sizes on the command line are read.
pub fn bytes_parser(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// The length of a message or value, bytes.
pub fn size_parser() -> RangedU64ValueParser<usize> {
    bytes_parser(SIZE_LIMIT_BYTES)
}

pub fn copies_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=1024)
}

pub fn count_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

pub fn threads_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=128)
}

/// Seconds from 0.01 to 600.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (0.01..=600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it must be a number from 0.01 to 600".to_owned())
}

/// How the result of an experiment is given.
#[derive(Clone, Debug, Default, Args)]
pub struct Form {
    /// Measure less and shorter: a few seconds, figures too rough for conclusions
    #[arg(long)]
    pub quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Also draw the figures, as an SVG image in FILE
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// How often and how long each point is measured, and under what.
#[derive(Clone, Debug, Args)]
pub struct Repeat {
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "7", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.6", default_value_if("quick", "true", "0.1"), value_parser = seconds)]
    pub seconds: Duration,
    /// What is compared with plain
    #[arg(
        long,
        value_name = "SIDE,...",
        default_value = "uncopy,limit,heap-only",
        value_delimiter = ',',
        value_enum
    )]
    pub sides: Vec<Side>,
}

impl Repeat {
    /// What they ask for.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule { rounds: self.rounds, duration: self.seconds, sides: self.all_sides() }
    }

    /// The sides with plain as the first, each once.
    #[must_use]
    pub fn all_sides(&self) -> Vec<Side> {
        let mut sides = vec![Side::Plain];
        for side in &self.sides {
            if !sides.contains(side) {
                sides.push(*side);
            }
        }
        sides
    }
}
