//! The ways of `uncopy-files` compared with each other, sending the same files (the read-send and sendfile lab,
//! zIO §5.3.1, and the mail of 2001 on sendfile by CPU load: 63 files of 350 KB on average).

use std::net::SocketAddr;
use std::path::Path;

use clap::Args;
use rustix::thread::CpuSet;
use serde_json::{Value, json};

use crate::apps::http::{Clients, Document, Requests};
use crate::apps::loaded_server::LoadedServer;
use crate::kit::figures::{self, CPU, RATE};
use crate::kit::network::server_address;
use crate::kit::{
    CommonOptions, Comparison, Experiment, Failure, Launcher, Outcome, Plot, Progress, Report, ReportEntry,
    Result, RunningServer, Scale, Server, Side, SlicingOptions, TemporaryDirectory, claim, count_parser,
    entry, format_count, format_size, processors, run_with_noise_reduction, size_parser, start_server,
    threads_parser,
};
use crate::servers::own_programs;

const NAME: &str = "uncopy-files";
/// Way of the sides plain and uncopy: that of programs without any optimization.
const PLAIN_WAY: &str = "read-send";
/// The other ways of `uncopy-files`, as its command line names them.
const WAYS: [&str; 7] =
    ["mmap-send", "mmap-sendfile", "read-sendfile", "sendfile", "splice", "zerocopy", "twin"];

/// Approximate length of all files of a point together, bytes: large files exceed the processor's caches.
const TOTAL_BYTES: usize = 64 << 20;
/// Maximum and minimum number of files. The mail of 2001 (sendfile-zerocopy-cpu-load) had 63; large files are fewer.
const MAX_FILES: usize = 63;
const MIN_FILES: usize = 8;

/// Ways to send a file in uncopy-files, from read and send to twin memory (zIO, section 5.3.1)
#[derive(Debug, Args)]
pub struct Files {
    /// File sizes, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "1024,16384,65536,350000,1100000,8388608",
        default_value_if("quick", "true", "1024,65536,1100000"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Ways to compare with read and send; uncopy is read and send under uncopy run
    #[arg(long, value_name = "WAY,...",
        default_value = "uncopy,mmap-send,mmap-sendfile,read-sendfile,sendfile,splice,zerocopy,twin",
        value_delimiter = ',',
        value_parser = ["uncopy", "mmap-send", "mmap-sendfile", "read-sendfile", "sendfile", "splice", "zerocopy", "twin"])]
    pub ways: Vec<String>,
    /// Numbers of server threads
    #[arg(long, value_name = "N,N,...", default_value = "1", value_delimiter = ',', value_parser = threads_parser())]
    pub threads: Vec<usize>,
    /// Number of connections to the server
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Files {
    const ENTRIES: &'static [ReportEntry] = &[
        entry(
            "files",
            "Ways to serve a file",
            &[
                claim(
                    "zIO, Table 3 (§5.3)",
                    "Icecast, 1.1 MB file in pieces of 64 KiB: 1.25 times, with a kernel-bypass stack.",
                ),
                claim(
                    "zIO, Figure 14 (§5.3.1)",
                    "mmap and send: up to 17 % slower than zIO; read and sendfile up to 7 %, mmap and sendfile up to 30 %.",
                ),
            ],
            "files --sizes 16384,65536,350000,1100000",
            "files --quick",
        ),
        entry(
            "files-veth-9000",
            "Ways to serve a file, MTU 9000",
            &[claim("zIO, Table 3 (§5.3)", "Measured over a network of 100 Gbit/s.")],
            "files --sizes 65536,1100000",
            "files --quick --sizes 65536",
        )
        .over("veth-9000"),
    ];
    const REPORT_POSITION: u8 = 120;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| {
            Ok(Report::of(measure(launcher, self, progress)?, render, plot).with_findings(findings))
        })
    }
}

impl Files {
    fn sides(&self) -> Vec<Side> {
        let uncopy = self.ways.iter().any(|name| name == Side::Uncopy.name()).then_some(Side::Uncopy);
        let way = |name: &String| WAYS.iter().copied().find(|known| known == name).map(Side::Way);
        uncopy.into_iter().chain(self.ways.iter().filter_map(way)).collect()
    }
}

/// A line of the table: one length of files and one number of threads.
#[derive(Debug)]
struct Point {
    documents: Vec<Document>,
    size_bytes: usize,
    threads: usize,
}

impl Point {
    fn title(&self) -> String {
        format!(
            "GET {}, {}",
            format_size(self.size_bytes as u64),
            format_count(self.threads, "thread", "threads")
        )
    }
}

/// Runs the experiment.
///
/// # Errors
/// [`Failure`] when the server is not found, or the disk is too full for the files.
#[expect(clippy::cast_precision_loss, reason = "sizes and few threads")]
fn measure(launcher: &Launcher, options: &Files, progress: &mut Progress) -> Result<Vec<Comparison>> {
    let program = own_programs::find(launcher, NAME)?;
    let root = TemporaryDirectory::make()?;
    let mut points = Vec::new();
    for threads in &options.threads {
        for size_bytes in &options.sizes {
            let count = (TOTAL_BYTES / size_bytes).clamp(MIN_FILES, MAX_FILES);
            let documents = Document::random_set(count, *size_bytes);
            documents.iter().try_for_each(|document| document.write(root.path()))?;
            points.push(Point { documents, size_bytes: *size_bytes, threads: *threads });
        }
    }
    let slices = options.slicing.slices(&options.sides());
    let compared = |point: &Point| {
        Comparison::new(point.title(), point.size_bytes as u64, &slices.sides)
            .with_parameter("size", point.size_bytes as f64)
            .with_parameter("threads", point.threads as f64)
    };
    let measure = |point: &Point| {
        let mut comparison = compared(point);
        slices.run(launcher, &mut comparison, false, progress, |side| {
            serve(launcher, &program, side, point, options.clients, root.path())
        });
        comparison
    };
    Ok(points.iter().map(measure).collect())
}

/// Starts the server under `side`. Each thread has a processor of its own if there are more processors than threads.
fn start(
    launcher: &Launcher,
    program: &Path,
    side: Side,
    threads: usize,
    root: &Path,
) -> Result<(Server, SocketAddr, Option<CpuSet>)> {
    let way = if let Side::Way(way) = side { way } else { PLAIN_WAY };
    let arguments = [
        format!("--listen={}:0", server_address()).into(),
        format!("--way={way}").into(),
        format!("--threads={threads}").into(),
        root.as_os_str().to_owned(),
    ];
    let mut command = launcher.command(side, program.as_os_str(), &arguments);
    let processors = processors::split(threads);
    processors::bind_command(&mut command, processors.map(|(servers, _)| servers));
    let mut server = start_server(command, NAME, TemporaryDirectory::make()?)?;
    let line = server.first_line()?;
    let address = line.split_once("http://").and_then(|(_, rest)| rest.trim_end_matches('/').parse().ok());
    match address {
        Some(address) => Ok((server, address, processors.map(|(_, others)| others))),
        None => Err(Failure::new(format!("unexpected output of {NAME}: {}", line.escape_debug()))),
    }
}

/// Starts the server under `side`, and its clients.
fn serve<'a>(
    launcher: &Launcher,
    program: &Path,
    side: Side,
    point: &'a Point,
    clients: usize,
    root: &Path,
) -> Result<Box<dyn RunningServer + 'a>> {
    let (mut server, address, processors) = start(launcher, program, side, point.threads, root)?;
    let requests = Requests { name: NAME, server: address, documents: &point.documents, keep_alive: true };
    // As many client threads as server threads keep the server busy.
    let clients = Clients::open(requests, clients, processors);
    let clients = clients.map_err(|failure| server.process().explain(&failure))?;
    Ok(Box::new(LoadedServer::from_parts(server, clients)))
}

fn render(comparisons: &[Comparison]) -> String {
    let table = figures::table(comparisons, &[]);
    format!(
        "{table}\n\
         plain: read and send; uncopy: read and send under uncopy run; other sides: ways of uncopy-files\n\
         {}",
        figures::LEGEND
    )
}

/// Returns the ratios by way as JSON.
fn findings(comparisons: &[Comparison]) -> Vec<(&'static str, Value)> {
    let entry = |comparison: &Comparison, side: Side| {
        Some(json!({
            "experiment": comparison.title(),
            "way": side.name(),
            "throughput_ratio": json!(comparison.ratio(side, RATE)?),
            "server_cpu_ratio": json!(comparison.ratio(side, CPU)?),
        }))
    };
    let entries = comparisons
        .iter()
        .flat_map(|comparison| comparison.sides().iter().filter_map(move |side| entry(comparison, *side)));
    vec![("files", entries.collect())]
}

/// Plots the server's processor time relative to read and send, by length, for the first number of threads.
fn plot(comparisons: &[Comparison]) -> Plot {
    let threads = comparisons.first().and_then(|comparison| comparison.parameter("threads"));
    let shown: Vec<Comparison> =
        comparisons.iter().filter(|comparison| comparison.parameter("threads") == threads).cloned().collect();
    let ratio = |comparison: &Comparison, side| comparison.ratio(side, CPU).filter(|_| side != Side::Plain);
    Plot::by_side(
        "uncopy-files: ways to send a file",
        ("file size", Scale::Doubling),
        "server CPU over read and send",
        &shown,
        "size",
        ratio,
    )
}
