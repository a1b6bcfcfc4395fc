//! The experiment of zIO §5.1.1: an echo server that copies every message a number of times, with
//! and without uncopy.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::cleanup::TemporaryDirectory;
use crate::comparison::{Comparison, Metric, Sample};
use crate::echo_client::EchoClient;
use crate::failure::{Failure, Result};
use crate::process::Server;
use crate::progress::Progress;
use crate::side::{Launcher, Side};
use crate::statistics::quantile;
use crate::table::{Align, Table, amount, number, size};

/// Warm-up before each measurement, as a part of it.
const WARM_UP_PART: u32 = 8;

/// What is measured and how long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of a message, bytes.
    pub size_bytes: usize,
    /// Numbers of copies, in the order of the report.
    pub copies: Vec<usize>,
    /// Pages of the last copy that the server reads.
    pub touched_pages: usize,
    /// Rounds; each runs every side once.
    pub rounds: usize,
    /// Length of each measurement.
    pub duration: Duration,
    /// What is compared.
    pub sides: Vec<Side>,
}

/// Runs the experiment: one comparison for each number of copies.
///
/// The rounds are the outer loop, so that different numbers of copies can be compared round by
/// round as well.
pub fn measure(launcher: &Launcher, settings: &Settings, progress: &mut Progress) -> Vec<Comparison> {
    let size_bytes = settings.size_bytes as u64;
    let mut comparisons: Vec<Comparison> = settings
        .copies
        .iter()
        .map(|copies| Comparison::new(title(size_bytes, *copies), size_bytes, &settings.sides))
        .collect();
    for round in 0..settings.rounds {
        for (comparison, copies) in comparisons.iter_mut().zip(&settings.copies) {
            let title = comparison.title().to_owned();
            comparison.round(|side| {
                progress.tell(&title, round, settings.rounds, side.name());
                sample(launcher, side, settings, *copies, round as u64)
            });
        }
    }
    comparisons
}

fn title(size_bytes: u64, copies: usize) -> String {
    let plural = if copies == 1 { "copy" } else { "copies" };
    format!("echo {}, {copies} {plural}", size(size_bytes))
}

/// Starts a server under `side`, loads it, and stops it.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn sample(launcher: &Launcher, side: Side, settings: &Settings, copies: usize, seed: u64) -> Result<Sample> {
    let arguments = [
        "echo-server".to_owned(),
        "--listen=0".to_owned(),
        format!("--size={}", settings.size_bytes),
        format!("--copies={copies}"),
        format!("--touch={}", settings.touched_pages),
        "--threads=1".to_owned(),
    ];
    let command = launcher.bench(side, &arguments);
    let mut server = Server::start(command, "the echo server", TemporaryDirectory::make()?)?;
    let address = address(&server.first_line()?)?;
    let mut measured = || {
        let mut client = EchoClient::connect(address, settings.size_bytes, seed)?;
        let warm_up = client.run(settings.duration / WARM_UP_PART)?;
        let cpu_before_ns = server.process().cpu_ns()?;
        let load = client.run(settings.duration)?;
        let cpu_ns = server.process().cpu_ns()?.saturating_sub(cpu_before_ns);
        let resident_bytes = server.process().resident_bytes()?;
        let latency_us = |part| quantile(&load.latencies_ns, part).map_or(f64::NAN, |ns| ns as f64 / 1e3);
        Ok(Sample {
            operations_per_s: load.messages as f64 / load.elapsed.as_secs_f64(),
            latency_p50_us: latency_us(0.5),
            latency_p99_us: latency_us(0.99),
            cpu_us: cpu_ns as f64 / 1e3 / load.messages as f64,
            resident_bytes: resident_bytes as f64,
            verified_bytes: Some(warm_up.verified_bytes + load.verified_bytes),
            ..Sample::default()
        })
    };
    let mut sample = match measured() {
        Ok(sample) => sample,
        Err(failure) => return Err(server.process().explain(&failure)),
    };
    let pid = server.process().pid();
    sample.notes = launcher.notes(side, pid, &server.stderr_text(), copies > 0);
    sample.defect = server.process().stop().err().map(|failure| failure.to_string());
    Ok(sample)
}

/// The loopback address that the line `listening PORT` stands for.
fn address(line: &str) -> Result<SocketAddr> {
    line.strip_prefix("listening ")
        .and_then(|port| port.trim().parse().ok())
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .ok_or_else(|| Failure::new(format!("the echo server wrote \"{}\"", line.escape_debug())))
}

/// The figures, a line for each number of copies and side.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
pub fn render(comparisons: &[Comparison], settings: &Settings) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("experiment", Left),
        ("side", Left),
        ("op/s", Right),
        ("MiB/s", Right),
        ("ratio", Right),
        ("spread", Right),
        ("of 0 copies", Right),
        ("p50 µs", Right),
        ("p99 µs", Right),
        ("CPU µs/MiB", Right),
        ("verified", Right),
    ]);
    let none = settings.copies.iter().position(|copies| *copies == 0).map(|index| &comparisons[index]);
    let rate: Metric = |sample| sample.operations_per_s;
    for comparison in comparisons {
        let mib = comparison.operation_bytes() as f64 / f64::from(1 << 20);
        for side in comparison.sides() {
            let median =
                |metric: Metric| comparison.spread(*side, metric).map_or(f64::NAN, |spread| spread.median);
            let ratio = comparison.ratio(*side, rate).filter(|_| *side != Side::Plain);
            let limit = none.and_then(|none| comparison.ratio_to(none, *side, *side, rate));
            table.row(vec![
                comparison.title().to_owned(),
                side.name().to_owned(),
                number(median(rate)),
                number(median(rate) * mib),
                ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median)),
                ratio.map_or_else(String::new, |ratio| format!("{:.2}–{:.2}", ratio.low, ratio.high)),
                limit.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median)),
                number(median(|sample| sample.latency_p50_us)),
                number(median(|sample| sample.latency_p99_us)),
                number(median(|sample| sample.cpu_us) / mib),
                amount(comparison.verified_bytes(*side)),
            ]);
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_line_gives_an_address() {
        assert_eq!(address("listening 7000").expect("an address").port(), 7000);
        for line in ["", "listening", "listening 70000", "listening -1", "hello", "listening 1 2"] {
            assert!(address(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_server_that_cannot_be_started_is_a_failure_not_a_result() {
        let settings = Settings {
            size_bytes: 1024,
            copies: vec![0, 1],
            touched_pages: 0,
            rounds: 2,
            duration: Duration::from_millis(1),
            sides: vec![Side::Plain, Side::Uncopy],
        };
        let launcher = Launcher::of("/nonexistent/uncopy");
        let comparisons = measure(&launcher, &settings, &mut Progress::new());
        assert_eq!(comparisons.len(), 2);
        for comparison in &comparisons {
            assert!(comparison.notes().concat().contains("/nonexistent/uncopy"));
        }
        assert!(render(&comparisons, &settings).contains("echo 1 KiB, 0 copies"));
    }
}
