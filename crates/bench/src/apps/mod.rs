//! Packaged applications, as users install them: each is started plain and under uncopy in turns, loaded, and every
//! body that is counted is compared with what it must be.
//!
//! ```text
//!   mod       what a case is, the registry of all cases
//!   stage     starts servers and helpers under a side, on processors of their own
//!   programs  the packaged programs and their versions
//!   http      a client that verifies documents
//!   origin    a server of ours behind proxies and caches
//!   serving   a server of documents with such clients
//!   source, listeners
//!             a live stream at a fixed rate, and those who verify it
//!   own       servers of ours
//!   pair      a case whose clients are in the same process tree, under the same side
//!   nginx, apache, haproxy, varnish, icecast, relay, passing, ...
//!             the cases
//! ```
//!
//! To add a case: a module with a `pub const CASE: Case`, and its line in [`CASES`].
//!
//! Invariants: a case starts processes only through [`Stage`]; its load counts nothing that was not verified, or it
//! verifies a sample itself ([`Running::verify`]); its server listens on [`crate::kit::network::server_address`] only.

use crate::kit::{Comparison, Result, Running, Side};

mod apache;
mod echo;
mod exchanging;
mod haproxy;
pub mod http;
pub mod icecast;
mod lighttpd;
mod listeners;
mod mariadb;
pub mod memcached;
mod mongodb;
mod mosquitto;
pub mod nginx;
pub mod origin;
mod own;
pub mod pair;
mod passing;
mod postgresql;
pub mod programs;
pub mod python;
pub mod redis;
pub mod relay;
pub mod serving;
mod source;
mod squid;
pub mod stage;
mod varnish;

use programs::Need;
use stage::Stage;

/// All cases, in the order of reports.
pub const CASES: &[Case] = &[
    nginx::STATIC,
    nginx::PROXIED,
    apache::STATIC,
    apache::PROXIED,
    lighttpd::CASE,
    haproxy::CASE,
    varnish::CASE,
    squid::CASE,
    icecast::FILE,
    relay::CASE,
    memcached::TCP,
    memcached::UDP,
    memcached::LARGE,
    echo::ECHO,
    redis::SET,
    redis::GET,
    postgresql::COPY,
    postgresql::OBJECTS,
    mariadb::BLOBS,
    mongodb::DOCUMENTS,
    mosquitto::MESSAGES,
    python::SERVER,
    python::RELAY,
    passing::PLAIN,
    passing::SHORT,
    passing::ENCRYPTED,
];

/// Cases that are also measured with both ends, and what is behind the server, on one host under the same side.
pub const PAIRS: &[Case] = &[
    nginx::PROXIED,
    haproxy::CASE,
    mosquitto::MESSAGES,
    redis::NEAR,
    postgresql::NEAR,
    own::CACHED,
    own::FILES,
];

/// Cases that are also measured with what is behind the server under the same side, and plain clients.
pub const BEHIND: &[Case] = &[nginx::OUTSIDE];

/// One application with one kind of load, measured at one or more points.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name on the command line, and the name of its profile's file.
    pub name: &'static str,
    /// What is started and how it is loaded, in one line.
    pub about: &'static str,
    /// What the papers measured with it and what they found, or that they did not.
    pub paper: &'static str,
    /// The programs it needs, the measured server first; none where that is this program itself.
    pub needs: &'static [Need],
    /// What is measured. There is at least one; the last is what `--profile` runs.
    pub points: fn(Effort) -> Vec<Point>,
    /// What the reader of the figures must know, below the table; nothing where there is nothing.
    pub remark: &'static str,
    /// How it is measured.
    pub by: By,
}

/// How a case is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Servers of all sides are alive and loaded by slices in turn.
    Slices,
    /// Each measurement has a server of its own: its load does not end between two slices.
    Runs,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// `--quick`: few points.
    Quick,
    /// All of them.
    Full,
}

impl Effort {
    /// A point for each of those that are measured.
    pub fn points<T: Copy>(self, quick: &[T], full: &[T], point: impl FnMut(T) -> Point) -> Vec<Point> {
        let measured = match self {
            Self::Quick => quick,
            Self::Full => full,
        };
        measured.iter().copied().map(point).collect()
    }
}

/// One line of a table: a server's configuration, and a load.
#[derive(Debug)]
pub struct Point {
    /// What it is called in tables, such as "nginx 64 KiB".
    pub title: String,
    /// Bytes of bodies or values in one operation.
    pub operation_bytes: u64,
    /// Parameters for JSON and plots.
    pub parameters: Vec<(&'static str, f64)>,
    /// Whether uncopy should elide something, so that the reader is told if it did not.
    pub elision_expected: bool,
    /// How it is done.
    pub work: Box<dyn Work>,
}

impl Point {
    /// A point without parameters, where elision is not expected.
    pub fn new(title: impl Into<String>, operation_bytes: u64, work: impl Work + 'static) -> Self {
        let work = Box::new(work);
        Self { title: title.into(), operation_bytes, parameters: Vec::new(), elision_expected: false, work }
    }

    /// The same for operations of one body or value each, whose length is a parameter.
    #[expect(clippy::cast_precision_loss, reason = "lengths of bodies and values")]
    pub fn sized(title: impl Into<String>, size_bytes: usize, work: impl Work + 'static) -> Self {
        Self::new(title, size_bytes as u64, work).with("size_bytes", size_bytes as f64)
    }

    /// No samples yet of it.
    #[must_use]
    pub fn comparison(&self, sides: &[Side]) -> Comparison {
        let empty = Comparison::new(&self.title, self.operation_bytes, sides);
        self.parameters.iter().fold(empty, |comparison, (name, value)| comparison.with(name, *value))
    }

    /// The same with a parameter.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.parameters.push((name, value));
        self
    }
}

/// How a point's server is started.
pub trait Work: std::fmt::Debug {
    /// Starts the server under what `stage` says, and what it needs besides, plain; returns when it answers.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when something cannot be started or does not answer in time.
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_that_are_file_names_and_points_at_every_effort() {
        for (at, case) in CASES.iter().chain(&PAIRS[3..]).chain(BEHIND).enumerate() {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(!case.name.is_empty() && case.name.chars().all(plain), "{}", case.name);
            assert!(CASES.iter().take(at).all(|other| other.name != case.name), "{}", case.name);
            assert!(!case.about.is_empty() && !case.paper.is_empty());
            for effort in [Effort::Quick, Effort::Full] {
                let points = (case.points)(effort);
                assert!(!points.is_empty(), "{}", case.name);
                let titles: std::collections::HashSet<_> = points.iter().map(|point| &point.title).collect();
                assert_eq!(titles.len(), points.len(), "{}: titles differ", case.name);
            }
        }
    }
}
