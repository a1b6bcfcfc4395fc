//! Apache: static files with and without sendfile, and as a proxy.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use uncopy_testbed::Package;
use uncopy_testbed::nobody::SETPRIV;

use super::environment::{Stage, Unprivileged};
use super::http::Document;
use super::loaded_server::Serving;
use super::origin::Origin;
use super::{By, Case, Point, Work};
use crate::kit::{Result, Running, While, size};

const APACHE: Package = Package::new("apache2", "apache2-bin", &["-v"]);
/// Packages of each case: Apache does not serve as root.
const NEEDS: &[Package] = &[APACHE, SETPRIV];
/// Debian's directory of Apache's modules, and the modules that every configuration loads.
const MODULES: &str = "/usr/lib/apache2/modules";
const ALWAYS: [&str; 2] = ["mpm_event", "authz_core"];
/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different bodies of one length.
const DOCUMENTS: usize = 8;

/// Files, read and sent by Apache or sent by the kernel.
pub const STATIC: Case = Case {
    name: "apache-static",
    about: "Apache, one process, static files of 1 MiB, EnableSendfile on and off, 8 connections",
    paper: "not in the papers",
    needs: NEEDS,
    points: |effort| {
        effort.points(&[false], &[true, false], |sendfile| {
            let state = if sendfile { "On" } else { "Off" };
            let work =
                Site { documents: Document::several(DOCUMENTS, 1 << 20), origin: false, sendfile: state };
            let title = format!("apache 1 MiB, sendfile {}", state.to_lowercase());
            Point::sized(title, 1 << 20, work).with("sendfile", f64::from(u8::from(sendfile)))
        })
    },
    remark: "without sendfile it reads 256 KiB at a time (EnableMMAP Off, ReadBufferSize 262144; its default is 8192) and \
             sends them from the same buffer: no copy is made inside the program",
    by: By::Slices,
};

/// Documents of an origin, passed on by Apache as a reverse proxy.
pub const PROXIED: Case = Case {
    name: "apache-proxied",
    about: "Apache, one process, mod_proxy_http in front of uncopy-files, bodies of 64 KiB and 1 MiB, 8 connections",
    paper: "not in the papers",
    needs: NEEDS,
    points: |effort| {
        effort.points(&[1 << 20], &[65_536, 1 << 20], |size_bytes| {
            let work =
                Site { documents: Document::several(DOCUMENTS, size_bytes), origin: true, sendfile: "Off" };
            Point::sized(format!("apache proxied {}", size(size_bytes as u64)), size_bytes, work)
        })
    },
    remark: "it receives 8,000 bytes at a time, whatever ProxyIOBufferSize (65536, its largest) and ReadBufferSize say, and \
             sends eight of these by one writev: nothing is as large as what uncopy elides, and no copy is made",
    by: By::Slices,
};

#[derive(Debug)]
struct Site {
    documents: Vec<Document>,
    /// Whether Apache is a proxy before an origin that has the documents.
    origin: bool,
    sendfile: &'static str,
}

impl Work for Site {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let origin = self.origin.then(|| Origin::start(stage, &self.documents)).transpose()?;
        let user = Unprivileged::of(stage)?;
        let (server, address) = user.server(APACHE.program, Duration::ZERO, |address, directory| {
            let mut modules = ALWAYS.to_vec();
            let content = if let Some(origin) = &origin {
                modules.extend(["proxy", "proxy_http"]);
                format!("ProxyIOBufferSize 65536\nProxyPass / http://{}/\n", origin.address)
            } else {
                self.documents.iter().try_for_each(|document| document.write(directory))?;
                let root = directory.display();
                format!(
                    "DocumentRoot \"{root}\"\nEnableMMAP Off\nEnableSendfile {}\nReadBufferSize 262144\n",
                    self.sendfile
                )
            };
            configure(address, directory, &modules, &content)
        })?;
        let serving = Serving::new(stage, APACHE.program, server, address, &self.documents, CONNECTIONS)?;
        // Apache at SIGTERM shuts down while its threads still work, and sometimes crashes, also without uncopy.
        let serving = serving.ended_by(Signal::WINCH);
        Ok(Box::new(user.running(match origin {
            Some(origin) => serving.before(origin),
            None => serving,
        })))
    }
}

/// Writes the configuration of one serving process, with all files in `directory`; returns the arguments.
fn configure(
    address: SocketAddr,
    directory: &Path,
    modules: &[&str],
    content: &str,
) -> Result<Vec<OsString>> {
    let home = directory.display();
    let load = |module: &&str| format!("LoadModule {module}_module {MODULES}/mod_{module}.so\n");
    let configuration = format!(
        "{}ServerRoot \"{home}\"\nDefaultRuntimeDir \"{home}\"\nPidFile \"{home}/pid\"\nErrorLog \"{home}/error.log\"\n\
         ServerName localhost\nListen {address}\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\n\
         StartServers 1\nServerLimit 1\nMaxRequestWorkers 25\nMaxSpareThreads 25\n{content}",
        modules.iter().map(load).collect::<String>()
    );
    let file = directory.join("apache2.conf");
    std::fs::write(&file, configuration).doing("writing apache2.conf")?;
    Ok(vec!["-D".into(), "FOREGROUND".into(), "-f".into(), file.into()])
}
