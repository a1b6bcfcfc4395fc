//! One connection through a network that loses 1 % of all packets, with a round trip of 50 ms: the service's TCP
//! compared with the kernel's CUBIC. Both lose the same packets, which follow from the round and the packet's
//! number.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use super::Net;
use crate::kit::{
    Align, Comparison, Failure, Launcher, Metric, Progress, Result, Rounds, Sample, Server, Side, Table,
    TemporaryDirectory, While, figures,
};
use crate::servers::impaired_network::{ImpairedNetwork, Impairments, NEAR_ADDRESS};
use crate::servers::net::Service;
use crate::servers::peer;

const SIDES: [Side; 2] = [Side::Plain, Side::Net];
/// Fraction of packets lost in each direction.
const LOSS: f64 = 0.01;
/// Delay of each packet, ms.
const DELAY_MS: f64 = 25.0;
const MEGABITS: Metric = |sample| sample.megabits_per_s;

/// Direction of the transfer, seen from this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Sends,
    Receives,
}

/// Measures transfers in both directions.
pub fn measure(options: &Net, launcher: &Launcher, progress: &mut Progress) -> Vec<Comparison> {
    let directions = [Direction::Sends, Direction::Receives];
    let mut comparisons = directions.map(|direction| {
        let direction = if direction == Direction::Sends { "sends" } else { "receives" };
        Comparison::new(format!("loss 1 %, 50 ms, {direction}"), peer::BLOCK_BYTES as u64, &SIDES)
            .with_parameter("loss", LOSS)
            .with_parameter("round_trip_ms", 2.0 * DELAY_MS)
    });
    Rounds::exactly(options.transfers).run(
        &mut comparisons,
        &directions,
        progress,
        |direction, side, round| transfer(launcher, *direction, side, round, options.transfer_seconds),
    );
    comparisons.into()
}

/// Measures a transfer over a new connection, with its own service and network.
fn transfer(
    launcher: &Launcher,
    direction: Direction,
    side: Side,
    seed: usize,
    duration: Duration,
) -> Result<Sample> {
    let network = ImpairedNetwork::make(Impairments { seed, loss: LOSS, delay_ms: DELAY_MS })?;
    let Some(copies) = side.service() else {
        return transfer_over(&network, launcher, direction, side, NEAR_ADDRESS, duration);
    };
    let service = Service::start(launcher, copies)?;
    let launcher = launcher.with_service(&service.control());
    transfer_over(&network, &launcher, direction, side, service.host(), duration)
}

#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn transfer_over(
    network: &ImpairedNetwork,
    launcher: &Launcher,
    direction: Direction,
    side: Side,
    near: Ipv4Addr,
    duration: Duration,
) -> Result<Sample> {
    let task = match direction {
        Direction::Sends => "--send".to_owned(),
        Direction::Receives => format!("--receive={}", duration.as_secs_f64()),
    };
    let arguments = ["peer".to_owned(), format!("--host={near}"), task];
    let command = launcher.bench_command(side, &arguments);
    let mut peer = Server::start(command, "the peer", TemporaryDirectory::make()?)?;
    let address = peer::parse_address(near, &peer.first_line()?)?;
    let outcome = network.in_host_namespace(|| {
        let exchange = || -> Result<u64> {
            let stream = TcpStream::connect(address).doing("connecting through the impaired network")?;
            peer::use_cubic(&stream)?;
            match direction {
                Direction::Sends => peer::receive(&stream, duration),
                Direction::Receives => peer::send(&stream).map(|()| 0),
            }
        };
        Ok(exchange())
    });
    let outcome = outcome.unwrap_or_else(|error: io::Error| Err(Failure::new(error.to_string())));
    let mut bytes = outcome.map_err(|failure| peer.process().explain(&failure))?;
    if direction == Direction::Receives {
        bytes = peer::parse_number(&peer.first_line()?, "received ")?;
    }
    let bits = bytes as f64 * 8.0;
    Ok(Sample {
        operations_per_s: Some(bytes as f64 / peer::BLOCK_BYTES as f64 / duration.as_secs_f64()),
        megabits_per_s: Some(bits / 1e6 / duration.as_secs_f64()),
        verified_bytes: Some(bytes / peer::BLOCK_BYTES as u64 * peer::BLOCK_BYTES as u64),
        ..Sample::default()
    })
}

/// Renders the figures as text.
pub fn render(comparisons: &[Comparison]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("one connection", Left),
        ("connections each", Right),
        ("the kernel, Mbit/s", Right),
        ("net, Mbit/s", Right),
        ("net over the kernel", Right),
    ]);
    for comparison in comparisons {
        let of = |side| figures::ratio_cell(comparison.figure(side, MEGABITS));
        table.row(vec![
            comparison.title().to_owned(),
            comparison.round_count().to_string(),
            of(Side::Plain),
            of(Side::Net),
            figures::ratio_cell(comparison.ratio_of(Side::Net, Side::Plain, MEGABITS)),
        ]);
    }
    format!(
        "{}\n\
         Both stacks use CUBIC, and the other end is the kernel's TCP. In each round both lose the same \
         packets.\n\
         rates: bytes that the receiver verified, from the handshake on; medians with 95 % intervals\n",
        table.render()
    )
}
