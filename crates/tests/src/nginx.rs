//! The packaged nginx with a configuration of the test's: one that is tested, or the backend of
//! another server.

use std::path::PathBuf;

use uncopy_core::stats::Counter;

use crate::artifacts::packaged;
use crate::launch::{Mode, Program};
use crate::running::{Finished, Running};
use crate::scratch::{Scratch, connect, free_port};

/// A running nginx: a master and two workers.
#[derive(Debug)]
pub struct Nginx {
    server: Running,
    port: u16,
    home: PathBuf,
}

impl Nginx {
    /// Starts it with `locations` in its one server; its files are in a directory `name`.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[must_use]
    pub fn start(mode: Mode, scratch: &Scratch, name: &str, locations: &str) -> Self {
        let port = free_port();
        let home = scratch.directory(name);
        let path = home.to_str().expect("UTF-8");
        // SAFETY: geteuid has no preconditions.
        let user = if unsafe { libc::geteuid() } == 0 { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("  {kind}_temp_path {path}/{kind};\n"))
            .collect();
        let configuration = format!(
            "{user}\nworker_processes 2;\ndaemon off;\nmaster_process on;\npid {path}/pid;\n\
             error_log {path}/error.log warn;\nevents {{ worker_connections 64; }}\n\
             http {{\n  access_log off;\n{temporary}  client_max_body_size 0;\n\
             server {{\n    listen 127.0.0.1:{port};\n{locations}  }}\n}}\n"
        );
        let file = scratch.write(&format!("{name}.conf"), configuration);
        let server = Program::new(packaged("/usr/sbin/nginx", "nginx"))
            .args(["-p", path, "-c", file.to_str().expect("UTF-8")])
            .mode(mode)
            .start(scratch, &format!("{name}-nginx"));
        drop(connect(port));
        Self { server, port, home }
    }

    /// Its port on the loopback address.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Where `path` is asked for.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Stops it. No worker may have died, and `expected` must be above zero where elision is forced.
    ///
    /// # Panics
    /// When something of that is not so.
    pub fn stop(self, expected: &[Counter]) -> Finished {
        let done = self.server.stop(libc::SIGQUIT).expect_success();
        let log = std::fs::read_to_string(self.home.join("error.log")).unwrap_or_default();
        assert!(!log.contains("exited on signal") && !log.contains("[alert]"), "{log}");
        done.expect_counters(expected)
    }
}
