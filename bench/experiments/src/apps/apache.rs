//! Apache: static files with and without sendfile, and as a proxy.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use uncopy_testbed::Package;
use uncopy_testbed::nobody::SETPRIV;

use super::environment::{Environment, Unprivileged};
use super::http::Document;
use super::loaded_server::LoadedServer;
use super::origin::Origin;
use super::{AppServer, Case, Point, Scheme};
use crate::kit::{Result, RunningServer, While, format_size};

const APACHE: Package = Package::new("apache2", "apache2-bin", &["-v"]);
/// Packages of each case: Apache does not serve as root.
const PACKAGES: &[Package] = &[APACHE, SETPRIV];
/// Debian's directory of Apache's modules, and the modules that every configuration loads.
const MODULES: &str = "/usr/lib/apache2/modules";
const BASE_MODULES: [&str; 2] = ["mpm_event", "authz_core"];
/// Connections with a request in flight.
const CONNECTIONS: usize = 8;
/// Number of different bodies of one length.
const DOCUMENTS: usize = 8;

/// Files, read and sent by Apache or sent by the kernel.
pub const STATIC: Case = Case {
    name: "apache-static",
    description: "Apache, one process, static files of 1 MiB, EnableSendfile on and off, 8 connections",
    paper: "not in the papers",
    packages: PACKAGES,
    points: |effort| {
        effort.points(&[false], &[true, false], |sendfile| {
            let state = if sendfile { "On" } else { "Off" };
            let work = Apache {
                documents: Document::random_set(DOCUMENTS, 1 << 20),
                is_proxy: false,
                sendfile: state,
            };
            let title = format!("apache 1 MiB, sendfile {}", state.to_lowercase());
            Point::sized(title, 1 << 20, work).with_parameter("sendfile", f64::from(u8::from(sendfile)))
        })
    },
    remark: "without sendfile, Apache reads 256 KiB at a time (EnableMMAP Off, ReadBufferSize 262144; the \
             default is 8192) and sends from the same buffer, so the program makes no copy",
    scheme: Scheme::Slices,
};

/// Documents of an origin, passed on by Apache as a reverse proxy.
pub const PROXIED: Case = Case {
    name: "apache-proxied",
    description: "Apache, one process, mod_proxy_http in front of uncopy-files, bodies of 64 KiB and 1 MiB, 8 \
                  connections",
    paper: "not in the papers",
    packages: PACKAGES,
    points: |effort| {
        effort.points(&[1 << 20], &[65_536, 1 << 20], |size_bytes| {
            let work = Apache {
                documents: Document::random_set(DOCUMENTS, size_bytes),
                is_proxy: true,
                sendfile: "Off",
            };
            Point::sized(format!("apache proxied {}", format_size(size_bytes as u64)), size_bytes, work)
        })
    },
    remark: "Apache receives 8,000 bytes at a time, whatever ProxyIOBufferSize (65536, the maximum) and \
             ReadBufferSize are, and sends eight of these parts by one writev: the parts are smaller than what \
             uncopy elides, and the program makes no copy",
    scheme: Scheme::Slices,
};

#[derive(Debug)]
struct Apache {
    documents: Vec<Document>,
    /// Whether Apache is a proxy before an origin that has the documents.
    is_proxy: bool,
    sendfile: &'static str,
}

impl AppServer for Apache {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let origin = self.is_proxy.then(|| Origin::start(environment, &self.documents)).transpose()?;
        let user = Unprivileged::new(environment)?;
        let (server, address) = user.start_server(APACHE.program, Duration::ZERO, |address, directory| {
            let mut modules = BASE_MODULES.to_vec();
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
        let loaded =
            LoadedServer::new(environment, APACHE.program, server, address, &self.documents, CONNECTIONS)?;
        // Apache at SIGTERM shuts down while its threads still work, and sometimes crashes, also without uncopy.
        let loaded = loaded.with_stop_signal(Signal::WINCH);
        Ok(Box::new(user.wrap(match origin {
            Some(origin) => loaded.with_backends(origin),
            None => loaded,
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
