//! Load for Redis: runs the packaged redis-benchmark and reads its report, and knows which value
//! it sets.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::kit::processes::process;
use crate::kit::{Failure, Result, processors};

/// The key that redis-benchmark uses where none is asked for.
pub const KEY: &[u8] = b"key:__rand_int__";
/// A run moves about as many bytes, or does as many requests where they are short: some milliseconds.
const FEWEST_BYTES: u64 = 32 << 20;
const FEWEST_SHORT: u64 = 1024;
/// Longest time a run may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What is done to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sets values.
    Set,
    /// Reads a value that was set before.
    Get,
}

impl Operation {
    /// Its name in tables and in redis-benchmark's report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Set => "SET",
            Self::Get => "GET",
        }
    }

    /// Its name on redis-benchmark's command line.
    const fn word(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Get => "get",
        }
    }
}

/// Figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Operations per second.
    pub operations_per_s: f64,
    /// Median latency, µs.
    pub latency_p50_us: f64,
    /// 99th percentile of the latency, µs.
    pub latency_p99_us: f64,
    /// 99.9th percentile of the latency, µs.
    pub latency_p999_us: f64,
}

/// One run of redis-benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Path of redis-benchmark.
    pub program: &'a Path,
    /// What is done.
    pub operation: Operation,
    /// Length of the values, bytes.
    pub size_bytes: u64,
    /// Connections.
    pub clients: usize,
}

impl Load<'_> {
    /// Does `requests` operations on the server at `address` and returns what redis-benchmark
    /// wrote.
    ///
    /// # Errors
    /// [`Failure`] when redis-benchmark fails.
    pub fn output(&self, address: SocketAddr, requests: u64) -> Result<String> {
        let mut command = Command::new(self.program);
        command.args(["-t", self.operation.word(), "-h"]).arg(address.ip().to_string());
        for (flag, value) in [
            ("-p", u64::from(address.port())),
            ("-d", self.size_bytes),
            ("-c", self.clients as u64),
            ("-n", requests),
        ] {
            command.arg(flag).arg(value.to_string());
        }
        processors::bind(&mut command, processors::of_clients(processors::ONE_THREAD));
        Ok(process::run(command, "redis-benchmark", TIMEOUT)?.success("redis-benchmark")?.stdout)
    }

    /// Does `requests` operations on the server at `address` and returns how fast.
    ///
    /// # Errors
    /// [`Failure`] when redis-benchmark fails, its report makes no sense, or the run was too short
    /// for its clock of milliseconds.
    pub fn run(&self, address: SocketAddr, requests: u64) -> Result<Report> {
        let output = self.output(address, requests)?;
        let report = parse_report(&output, self.operation);
        report.filter(|report| report.operations_per_s.is_finite()).ok_or_else(|| {
            let line = output.lines().last().unwrap_or("nothing").to_owned();
            Failure::new(format!("redis-benchmark reported {line} for {requests} requests"))
        })
    }

    /// Number of requests that take about `duration`, found by trying on the server at `address`.
    ///
    /// # Errors
    /// As [`Load::run`].
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of requests, roughly"
    )]
    pub fn requests_for(&self, address: SocketAddr, duration: Duration) -> Result<u64> {
        // A server that is disturbed while this tries must not make the run too short for
        // redis-benchmark's clock of milliseconds.
        let fewest =
            (self.clients as u64).max(FEWEST_BYTES / self.size_bytes.max(FEWEST_BYTES / FEWEST_SHORT));
        let mut requests = 16 * self.clients as u64;
        loop {
            let output = self.output(address, requests)?;
            let report = parse_report(&output, self.operation)
                .ok_or_else(|| Failure::new("redis-benchmark's report cannot be read"))?;
            // An infinite rate, from a run of less than a millisecond, becomes a large number.
            let wanted = ((report.operations_per_s * duration.as_secs_f64()) as u64).max(fewest);
            // A run of a quarter of the time tells well enough; a shorter one only roughly.
            if requests >= wanted / 4 {
                return Ok(wanted);
            }
            requests = (wanted / 2).min(requests.saturating_mul(20));
        }
    }
}

/// Reads redis-benchmark's report (Redis 6.2 and later): a heading with the operation, lines
/// `PERCENT% <= N milliseconds (…)` of the latency's distribution, `throughput summary: N requests
/// per second`, and a table of the latency in ms whose columns are named. The rate is infinite where
/// the run took less than a millisecond.
fn parse_report(text: &str, operation: Operation) -> Option<Report> {
    // Progress is told on the same line, again and again, each time from its beginning.
    let text = text.replace('\r', "\n");
    let mut lines = text.lines().map(str::trim);
    let heading = format!("====== {} ======", operation.name());
    lines.by_ref().find(|line| *line == heading)?;
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with("======")).collect();
    let latency = |text: &str| text.parse().ok().filter(|value: &f64| *value >= 0.0).map(|ms: f64| ms * 1e3);
    let latency_p999_us = lines.iter().find_map(|line| {
        let (percent, rest) = line.split_once("% <= ")?;
        percent.parse::<f64>().ok().filter(|percent| *percent >= 99.9)?;
        latency(rest.split_once(" milliseconds")?.0)
    })?;
    let rate = lines.iter().find_map(|line| {
        line.strip_prefix("throughput summary: ")?.strip_suffix(" requests per second")?.parse::<f64>().ok()
    });
    let at = lines.iter().position(|line| line.starts_with("latency summary"))?;
    let named: Vec<&str> = lines.get(at + 1)?.split_whitespace().collect();
    let values: Vec<&str> = lines.get(at + 2)?.split_whitespace().collect();
    let value = |name: &str| latency(values.get(named.iter().position(|known| *known == name)?)?);
    Some(Report {
        operations_per_s: rate.filter(|rate| *rate > 0.0)?,
        latency_p50_us: value("p50")?,
        latency_p99_us: value("p99")?,
        latency_p999_us,
    })
}

/// Whether `value` is what redis-benchmark sets for `-d len_bytes`: the characters of its
/// generator (Redis 6.2 and later), or `x` throughout (before).
#[must_use]
pub fn is_benchmark_value(value: &[u8], len_bytes: u64) -> bool {
    value.len() as u64 == len_bytes
        && (value.iter().all(|byte| *byte == b'x') || value.iter().copied().eq(generated().take(value.len())))
}

/// The characters that redis-benchmark's `genBenchmarkRandomData` makes, from its fixed seed.
fn generated() -> impl Iterator<Item = u8> {
    let mut state = 1234u32;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        // Six bits always fit.
        b'0' + u8::try_from((state >> 16) & 63).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
SET: rps=0.0 (overall: inf) avg_msec=0.3 (overall: 0.3)\r                     \r====== SET ======
  20000 requests completed in 0.25 seconds
  host configuration \"save\": 

Latency by percentile distribution:
0.000% <= 0.023 milliseconds (cumulative count 4)
99.805% <= 0.255 milliseconds (cumulative count 19963)
99.902% <= 0.287 milliseconds (cumulative count 19982)
100.000% <= 0.399 milliseconds (cumulative count 20000)

Cumulative distribution of latencies:
96.245% <= 0.103 milliseconds (cumulative count 19249)
100.000% <= 0.407 milliseconds (cumulative count 20000)

Summary:
  throughput summary: 365.90 requests per second
  latency summary (msec):
          avg       min       p50       p95       p99       max
        0.059     0.016     0.055     0.095     0.151     0.399
";

    #[test]
    fn the_report_of_redis_7_is_read() {
        let report = parse_report(REPORT, Operation::Set).expect("well-formed");
        assert!((report.operations_per_s - 365.9).abs() < 1e-9);
        assert!((report.latency_p50_us - 55.0).abs() < 1e-6);
        assert!((report.latency_p99_us - 151.0).abs() < 1e-6);
        assert!((report.latency_p999_us - 287.0).abs() < 1e-6);
        assert_eq!(parse_report(REPORT, Operation::Get), None);
    }

    #[test]
    fn reports_that_make_no_sense_are_refused() {
        for (part, other) in [
            ("====== SET", "====== GET"),
            ("365.90", "nan"),
            ("365.90", "0.00"),
            ("365.90", ""),
            ("  p99 ", "  p98 "),
            ("0.151", "-0.151"),
            ("% <= ", "% < "),
            ("summary (msec):\n", "summary (msec)"),
        ] {
            assert_eq!(parse_report(&REPORT.replace(part, other), Operation::Set), None, "{part} is {other}");
        }
        assert_eq!(parse_report("Could not connect", Operation::Set), None);
        assert_eq!(parse_report(&REPORT[..REPORT.len() - 80], Operation::Set), None);
    }

    #[test]
    fn a_run_too_short_for_the_clock_has_an_infinite_rate() {
        let text = REPORT.replace("365.90", "inf");
        assert!(parse_report(&text, Operation::Set).expect("well-formed").operations_per_s.is_infinite());
    }

    #[test]
    fn the_benchmarks_values_are_recognised_and_nothing_else() {
        let set_by_redis_7_0_15 = b"VXKeHogKgJ=[5V9_X^b?48OKF2jGA<f:iR@50o7dS3JV4Q6L68lC[GTA]0DaMg?_";
        assert!(is_benchmark_value(set_by_redis_7_0_15, 64));
        assert!(is_benchmark_value(&[b'x'; 100], 100));
        assert!(!is_benchmark_value(&set_by_redis_7_0_15[..63], 64));
        let mut wrong = *set_by_redis_7_0_15;
        wrong[63] ^= 1;
        assert!(!is_benchmark_value(&wrong, 64));
        assert!(!is_benchmark_value(&[b'y'; 100], 100));
    }
}
