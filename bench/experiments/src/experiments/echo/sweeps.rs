//! The table of sweeps: values of the parameters, findings of the papers, axes of the plots, commands of the
//! report.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser};

use super::point::Point;
use crate::kit::figures::{CPU, RATE};
use crate::kit::{
    Comparison, Interval, ReportEntry, Side, claim, copies_parser, count_parser, entry, seconds, size_parser,
};
use crate::servers::echo::server::{PageOrder, Reply};

/// Values of the parameters, and the sides. A parameter without a value has the server's default, and is not in titles.
#[derive(Clone, Debug, Default, Args)]
pub struct Values {
    /// Message sizes, in bytes
    #[arg(long, alias = "size", value_name = "SIZE,...", value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of copies per message
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Numbers of server threads, which are also numbers of connections
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = count_parser())]
    pub threads: Vec<usize>,
    /// Numbers of pages of the last copy from which the server reads one byte each
    #[arg(long, alias = "touch", value_name = "PAGES,...", value_delimiter = ',')]
    pub pages: Vec<usize>,
    /// Orders in which these pages are chosen
    #[arg(long, value_name = "ORDER,...", value_delimiter = ',', value_enum)]
    pub orders: Vec<PageOrder>,
    /// Percentages of each message that the server reads, from its start
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=100))]
    pub shares: Vec<u8>,
    /// Alternate between forwarding messages and reading them, for this long each
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub phase: Option<Duration>,
    /// Reply of the server [default: echo]
    #[arg(long, value_enum)]
    pub reply: Option<Reply>,
    /// Sides to compare with plain [default: uncopy,limit,heap-only]
    #[arg(long, value_name = "SIDE,...", value_delimiter = ',', value_enum)]
    pub sides: Vec<Side>,
    /// Also measure a server that is recorded as by `uncopy profile`
    #[arg(long)]
    pub record: bool,
}

/// Options of every sweep that does not have others.
const DEFAULTS: &str = "--sides uncopy,limit,heap-only";

impl Values {
    /// Reads options as they stand on the command line.
    fn parse(options: &str) -> Self {
        #[derive(Parser)]
        #[command(no_binary_name = true)]
        struct Options {
            #[command(flatten)]
            values: Values,
        }
        Options::parse_from(options.split_whitespace()).values
    }

    /// Returns these values, and those of `other` for parameters that have none here.
    fn or_else(self, other: Self) -> Self {
        fn either<T>(own: Vec<T>, other: Vec<T>) -> Vec<T> {
            if own.is_empty() { other } else { own }
        }
        Self {
            sizes: either(self.sizes, other.sizes),
            copies: either(self.copies, other.copies),
            threads: either(self.threads, other.threads),
            pages: either(self.pages, other.pages),
            orders: either(self.orders, other.orders),
            shares: either(self.shares, other.shares),
            phase: self.phase.or(other.phase),
            reply: self.reply.or(other.reply),
            sides: either(self.sides, other.sides),
            record: self.record || other.record,
        }
    }

    /// Returns a point for each combination of values; the last parameter changes fastest.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let (reply, phase) = (self.reply.unwrap_or_default(), self.phase);
        let points = vec![Point { reply, phase, ..Point::default() }];
        let points = vary(points, &self.threads, |point, threads| point.threads = Some(threads));
        let points = vary(points, &self.sizes, |point, size_bytes| point.size_bytes = size_bytes);
        let points = vary(points, &self.copies, |point, copies| point.copies = copies);
        let points = vary(points, &self.orders, |point, order| point.order = Some(order));
        let points = vary(points, &self.pages, |point, pages| point.pages = Some(pages));
        vary(points, &self.shares, |point, share| point.read_percent = Some(share))
    }
}

/// Returns each point with each value set, or the points themselves if there is no value.
fn vary<T: Copy>(points: Vec<Point>, values: &[T], set: impl Fn(&mut Point, T)) -> Vec<Point> {
    if values.is_empty() {
        return points;
    }
    let set = &set;
    let of = |mut point: Point| {
        values.iter().map(move |value| {
            set(&mut point, *value);
            point
        })
    };
    points.into_iter().flat_map(of).collect()
}

/// A vertical axis: label, and figure of a side.
type YAxis = (&'static str, fn(&Comparison, Side) -> Option<Interval>);

const MESSAGES: YAxis = ("messages per second", |comparison, side| comparison.figure(side, RATE));
const RATE_OVER_PLAIN: YAxis = ("throughput over plain", |comparison, side| comparison.ratio(side, RATE));
const CPU_OVER_PLAIN: YAxis = ("CPU over plain", |comparison, side| comparison.ratio(side, CPU));
#[expect(clippy::cast_precision_loss, reason = "sizes of messages")]
const MIB_PER_S: YAxis = ("MiB per second", |comparison, side| {
    let mib = comparison.operation_bytes() as f64 / f64::from(1 << 20);
    comparison.figure(side, RATE).map(|rate| rate.scaled(mib))
});

/// A horizontal axis: key of a parameter, and label.
type XAxis = (&'static str, &'static str);

const SIZE: XAxis = ("size_bytes", "message size");
const COPIES: XAxis = ("copies", "copies per message");

/// A named set of options of `echo`.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Name, title, findings of the papers, and commands of the report.
    pub entry: ReportEntry,
    /// Options that hold unless the command line gives others, and those that replace them with `--quick`.
    options: [&'static str; 2],
    /// Axes of the plot.
    pub axes: (XAxis, YAxis),
}

const fn sweep(entry: ReportEntry, options: [&'static str; 2], x: XAxis, y: YAxis) -> Sweep {
    Sweep { entry, options, axes: (x, y) }
}

/// All sweeps, those of the report first.
pub static SWEEPS: [Sweep; 8] = [
    sweep(
        entry(
            "copies",
            "Echo server, number of copies",
            &[claim(
                "zIO, Figure 4 (§5.1.1)",
                "512 KiB, one thread: with 12 copies zIO has 3.8 times the throughput of Linux, and stays close to the rate without copies.",
            )],
            "echo copies",
            "echo copies --quick",
        ),
        ["--sizes 512K --copies 0,1,5,12", ""],
        COPIES,
        MESSAGES,
    ),
    sweep(
        entry(
            "sizes",
            "Echo server, message size",
            &[claim(
                "zIO, Figure 6 (§5.1.2)",
                "5 copies: up to 2.9 times the throughput of Linux; from 512 KiB on, the rate without copies. \
                 Below 16 KiB up to 30 % slower, with the size threshold switched off.",
            )],
            "echo sizes --sides uncopy,limit",
            "echo sizes --quick --sides uncopy,limit",
        ),
        ["--sizes 8K,16K,32K,64K,128K,256K,512K,1M --copies 5", "--sizes 8K,64K,1M"],
        SIZE,
        MIB_PER_S,
    ),
    sweep(
        entry(
            "threads",
            "Echo server, threads",
            &[claim(
                "zIO, Figure 8 (§5.1.3)",
                "One copy of 512 KiB: throughput scales up to 19 % better than that of Linux.",
            )],
            "echo threads --sides uncopy",
            "echo threads --quick --sides uncopy",
        ),
        ["--sizes 512K --copies 1 --threads 1,2", ""],
        ("threads", "server threads"),
        MESSAGES,
    ),
    sweep(
        entry(
            "faults",
            "Echo server, pages touched",
            &[claim(
                "zIO, Figure 9 (§5.1.3)",
                "512 KiB: throughput scales well up to 2 page faults per message; more page faults limit it \
                 (TLB shootdowns).",
            )],
            "echo faults --threads 1 --processes 3 --seconds 10",
            "echo faults --quick --orders random",
        )
        .taking(30),
        [
            "--sizes 512K --copies 1 --threads 1,2 --pages 0,1,2,4,8,32 --orders sequential,random --sides uncopy,always",
            "--threads 1 --pages 0,4",
        ],
        ("pages", "pages touched per message"),
        MESSAGES,
    ),
    sweep(
        entry(
            "touched",
            "Echo server, bytes touched",
            &[claim(
                "zIO, Figure 10 (§5.1.4)",
                "zIO is faster while less than 6 % of the elided bytes are touched, and slower beyond that.",
            )],
            "echo touched --sides uncopy --processes 3 --seconds 10",
            "echo touched --quick --sides uncopy",
        )
        .taking(30),
        ["--sizes 256K --copies 1,3,6 --shares 0,5,10,20,30,40,60,80,100", "--copies 3 --shares 0,20,100"],
        ("read_percent", "part of the message that is read, percent"),
        RATE_OVER_PLAIN,
    ),
    sweep(
        entry(
            "switching",
            "Echo server that alternates between forwarding and reading",
            &[claim("not in the papers", "The papers' programs do not change what they do.")],
            "echo switching --sides uncopy --seconds 150",
            "echo switching --quick --sides uncopy",
        ),
        ["--sizes 256K --copies 3 --phase 5", "--phase 0.5"],
        ("phase_s", "length of a phase, seconds"),
        CPU_OVER_PLAIN,
    ),
    sweep(
        entry(
            "checksum",
            "Store that checksums every value",
            &[claim(
                "zIO, §5.4 (MongoDB)",
                "MongoDB reads every value for its checksum: 191 requests/s with zIO, 194 without. Without \
                 the checksum: 222 with zIO, 209 without.",
            )],
            "echo checksum --sides uncopy",
            "echo checksum --quick --sides uncopy",
        ),
        ["--sizes 16K,64K,256K,1M --copies 2 --reply checksum", "--sizes 64K,1M"],
        SIZE,
        RATE_OVER_PLAIN,
    ),
    sweep(
        entry(
            "recording",
            "Echo server, recorded as by uncopy profile",
            &[claim("not in the papers", "The papers have no profiler.")],
            "echo recording",
            "echo recording --quick",
        )
        .not_judged(),
        ["--sizes 64K --copies 0,5 --sides heap-only --record", ""],
        COPIES,
        MESSAGES,
    ),
];

/// Entries of the report.
pub const ENTRIES: [ReportEntry; SWEEPS.len()] = {
    let mut entries = [SWEEPS[0].entry; SWEEPS.len()];
    let mut at = 1;
    while at < entries.len() {
        entries[at] = SWEEPS[at].entry;
        at += 1;
    }
    entries
};

impl Sweep {
    /// Returns the values given, and the sweep's for the rest.
    #[must_use]
    pub fn values(&self, given: &Values, quick: bool) -> Values {
        let [full, instead] = self.options;
        let quick = if quick { instead } else { "" };
        [quick, full, DEFAULTS].map(Values::parse).into_iter().fold(given.clone(), Values::or_else)
    }
}

/// Reads the name of a sweep.
pub fn sweep_parser() -> impl TypedValueParser<Value = &'static Sweep> {
    let value = |Sweep { entry, options: [full, _], .. }: &Sweep| {
        PossibleValue::new(entry.id).help(format!("{}: {full}", entry.title))
    };
    PossibleValuesParser::new(SWEEPS.iter().map(value))
        .try_map(|name| SWEEPS.iter().find(|sweep| sweep.entry.id == name).ok_or("not a sweep"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(options: &str) -> Vec<String> {
        Values::parse(options).points().iter().map(Point::title).collect()
    }

    #[test]
    fn every_combination_of_values_is_a_point_that_names_what_is_varied() {
        let threads = titles("--sizes 512K --copies 1 --threads 1,2 --shares 0,20");
        let ends =
            ["1 thread, 0 % read", "1 thread, 20 % read", "2 threads, 0 % read", "2 threads, 20 % read"];
        assert_eq!(threads, ends.map(|end| format!("echo 512 KiB, 1 copy, {end}")));
        let faults = titles("--sizes 8K --copies 0 --pages 1,4 --orders random");
        assert_eq!(faults, ["echo 8 KiB, 0 copies, 1 page random", "echo 8 KiB, 0 copies, 4 pages random"]);
        let store = titles("--sizes 8K --copies 3 --phase 0.5 --reply checksum");
        assert_eq!(store, ["store 8 KiB, 3 copies, switching every 0.5 s"]);
    }

    #[test]
    fn options_override_the_defaults_of_a_sweep() {
        for sweep in &SWEEPS {
            let given = Values::parse("--copies 7");
            let (full, quick) = (sweep.values(&given, false), sweep.values(&given, true));
            assert_eq!((&full.copies[..], &quick.copies[..]), (&[7][..], &[7][..]));
            assert!(!full.sizes.is_empty() && !full.sides.is_empty(), "{}", sweep.entry.id);
            assert!(quick.points().len() <= full.points().len(), "{}", sweep.entry.id);
        }
    }
}
