//! The command line of `uncopy bench`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::kit::network::{Network, server_address};
use crate::kit::rounds::Rounds;
use crate::kit::side::Side;
use crate::servers::echo::Order;

/// Longest message and value, bytes: the longest string that Redis stores.
const SIZE_LIMIT_BYTES: u64 = 512 << 20;

pub fn size_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=SIZE_LIMIT_BYTES)
}

pub fn copies_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=1024)
}

pub fn count_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// Lengths of values that the cache takes.
fn cached_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=32 << 20)
}

fn threads_parser() -> RangedU64ValueParser<usize> {
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

fn views_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1_000_000)
}

fn percent_parser() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(0..=100)
}

/// Minutes from 0.01 to 600.
fn minutes(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|minutes| (0.01..=600.0).contains(minutes))
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0))
        .ok_or_else(|| "it must be a number from 0.01 to 600".to_owned())
}

/// `PORT` on the loopback address, or `ADDRESS:PORT`.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((server_address(), port))),
        Err(_) => text.parse().map_err(|_| {
            "it must be a port from 0 to 65535, or an address and a port, 127.0.0.1:7000".to_owned()
        }),
    }
}

/// Measure what uncopy does, side by side with plain Linux
#[derive(Debug, Parser)]
#[command(name = "uncopy bench", bin_name = "uncopy bench", disable_version_flag = true)]
pub struct Arguments {
    /// What to run.
    #[command(subcommand)]
    pub experiment: Experiment,
    /// What lies between clients and servers
    #[arg(long, global = true, value_name = "NETWORK", value_enum, default_value = "loopback")]
    pub network: Network,
}

impl Experiment {
    /// Whether it starts nothing itself, so that no network can lie in between.
    #[must_use]
    pub const fn is_server(&self) -> bool {
        matches!(
            self,
            Self::EchoServer(_)
                | Self::MemcpyLoop(_)
                | Self::ViewLoop(_)
                | Self::SendFiles(_)
                | Self::Soak(_)
        )
    }
}

/// The experiments, and the servers they start.
#[derive(Debug, Subcommand)]
pub enum Experiment {
    /// Echo server and Redis in one table, plain and under uncopy
    Demo(Demo),
    /// Echo server that copies each message a number of times (zIO, Figure 4)
    Copies(Copies),
    /// Echo server with messages of several lengths (zIO, Figure 6)
    Sizes(Sizes),
    /// Echo server with several threads (zIO, Figure 8)
    Threads(Threads),
    /// Echo server that reads a part of each message; the break-even (zIO, Figure 10)
    Touched(Touched),
    /// Echo server that touches pages of each message; the cost of a fault (zIO, Figure 9)
    Faults(Faults),
    /// Server that checksums all it stores (zIO, MongoDB)
    Checksum(Checksum),
    /// Copies that replace a view among many; what tracking costs (zIO, section 5.2.1)
    Tracking(Tracking),
    /// Ways to transmit: copied, spliced, sendfile, MSG_ZEROCOPY, SENDMSG_ZC, and what uncopy chooses (ZCopy, section 4)
    Transmit(Transmit),
    /// Packaged redis-server, append-only file on: SET, GET, YCSB A (zIO, Figures 11 and 12)
    Redis(Redis),
    /// Small I/O of packaged servers, a 64-byte memcpy, the start of a program
    Small(Small),
    /// Resident memory of redis-server whose values of mixed sizes are overwritten
    Memory(Memory),
    /// uncopy-cached, sending values by reference and copying them (ZCopy, section 4)
    Cache(Cache),
    /// uncopy-files: ways to send a file, from read and send to twin memory (zIO, section 5.3.1)
    Files(Files),
    /// What a recording by `uncopy profile` costs an echo server
    Recording(crate::experiments::echo::recording::Arguments),
    /// Packaged servers under real load: nginx, ... (zIO, section 5.3; ZCopy, section 4)
    Apps(crate::experiments::apps::arguments::Apps),
    /// All experiments beside what the papers say, as pages of HTML and Markdown
    Report(crate::results::Arguments),
    /// What files sent by each way at a fixed rate take of the machine, or what any command takes (the mail of 2001)
    Load(crate::experiments::load::traffic::Arguments),
    /// A file sent by read and send, by sendfile and under uncopy, and why the times are what they are (the lab)
    Lab(crate::experiments::lab::Arguments),
    /// The echo server by itself
    EchoServer(EchoServer),
    /// Send the files of a directory to whoever connects
    #[command(hide = true)]
    SendFiles(crate::servers::sending::server::SendFiles),
    /// Use up all processor time that nobody else wants
    #[command(hide = true)]
    Soak(crate::experiments::load::soak::Soak),
    /// Time calls of memcpy in this process
    #[command(hide = true)]
    MemcpyLoop(MemcpyLoop),
    /// Time copies that replace views in this process
    #[command(hide = true)]
    ViewLoop(ViewLoop),
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Take about one minute instead of four
    #[arg(long)]
    pub quick: bool,
    /// Also write everything as JSON to FILE; - writes it to standard output instead of the table
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
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

/// Arguments of `copies`.
#[derive(Debug, Args)]
pub struct Copies {
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", default_value = "524288", value_parser = size_parser())]
    pub size: usize,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,...", default_value = "0,1,5,12", value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Pages of the last copy of which the server reads one byte each
    #[arg(long, value_name = "PAGES", default_value = "0")]
    pub touch: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `sizes`.
#[derive(Debug, Args)]
pub struct Sizes {
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "8192,16384,32768,65536,131072,262144,524288,1048576",
        default_value_if("quick", "true", "8192,65536,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "5", value_parser = copies_parser())]
    pub copies: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `threads`.
#[derive(Debug, Args)]
pub struct Threads {
    /// Numbers of the server's threads; as many connections
    #[arg(long, value_name = "N,N,...", default_value = "1,2", value_delimiter = ',', value_parser = count_parser())]
    pub threads: Vec<usize>,
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", default_value = "524288", value_parser = size_parser())]
    pub size: usize,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "1", value_parser = copies_parser())]
    pub copies: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `touched`.
#[derive(Debug, Args)]
pub struct Touched {
    /// Shares of each message that the server reads, in percent
    #[arg(long, value_name = "PERCENT,...", default_value = "0,5,10,20,30,40,60,80,100",
        default_value_if("quick", "true", "0,20,100"), value_delimiter = ',', value_parser = percent_parser())]
    pub shares: Vec<u8>,
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "262144", value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,...", default_value = "1,3,6", default_value_if("quick", "true", "3"), value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `faults`.
#[derive(Debug, Args)]
pub struct Faults {
    /// Numbers of pages of each message that the server touches
    #[arg(
        long,
        value_name = "PAGES,...",
        default_value = "0,1,2,4,8,32",
        default_value_if("quick", "true", "0,4"),
        value_delimiter = ','
    )]
    pub pages: Vec<usize>,
    /// Which pages
    #[arg(
        long,
        value_name = "ORDER,...",
        default_value = "sequential,random",
        value_delimiter = ',',
        value_enum
    )]
    pub orders: Vec<Order>,
    /// Numbers of the server's threads; as many connections
    #[arg(long, value_name = "N,N,...", default_value = "1,2", default_value_if("quick", "true", "1"), value_delimiter = ',', value_parser = count_parser())]
    pub threads: Vec<usize>,
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", default_value = "524288", value_parser = size_parser())]
    pub size: usize,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "1", value_parser = copies_parser())]
    pub copies: usize,
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "5", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.4", default_value_if("quick", "true", "0.1"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `checksum`.
#[derive(Debug, Args)]
pub struct Checksum {
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "16384,65536,262144,1048576",
        default_value_if("quick", "true", "65536,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "2", value_parser = copies_parser())]
    pub copies: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `tracking`.
#[derive(Debug, Args)]
pub struct Tracking {
    /// Numbers of views alive
    #[arg(long, value_name = "N,N,...", default_value = "10,1000,100000", default_value_if("quick", "true", "10,1000"), value_delimiter = ',', value_parser = views_parser())]
    pub views: Vec<usize>,
    /// Copies that are timed in each measurement
    #[arg(long, value_name = "N", default_value = "100000", default_value_if("quick", "true", "10000"))]
    pub calls: u32,
    /// Rounds; each runs every side once
    #[arg(long, value_name = "N", default_value = "7", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub rounds: usize,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `transmit`.
#[derive(Debug, Args)]
pub struct Transmit {
    /// Lengths of bodies, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "1024,4096,8192,16384,32768,61440,131072,262144,524288,1048576",
        default_value_if("quick", "true", "1024,16384,61440,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// What they go through
    #[arg(
        long,
        value_name = "SOCKET,...",
        default_value = "tcp,unix,udp",
        value_delimiter = ',',
        value_enum
    )]
    pub sockets: Vec<crate::experiments::transmit::Socket>,
    /// Bytes of all bodies together; 1: the same body each time, which stays in the processor's cache
    #[arg(long, value_name = "BYTES", default_value = "67108864", value_parser = size_parser())]
    pub set: usize,
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "7", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.3", default_value_if("quick", "true", "0.05"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `view-loop`.
#[derive(Debug, Args)]
pub struct ViewLoop {
    /// Views alive
    #[arg(long, value_name = "N", value_parser = views_parser())]
    pub views: usize,
    /// Copies that are timed
    #[arg(long, value_name = "N")]
    pub calls: u32,
}

/// A load for Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// redis-benchmark sets one key
    Set,
    /// redis-benchmark reads one key
    Get,
    /// YCSB's workload A: half reads, half updates, Zipfian keys, every value read is checked
    YcsbA,
}

/// Arguments of `redis`.
#[derive(Debug, Args)]
pub struct Redis {
    /// Loads
    #[arg(
        long,
        value_name = "LOAD,...",
        default_value = "set,get,ycsb-a",
        value_delimiter = ',',
        value_enum
    )]
    pub workload: Vec<Workload>,
    /// Lengths of values, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "64,65536,262144,1048576",
        default_value_if("quick", "true", "65536,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Connections
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

/// A row of `small`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SmallRow {
    /// A memcpy of 64 bytes
    Memcpy,
    /// The start of `true`
    Start,
    /// redis-benchmark with values of 64 bytes
    Redis,
    /// memcached with values of 100 bytes
    Memcached,
    /// nginx with a file of 1 KiB
    Nginx,
}

/// Arguments of `small`.
#[derive(Debug, Args)]
pub struct Small {
    /// What is measured
    #[arg(
        long,
        value_name = "ROW,...",
        default_value = "memcpy,start,redis,memcached,nginx",
        value_delimiter = ',',
        value_enum
    )]
    pub only: Vec<SmallRow>,
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "9", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Starts of `true` under each side
    #[arg(long, value_name = "N", default_value = "200", default_value_if("quick", "true", "20"), value_parser = count_parser())]
    pub starts: usize,
    /// Length of each measurement of a server, about
    #[arg(long, value_name = "SECONDS", default_value = "0.8", default_value_if("quick", "true", "0.1"), value_parser = seconds)]
    pub seconds: Duration,
    /// Connections to a server
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub struct Memory {
    /// How long values are overwritten
    #[arg(long, value_name = "MINUTES", default_value = "1", default_value_if("quick", "true", "0.1"), value_parser = minutes)]
    pub minutes: Duration,
    /// Shortest value, in bytes
    #[arg(long, value_name = "BYTES", default_value = "16384", value_parser = size_parser())]
    pub smallest: usize,
    /// Longest value, in bytes
    #[arg(long, value_name = "BYTES", default_value = "4194304", value_parser = size_parser())]
    pub largest: usize,
    /// Keys
    #[arg(long, value_name = "N", default_value = "200", default_value_if("quick", "true", "50"), value_parser = count_parser())]
    pub keys: usize,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `cache`.
#[derive(Debug, Args)]
pub struct Cache {
    /// Lengths of values, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "1024,4096,16384,65536,524288",
        default_value_if("quick", "true", "1024,65536,524288"), value_delimiter = ',', value_parser = cached_parser())]
    pub sizes: Vec<usize>,
    /// Loads
    #[arg(long, value_name = "LOAD,...", default_value = "get,udp,mixed", value_delimiter = ',', value_enum)]
    pub only: Vec<crate::experiments::cache::Load>,
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
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "7", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.6", default_value_if("quick", "true", "0.1"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `files`.
#[derive(Debug, Args)]
pub struct Files {
    /// Lengths of files, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "1024,16384,65536,350000,1100000,8388608",
        default_value_if("quick", "true", "1024,65536,1100000"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// What is compared with read and send: ways of uncopy-files, or uncopy for read and send under uncopy run
    #[arg(long, value_name = "WAY,...",
        default_value = "uncopy,mmap-send,mmap-sendfile,read-sendfile,sendfile,splice,zerocopy,twin",
        value_delimiter = ',',
        value_parser = ["uncopy", "mmap-send", "mmap-sendfile", "read-sendfile", "sendfile", "splice", "zerocopy", "twin"])]
    pub ways: Vec<String>,
    /// Numbers of the server's threads
    #[arg(long, value_name = "N,N,...", default_value = "1", value_delimiter = ',', value_parser = threads_parser())]
    pub threads: Vec<usize>,
    /// Connections
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "7", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.5", default_value_if("quick", "true", "0.1"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub form: Form,
}

/// Arguments of `echo-server`.
#[derive(Debug, Args)]
pub struct EchoServer {
    /// Where to listen: a port of 127.0.0.1 (0: any free one), or an address and a port
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "0", value_parser = listen_address)]
    pub listen: SocketAddr,
    /// Let --listen name an address that other machines may reach
    #[arg(long)]
    pub allow_remote: bool,
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", value_parser = size_parser())]
    pub size: usize,
    /// Copies made of each message before it is sent back
    #[arg(long, value_name = "N", value_parser = copies_parser())]
    pub copies: usize,
    /// Pages of the last copy of which one byte each is read before it is sent
    #[arg(long, value_name = "PAGES", default_value = "0")]
    pub touch: usize,
    /// Which pages these are
    #[arg(long, value_enum, default_value_t)]
    pub order: Order,
    /// Bytes from the last copy's start that are all read before it is sent
    #[arg(long, value_name = "BYTES", default_value = "0")]
    pub read: usize,
    /// Store each message in a file in memory and send back its checksum only
    #[arg(long)]
    pub checksum: bool,
    /// Connections served at the same time; others wait
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub threads: usize,
}

/// Arguments of `memcpy-loop`.
#[derive(Debug, Args)]
pub struct MemcpyLoop {
    /// Length of a copy, in bytes
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = size_parser())]
    pub size: usize,
    /// Copies
    #[arg(long, value_name = "N", default_value = "50000000")]
    pub calls: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(words: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(std::iter::once("uncopy bench").chain(words.split(' ')))
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let Ok(Arguments { experiment: Experiment::Copies(copies), .. }) = parse("copies") else {
            panic!("copies needs no arguments")
        };
        let repeat = &copies.repeat;
        assert_eq!(
            (copies.size, repeat.rounds, repeat.seconds),
            (524_288, 7.into(), Duration::from_millis(600))
        );
        assert_eq!(copies.copies, [0, 1, 5, 12]);
        assert_eq!(repeat.all_sides(), [Side::Plain, Side::Uncopy, Side::Limit, Side::HeapOnly]);
        let Ok(Arguments { experiment: Experiment::Redis(redis), .. }) = parse("redis") else {
            panic!("redis needs no arguments")
        };
        assert_eq!(redis.sizes, [64, 65_536, 262_144, 1_048_576]);
    }

    #[test]
    fn the_quick_form_of_every_experiment_measures_less_unless_told_otherwise() {
        let Ok(Arguments { experiment: Experiment::Sizes(sizes), .. }) = parse("sizes --quick --rounds 2")
        else {
            panic!("sizes has a quick form")
        };
        assert_eq!(sizes.sizes, [8192, 65_536, 1_048_576]);
        assert_eq!((sizes.repeat.rounds, sizes.repeat.seconds), (2.into(), Duration::from_millis(100)));
        for experiment in [
            "copies", "threads", "touched", "faults", "checksum", "tracking", "redis", "small", "memory",
            "cache",
        ] {
            assert!(parse(&format!("{experiment} --quick --json --svg x")).is_ok(), "{experiment}");
        }
    }

    #[test]
    fn plain_is_always_the_first_side_and_each_comes_once() {
        let Ok(Arguments { experiment: Experiment::Copies(copies), .. }) =
            parse("copies --sides always,plain,always")
        else {
            panic!("these are sides")
        };
        assert_eq!(copies.repeat.all_sides(), [Side::Plain, Side::Always]);
    }

    #[test]
    fn a_bare_port_is_on_the_loopback_address() {
        let listen = |text: &str| match parse(&format!("echo-server --size 1 --copies 0 --listen {text}")) {
            Ok(Arguments { experiment: Experiment::EchoServer(server), .. }) => Ok(server.listen.to_string()),
            Ok(_) => panic!("another experiment"),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(listen("0"), Ok("127.0.0.1:0".to_owned()));
        assert_eq!(listen("127.0.0.1:7000"), Ok("127.0.0.1:7000".to_owned()));
        assert_eq!(listen("[::1]:7000"), Ok("[::1]:7000".to_owned()));
        for bad in ["70000", "-1", "localhost:1", "x"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_values_are_refused_and_named_with_the_legal_range() {
        for (words, value, legal) in [
            ("copies --size 0", "0", "1..=536870912"),
            ("copies --copies 1,x", "x", "invalid digit"),
            ("copies --copies 1025", "1025", "0..=1024"),
            ("copies --seconds nan", "nan", "0.01 to 600"),
            ("copies --seconds 1e9", "1e9", "0.01 to 600"),
            ("redis --rounds 0", "0", "1..=1000"),
            ("redis --clients 1001", "1001", "1..=1000"),
            ("touched --shares 101", "101", "0..=100"),
            ("tracking --views 0", "0", "1..=1000000"),
            ("memory --minutes 0", "0", "0.01 to 600"),
            ("copies --sides other", "other", "heap-only"),
            ("small --rounds 99999999999999999999", "99999999999999999999", "1..=1000"),
            ("cache --rounds 9..7", "9..7", "7..25"),
        ] {
            let error = parse(words).expect_err(words).to_string();
            assert!(error.contains(value) && error.contains(legal), "{words}: {error}");
        }
        assert!(parse("").is_err() && parse("nonsense").is_err() && parse("echo-server").is_err());
    }
}
