//! Packaged applications, as users install them: each is started plain and under uncopy in turns, loaded, and every
//! body that is counted is compared with the expected one.
//!
//! ```text
//!   mod       definition of a case, the registry of all cases
//!   environment    starts servers and helpers under a side, on processors of their own
//!   programs       the packaged programs and their versions
//!   http           a client that verifies documents
//!   origin         `uncopy-files` behind proxies and caches
//!   loaded_server  a server with its clients
//!   source         a live stream at a fixed rate
//!   listeners      clients that verify the live stream
//!   uncopy_files   `uncopy-files` as the measured server
//!   pair           a case whose clients are in the same process tree, under the same side
//!   forwarding     a case that forwards messages between two connections
//!   nginx, apache, haproxy, varnish, icecast, relay, ...
//!                  the cases
//! ```
//!
//! To add a case: a module with a `pub const CASE: Case`, and its line in [`CASES`].
//!
//! Invariants: a case starts processes only through [`Environment`]; its load counts only verified operations, or the
//! case verifies a sample itself ([`RunningServer::verify`]); its server listens on
//! [`crate::kit::network::server_address`] only.

use crate::kit::{Comparison, Result, RunningServer, Side};

mod apache;
mod echo;
pub mod environment;
mod forwarding;
mod haproxy;
pub mod http;
pub mod icecast;
mod lighttpd;
mod listeners;
pub mod loaded_server;
mod mariadb;
pub mod memcached;
mod mosquitto;
pub mod nginx;
pub mod origin;
pub mod pair;
mod postgresql;
pub mod programs;
pub mod python;
pub mod redis;
pub mod relay;
mod source;
mod squid;
mod uncopy_files;
mod varnish;

use environment::Environment;
use uncopy_testbed::Package;

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
    mosquitto::MESSAGES,
    python::SERVER,
    python::PROXY,
    forwarding::PLAIN,
    forwarding::SHORT,
    forwarding::ENCRYPTED,
];

/// Cases also measured with clients, server and the server's backends on one host under the same side.
pub const SAME_SIDE_CASES: &[Case] = &[
    nginx::PROXIED,
    haproxy::CASE,
    mosquitto::MESSAGES,
    redis::LOCAL,
    postgresql::LOCAL,
    uncopy_files::FILES,
];

/// Cases also measured with the server's backends under the same side, and plain clients.
pub const BACKEND_CASES: &[Case] = &[nginx::OUTSIDE_CLIENTS];

/// One application with one kind of load, measured at one or more points.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name of the case on the command line, and of its profile's file.
    pub name: &'static str,
    /// Server and load, in one line.
    pub description: &'static str,
    /// The papers' measurement with this application and its result, or that there is none.
    pub paper: &'static str,
    /// Packages of the case, the measured server first; none if the server is this program itself.
    pub packages: &'static [Package],
    /// Returns the points to measure, at least one; `--profile` runs the last.
    pub points: fn(Effort) -> Vec<Point>,
    /// Remark below the table, needed to read its figures; empty if there is none.
    pub remark: &'static str,
    /// Scheme by which the case is measured.
    pub scheme: Scheme,
}

/// Scheme by which a case is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Servers of all sides run at the same time and are loaded in turns, a slice each.
    Slices,
    /// Each measurement starts a server: the load does not end between two slices.
    Runs,
}

/// Number of points to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Few points, for `--quick`.
    Quick,
    /// All points of the case.
    Full,
}

impl Effort {
    /// Returns a point for each value of `quick` or of `full`.
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
    /// Name of the point in tables, such as "nginx 64 KiB".
    pub title: String,
    /// Bytes of bodies or values in one operation.
    pub operation_bytes: u64,
    /// Parameters for JSON and plots.
    pub parameters: Vec<(&'static str, f64)>,
    /// Whether uncopy should elide copies; a run that elides none is reported then.
    pub elision_expected: bool,
    /// Server and load of the point.
    pub work: Box<dyn AppServer>,
}

impl Point {
    /// Makes a point without parameters, where no elision is expected.
    pub fn new(title: impl Into<String>, operation_bytes: u64, work: impl AppServer + 'static) -> Self {
        let work = Box::new(work);
        Self { title: title.into(), operation_bytes, parameters: Vec::new(), elision_expected: false, work }
    }

    /// Makes a point whose operations have one body or value each, with the length as parameter.
    #[expect(clippy::cast_precision_loss, reason = "lengths of bodies and values")]
    pub fn sized(title: impl Into<String>, size_bytes: usize, work: impl AppServer + 'static) -> Self {
        Self::new(title, size_bytes as u64, work).with_parameter("size_bytes", size_bytes as f64)
    }

    /// Returns a comparison of `sides` without samples.
    #[must_use]
    pub fn comparison(&self, sides: &[Side]) -> Comparison {
        let empty = Comparison::new(&self.title, self.operation_bytes, sides);
        self.parameters
            .iter()
            .fold(empty, |comparison, (name, value)| comparison.with_parameter(name, *value))
    }

    /// Adds a parameter to the point.
    #[must_use]
    pub fn with_parameter(mut self, name: &'static str, value: f64) -> Self {
        self.parameters.push((name, value));
        self
    }
}

/// Starts a point's server.
pub trait AppServer: std::fmt::Debug {
    /// Starts the server under the environment's side, and its helpers plain; returns when the server answers.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when a process cannot be started or does not answer in time.
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_that_are_file_names_and_points_at_every_effort() {
        for (at, case) in CASES.iter().chain(&SAME_SIDE_CASES[3..]).chain(BACKEND_CASES).enumerate() {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(!case.name.is_empty() && case.name.chars().all(plain), "{}", case.name);
            assert!(CASES.iter().take(at).all(|other| other.name != case.name), "{}", case.name);
            assert!(!case.description.is_empty() && !case.paper.is_empty());
            for effort in [Effort::Quick, Effort::Full] {
                let points = (case.points)(effort);
                assert!(!points.is_empty(), "{}", case.name);
                let titles: std::collections::HashSet<_> = points.iter().map(|point| &point.title).collect();
                assert_eq!(titles.len(), points.len(), "{}: titles differ", case.name);
            }
        }
    }
}
