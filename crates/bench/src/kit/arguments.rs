//! Options that experiments share, and how their values are read.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use uncopy_core::size;

use crate::kit::side::Side;
use crate::kit::slices::Slices;

/// Longest message and value, bytes: the longest string that Redis stores.
const SIZE_LIMIT_BYTES: usize = 512 << 20;

/// A number of bytes from 1 to `most`: the one place where sizes on the command line are read.
pub fn bytes_parser(most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| size::parse_within(text, 1..=most)
}

/// The length of a message or value, bytes.
pub fn size_parser() -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
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

/// How long each case is measured by slices.
#[derive(Clone, Debug, Args)]
pub struct Slicing {
    /// Rounds that count, at least; each loads every side once, for a slice
    #[arg(long, value_name = "N", default_value = "25", default_value_if("quick", "true", "7"), value_parser = count_parser())]
    pub rounds: usize,
    /// Processes of each side, at least
    #[arg(long, value_name = "N", default_value = "5", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub processes: usize,
    /// Time of measuring a case, at most: it ends before where every ratio is known to 2 %
    #[arg(long, value_name = "SECONDS", default_value = "30", default_value_if("quick", "true", "4"), value_parser = seconds)]
    pub seconds: Duration,
    /// Length of a slice
    #[arg(long, value_name = "SECONDS", default_value = "0.02", value_parser = seconds)]
    pub slice: Duration,
    /// Load of a process under uncopy before it is measured, in which it finds out what pays
    #[arg(long, value_name = "SECONDS", default_value = "4", default_value_if("quick", "true", "2"), value_parser = seconds)]
    pub warm_up: Duration,
    /// Count rounds that others disturbed, too
    #[arg(long)]
    pub keep_disturbed: bool,
}

impl Slicing {
    /// What they ask for: plain, plain again, and then `sides`, each once.
    #[must_use]
    pub fn slices(&self, sides: &[Side]) -> Slices {
        let mut all = vec![Side::Plain, Side::PlainAgain];
        for side in sides {
            if !all.contains(side) {
                all.push(*side);
            }
        }
        let Self { rounds, processes, seconds: time, slice, warm_up, keep_disturbed } = *self;
        let (rest, cycle) = (Duration::ZERO, None);
        Slices { sides: all, processes, rounds, time, slice, rest, warm_up, keep_disturbed, cycle }
    }
}

/// How long each point is measured by slices, and under what.
#[derive(Clone, Debug, Args)]
pub struct Repeat {
    #[command(flatten)]
    pub slicing: Slicing,
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
    pub fn slices(&self) -> Slices {
        self.slicing.slices(&self.sides)
    }
}

/// How long each case of an application is measured by slices, and under what.
#[derive(Clone, Debug, Args)]
pub struct Rivalry {
    #[command(flatten)]
    pub slicing: Slicing,
    /// What is compared with plain: uncopy, and what a user could have in its place
    #[arg(
        long,
        value_name = "SIDE,...",
        default_value = "uncopy,heap-only,tuned-glibc,mimalloc,jemalloc",
        value_delimiter = ',',
        value_enum
    )]
    pub sides: Vec<Side>,
}

impl Rivalry {
    /// What they ask for. An application has no version without copies.
    #[must_use]
    pub fn slices(&self) -> Slices {
        let mut slices = self.slicing.slices(&self.sides);
        slices.sides.retain(|side| *side != Side::Limit);
        slices
    }
}
