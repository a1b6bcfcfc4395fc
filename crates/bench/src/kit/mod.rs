//! What every experiment uses. Nothing here knows an experiment, a server or an application.
//!
//! ```text
//!   slices        measures servers of all sides in turn; running: what such a server can do; remote: the same where its
//!                 clients are in another process; disturbance, distance, quiet: what others do to it, and what is done
//!                 against that; rounds: of whole runs
//!   comparison    samples of all sides, ratios; statistics: medians and intervals; verdict: what they say
//!   sample        figures of one slice or run; counts: what a server did; side: under what it runs
//!   traffic       load by own clients; pattern, checksum, random: its bytes; latencies
//!   report        what comes of an experiment: figures in a table, JSON, plot; progress: what is being measured
//!   experiment    what a command is: options, what it does, its place in the report; arguments: shared options
//!   processes     servers and helpers: started, measured and ended whatever happens
//!   network       what lies between clients and servers
//!   host          the machine; load: how busy others kept it; processors: the servers' and the clients'; disk: where files are
//! ```

pub mod arguments;
pub mod checksum;
pub mod comparison;
pub mod counts;
pub mod disk;
pub mod distance;
pub mod disturbance;
pub mod experiment;
pub mod failure;
pub mod figures;
pub mod host;
pub mod latencies;
pub mod load;
pub mod network;
pub mod pattern;
pub mod plot;
pub mod processes;
pub mod processors;
pub mod progress;
pub mod quiet;
pub mod random;
pub mod remote;
pub mod report;
pub mod rounds;
pub mod running;
pub mod sample;
pub mod side;
pub mod slices;
pub mod statistics;
pub mod table;
pub mod traffic;
pub mod verdict;

pub use arguments::{
    Form, Repeat, Rivalry, Slicing, bytes_parser, copies_parser, count_parser, seconds, size_parser,
    threads_parser,
};
pub use comparison::Comparison;
pub use experiment::{
    Entry, Experiment, Judge, Outcome, begin, claim, entry, measured, measured_as_it_is, print,
};
pub use failure::{Failure, Result, While};
pub use host::Machine;
pub use latencies::Latencies;
pub use pattern::{Pattern, compare};
pub use plot::{Plot, Scale, Series};
pub use processes::cleanup::TemporaryDirectory;
pub use processes::process::{Process, Server};
pub use progress::Progress;
pub use random::Random;
pub use report::Report;
pub use rounds::Rounds;
pub use running::Running;
pub use sample::{Metric, Sample};
pub use side::{Launcher, Side};
pub use slices::Slices;
pub use statistics::{Interval, Rival};
pub use table::{Align, Table, amount, counted, figure, number, size};
