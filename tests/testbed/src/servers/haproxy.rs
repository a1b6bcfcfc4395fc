//! HAProxy.

use super::*;

/// HAProxy in mode http.
#[derive(Clone, Copy, Debug)]
pub struct Haproxy<'a> {
    /// Number of worker threads.
    pub threads: u8,
    /// Size of a buffer, bytes.
    pub buffer_bytes: usize,
    /// More lines of the section `global`.
    pub global: &'a str,
    /// Lines of the proxy section, including the server behind it.
    pub proxy: &'a str,
    /// More sections of the configuration.
    pub sections: &'a str,
}

impl Service for Haproxy<'_> {
    const PROGRAM: Package = Package::new("haproxy", "haproxy", &["-v"]);
    const STOP: Signal = Signal::USR1;

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let Self { threads, buffer_bytes, global, proxy, sections } = self;
        let configuration = format!(
            "global\n  nbthread {threads}\n  tune.bufsize {buffer_bytes}\n{global}\
             defaults\n  mode http\n  timeout connect 20s\n  timeout client 30s\n  timeout server 30s\n\
             listen proxy\n  bind {address}\n{proxy}{sections}"
        );
        let file = write(directory, "haproxy.cfg", &configuration)?;
        Ok(vec!["-db".into(), "-f".into(), file.into()])
    }
}
