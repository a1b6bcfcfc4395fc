//! Many idle connections: memory and processor time of service and program, compared with the kernel's TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Pid;
use serde_json::{Value, json};

use super::Net;
use crate::kit::processes::cpu_time::process_cpu_ns;
use crate::kit::processes::process::{raise_descriptor_limit, resident_bytes};
use crate::kit::side::ApiCopies;
use crate::kit::statistics::median;
use crate::kit::{
    Align, Comparison, Launcher, Progress, Result, Rounds, Sample, Side, Table, TemporaryDirectory, While,
};
use crate::servers::net::{Service, TcpStack};
use crate::servers::peer::{self, GREETING_BYTES};

const SIDES: [Side; 2] = [Side::Plain, Side::Net];
/// Number of rounds, each with a new process of every side.
const ROUNDS: usize = 3;
/// Connections opened before the others, to exclude allocations that are made once.
const WARM_UP_CONNECTIONS: usize = 16;
/// Time without requests before processor time is measured, and time for which it is measured.
const SETTLE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
/// Divisor of these times with `--quick`.
const QUICK_DIVISOR: u32 = 10;
/// Time limit for the answer to a greeting.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Cost of idle connections in one round under one side.
#[derive(Clone, Copy, Debug)]
pub struct IdleCost {
    side: Side,
    connections: usize,
    /// Resident memory of program and service per connection, bytes.
    program_bytes: f64,
    service_bytes: f64,
    /// Share of one processor's time, percent.
    program_percent: f64,
    service_percent: f64,
}

/// Measures idle connections under every side.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
pub fn measure(options: &Net, launcher: &Launcher, progress: &mut Progress) -> (Comparison, Vec<IdleCost>) {
    raise_descriptor_limit();
    let mut comparison = Comparison::new(format!("{} idle", options.idle), 0, &SIDES);
    let mut all = Vec::new();
    let (rounds, part) = if options.common.quick { (1, QUICK_DIVISOR) } else { (ROUNDS, 1) };
    Rounds::exactly(rounds).run_one(&mut comparison, progress, |side, _| {
        let idle = measure_side(launcher, side, options.idle, SETTLE / part, IDLE / part)?;
        all.push(idle);
        Ok(Sample {
            resident_bytes: Some((idle.program_bytes + idle.service_bytes) * options.idle as f64),
            verified_bytes: Some(((WARM_UP_CONNECTIONS + options.idle) * GREETING_BYTES) as u64),
            ..Sample::default()
        })
    });
    (comparison, all)
}

/// Measures `connections` idle connections under a side.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn measure_side(
    launcher: &Launcher,
    side: Side,
    connections: usize,
    settle: Duration,
    idle: Duration,
) -> Result<IdleCost> {
    let service = side.service().map(|copies: ApiCopies| Service::start(launcher, copies)).transpose()?;
    let (stack, launcher) = match &service {
        Some(service) => (TcpStack::Service(service.host()), launcher.with_service(&service.control())),
        None => (TcpStack::Kernel, launcher.clone()),
    };
    let host = stack.host();
    let connection_count = WARM_UP_CONNECTIONS + connections;
    let arguments = ["peer".to_owned(), format!("--host={host}"), format!("--hold={connection_count}")];
    let (command, directory) = (launcher.bench_command(side, &arguments), TemporaryDirectory::make()?);
    let mut peer = stack.start(command, "the peer", directory)?;
    let address = peer::parse_address(host, &peer.first_line()?)?;
    let (program, service_pid) = (peer.pid(), service.as_ref().map(Service::pid));
    let outcome = (|| -> Result<IdleCost> {
        let first = connect(address, WARM_UP_CONNECTIONS)?;
        std::thread::sleep(settle);
        let before =
            (ProcessUsage::of(program)?, service_pid.map_or(Ok(ProcessUsage::default()), ProcessUsage::of)?);
        let others = connect(address, connections)?;
        std::thread::sleep(settle);
        let begin =
            (ProcessUsage::of(program)?, service_pid.map_or(Ok(ProcessUsage::default()), ProcessUsage::of)?);
        std::thread::sleep(idle);
        let end =
            (ProcessUsage::of(program)?, service_pid.map_or(Ok(ProcessUsage::default()), ProcessUsage::of)?);
        drop((first, others));
        let bytes = |before: ProcessUsage, end: ProcessUsage| (end.bytes - before.bytes) / connections as f64;
        let percent = |begin: ProcessUsage, end: ProcessUsage| {
            (end.cpu_ns - begin.cpu_ns) / idle.as_nanos() as f64 * 100.0
        };
        Ok(IdleCost {
            side,
            connections,
            program_bytes: bytes(before.0, end.0),
            service_bytes: bytes(before.1, end.1),
            program_percent: percent(begin.0, end.0),
            service_percent: percent(begin.1, end.1),
        })
    })();
    outcome.map_err(|failure| peer.process().explain(&failure))
}

/// Opens `count` connections and exchanges a greeting on each.
fn connect(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let connection = |_| {
        let mut stream = TcpStream::connect(address).doing("connecting")?;
        let mut greeting = [7; GREETING_BYTES];
        stream.set_read_timeout(Some(TIMEOUT)).doing("connecting")?;
        stream.write_all(&greeting).doing("greeting")?;
        stream.read_exact(&mut greeting).doing("waiting for the greeting")?;
        Ok(stream)
    };
    (0..count).map(connection).collect()
}

/// Resources that a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessUsage {
    /// Resident memory, bytes.
    bytes: f64,
    cpu_ns: f64,
}

impl ProcessUsage {
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    fn of(pid: Pid) -> Result<Self> {
        let bytes = resident_bytes(pid)?;
        let cpu_ns = process_cpu_ns(pid).doing("reading a processor time")?;
        Ok(Self { bytes: bytes as f64, cpu_ns: cpu_ns as f64 })
    }
}

/// Renders the figures as text.
pub fn render(all: &[IdleCost]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("idle connections", Left),
        ("side", Left),
        ("program, bytes each", Right),
        ("service, bytes each", Right),
        ("program, % of a processor", Right),
        ("service, % of a processor", Right),
    ]);
    for side in SIDES {
        let of = |value: fn(&IdleCost) -> f64| {
            let values: Vec<f64> = all.iter().filter(|idle| idle.side == side).map(value).collect();
            median(&values).unwrap_or_default()
        };
        table.row(vec![
            all.first().map_or_else(String::new, |idle| idle.connections.to_string()),
            side.name().to_owned(),
            format!("{:.0}", of(|idle| idle.program_bytes)),
            format!("{:.0}", of(|idle| idle.service_bytes)),
            format!("{:.2}", of(|idle| idle.program_percent)),
            format!("{:.2}", of(|idle| idle.service_percent)),
        ]);
    }
    format!(
        "{}\n\
         bytes each: growth of resident memory per connection, after 1 KiB in each direction, without the \
         kernel's socket buffers; medians\n",
        table.render()
    )
}

/// Returns the results as JSON.
pub fn findings(all: &[IdleCost]) -> Value {
    let finding = |idle: &IdleCost| {
        json!({
            "side": idle.side.key(),
            "connections": idle.connections,
            "program_bytes_per_connection": idle.program_bytes,
            "service_bytes_per_connection": idle.service_bytes,
            "program_cpu_percent": idle.program_percent,
            "service_cpu_percent": idle.service_percent,
        })
    };
    all.iter().map(finding).collect()
}
