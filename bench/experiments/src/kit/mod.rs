//! Shared measurement code of all experiments. Nothing here knows an experiment, a server or an application.
//!
//! ```text
//!   slices        measures servers of all sides in turn; running_server: the interface of such a server; remote: a
//!                 server whose clients are in another process; disturbance, distance, noise: detecting and
//!                 preventing noise from other programs and the host; rounds: repeated whole runs
//!   comparison    samples of all sides, ratios; statistics: medians and intervals; verdict: their interpretation
//!   sample        figures of one slice or run; counts: event counts of a server; side: the environment it runs in
//!   traffic       load by own clients; pattern, checksum, random: its bytes; latencies
//!   report        the result of an experiment: table, JSON, plot; progress: status lines during a measurement
//!   experiment    commands: options, work, place in the report; arguments: shared options
//!   processes     servers and helpers: started, measured and always ended; keeper: finds the log keeper of a
//!                 program, which is no descendant of it
//!   network       the network between clients and servers
//!   host          the machine; load: load by other programs; processors: placement of servers and clients; disk: space
//! ```

pub mod arguments;
pub mod checksum;
pub mod comparison;
pub mod counts;
pub mod disk;
pub mod distance;
pub mod disturbance;
pub mod experiment;
pub mod figures;
pub mod host;
pub mod keeper;
pub mod latencies;
pub mod load;
pub mod network;
pub mod noise;
pub mod pattern;
pub mod plot;
pub mod processors;
pub mod progress;
pub mod remote;
pub mod report;
pub mod rounds;
pub mod running_server;
pub mod sample;
pub mod side;
pub mod slices;
pub mod statistics;
pub mod table;
pub mod traffic;
pub mod verdict;

pub use arguments::{
    CommonOptions, ComparisonOptions, SlicingOptions, bytes_parser, cli_name, copies_parser, count_parser,
    seconds, size_parser, threads_parser,
};
pub use comparison::Comparison;
pub use experiment::{
    Criterion, Experiment, Outcome, ReportEntry, claim, entry, prepare_experiment, print,
    run_with_noise_reduction, run_without_noise_reduction,
};
pub use host::Machine;
pub use latencies::Latencies;
pub use network::start_server;
pub use pattern::{Pattern, compare};
pub use plot::{Plot, Scale, Series};
pub use progress::Progress;
pub use report::Report;
pub use rounds::Rounds;
pub use running_server::RunningServer;
pub use sample::{Metric, Sample};
pub use side::{Launcher, Side};
pub use slices::Slices;
pub use statistics::{Interval, Rival};
pub use table::{Align, Table, format_amount, format_count, format_figure, format_number, format_size};
pub use uncopy_testbed::{
    Failure, Process, Random, Result, Server, TemporaryDirectory, While, failure, processes, random,
};
