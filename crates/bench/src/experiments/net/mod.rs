//! User-level TCP (`uncopy net`) beside the kernel's, with unmodified clients at the kernel's side of a device: zIO's second
//! stack (§3.2, figures 5, 7, 11 to 13).
//!
//! Both the service and the server are on one processor, their clients on another; the processor time is that of both, and is told
//! apart in columns of its own.

mod idle;
mod loss;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::apps::programs::Programs;
use crate::apps::redis::REDIS;
use crate::clients::records::Workload;
use crate::kit::figures::{self, CPU, LEGEND, RATE};
use crate::kit::network::{self, Network, server_address};
use crate::kit::{
    Align, Comparison, Experiment, Failure, Form, Launcher, Metric, Outcome, Plot, Progress, Report, Result,
    Running, Server, Side, Slices, Slicing, Table, TemporaryDirectory, copies_parser, count_parser, counted,
    measured, processors, seconds, size, size_parser,
};
use crate::servers::echo::command;
use crate::servers::echo::echoing::Echoing;
use crate::servers::echo::server::{Reply, Work};
use crate::servers::net::{Served, Service};
use crate::servers::redis::{AppendOnly, RedisServer, Serving};

/// What is compared with the kernel's TCP.
const SIDES: [Side; 5] = [Side::Uncopy, Side::NetCopying, Side::NetHeapOnly, Side::NetApiCopying, Side::Net];
/// Where a server listens whose address is its service's alone.
const PORT: u16 = 6379;
/// The message of many connections, bytes.
const MANY_BYTES: usize = 64 << 10;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Messages that are copied and sent back
    Echo,
    /// Messages that are copied, of which the last page alone is read
    Receive,
    /// Messages of 64 KiB that are sent back, over several connections
    Connections,
    /// Redis, values set
    Redis,
    /// Redis under YCSB's workload A
    Ycsb,
    /// One connection through a network that loses 1 % of all packets, beside CUBIC of the kernel
    Loss,
    /// Connections of which nothing is asked: memory and processor time
    Idle,
}

/// A user-level TCP beside the kernel's: what is gained where its API does not copy
#[derive(Debug, Args)]
pub struct Net {
    /// What is measured; all but loss and idle if nothing is named (with --quick the echo)
    #[arg(value_name = "NAME", value_enum)]
    pub names: Vec<What>,
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "8192,65536,524288,1048576",
        default_value_if("quick", "true", "524288"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of copies that the server makes of each message
    #[arg(long, value_name = "N,N,...", default_value = "0,5,12", default_value_if("quick", "true", "12"),
        value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Lengths of Redis's values, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "65536,262144", default_value_if("quick", "true", "262144"),
        value_delimiter = ',', value_parser = size_parser())]
    pub values: Vec<usize>,
    /// Numbers of connections
    #[arg(long, value_name = "N,N,...", default_value = "1,8,64", value_delimiter = ',', value_parser = count_parser())]
    pub connections: Vec<usize>,
    /// Connections of each side and way through the network that loses packets
    #[arg(long, value_name = "N", default_value = "12", default_value_if("quick", "true", "2"), value_parser = count_parser())]
    pub transfers: usize,
    /// How long each of them lasts
    #[arg(long, value_name = "SECONDS", default_value = "10", default_value_if("quick", "true", "2"), value_parser = seconds)]
    pub transfer_seconds: Duration,
    /// Number of idle connections
    #[arg(long, value_name = "N", default_value = "10000", default_value_if("quick", "true", "1000"),
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=20_000))]
    pub idle: usize,
    #[command(flatten)]
    pub slicing: Slicing,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Net {
    const NETWORK: Network = Network::Veth9000;

    fn run(&self) -> Result<Outcome> {
        if network::current() == Network::Loopback {
            return Err(Failure::new(
                "net has its clients in another network namespace; run it with --network veth-9000 or veth-1500",
            ));
        }
        measured(&self.form, |launcher, progress| {
            let slices = self.slicing.slices(&SIDES);
            let measure = |point: Point| point.measure(launcher, &slices, progress);
            let mut comparisons: Vec<Comparison> = self.points().into_iter().map(measure).collect();
            let mut texts = Vec::new();
            if !comparisons.is_empty() {
                texts.push(render(&comparisons));
            }
            if self.is_asked(What::Loss) {
                let measured = loss::measure(self, launcher, progress);
                texts.push(loss::render(&measured));
                comparisons.extend(measured);
            }
            let plot = plot(&comparisons);
            let mut findings = Vec::new();
            if self.is_asked(What::Idle) {
                let (comparison, all) = idle::measure(self, launcher, progress);
                texts.push(idle::render(&all));
                findings.push(("idle", idle::findings(&all)));
                comparisons.push(comparison);
            }
            Ok(Report { findings, ..Report::new(comparisons, texts.join("\n"), plot) })
        })
    }
}

impl Net {
    fn is_asked(&self, what: What) -> bool {
        match self.names.as_slice() {
            [] => what == What::Echo || !self.form.quick && !matches!(what, What::Loss | What::Idle),
            names => names.contains(&what),
        }
    }

    fn points(&self) -> Vec<Point> {
        let is_asked = |what| self.is_asked(what);
        let mut points = Vec::new();
        for (what, reply) in [(What::Echo, Reply::Echo), (What::Receive, Reply::LastPage)] {
            for size_bytes in self.sizes.iter().filter(|_| is_asked(what)) {
                points.extend(self.copies.iter().map(|copies| {
                    let work = Work { size_bytes: *size_bytes, copies: *copies, reply, ..Work::default() };
                    Point::Messages { work, connections: 1 }
                }));
            }
        }
        if is_asked(What::Connections) {
            let work = Work { size_bytes: MANY_BYTES, ..Work::default() };
            points.extend(
                self.connections
                    .iter()
                    .map(|connections| Point::Messages { work, connections: *connections }),
            );
        }
        for (what, workload) in [(What::Redis, Workload::Set), (What::Ycsb, Workload::YcsbA)] {
            let values = self.values.iter().filter(|_| is_asked(what));
            points.extend(values.map(|size_bytes| Point::Values { workload, size_bytes: *size_bytes }));
        }
        points
    }
}

/// One line of the tables.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// Messages to a server of as many threads as there are connections.
    Messages { work: Work, connections: usize },
    /// Values of Redis without its append-only file.
    Values { workload: Workload, size_bytes: usize },
}

impl Point {
    #[expect(clippy::cast_precision_loss, reason = "sizes of messages, few copies")]
    fn comparison(&self, sides: &[Side]) -> Comparison {
        match self {
            Self::Messages { work, connections } => {
                let what = if work.reply == Reply::Echo { "echo" } else { "receive" };
                let copies = counted(work.copies, "copy", "copies");
                let title = format!("{what} {}, {copies}", size(work.size_bytes as u64));
                let title =
                    if *connections == 1 { title } else { format!("{title}, {connections} connections") };
                Comparison::new(title, work.size_bytes as u64, sides)
                    .with("size_bytes", work.size_bytes as f64)
                    .with("copies", work.copies as f64)
                    .with("connections", *connections as f64)
            }
            Self::Values { workload, size_bytes } => {
                let title = format!("redis {} {}", workload.name(), size(*size_bytes as u64));
                Comparison::new(title, *size_bytes as u64, sides).with("size_bytes", *size_bytes as f64)
            }
        }
    }

    fn measure(self, launcher: &Launcher, slices: &Slices, progress: &mut Progress) -> Comparison {
        let mut comparison = self.comparison(&slices.sides);
        let programs = match self {
            Self::Messages { .. } => Programs::find(&[]),
            Self::Values { .. } => Programs::find(&[REDIS]),
        };
        match programs {
            Err(missing) => comparison.skip(missing.to_string()),
            Ok(programs) => slices.run(launcher, &mut comparison, false, progress, |side| {
                let Some(copies) = side.service() else {
                    return self.start(launcher, side, &programs, &Place::Kernel);
                };
                let service = Service::start(launcher, copies)?;
                let place = Place::Service(service.host());
                let launcher = launcher.served_by(&service.control());
                let running = self.start(&launcher, side, &programs, &place)?;
                Ok(Box::new(Served::new(running, service)))
            }),
        }
        comparison
    }

    /// Starts the server under `side`, with its clients.
    fn start(
        self,
        launcher: &Launcher,
        side: Side,
        programs: &Programs,
        place: &Place,
    ) -> Result<Box<dyn Running>> {
        let clients = processors::of_clients(processors::ONE_THREAD);
        match self {
            Self::Messages { work, connections } => {
                let arguments = command::arguments(place.host(), &work, connections);
                let server = place.start(
                    launcher.bench(side, &arguments),
                    "the echo server",
                    TemporaryDirectory::make()?,
                )?;
                Ok(Box::new(Echoing::new(server, place.host(), work, connections, clients)?))
            }
            Self::Values { workload, size_bytes } => {
                let program = programs.path(REDIS.program)?;
                let start = |arguments: &[OsString], directory| {
                    let command = launcher.command(side, program.as_os_str(), arguments);
                    place.start(command, REDIS.program, directory)
                };
                let redis = RedisServer::start_at(|| place.free_address(), AppendOnly::Off, start)?;
                Ok(Box::new(Serving::new(redis, workload, size_bytes, 1)?))
            }
        }
    }
}

/// Where a server is.
enum Place {
    /// In the servers' network namespace.
    Kernel,
    /// Behind the service of this address.
    Service(Ipv4Addr),
}

impl Place {
    fn host(&self) -> Ipv4Addr {
        match self {
            Self::Kernel => server_address(),
            Self::Service(host) => *host,
        }
    }

    fn free_address(&self) -> Result<SocketAddr> {
        match self {
            Self::Kernel => network::free_address(),
            Self::Service(host) => Ok(SocketAddr::from((*host, PORT))),
        }
    }

    /// Starts a server on the processor of a server of one thread.
    fn start(
        &self,
        mut command: std::process::Command,
        title: &str,
        directory: TemporaryDirectory,
    ) -> Result<Server> {
        processors::bind(&mut command, processors::of_server(processors::ONE_THREAD));
        match self {
            Self::Kernel => Server::start(command, title, directory),
            Self::Service(_) => Server::start_among_clients(command, title, directory),
        }
    }
}

/// Processor time of the service for each operation, µs.
const SERVICE: Metric = |sample| sample.service_cpu_us;
/// The same of the clients.
const CLIENT: Metric = |sample| sample.client_cpu_us;
/// The same of the program alone.
const PROGRAM: Metric = |sample| Some(sample.cpu_us? - sample.service_cpu_us.unwrap_or(0.0));

/// The figures.
fn render(comparisons: &[Comparison]) -> String {
    let extra = |heading, metric: Metric| -> figures::Extra<'_> {
        (
            heading,
            Box::new(move |comparison: &Comparison, side| {
                figures::median(comparison, side, metric).map_or_else(String::new, |us| format!("{us:.0}"))
            }),
        )
    };
    let extras = [extra("program µs", PROGRAM), extra("service µs", SERVICE), extra("clients µs", CLIENT)];
    format!(
        "{}{}{}\n{LEGEND}plain: the kernel's TCP over virtual Ethernet devices. net: large parts pass by reference between service and \
         program; API copied: they are copied there (uncopy net --api-copies make); all copied: the program copies there and \
         within, with libc's heap; heap only: with uncopy's\n",
        gains(comparisons),
        figures::table(comparisons, &extras),
        figures::counts(comparisons)
    )
}

/// What eliding gives on this stack.
fn gains(comparisons: &[Comparison]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("net", Left),
        ("rate over all copied", Right),
        ("CPU over all copied", Right),
        ("rate over heap only", Right),
        ("rate over API copied", Right),
        ("CPU over API copied", Right),
        ("rate over the kernel", Right),
        ("over the kernel, uncopy", Right),
    ]);
    for comparison in comparisons {
        let over = |other, metric| figures::ratio(comparison.ratio_of(Side::Net, other, metric));
        table.row(vec![
            comparison.title().to_owned(),
            over(Side::NetCopying, RATE),
            over(Side::NetCopying, CPU),
            over(Side::NetHeapOnly, RATE),
            over(Side::NetApiCopying, RATE),
            over(Side::NetApiCopying, CPU),
            over(Side::Plain, RATE),
            over(Side::Uncopy, RATE),
        ]);
    }
    table.render() + "\n"
}

/// Rate over plain.
fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::over_plain("User-level TCP", "rate over the kernel's TCP", comparisons, RATE)
}
