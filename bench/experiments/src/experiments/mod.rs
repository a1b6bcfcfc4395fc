//! The experiments, listed by [`Command`]. To add one: a folder or a file here, and a line in the list.

use clap::Parser;

use crate::kit::network::Network;
use crate::kit::{Experiment, Outcome, ReportEntry, Result};

mod apps;
mod copy_share;
mod demo;
mod echo;
mod files;
mod lab;
mod lanes;
mod latency;
mod load;
mod memcached;
mod memory;
mod net;
mod redis;
mod small;
mod store;
mod tracking;
mod transmit;

/// Defines, from the list of commands in the order of the help, their enum, its dispatch, and the report's entries.
macro_rules! commands {
    ($($name:ident($options:ty),)*) => {
        /// A command with its options.
        #[derive(Debug, Parser)]
        #[command(name = "uncopy-bench")]
        pub enum Command {
            $($name($options),)*
        }

        impl Command {
            /// Returns whether the command starts no server itself, so that no network can lie in between.
            #[must_use]
            pub const fn is_server(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$options as Experiment>::IS_SERVER,)*
                }
            }

            /// Returns the network between clients and servers, unless another is requested.
            #[must_use]
            pub const fn network(&self) -> Network {
                match self {
                    $(Self::$name(_) => <$options as Experiment>::NETWORK,)*
                }
            }

            /// Runs the command with its options.
            ///
            /// # Errors
            /// As [`Experiment::run`].
            pub fn run(&self) -> Result<Outcome> {
                match self {
                    $(Self::$name(options) => options.run(),)*
                }
            }
        }

        /// Entries of each command in the report, and its position there.
        const ENTRIES: &[(u8, &[ReportEntry])] =
            &[$((<$options as Experiment>::REPORT_POSITION, <$options as Experiment>::ENTRIES)),*];
    };
}

commands! {
    Demo(demo::Demo),
    Echo(echo::Echo),
    Tracking(tracking::Tracking),
    Transmit(transmit::Transmit),
    Redis(redis::Redis),
    Small(small::Small),
    Latency(latency::Latency),
    Memory(memory::Memory),
    Memcached(memcached::Memcached),
    Files(files::Files),
    Apps(apps::Apps),
    CopyShare(copy_share::CopyShare),
    Load(load::traffic::Load),
    Lab(lab::Lab),
    Lanes(lanes::Lanes),
    Store(store::Store),
    Net(net::Net),
    EchoServer(crate::servers::echo::command::EchoServer),
    EchoPair(crate::servers::echo::pair::EchoPair),
    AppPair(crate::apps::pair::AppPair),
    Peer(crate::servers::peer::Peer),
    SendFiles(crate::servers::sending::server::SendFiles),
    Soak(load::soak::Soak),
    MemcpyLoop(small::MemcpyLoop),
    AppendLoop(store::append_loop::AppendLoop),
    ViewLoop(tracking::ViewLoop),
    IdleLoop(crate::servers::idle_loop::IdleLoop),
}

/// Returns the report's entries in order: by position, those over other networks than the loopback device last.
#[must_use]
pub fn entries() -> Vec<&'static ReportEntry> {
    let positioned =
        ENTRIES.iter().flat_map(|(position, entries)| entries.iter().map(move |entry| (*position, entry)));
    let mut positioned: Vec<(u8, &ReportEntry)> = positioned.collect();
    positioned.sort_by_key(|(position, entry)| (entry.network.is_some(), *position));
    positioned.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use clap::CommandFactory;

    use crate::kit::side::Side;

    fn parse(words: &str) -> std::result::Result<Command, clap::Error> {
        Command::try_parse_from(std::iter::once("uncopy-bench").chain(words.split(' ')))
    }

    #[test]
    fn the_definition_is_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let Ok(Command::Echo(echo)) = parse("echo") else { panic!("echo needs no arguments") };
        let slices = echo.slices();
        assert_eq!((&echo.values().sizes[..], slices.rounds, slices.processes), (&[524_288][..], 25, 5));
        assert_eq!((slices.time, slices.slice), (Duration::from_secs(30), Duration::from_millis(20)));
        assert_eq!(slices.warm_up, Duration::from_secs(4));
        assert_eq!(echo.values().copies, [0, 1, 5, 12]);
        let sides = [Side::Plain, Side::PlainAgain, Side::Uncopy, Side::Limit, Side::HeapOnly];
        assert_eq!(slices.sides, sides);
        let Ok(Command::Redis(redis)) = parse("redis") else { panic!("redis needs no arguments") };
        assert_eq!(redis.sizes, [64, 65_536, 262_144, 1_048_576]);
        let Ok(Command::Store(store)) = parse("store") else { panic!("store needs no arguments") };
        assert_eq!(
            (store.slicing.slice, store.slicing.seconds),
            (Duration::from_secs(2), Duration::from_secs(120))
        );
    }

    #[test]
    fn quick_experiments_measure_less_unless_options_are_given() {
        let Ok(Command::Echo(echo)) = parse("echo sizes --quick --rounds 2") else {
            panic!("sizes has a quick form")
        };
        assert_eq!(echo.values().sizes, [8192, 65_536, 1_048_576]);
        let slices = echo.slices();
        assert_eq!((slices.rounds, slices.processes, slices.time), (2, 3, Duration::from_secs(4)));
        let Ok(Command::Store(store)) = parse("store --quick") else { panic!("store has a quick form") };
        assert_eq!((store.slicing.slice, store.slicing.seconds), (Duration::from_millis(50), slices.time));
        for experiment in [
            "echo copies",
            "echo faults",
            "echo recording",
            "tracking",
            "redis",
            "small",
            "memory",
            "memcached",
            "lanes",
            "store",
            "net",
        ] {
            assert!(parse(&format!("{experiment} --quick --json --svg x")).is_ok(), "{experiment}");
        }
    }

    #[test]
    fn plain_is_always_the_first_side_and_each_comes_once() {
        let Ok(Command::Echo(echo)) = parse("echo --sides always,plain,always") else {
            panic!("these are sides")
        };
        assert_eq!(echo.slices().sides, [Side::Plain, Side::PlainAgain, Side::Always]);
    }

    #[test]
    fn a_bare_port_is_on_the_loopback_address() {
        let listen = |text: &str| match parse(&format!("echo-server --size 1 --copies 0 --listen {text}")) {
            Ok(Command::EchoServer(server)) => Ok(server.listen.to_string()),
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
            ("echo --size 0", "0", "1 to 512M"),
            ("echo --copies 1,x", "x", "invalid digit"),
            ("echo --copies 1025", "1025", "0..=1024"),
            ("echo --seconds nan", "nan", "0.01 to 600"),
            ("echo --seconds 1e9", "1e9", "0.01 to 600"),
            ("redis --rounds 0", "0", "1..=1000"),
            ("redis --clients 1001", "1001", "1..=1000"),
            ("echo touched --shares 101", "101", "0..=100"),
            ("tracking --views 0", "0", "1..=1000000"),
            ("memory --minutes 0", "0", "0.01 to 600"),
            ("echo --sides other", "other", "heap-only"),
            ("transmit --rounds 99999999999999999999", "99999999999999999999", "1..=1000"),
            ("transmit --rounds 9..7", "9..7", "7..25"),
        ] {
            let error = parse(words).expect_err(words).to_string();
            assert!(error.contains(value) && error.contains(legal), "{words}: {error}");
        }
        assert!(parse("").is_err() && parse("echo nonsense").is_err() && parse("echo-server").is_err());
    }
}
