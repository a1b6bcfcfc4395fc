//! MariaDB.

use super::*;

/// Size of the log that InnoDB creates at start.
const LOG: &str = "--innodb-log-file-size=64M";

/// MariaDB with a database made by [`Mariadb::INSTALL`].
#[derive(Clone, Copy, Debug)]
pub struct Mariadb<'a> {
    /// Further options on the command line.
    pub options: &'a [&'a str],
}

impl Mariadb<'_> {
    /// The program that makes an empty database.
    pub const INSTALL: Package = Package::new("mariadb-install-db", "mariadb-server-core", &[]);

    /// Returns the arguments of [`Mariadb::INSTALL`] for a database in `directory`.
    #[must_use]
    pub fn install_arguments(directory: &Path) -> Vec<OsString> {
        let arguments =
            ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--user=root"];
        let paths = [option("--datadir=", &directory.join("data")), option("--tmpdir=", directory)];
        arguments.into_iter().chain([LOG]).map(OsString::from).chain(paths).collect()
    }
}

impl Service for Mariadb<'_> {
    const PROGRAM: Package = Package::new("mariadbd", "mariadb-server-core", &["--version"]);
    const CRASH_MESSAGES: &'static [&'static str] = &["[ERROR]", "got signal"];

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let arguments = ["--no-defaults", "--user=root", "--max-allowed-packet=128M", LOG];
        let arguments = arguments.iter().chain(&["--innodb-flush-log-at-trx-commit=0"]).chain(self.options);
        let own = [
            format!("--bind-address={}", address.ip()).into(),
            format!("--port={}", address.port()).into(),
            option("--datadir=", &directory.join("data")),
            option("--tmpdir=", directory),
            option("--socket=", &directory.join("s")),
            option("--pid-file=", &directory.join("pid")),
        ];
        Ok(arguments.map(OsString::from).chain(own).collect())
    }
}
