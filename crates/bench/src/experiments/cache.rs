//! `uncopy-cached` against itself: the same server sending its values by reference and copying them (ZCopy §4, whose
//! memcached did the same with a patched kernel).

use clap::Args;
use serde_json::{Value, json};

use crate::apps::memcached::Caching;
use crate::clients::cache::{Clients, Content, Peer, Work};
use crate::kit::figures::{self, CPU, RATE, two_decimals};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Interval, Launcher, Outcome, Plot, Progress, Report, Result,
    Running, Scale, Side, Slicing, bytes_parser, claim, count_parser, counted, entry, measured, size,
    threads_parser,
};
use crate::servers::cache as server;

/// The length of a value whose answer is one datagram and whose pages fit into one: 15 pages, less what the frame
/// header takes of the 65,507 bytes of the largest datagram.
const DATAGRAM_VALUE_BYTES: usize = 61_000;
/// Longest value that the cache takes, bytes.
const MAX_VALUE_BYTES: usize = 32 << 20;
/// Of so many operations one is a SET, where there are any.
const OPERATIONS_PER_SET: u64 = 10;

/// uncopy-cached, sending values by reference and copying them (ZCopy, section 4)
#[derive(Debug, Args)]
pub struct Cache {
    /// Lengths of values, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "1024,4096,16384,65536,524288",
        default_value_if("quick", "true", "1024,65536,524288"), value_delimiter = ',', value_parser = bytes_parser(MAX_VALUE_BYTES))]
    pub sizes: Vec<usize>,
    /// Loads
    #[arg(long, value_name = "LOAD,...", default_value = "get,udp,mixed", value_delimiter = ',', value_enum)]
    pub only: Vec<Load>,
    /// Numbers of the server's threads
    #[arg(long, value_name = "N,N,...", default_value = "1,2", default_value_if("quick", "true", "1"), value_delimiter = ',', value_parser = threads_parser())]
    pub threads: Vec<usize>,
    /// Connections
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    /// Values
    #[arg(long, value_name = "N", default_value = "64", value_parser = count_parser())]
    pub keys: usize,
    /// How the server sends where it does not copy: auto, splice or zerocopy
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = ["auto", "splice", "zerocopy", "copy"])]
    pub transmit: String,
    #[command(flatten)]
    pub slicing: Slicing,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Cache {
    const ENTRIES: &'static [Entry] = &[
        entry(
            "cache",
            "A cache whose values are sent by reference",
            &[
                claim(
                    "ZCopy, Figure 8 (§4.1)",
                    "Memcached by TCP: slightly slower below 256 bytes, 1.408 times at 512 bytes, 1.308 times at 1 KiB; then the network is the limit.",
                ),
                claim(
                    "ZCopy, Figure 6 (§4.1)",
                    "Memcached by UDP: 1.287 times at 512 bytes, 1.411 times at 768 bytes.",
                ),
            ],
            "cache --threads 1",
            "cache --quick",
        ),
        Entry {
            network: Some("veth-1500"),
            ..entry(
                "cache-veth-1500",
                "The cache, over a link with MTU 1500",
                &[claim("ZCopy, Figure 8 (§4.1)", "There over a network of 1 Gbit/s.")],
                "cache --only get --threads 1 --sizes 16384,65536,524288",
                "cache --quick --only get --sizes 65536",
            )
        },
        Entry {
            network: Some("veth-9000"),
            ..entry(
                "cache-veth-9000",
                "The cache, over a link with MTU 9000",
                &[claim("ZCopy, Figure 8 (§4.1)", "There over a network of 1 Gbit/s.")],
                "cache --only get --threads 1 --sizes 16384,65536,524288",
                "cache --quick --only get --sizes 65536",
            )
        },
    ];
    const PLACE: u8 = 110;

    fn run(&self) -> Result<Outcome> {
        measured(&self.form, |launcher, progress| {
            Ok(Report::of(measure(launcher, self, progress)?, render, plot).finding(findings))
        })
    }
}

/// A load for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// GET over TCP, keep-alive
    Get,
    /// GET over UDP, one datagram each, as large as datagrams are
    Udp,
    /// 90 % GET and 10 % SET over TCP, values of 64 KiB
    Mixed,
}

/// One line of the experiment.
#[derive(Clone, Debug)]
struct Point {
    title: String,
    load: Load,
    size_bytes: usize,
    threads: usize,
}

fn points(options: &Cache) -> Vec<Point> {
    const MIXED_BYTES: usize = 64 << 10;
    let mut points = Vec::new();
    for threads in &options.threads {
        for load in &options.only {
            let (words, sizes) = match load {
                Load::Get => ("GET", options.sizes.clone()),
                Load::Udp => ("UDP GET", vec![DATAGRAM_VALUE_BYTES]),
                Load::Mixed => ("GET, 10 % SET", vec![MIXED_BYTES]),
            };
            for size_bytes in sizes {
                let threads_words = counted(*threads, "thread", "threads");
                let title = format!("{words} {}, {threads_words}", size(size_bytes as u64));
                points.push(Point { title, load: *load, size_bytes, threads: *threads });
            }
        }
    }
    points
}

/// Runs the experiment.
///
/// # Errors
/// [`crate::kit::failure::Failure`] when there is no server to be found.
#[expect(clippy::cast_precision_loss, reason = "sizes and few threads")]
fn measure(launcher: &Launcher, options: &Cache, progress: &mut Progress) -> Result<Vec<Comparison>> {
    let program = server::find(launcher, server::NAME)?;
    let points = points(options);
    let compared = |point: &Point, sides: &[Side]| {
        Comparison::new(&point.title, point.size_bytes as u64, sides)
            .with("size", point.size_bytes as f64)
            .with("threads", point.threads as f64)
    };
    let slices = options.slicing.slices(&[Side::Twin]);
    let measure = |point: &Point| {
        let mut comparison = compared(point, &slices.sides);
        let content = Content::new(point.size_bytes, options.keys.max(options.clients));
        slices.run(launcher, &mut comparison, false, progress, |side| {
            start(launcher, &program, side, point, options, &content)
        });
        comparison
    };
    Ok(points.iter().map(measure).collect())
}

/// Starts a server that sends as `side` says, with its clients.
fn start<'a>(
    launcher: &Launcher,
    program: &std::path::Path,
    side: Side,
    point: &Point,
    options: &Cache,
    content: &'a Content,
) -> Result<Box<dyn Running + 'a>> {
    let transmit = if side == Side::Twin { options.transmit.as_str() } else { "copy" };
    let mut started = server::start(launcher, program, transmit, point.threads, content.total_bytes())?;
    let peer = if point.load == Load::Udp { Peer::Udp(started.udp) } else { Peer::Tcp(started.tcp) };
    let operations_per_set = if point.load == Load::Mixed { OPERATIONS_PER_SET } else { u64::MAX };
    let work = Work { peer, content, operations_per_set, connections: options.clients };
    // One thread of the client for each of the server's: it has enough to do.
    let opened = content
        .store(started.tcp)
        .and_then(|()| Clients::open(&work, point.threads, started.client_processors));
    let clients = opened.map_err(|failure| started.server.process().explain(&failure))?;
    Ok(Box::new(Caching { clients, server: started.server }))
}

/// Throughput over that of one thread of the same side.
fn scaling(comparisons: &[Comparison], comparison: &Comparison, side: Side) -> Option<Interval> {
    let what = |comparison: &Comparison| comparison.title().split(',').next().map(str::to_owned);
    let one = comparisons.iter().find(|other| {
        other.parameter("threads") == Some(1.0)
            && other.parameter("size") == comparison.parameter("size")
            && what(other) == what(comparison)
    })?;
    comparison.ratio_to(one, side, RATE).filter(|_| comparison.parameter("threads") != Some(1.0))
}

/// The figures, and what threads gain.
fn render(comparisons: &[Comparison]) -> String {
    let scaling: figures::Extra<'_> =
        ("scaling", Box::new(move |comparison, side| two_decimals(scaling(comparisons, comparison, side))));
    let table = figures::table(comparisons, &[scaling]);
    format!(
        "{table}\nplain: the server copies every value; twin: it sends them by reference where that pays\n\
         {}scaling: over the same side's rate with one thread\n",
        figures::LEGEND
    )
}

/// What the issue of it all asks for, for programs: ratios by point.
fn findings(comparisons: &[Comparison]) -> Vec<(&'static str, Value)> {
    let entries = comparisons.iter().filter_map(|comparison| {
        let scaling = |side| scaling(comparisons, comparison, side).map(|interval| json!(interval));
        Some(json!({
            "experiment": comparison.title(),
            "throughput_ratio": json!(comparison.ratio(Side::Twin, RATE)?),
            "server_cpu_ratio": json!(comparison.ratio(Side::Twin, CPU)?),
            "scaling_plain": scaling(Side::Plain),
            "scaling_twin": scaling(Side::Twin),
        }))
    });
    vec![("cache", entries.collect())]
}

/// The ratios of throughput and of the server's processor time.
#[expect(clippy::cast_precision_loss, reason = "few rows")]
fn plot(comparisons: &[Comparison]) -> Plot {
    let series = |name: &str, metric| {
        let ratio = |comparison: &Comparison| comparison.ratio(Side::Twin, metric);
        let points = comparisons.iter().enumerate().filter_map(|(at, row)| Some((at as f64, ratio(row)?)));
        crate::kit::plot::Series { name: name.to_owned(), points: points.collect() }
    };
    Plot {
        title: "uncopy-cached: values by reference over copied values".to_owned(),
        x: (
            String::new(),
            Scale::Words(comparisons.iter().map(|comparison| comparison.title().to_owned()).collect()),
        ),
        y: "twin over plain".to_owned(),
        series: vec![series("throughput", RATE), series("server CPU per operation", CPU)],
    }
}
