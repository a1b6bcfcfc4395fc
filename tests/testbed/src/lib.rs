//! Packaged servers for experiments and tests: what each needs to be started, loaded and stopped.
//!
//! ```text
//!   servers     one module for each server: its program, its configuration, when it is ready, the signal that ends it
//!   clients     of Redis, memcached and HTTP, and what clients of other protocols are made of
//!   package     packaged programs: where they are
//!   nobody      programs that refuse to be run by root
//!   processes   child processes and their directories: none outlives its owner, and every wait is bounded
//!   network     free ports, listeners, connections
//!   random      bytes that follow from a seed
//!   failure     why something could not be done
//! ```
//!
//! A server's module does not depend on its user: [`servers::Service::arguments`] writes the configuration and
//! returns the arguments. The user makes a [`std::process::Command`] of program and arguments (plain, under
//! `uncopy run`, on certain processors, in a network namespace), starts it, and waits for
//! [`servers::Service::is_ready`]. Measurements and load are the experiments' concern.

pub mod clients;
pub mod failure;
pub mod network;
pub mod nobody;
pub mod package;
pub mod processes;
pub mod random;
pub mod servers;

pub use failure::{Failure, Result, While};
pub use package::Package;
pub use processes::cleanup::TemporaryDirectory;
pub use processes::process::{Process, Server};
pub use random::Random;
