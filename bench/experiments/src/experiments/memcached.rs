//! memcached with its values in twin memory, which the kernel sends by reference (ZCopy §4 used a patched kernel),
//! compared with the original, plain and under `uncopy run`. `make memcached` builds both from Debian's source.

use clap::Args;

use crate::apps::environment::{Environment, Wrapper};
use crate::apps::memcached::Values;
use crate::apps::programs::Programs;
use crate::kit::experiment::STATUS_USAGE;
use crate::kit::figures::{self, CPU, RATE};
use crate::kit::{
    CommonOptions, Comparison, Experiment, Launcher, Outcome, Plot, Progress, Report, ReportEntry, Result,
    Side, SlicingOptions, bytes_parser, claim, entry, prepare_experiment, run_with_noise_reduction,
};

/// Name of the program built from Debian's source unchanged.
const PLAIN_NAME: &str = "memcached-plain";
/// Name of the program whose slab pages come from `uncopy_alloc`.
const TWIN_NAME: &str = "memcached-twin";
/// Sides compared with plain.
const SIDES: [Side; 2] = [Side::Uncopy, Side::Twin];
/// Maximum length of a value, bytes: all values fit into the server's memory.
const MAX_VALUE_BYTES: usize = 1 << 20;
/// Length of the values in the workload with SETs, bytes.
const MIXED_BYTES: usize = 64 << 10;
/// Number of operations per SET, in the workload with SETs.
const OPERATIONS_PER_SET: u64 = 10;

/// memcached with values in twin memory, unmodified, and under uncopy (ZCopy, section 4); needs `make memcached`
#[derive(Debug, Args)]
pub struct Memcached {
    /// Value sizes, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "100,1024,4096,16384,65536,262144,1048576",
        default_value_if("quick", "true", "100,65536,1048576"), value_delimiter = ',', value_parser = bytes_parser(MAX_VALUE_BYTES))]
    pub sizes: Vec<usize>,
    /// Workloads to measure over TCP
    #[arg(long, value_name = "LOAD,...", default_value = "get,mixed", value_delimiter = ',', value_enum)]
    pub only: Vec<MemcachedLoad>,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

/// A workload over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MemcachedLoad {
    /// GET of each value size
    Get,
    /// 90 % GET and 10 % SET, values of 64 KiB
    Mixed,
}

impl Experiment for Memcached {
    const ENTRIES: &'static [ReportEntry] = &[
        entry(
            "memcached",
            "memcached whose values are sent by reference",
            &[
                claim(
                    "ZCopy, Figure 8 (§4.1)",
                    "TCP: slightly slower below 256 bytes, 1.408 times at 512 bytes, 1.308 times at 1 KiB; \
                     above, the network is the limit.",
                ),
                claim(
                    "ZCopy, Figure 6 (§4.1)",
                    "UDP: 1.287 times at 512 bytes, 1.411 times at 768 bytes. Not measured here: memcached's \
                     datagrams are smaller than a page.",
                ),
            ],
            "memcached",
            "memcached --quick",
        ),
        entry(
            "memcached-veth-1500",
            "memcached whose values are sent by reference, MTU 1500",
            &[claim("ZCopy, Figure 8 (§4.1)", "Measured over a network of 1 Gbit/s.")],
            "memcached --only get --sizes 16384,65536,262144,1048576",
            "memcached --quick --only get --sizes 65536",
        )
        .over("veth-1500"),
    ];
    const REPORT_POSITION: u8 = 110;

    fn run(&self) -> Result<Outcome> {
        let launcher = prepare_experiment()?;
        if ![PLAIN_NAME, TWIN_NAME].iter().all(|name| launcher.sibling_program(name).is_file()) {
            eprintln!("uncopy: {PLAIN_NAME} and {TWIN_NAME} are not built; run make memcached first");
            return Ok(Outcome::Status(STATUS_USAGE));
        }
        run_with_noise_reduction(&self.common, |launcher, progress| {
            Ok(Report::of(self.measure(launcher, progress), render, plot))
        })
    }
}

impl Memcached {
    fn points(&self) -> Vec<Values> {
        let points = self.only.iter().flat_map(|load| match load {
            MemcachedLoad::Get => {
                self.sizes.iter().map(|size_bytes| Values::by_tcp(*size_bytes, u64::MAX)).collect()
            }
            MemcachedLoad::Mixed => vec![Values::by_tcp(MIXED_BYTES, OPERATIONS_PER_SET)],
        });
        points.collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "lengths of values")]
    fn measure(&self, launcher: &Launcher, progress: &mut Progress) -> Vec<Comparison> {
        let (slices, programs) = (self.slicing.slices(&SIDES), Programs::default());
        let measure = |values: &Values| {
            let size_bytes = values.size_bytes();
            let mut comparison = Comparison::new(values.title(), size_bytes as u64, &slices.sides)
                .with_parameter("size", size_bytes as f64);
            slices.run(launcher, &mut comparison, false, progress, |side| {
                let name = if side == Side::Twin { TWIN_NAME } else { PLAIN_NAME };
                values.start_own(&Environment::new(launcher, Wrapper::Side(side), &programs), name)
            });
            comparison
        };
        self.points().iter().map(measure).collect()
    }
}

fn render(comparisons: &[Comparison]) -> String {
    format!(
        "{}\n\
         plain: unmodified memcached; uncopy: unmodified, under uncopy run; twin: with its values in twin \
         memory\n\
         {}",
        figures::table(comparisons, &[]),
        figures::LEGEND
    )
}

/// Plots throughput and the server's processor time with twin memory, relative to plain.
fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::by_title(
        "memcached: values by reference over copied values",
        "twin over plain",
        comparisons,
        |row| {
            let figures = [("throughput", RATE), ("server CPU per operation", CPU)];
            figures
                .into_iter()
                .filter_map(|(name, metric)| Some((name, row.ratio(Side::Twin, metric)?)))
                .collect()
        },
    )
}
