//! An echo between two programs on one host: both plain, both under uncopy, both with lanes. The processor time is that of both.

use std::time::Duration;

use clap::Args;

use crate::kit::figures::{self, CPU, LEGEND};
use crate::kit::traffic::Load;
use crate::kit::{
    Comparison, Experiment, Form, Launcher, Outcome, Plot, Progress, Report, Result, Running, Scale, Server,
    Side, Slicing, TemporaryDirectory, copies_parser, counted, measured, size, size_parser,
};
use crate::servers::echo::pair::{self, Control, Transport};

/// Echo between two programs on one host, with and without lanes
#[derive(Debug, Args)]
pub struct Lanes {
    /// What lies between them
    #[arg(long, value_name = "TRANSPORT,...", default_value = "tcp,unix", value_delimiter = ',', value_enum)]
    pub transport: Vec<Transport>,
    /// Lengths of messages, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "64,16384,65536,524288",
        default_value_if("quick", "true", "64,524288"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of copies of each message
    #[arg(long, value_name = "N,N,...", default_value = "0,12", default_value_if("quick", "true", "0"), value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    #[command(flatten)]
    pub slicing: Slicing,
    #[command(flatten)]
    pub form: Form,
}

/// How long the pair may take to end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Messages shorter than this are not copied more than once: nothing could be gained.
const MIN_COPIED_BYTES: usize = 512 << 10;

impl Experiment for Lanes {
    fn run(&self) -> Result<Outcome> {
        measured(&self.form, |launcher, progress| {
            Ok(Report::of(self.measure(launcher, progress), render, plot))
        })
    }
}

impl Lanes {
    #[expect(clippy::cast_precision_loss, reason = "sizes of messages, few copies")]
    fn measure(&self, launcher: &Launcher, progress: &mut Progress) -> Vec<Comparison> {
        let slices = self.slicing.slices(&[Side::Uncopy, Side::Lanes]);
        let mut comparisons = Vec::new();
        for transport in &self.transport {
            for size_bytes in &self.sizes {
                for copies in
                    self.copies.iter().filter(|copies| **copies == 0 || *size_bytes >= MIN_COPIED_BYTES)
                {
                    let what = format!("{} {}", transport.name(), size(*size_bytes as u64));
                    let title = format!("{what}, {}", counted(*copies, "copy", "copies"));
                    let mut comparison = Comparison::new(&title, *size_bytes as u64, &slices.sides)
                        .with("size_bytes", *size_bytes as f64)
                        .with("copies", *copies as f64);
                    slices.run(launcher, &mut comparison, false, progress, |side| {
                        start(launcher, side, *transport, *size_bytes, *copies)
                    });
                    comparisons.push(comparison);
                }
            }
        }
        comparisons
    }
}

fn start(
    launcher: &Launcher,
    side: Side,
    transport: Transport,
    size_bytes: usize,
    copies: usize,
) -> Result<Box<dyn Running>> {
    let command = launcher.bench(side, &pair::arguments(transport, size_bytes, copies));
    let mut server = Server::start(command, "the pair", TemporaryDirectory::make()?)?;
    server.first_line()?;
    let control = Control::connect(server.directory().path());
    let control = control.map_err(|failure| server.process().explain(&failure))?;
    Ok(Box::new(Pair { control, server }))
}

/// Both ends, and who tells them what to do.
struct Pair {
    control: Control,
    server: Server,
}

impl Running for Pair {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        self.control.load(duration)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.control.reconnect()
    }

    fn stop(&mut self) -> Result<()> {
        self.control.end();
        // Told nothing more, it ends; if it does not, it is made to.
        match self.server.process().wait(TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            _ => self.server.process().stop(),
        }
    }
}

/// The figures.
fn render(comparisons: &[Comparison]) -> String {
    let table = figures::table(comparisons, &[]);
    format!(
        "{table}{}\n{LEGEND}lanes: large parts pass by reference between the two; the processor time is that of both ends\n",
        figures::counts(comparisons)
    )
}

/// Processor time over plain.
fn plot(comparisons: &[Comparison]) -> Plot {
    let x = ("bytes of a message", Scale::Doubling);
    Plot::by_side("Echo on one host", x, "CPU over plain", comparisons, "size_bytes", |comparison, side| {
        comparison.ratio(side, CPU)
    })
}
