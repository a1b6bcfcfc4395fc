//! The web server of Python's library.

use super::*;

/// The Python interpreter: the distribution's first, because another may be a wrapper script.
pub const PYTHON: Package =
    Package { program: "python3", package: "python3", version: &["--version"], directories: &["/usr/bin"] };

/// Script that runs the module and ends with status 0 on a signal.
const SCRIPT: &str = "import runpy, signal, sys\n\
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n\
    runpy.run_module('http.server', run_name='__main__')\n";

/// `python3 -m http.server`, which serves the server's directory.
#[derive(Clone, Copy, Debug)]
pub struct HttpServer;

impl Service for HttpServer {
    const PROGRAM: Package = PYTHON;

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let arguments = ["-c", SCRIPT, "--bind", &ip, "--directory"].map(OsString::from);
        Ok(arguments.into_iter().chain([directory.into(), port.into()]).collect())
    }
}
