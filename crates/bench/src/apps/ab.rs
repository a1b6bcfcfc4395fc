//! ApacheBench, as ZCopy used it: it measures, but of bodies it looks at nothing but the length.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::thread::CpuSet;

use super::http::Document;
use super::programs::Need;
use crate::kit::processes::process;
use crate::kit::traffic::Load;
use crate::kit::{Failure, Result, TemporaryDirectory, While, processors};

/// ab itself.
pub const AB: Need = Need::new("ab", "apache2-utils", &["-V"]);
/// Requests of a first run, which tells how many there must be to take a certain time.
const FIRST_REQUESTS: u64 = 400;
/// Upper bound of requests of a run: ab has some 40 bytes for each.
const MAX_REQUESTS: u64 = 10_000_000;
/// How long a run may take longer than it should.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs of one document.
#[derive(Debug)]
pub struct Ab<'a> {
    /// The program.
    pub program: &'a Path,
    /// The server.
    pub server: SocketAddr,
    /// What is asked for.
    pub document: &'a Document,
    /// Connections, each with a request under way.
    pub connections: usize,
    /// Where it runs.
    pub processors: Option<CpuSet>,
    /// Requests per second of the last run.
    pub rate: Option<f64>,
}

impl Ab<'_> {
    /// Requests for `duration`, about; no byte is verified.
    ///
    /// # Errors
    /// [`Failure`] when a request failed, or an answer had another status or length.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of requests"
    )]
    pub fn load(&mut self, duration: Duration) -> Result<Load> {
        let rate = match self.rate {
            Some(rate) => rate,
            None => {
                let first = self.run(FIRST_REQUESTS)?;
                first.exchanges as f64 / first.elapsed.as_secs_f64()
            }
        };
        let requests = (rate * duration.as_secs_f64()) as u64;
        let load = self.run(requests.clamp(self.connections as u64, MAX_REQUESTS))?;
        self.rate = Some(load.exchanges as f64 / load.elapsed.as_secs_f64());
        Ok(load)
    }

    fn run(&self, requests: u64) -> Result<Load> {
        let directory = TemporaryDirectory::make()?;
        let percentiles = directory.join("percentiles");
        let mut command = Command::new(self.program);
        command.args([
            "-q",
            "-k",
            "-r",
            "-c",
            &self.connections.to_string(),
            "-n",
            &requests.to_string(),
            "-e",
        ]);
        command.arg(&percentiles).arg(format!("http://{}{}", self.server, self.document.path));
        processors::bind(&mut command, self.processors);
        let output = process::run(command, AB.program, TIMEOUT)?.success(AB.program)?;
        let report = Report::parse(&output.stdout)?;
        report.check(requests, self.document.body.len())?;
        let text = std::fs::read_to_string(&percentiles).doing("reading ab's percentiles")?;
        Ok(Load {
            exchanges: requests,
            verified_bytes: 0,
            elapsed: Duration::from_secs_f64(report.seconds),
            latencies: latencies_ns(&text).into_iter().map(Duration::from_nanos).collect(),
        })
    }
}

/// What ab prints.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Report {
    complete: u64,
    failed: u64,
    not_2xx: u64,
    length_bytes: u64,
    body_bytes: u64,
    seconds: f64,
}

impl Report {
    fn parse(text: &str) -> Result<Self> {
        let word = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.split_whitespace().next())
        };
        let number = |name: &str| {
            let value = word(name).and_then(|word| word.parse().ok());
            value.ok_or_else(|| Failure::new(format!("ab wrote no \"{name}\"")))
        };
        let seconds = word("Time taken for tests").and_then(|word| word.parse().ok());
        let seconds: f64 = seconds
            .filter(|seconds: &f64| *seconds > 0.0)
            .ok_or_else(|| Failure::new("ab wrote no time, or it took none"))?;
        Ok(Self {
            complete: number("Complete requests")?,
            failed: number("Failed requests")?,
            // The line is there only where there were some.
            not_2xx: number("Non-2xx responses").unwrap_or(0),
            length_bytes: number("Document Length")?,
            body_bytes: number("HTML transferred")?,
            seconds,
        })
    }

    fn check(&self, requests: u64, length_bytes: usize) -> Result<()> {
        let all_bytes = requests * length_bytes as u64;
        let right = self.complete == requests
            && self.failed == 0
            && self.not_2xx == 0
            && self.length_bytes == length_bytes as u64
            && self.body_bytes == all_bytes;
        if right { Ok(()) } else { Err(Failure::new(format!("ab, of {requests} requests: {self:?}"))) }
    }
}

/// The latencies from the 1st to the 99th percentile, ns; the file has a line for each, and the smallest before them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of seconds at most")]
fn latencies_ns(percentiles: &str) -> Vec<u64> {
    let line = |line: &str| {
        let (percent, milliseconds) = line.split_once(',')?;
        let milliseconds = milliseconds.trim().parse::<f64>().ok()?;
        percent.parse::<u32>().is_ok_and(|percent| percent > 0).then_some((milliseconds * 1e6) as u64)
    };
    percentiles.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::statistics::quantile;

    const TEXT: &str = "Document Length:        1024 bytes\n\nConcurrency Level:      4\n\
        Time taken for tests:   0.123 seconds\nComplete requests:      2000\nFailed requests:        0\n\
        Keep-Alive requests:    2000\nTotal transferred:      2500000 bytes\nHTML transferred:       2048000 bytes\n";

    #[test]
    fn a_flawless_run_is_read_and_anything_else_is_refused() {
        let report = Report::parse(TEXT).expect("all lines");
        assert!((report.seconds - 0.123).abs() < 1e-9);
        assert_eq!(report.check(2000, 1024), Ok(()));
        assert!(report.check(2001, 1024).is_err() && report.check(2000, 1023).is_err());
        for (from, to) in [("requests:        0", "requests:        1"), ("2048000", "2047999")] {
            let report = Report::parse(&TEXT.replace(from, to)).expect("all lines");
            assert!(report.check(2000, 1024).is_err(), "{to}");
        }
        let refused = Report::parse(&format!("{TEXT}Non-2xx responses:      7\n")).expect("all lines");
        assert!(refused.check(2000, 1024).is_err());
        assert!(Report::parse("apr_socket_recv: Connection reset by peer").is_err());
    }

    #[test]
    fn percentiles_are_those_of_the_file() {
        let lines = (0..100).map(|percent| format!("{percent},{}.500\n", percent));
        let latencies = latencies_ns(&format!("Percentage served,Time in ms\n{}", lines.collect::<String>()));
        assert_eq!(latencies.len(), 99);
        assert_eq!(quantile(&latencies, 0.5), Some(50_500_000));
        assert_eq!(quantile(&latencies, 0.99), Some(99_500_000));
    }
}
