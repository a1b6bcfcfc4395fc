//! Command-line options that experiments share, and the parsers of their values.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use uncopy_core::size;

use crate::kit::side::Side;
use crate::kit::slices::Slices;

/// Longest message and value, bytes: the longest string that Redis stores.
const MAX_SIZE_BYTES: usize = 512 << 20;

/// Returns a parser of a byte count from 1 to `max`. All sizes on the command line go through this parser.
pub fn bytes_parser(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| size::parse_within(text, 1..=max)
}

/// Returns a parser of a message or value length, bytes.
pub fn size_parser() -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    bytes_parser(MAX_SIZE_BYTES)
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

/// Parses a duration from 0.01 to 600 seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (0.01..=600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it must be a number from 0.01 to 600".to_owned())
}

/// Returns the command-line spelling of `value`.
pub fn cli_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Output options of an experiment.
#[derive(Clone, Debug, Default, Args)]
pub struct CommonOptions {
    /// Measure for a few seconds only; the results are too rough for conclusions
    #[arg(long)]
    pub quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Also write a plot of the results to FILE, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Options of a case that is measured by slices.
#[derive(Clone, Debug, Args)]
pub struct SlicingOptions {
    /// Minimum number of valid rounds; a round loads every side once, for one slice
    #[arg(long, value_name = "N", default_value = "25", default_value_if("quick", "true", "7"), value_parser = count_parser())]
    pub rounds: usize,
    /// Minimum number of processes of each side
    #[arg(long, value_name = "N", default_value = "5", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub processes: usize,
    /// Maximum time of a case; it ends earlier once every ratio is known to within 2 %
    #[arg(long, value_name = "SECONDS", default_value = "30", default_value_if("quick", "true", "4"), value_parser = seconds)]
    pub seconds: Duration,
    /// Duration of a slice
    #[arg(long, value_name = "SECONDS", default_value = "0.02", value_parser = seconds)]
    pub slice: Duration,
    /// Duration of the load before a process under uncopy is measured, in which its policy adapts
    #[arg(long, value_name = "SECONDS", default_value = "4", default_value_if("quick", "true", "2"), value_parser = seconds)]
    pub warm_up: Duration,
    /// Keep rounds that other programs or the host disturbed
    #[arg(long)]
    pub keep_disturbed: bool,
}

impl SlicingOptions {
    /// Returns the measurement parameters: plain, plain again, and `sides`, each once.
    #[must_use]
    pub fn slices(&self, sides: &[Side]) -> Slices {
        let mut all = vec![Side::Plain, Side::PlainAgain];
        for side in sides {
            if !all.contains(side) {
                all.push(*side);
            }
        }
        let Self { rounds, processes, seconds: time, slice, warm_up, keep_disturbed } = *self;
        let (pause, cycle) = (Duration::ZERO, None);
        Slices { sides: all, processes, rounds, time, slice, pause, warm_up, keep_disturbed, cycle }
    }
}

/// Options of an application case that is measured by slices, with the sides to compare.
#[derive(Clone, Debug, Args)]
pub struct ComparisonOptions {
    #[command(flatten)]
    pub slicing: SlicingOptions,
    /// Sides to compare with plain: uncopy and its alternatives
    #[arg(
        long,
        value_name = "SIDE,...",
        default_value = "uncopy,heap-only,tuned-glibc,mimalloc,jemalloc",
        value_delimiter = ',',
        value_enum
    )]
    pub sides: Vec<Side>,
}

impl ComparisonOptions {
    /// Returns the measurement parameters, without [`Side::Limit`]: no application has a version without copies.
    #[must_use]
    pub fn slices(&self) -> Slices {
        let mut slices = self.slicing.slices(&self.sides);
        slices.sides.retain(|side| *side != Side::Limit);
        slices
    }
}
