//! memcached under the load tools of libmemcached, by TCP and UDP (ZCopy section 4.1), and under a client of ours that
//! compares every byte.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use super::programs::Need;
use super::stage::Stage;
use super::{Case, Effort, Point, Running, Work};
use crate::clients::cache::{Connections, Content, Peer, Work as Exchanges};
use crate::kit::processes::process;
use crate::kit::traffic::{self, Load};
use crate::kit::{Failure, Result, Server, While, processors, size};

const MEMCACHED: Need = Need::new("memcached", "memcached", &["--version"]);
/// memaslap, under the name that libmemcached-awesome gives it.
const MEMASLAP: Need = Need::new("memcaslap", "libmemcached-tools", &[]);
const MEMSLAP: Need = Need::new("memcslap", "libmemcached-tools", &["--version"]);
const PAPER: &str = "ZCopy section 4.1, values from its allocator, which is a change of the program's source: UDP GET \
                     +28.7 % at 512 bytes, +41.1 % at 768, equal at 1024 (limit of the network); TCP GET +40.8 % at \
                     512 bytes, +30.8 % at 1024; slower below 256 bytes";
const REMARK: &str = "a value is received where it is kept and sent from there: memcached itself copies nothing that \
                      could be elided, and values this small are below --min-size";

/// memaslap by TCP.
pub const TCP: Case = Case {
    name: "memcached-tcp",
    about: "memcached under memcaslap by TCP, GET of 256 bytes to 2 KiB, all compared by memcaslap, 16 connections",
    paper: PAPER,
    needs: &[MEMCACHED, MEMASLAP],
    points: |effort| slapped(effort, &[256, 512, 768, 1024, 2048], Protocol::Tcp),
    remark: REMARK,
};

/// memaslap by UDP.
pub const UDP: Case = Case {
    name: "memcached-udp",
    about: "memcached under memcaslap by UDP, GET of 256 bytes to 1 KiB, all compared by memcaslap, 16 clients",
    paper: PAPER,
    needs: &[MEMCACHED, MEMASLAP],
    points: |effort| slapped(effort, &[256, 512, 768, 1024], Protocol::Udp),
    remark: REMARK,
};

/// memslap.
pub const SLAP: Case = Case {
    name: "memcached-memslap",
    about: "memcached under memcslap by TCP, SET and GET of values that memcslap chooses, 4 threads; memcslap compares \
            nothing, so a client of ours does after each measurement",
    paper: "ZCopy section 4.1 has memaslap only",
    needs: &[MEMCACHED, MEMSLAP],
    points: |_| {
        let work = Slapped { tool: Tool::Memslap, protocol: Protocol::Tcp, size_bytes: 0 };
        vec![Point::new("memcached memcslap, 2.5 KiB on average", MEMSLAP_BYTES, work)]
    },
    remark: REMARK,
};

/// Larger values, by our own client.
pub const LARGE: Case = Case {
    name: "memcached",
    about: "memcached under a client of ours by TCP, values of 16 KiB to 512 KiB, one SET in ten operations, 8 \
            connections, every byte compared",
    paper: "not in the papers at these sizes",
    needs: &[MEMCACHED],
    points: large,
    remark: "a value is received where it is kept and sent from there: memcached itself copies nothing",
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Memaslap,
    Memslap,
}

/// Connections of memaslap, and objects that each of them stores before it begins.
const CONNECTIONS: u64 = 16;
const OBJECTS: &str = "1k";
/// Requests of one run of a tool: some tenths of a second.
const REQUESTS: u64 = 20_000;
const THREADS: u64 = 4;
/// Length of memslap's values, on average: their lengths are random (what memcached counted for 10,000 of them).
const MEMSLAP_BYTES: u64 = 2560;
/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Name of memaslap's configuration.
const CONFIGURATION: &str = "memaslap.cfg";

fn slapped(effort: Effort, sizes: &[usize], protocol: Protocol) -> Vec<Point> {
    effort.points(&[1024], sizes, |size_bytes| {
        let title = format!("memcached {} GET {}", protocol.name(), size(size_bytes as u64));
        Point::sized(title, size_bytes, Slapped { tool: Tool::Memaslap, protocol, size_bytes })
    })
}

fn large(effort: Effort) -> Vec<Point> {
    effort.points(&[64 << 10], &[16 << 10, 64 << 10, 512 << 10], |size_bytes| {
        let work = Large { content: Content::new(size_bytes, LARGE_KEYS) };
        Point::sized(format!("memcached {}, 10 % SET", size(size_bytes as u64)), size_bytes, work)
    })
}

fn arguments(address: SocketAddr, protocol: Protocol) -> Vec<OsString> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let udp = if protocol == Protocol::Udp { &port } else { "0" };
    // -u is for root, who may not run it otherwise; anybody else's is ignored.
    ["-l", &ip, "-p", &port, "-U", udp, "-t", "1", "-m", "256", "-I", "8m", "-u", "root"]
        .map(OsString::from)
        .to_vec()
}

#[derive(Debug)]
struct Slapped {
    tool: Tool,
    protocol: Protocol,
    size_bytes: usize,
}

impl Work for Slapped {
    fn start<'a>(&'a self, stage: &'a Stage<'a>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) = stage.server(MEMCACHED.program, |address, directory| {
            let size_bytes = self.size_bytes;
            // Keys of 16 bytes, values of one length, GETs only.
            let text = format!("key\n16 16 1\nvalue\n{size_bytes} {size_bytes} 1\ncmd\n0 0\n1 1\n");
            std::fs::write(directory.join(CONFIGURATION), text).doing("writing memaslap's configuration")?;
            Ok(arguments(address, self.protocol))
        })?;
        Ok(Box::new(Slapping { stage, work: self, server, address }))
    }
}

/// memcached and a tool that loads it.
struct Slapping<'a> {
    stage: &'a Stage<'a>,
    work: &'a Slapped,
    server: Server,
    address: SocketAddr,
}

impl Slapping<'_> {
    /// Runs the tool once: how many operations it did, and how many bytes it compared.
    fn run(&self) -> Result<(u64, u64)> {
        let need = if self.work.tool == Tool::Memaslap { MEMASLAP } else { MEMSLAP };
        let mut command = Command::new(self.stage.program(need.program)?);
        let address = self.address.to_string();
        let number = |number: u64| number.to_string();
        match self.work.tool {
            Tool::Memaslap => {
                let file = self.server.directory().join(CONFIGURATION);
                command.args(["-s", &address, "-T", "1", "-c", &number(CONNECTIONS), "-w", OBJECTS]);
                command.args(["-x", &number(REQUESTS), "-v", "1.0", "-F"]).arg(file);
                if self.work.protocol == Protocol::Udp {
                    command.arg("-U");
                }
            }
            Tool::Memslap => {
                let each = number(REQUESTS / THREADS);
                command.args(["-s", &address, "-t", "get", "-c", &number(THREADS), "-e", &each]);
            }
        }
        processors::bind(&mut command, self.stage.client_processors());
        let output = process::run(command, need.program, LIMIT)?.success(need.program)?;
        match self.work.tool {
            Tool::Memaslap => {
                let report = Report::parse(&output.stdout).ok_or_else(|| unreadable(need.program))?;
                report.check()?;
                Ok((report.gets + report.sets, report.gets * self.work.size_bytes as u64))
            }
            Tool::Memslap => memslap_operations(&output.stdout)
                .map(|count| (count, 0))
                .ok_or_else(|| unreadable(need.program)),
        }
    }
}

fn unreadable(tool: &str) -> Failure {
    Failure::new(format!("{tool}'s report cannot be read"))
}

/// What memaslap reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Report {
    gets: u64,
    sets: u64,
    misses: u64,
    wrong: u64,
}

impl Report {
    /// Reads lines `NAME: NUMBER`.
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(known, _)| *known == name)?.1.trim().parse::<u64>().ok()
        };
        let misses = field("get_misses")? + field("verify_misses")?;
        Some(Self {
            gets: field("cmd_get")?,
            sets: field("cmd_set")?,
            misses,
            wrong: field("verify_failed")?,
        })
    }

    fn check(self) -> Result<()> {
        if self.wrong > 0 {
            return Err(Failure::new(format!("memcaslap found {} wrong values", self.wrong)));
        }
        if self.misses > 0 || self.gets == 0 {
            return Err(Failure::new(format!("memcaslap missed {} values of {}", self.misses, self.gets)));
        }
        Ok(())
    }
}

/// The number of keys stored and fetched that memslap tells: `Time to get  20000 keys by  4 threads: …`.
fn memslap_operations(text: &str) -> Option<u64> {
    let count = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(count("Time to set")? + count("Time to get")?)
}

impl Running for Slapping<'_> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        let (begin, mut load) = (Instant::now(), Load::default());
        while load.exchanges == 0 || load.elapsed < duration {
            let (operations, bytes) = self.run()?;
            load.exchanges += operations;
            load.verified_bytes += bytes;
            load.elapsed = begin.elapsed();
        }
        Ok(load)
    }

    fn verify(&mut self) -> Result<u64> {
        let content = Content::new(self.work.size_bytes.max(1024), VERIFIED_KEYS);
        content.store(self.address)?;
        let peer = match self.work.protocol {
            Protocol::Tcp => Peer::Tcp(self.address),
            Protocol::Udp => Peer::Udp(self.address),
        };
        let work = Exchanges { peer, content: &content, operations_per_set: u64::MAX, connections: 1 };
        let mut connections = Connections::open(&work, 0..1)?;
        Ok(connections.run(VERIFICATION)?.verified_bytes)
    }
}

/// How long, and with how many keys, our own client verifies what the tools were told.
const VERIFICATION: Duration = Duration::from_millis(20);
const VERIFIED_KEYS: usize = 64;
/// Keys, connections and threads of our own load.
const LARGE_KEYS: usize = 64;
const LARGE_CONNECTIONS: usize = 8;

#[derive(Debug)]
struct Large {
    content: Content,
}

impl Work for Large {
    fn start<'a>(&'a self, stage: &'a Stage<'a>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) =
            stage.server(MEMCACHED.program, |address, _: &Path| Ok(arguments(address, Protocol::Tcp)))?;
        self.content.store(address)?;
        let work = Exchanges {
            peer: Peer::Tcp(address),
            content: &self.content,
            operations_per_set: 10,
            connections: LARGE_CONNECTIONS,
        };
        let processors: Option<CpuSet> = stage.client_processors();
        let threads = processors.map_or(1, |processors| processors.count() as usize).clamp(1, 4);
        let open = |thread: usize| Connections::open(&work, (thread..LARGE_CONNECTIONS).step_by(threads));
        let connections = (0..threads).map(open).collect::<Result<_>>()?;
        Ok(Box::new(Serving { connections, server, processors }))
    }
}

/// memcached and our own client.
struct Serving<'a> {
    // Dropped in this order: the connections end before the server.
    connections: Vec<Connections<'a>>,
    server: Server,
    processors: Option<CpuSet>,
}

impl Running for Serving<'_> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        traffic::at_once(&mut self.connections, self.processors, |connections| connections.run(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "set proportion: set_prop=0.00\nget proportion: get_prop=1.00\ncmd_get: 148575\n\
                          cmd_set: 81920\nget_misses: 0\nverify_misses: 0\nverify_failed: 0\n\
                          Run time: 2.0s Ops: 230495 TPS: 114502 Net_rate: 119.4M/s\n";

    #[test]
    fn memaslaps_report_is_read_and_a_wrong_value_is_a_failure() {
        let report = Report::parse(REPORT).expect("well-formed");
        assert_eq!(report, Report { gets: 148_575, sets: 81_920, misses: 0, wrong: 0 });
        assert_eq!(report.check(), Ok(()));
        for (line, said) in
            [("verify_failed", "1 wrong"), ("get_misses", "missed 1"), ("verify_misses", "missed")]
        {
            let text = REPORT.replace(&format!("{line}: 0"), &format!("{line}: 1"));
            let failure = Report::parse(&text).expect("well-formed").check().expect_err("a wrong one");
            assert!(failure.to_string().contains(said), "{failure}");
        }
        assert_eq!(Report::parse(&REPORT.replace("cmd_get", "get")), None);
    }

    #[test]
    fn memslaps_report_is_read() {
        let text = "Time to generate       5000 test keys:                0.093 seconds.\n\
                    Time to set            5000 keys:                     0.175 seconds.\n\
                    Time to get           20000 keys by    4 threads:     0.499 seconds.\n";
        assert_eq!(memslap_operations(text), Some(25_000));
        assert_eq!(memslap_operations("Time to set 5 keys\n"), None);
    }
}
