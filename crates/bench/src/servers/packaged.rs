//! Packaged servers that need no more than a free port and a directory: memcached and nginx, started
//! for one measurement, reachable from this machine only.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::kit::network::{self, server_address};
use crate::kit::processes::process::TIMEOUT;
use crate::kit::{Failure, Launcher, Result, Server, Side, TemporaryDirectory, While, processors};
use crate::servers::redis::on_path;

/// How often a port is tried that another program may take in between.
const PORT_ATTEMPTS: usize = 3;

/// A program that a package brings.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Name of the program and of its package.
    pub name: &'static str,
    /// The arguments of a server on a port that keeps its files in a directory, in one process.
    pub arguments: fn(u16, &Path) -> Result<Vec<OsString>>,
}

impl Package {
    /// The program on `PATH` or where packages put servers.
    ///
    /// # Errors
    /// [`Failure`] that says how to install it when it is missing.
    pub fn find(&self) -> Result<PathBuf> {
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/sbin");
        on_path(&path, self.name).ok_or_else(|| {
            let name = self.name;
            Failure::new(format!("{name} is not installed; install it with: apt-get install {name}"))
        })
    }

    /// Starts `program` under `side` and waits until it accepts connections.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started or does not accept in time.
    pub fn start(&self, launcher: &Launcher, side: Side, program: &Path) -> Result<(Server, SocketAddr)> {
        let mut outcome = Err(Failure::new("it was not started"));
        for _ in 0..PORT_ATTEMPTS {
            outcome = self.start_once(launcher, side, program);
            match &outcome {
                Err(failure) if failure.to_string().contains("ddress already in use") => {}
                _ => break,
            }
        }
        outcome
    }

    fn start_once(&self, launcher: &Launcher, side: Side, program: &Path) -> Result<(Server, SocketAddr)> {
        let directory = TemporaryDirectory::make()?;
        let address = network::free_address()?;
        let arguments = (self.arguments)(address.port(), directory.path())?;
        let mut command = launcher.command(side, program.as_os_str(), &arguments);
        processors::bind(&mut command, processors::of_server(processors::ONE_THREAD));
        let mut server = Server::start(command, self.name, directory)?;
        let deadline = Instant::now() + TIMEOUT;
        while TcpStream::connect_timeout(&address, TIMEOUT).is_err() {
            if server.process().wait(Duration::from_millis(5))?.is_some() {
                let stderr = server.stderr_text();
                let said = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
                let failure = Failure::new(format!("{} did not listen; stderr: {said}", self.name));
                return Err(server.process().explain(&failure));
            }
            if Instant::now() > deadline {
                let seconds = TIMEOUT.as_secs();
                return Err(Failure::new(format!("{} did not listen within {seconds} s", self.name)));
            }
        }
        Ok((server, address))
    }
}

/// memcached with one thread for connections.
pub const MEMCACHED: Package = Package { name: "memcached", arguments: memcached_arguments };

fn memcached_arguments(port: u16, _directory: &Path) -> Result<Vec<OsString>> {
    let (address, port) = (server_address().to_string(), port.to_string());
    // -u is for root, who may not run it otherwise; anybody else's is ignored.
    let words = ["-l", &address, "-p", &port, "-U", "0", "-t", "1", "-m", "64", "-u", "root"];
    Ok(words.into_iter().map(Into::into).collect())
}

/// Name of the file that nginx serves.
pub const PAGE_NAME: &str = "page";

/// nginx as a single process that serves the directory `pages`.
pub const NGINX: Package = Package { name: "nginx", arguments: nginx_arguments };

fn nginx_arguments(port: u16, directory: &Path) -> Result<Vec<OsString>> {
    let (path, address) = (directory.display(), server_address());
    // Quoted words may hold anything but these.
    if path.to_string().contains(['"', '\\', '$']) {
        return Err(Failure::new(format!(
            "{path} has characters that nginx cannot take; set TMPDIR to another directory"
        )));
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path \"{path}/{kind}\";\n"))
        .collect();
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid \"{path}/pid\";\nerror_log stderr warn;\n\
         events {{ worker_connections 64; }}\n\
         http {{\naccess_log off;\nkeepalive_requests 1000000000;\n{temporary}\
         server {{\nlisten {address}:{port};\nroot \"{path}\";\nlocation / {{ }}\n}}\n}}\n"
    );
    let file = directory.join("nginx.conf");
    std::fs::write(&file, configuration).doing("writing nginx.conf")?;
    Ok(vec!["-p".into(), directory.into(), "-c".into(), file.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_named_with_how_to_install_it() {
        let package = Package { name: "no-such-server", arguments: memcached_arguments };
        let failure = package.find().expect_err("missing").to_string();
        assert!(failure.contains("apt-get install no-such-server"), "{failure}");
    }

    #[test]
    fn a_server_that_ends_at_once_is_explained() {
        let launcher = Launcher::of("/nonexistent/uncopy");
        let failure = MEMCACHED.start(&launcher, Side::Plain, Path::new("/bin/false"));
        let failure = failure.expect_err("no server").to_string();
        assert!(failure.contains("did not listen") && failure.contains("exit status 1"), "{failure}");
    }

    #[test]
    fn nginx_gets_a_configuration_in_its_directory_only() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let arguments = nginx_arguments(7000, directory.path()).expect("a plain path");
        let text = std::fs::read_to_string(&arguments[3]).expect("the configuration");
        assert!(
            text.contains(&format!("listen {}:7000;", server_address())) && !text.contains("/var/"),
            "{text}"
        );
        assert!(nginx_arguments(7000, Path::new("/tmp/a\"b")).is_err());
    }
}
