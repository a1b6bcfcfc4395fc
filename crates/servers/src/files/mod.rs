//! `uncopy-files`: an HTTP/1.1 server of static files that sends each of them by one of several ways, from
//! read and send to memory that is passed to the kernel by reference; an example of what the twin
//! allocator is for, and the subject of `uncopy bench files`.
//!
//! ```text
//!   arguments                     the command line
//!   server, worker, connection    threads, epoll, one connection's course
//!   request, target, ranges, validators
//!                                 what a client asks for; no system call
//!   root                          where the file is, found by the kernel below the root
//!   answer, transmission          what is sent, step by step
//!   ways, cache, memory           how: the eight ways, files in twin memory
//!   os, clock, status, content_type
//! ```
//!
//! Not for: anything that changes files, HTTPS, HTTP/2, directory listings, compression.

mod answer;
mod arguments;
mod cache;
mod clock;
mod connection;
mod content_type;
mod memory;
mod os;
mod ranges;
mod request;
mod root;
mod server;
mod status;
mod target;
mod transmission;
mod validators;
mod ways;
mod worker;

use std::io::Write;

pub use arguments::Arguments;

use answer::Site;
use cache::Cache;
use connection::Timeouts;
use root::Root;
use server::{Server, Settings};
use ways::Way;

impl crate::Program for Arguments {
    const NAME: &'static str = "uncopy-files";

    fn wants_manual(&self) -> bool {
        self.man
    }

    fn manual() -> std::io::Result<Vec<u8>> {
        arguments::manual()
    }

    fn run(self) -> Result<(), String> {
        let root = Root::open(&self.directory, self.index.clone(), self.hidden)
            .map_err(|error| format!("cannot serve {}: {error}", self.directory.display()))?;
        if self.way == Way::Twin {
            crate::transmit::prepare(self.reference_from);
            uncopy_twin::probe();
        }
        let site = Site { root, way: self.way, cache: Cache::new(self.cache << 20) };
        let server = Server::listen(site, self.settings())
            .map_err(|error| format!("cannot listen on {}: {error}", self.listen))?;
        if let Some(asked) = self.connections.filter(|asked| server.connections() < *asked) {
            let most = server.connections();
            eprintln!(
                "uncopy-files: at most {most} connections, not {asked}: raise the limit of descriptors (ulimit -n)"
            );
        }
        let mut stdout = std::io::stdout();
        // Nobody need read this.
        let _ = writeln!(stdout, "uncopy-files: listening on http://{}/", server.address)
            .and_then(|()| stdout.flush());
        let tally = server.run().map_err(|failure| failure.to_string())?;
        if self.stats {
            eprintln!("{}", server.statistics(&tally));
        }
        Ok(())
    }
}

impl Arguments {
    /// How the server is to work.
    fn settings(&self) -> Settings {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Settings {
            listen: self.listen,
            threads: self.threads.unwrap_or(processors),
            connections: self.connections.unwrap_or(arguments::CONNECTIONS),
            timeouts: Timeouts {
                head_ms: self.head_timeout * 1000,
                idle_ms: self.idle_timeout * 1000,
                send_ms: self.send_timeout * 1000,
            },
            grace_ms: self.grace * 1000,
            buffer_bytes: self.buffer << 10,
        }
    }
}
