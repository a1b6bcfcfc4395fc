//! nginx.

use super::*;

/// nginx with one server, whose errors go to stderr.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nginx<'a> {
    /// Number of worker processes below a master; `None` for a single process without a master.
    pub workers: Option<u8>,
    /// Directives of the `http` block, outside the server.
    pub http: &'a str,
    /// Parameters of the server's `listen`.
    pub listen: &'a str,
    /// Directives of the `server` block.
    pub server: &'a str,
}

impl Nginx<'_> {
    /// Returns a path as a quoted word of the configuration.
    ///
    /// # Errors
    /// [`Failure`] when the path has a character that cannot be quoted.
    pub fn quoted(path: &Path) -> Result<String> {
        let path = path.display().to_string();
        // Quoted words may hold any other character.
        if path.contains(['"', '\\', '$']) {
            return Err(Failure::new(format!(
                "{path} has characters that nginx cannot take; set TMPDIR to another directory"
            )));
        }
        Ok(format!("\"{path}\""))
    }
}

impl Service for Nginx<'_> {
    const PROGRAM: Package = Package::new("nginx", "nginx", &["-v"]);
    const STOP: Signal = Signal::QUIT;
    const CRASH_MESSAGES: &'static [&'static str] = &["exited on signal", "[alert]"];

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let file = |name: &str| Self::quoted(&directory.join(name));
        let mut temporary = String::new();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            temporary += &format!("{kind}_temp_path {};\n", file(kind)?);
        }
        let processes = match self.workers {
            None => "master_process off;\n".to_owned(),
            // By default, workers of a master run by root change to another user.
            Some(workers) if rustix::process::geteuid().is_root() => {
                format!("user root;\nworker_processes {workers};\n")
            }
            Some(workers) => format!("worker_processes {workers};\n"),
        };
        let Self { http, listen, server, .. } = self;
        let configuration = format!(
            "daemon off;\n{processes}pid {};\nerror_log stderr warn;\nevents {{ worker_connections 128; }}\n\
             http {{\naccess_log off;\n{temporary}{http}server {{\nlisten {address} {listen};\n{server}}}\n}}\n",
            file("pid")?
        );
        let file = write(directory, "nginx.conf", &configuration)?;
        Ok(vec!["-p".into(), directory.into(), "-c".into(), file.into()])
    }
}
