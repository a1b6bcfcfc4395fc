//! The command line of `uncopy bench`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};

/// Longest message and value, bytes: the longest string that Redis stores.
const SIZE_LIMIT_BYTES: u64 = 512 << 20;

fn size_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=SIZE_LIMIT_BYTES)
}

fn copies_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=1024)
}

fn count_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// Seconds from 0.01 to 600.
fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (0.01..=600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it must be a number from 0.01 to 600".to_owned())
}

/// `PORT` on the loopback address, or `ADDRESS:PORT`.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
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
}

/// The experiments, and the servers they start.
#[derive(Debug, Subcommand)]
pub enum Experiment {
    /// Echo server and Redis in one table, plain and under uncopy
    Demo(Demo),
    /// Echo server that copies each message a number of times
    Copies(Copies),
    /// Packaged redis-server under redis-benchmark, append-only file on
    Redis(Redis),
    /// Cost of a 64-byte memcpy and of starting a program
    Small(Small),
    /// The echo server by itself
    EchoServer(EchoServer),
    /// Time calls of memcpy in this process
    #[command(hide = true)]
    MemcpyLoop(MemcpyLoop),
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

/// Arguments of `copies`.
#[derive(Debug, Args)]
pub struct Copies {
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", default_value = "524288", value_parser = size_parser())]
    pub size: usize,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,…", default_value = "0,1,5,12", value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Pages of the last copy that the server reads
    #[arg(long, value_name = "PAGES", default_value = "0")]
    pub touch: usize,
    /// Rounds; each runs every side once
    #[arg(long, value_name = "N", default_value = "5", value_parser = count_parser())]
    pub rounds: usize,
    /// Length of each measurement
    #[arg(long, value_name = "SECONDS", default_value = "1.0", value_parser = seconds)]
    pub seconds: Duration,
    /// Leave out the third side, the block heap without elision
    #[arg(long)]
    pub no_heap_only: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `redis`.
#[derive(Debug, Args)]
pub struct Redis {
    /// Lengths of values, in bytes
    #[arg(long, value_name = "BYTES,…", default_value = "64,65536,262144,1048576", value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Rounds; each runs every side once
    #[arg(long, value_name = "N", default_value = "5", value_parser = count_parser())]
    pub rounds: usize,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub seconds: Duration,
    /// Connections that redis-benchmark opens
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `small`.
#[derive(Debug, Args)]
pub struct Small {
    /// Rounds of memcpy; each runs both sides once
    #[arg(long, value_name = "N", default_value = "9", value_parser = count_parser())]
    pub rounds: usize,
    /// Starts of `true` under each side
    #[arg(long, value_name = "N", default_value = "200", value_parser = count_parser())]
    pub starts: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
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
    /// Pages of the last copy that are read before it is sent
    #[arg(long, value_name = "PAGES", default_value = "0")]
    pub touch: usize,
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
        let Ok(Arguments { experiment: Experiment::Copies(copies) }) = parse("copies") else {
            panic!("copies needs no arguments")
        };
        assert_eq!((copies.size, copies.rounds, copies.seconds), (524_288, 5, Duration::from_secs(1)));
        assert_eq!(copies.copies, [0, 1, 5, 12]);
        let Ok(Arguments { experiment: Experiment::Redis(redis) }) = parse("redis") else {
            panic!("redis needs no arguments")
        };
        assert_eq!(redis.sizes, [64, 65_536, 262_144, 1_048_576]);
    }

    #[test]
    fn a_bare_port_is_on_the_loopback_address() {
        let listen = |text: &str| match parse(&format!("echo-server --size 1 --copies 0 --listen {text}")) {
            Ok(Arguments { experiment: Experiment::EchoServer(server) }) => Ok(server.listen.to_string()),
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
            ("small --rounds 99999999999999999999", "99999999999999999999", "too large"),
        ] {
            let error = parse(words).expect_err(words).to_string();
            assert!(error.contains(value) && error.contains(legal), "{words}: {error}");
        }
        assert!(parse("").is_err() && parse("nonsense").is_err() && parse("echo-server").is_err());
    }
}
