//! Icecast.

use super::*;
use crate::clients::http;

/// Icecast, which logs to stderr. The server refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub struct Icecast<'a> {
    /// Maximum number of clients.
    pub clients: u32,
    /// Bytes of a stream kept for listeners that are behind; listeners further behind are disconnected.
    pub queue_bytes: usize,
    /// Directory of the administration pages.
    pub admin_root: &'a str,
    /// Log level: 1 logs errors, 3 everything except debug messages.
    pub log_level: u8,
    /// Whether root may start the server, which becomes nobody: all users need access to `directory`.
    pub changes_owner: bool,
}

impl Icecast<'_> {
    /// Directory of the server's files, within the server's own directory.
    pub const ROOT: &'static str = "web";
    /// Password of the user "source".
    pub const SOURCE_PASSWORD: &'static str = "loud";
    /// Credentials of sources, `source:loud` in base64.
    pub const SOURCE_AUTHORIZATION: &'static str = "c291cmNlOmxvdWQ=";

    /// Returns the server's statistics, as XML.
    ///
    /// # Errors
    /// [`crate::Failure`] when the server does not answer.
    pub fn statistics(address: SocketAddr) -> Result<String> {
        // The credentials are `admin:quiet` in base64.
        let fields = "Authorization: Basic YWRtaW46cXVpZXQ=\r\n";
        let body = http::get(address, "icecast", "/admin/stats", fields)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

impl Service for Icecast<'_> {
    const PROGRAM: Package = Package::new("icecast2", "icecast2", &["-v"]);
    // Icecast can crash when it gets a request while its threads are starting (strdup of a null
    // pointer in the statistics thread): plain Icecast 2.4.4 in 4 of 600 starts alone, in 6 of 600
    // beside eleven others on two processors.
    const ALONE: Duration = Duration::from_secs(1);

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let Self { clients, queue_bytes, admin_root, log_level, changes_owner } = self;
        let root = directory.join(Self::ROOT);
        let owner = if *changes_owner {
            "<changeowner><user>nobody</user><group>nogroup</group></changeowner>"
        } else {
            ""
        };
        let configuration = format!(
            "<icecast><limits><clients>{clients}</clients><sources>2</sources><queue-size>{queue_bytes}</queue-size>\
             <client-timeout>30</client-timeout><header-timeout>15</header-timeout>\
             <source-timeout>30</source-timeout><burst-on-connect>0</burst-on-connect><burst-size>0</burst-size></limits>\
             <authentication><source-password>{}</source-password><admin-user>admin</admin-user>\
             <admin-password>quiet</admin-password></authentication><hostname>localhost</hostname>\
             <listen-socket><port>{}</port><bind-address>{}</bind-address></listen-socket><fileserve>1</fileserve>\
             <paths><basedir>{home}</basedir><logdir>{home}</logdir>\
             <webroot>{root}</webroot><adminroot>{admin_root}</adminroot></paths>\
             <logging><accesslog>access.log</accesslog><errorlog>-</errorlog><loglevel>{log_level}</loglevel></logging>\
             <security><chroot>0</chroot>{owner}</security></icecast>",
            Self::SOURCE_PASSWORD,
            address.port(),
            address.ip(),
            home = directory.display(),
            root = root.display(),
        );
        std::fs::create_dir_all(&root).doing("making a directory for Icecast's files")?;
        let file = write(directory, "icecast.xml", &configuration)?;
        Ok(vec!["-c".into(), file.into()])
    }
}
