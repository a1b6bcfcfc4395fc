//! PostgreSQL.

use super::*;

/// PostgreSQL with a database made by [`Postgresql::INSTALL`]. The server refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub struct Postgresql {
    /// Memory for pages of the database, MiB.
    pub shared_mib: u16,
    /// Whether the server also listens at a UNIX socket in its directory.
    pub by_unix: bool,
}

const fn package(program: &'static str, version: &'static [&'static str]) -> Package {
    // Directories of the programs of each version in Debian, the latest first.
    const DIRECTORIES: &[&str] = &[
        "/usr/lib/postgresql/18/bin",
        "/usr/lib/postgresql/17/bin",
        "/usr/lib/postgresql/16/bin",
        "/usr/lib/postgresql/15/bin",
        "/usr/lib/postgresql/14/bin",
        "/usr/lib/postgresql/13/bin",
    ];
    Package { program, package: "postgresql", version, directories: DIRECTORIES }
}

impl Postgresql {
    /// The database's superuser.
    pub const USER: &'static str = "tester";
    /// The program that makes an empty database.
    pub const INSTALL: Package = package("initdb", &[]);
    /// The client that runs statements of a file.
    pub const CLIENT: Package = package("psql", &[]);

    /// Returns the arguments of [`Postgresql::INSTALL`] for a database in `directory`.
    #[must_use]
    pub fn install_arguments(directory: &Path) -> Vec<OsString> {
        let arguments = ["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust", "--no-instructions"];
        let own = [format!("--username={}", Self::USER).into(), "-D".into(), directory.join("data").into()];
        arguments.into_iter().map(OsString::from).chain(own).collect()
    }
}

impl Service for Postgresql {
    const PROGRAM: Package = package("postgres", &["--version"]);
    const STOP: Signal = Signal::INT;
    const CRASH_MESSAGES: &'static [&'static str] = &["PANIC", "terminated by signal"];

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let mut arguments: Vec<OsString> = vec!["-D".into(), directory.join("data").into()];
        // Without `by_unix` there is no socket file, because its path might be too long.
        let sockets = if self.by_unix { directory.as_os_str().to_owned() } else { OsString::new() };
        arguments.extend(["-k".into(), sockets, "-h".into(), ip.into(), "-p".into(), port.into()]);
        // Shared memory is kept in the server's directory, not in /dev/shm, so that an interrupt
        // leaves nothing behind.
        let memory = "dynamic_shared_memory_type=mmap";
        let buffers = format!("shared_buffers={}MB", self.shared_mib);
        for setting in ["fsync=off", &buffers, "max_wal_size=256MB", "autovacuum=off", memory] {
            arguments.extend(["-c".into(), setting.into()]);
        }
        Ok(arguments)
    }
}
