//! Varnish.

use super::*;

/// Varnish with its objects in malloc storage.
#[derive(Clone, Copy, Debug)]
pub struct Varnish<'a> {
    /// The server that has the objects.
    pub backend: SocketAddr,
    /// VCL statements that run for each request.
    pub on_request: &'a str,
    /// VCL statements that run for each response of the backend, which is kept for an hour.
    pub on_answer: &'a str,
    /// Run-time parameters, each given by `-p`.
    pub parameters: &'a [&'a str],
}

impl Service for Varnish<'_> {
    const PROGRAM: Package = Package::new("varnishd", "varnish", &["-V"]);
    const CRASH_MESSAGES: &'static [&'static str] = &["died", "Panic"];

    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
        let Self { backend, on_request, on_answer, parameters } = self;
        let configuration = format!(
            "vcl 4.1;\nbackend default {{ .host = \"{}\"; .port = \"{}\"; }}\nsub vcl_recv {{ {on_request} }}\n\
             sub vcl_backend_response {{ set beresp.ttl = 1h; {on_answer} }}\n",
            backend.ip(),
            backend.port()
        );
        let file = write(directory, "default.vcl", &configuration)?;
        let arguments = ["-F", "-j", "none", "-T", "none", "-s", "malloc,256m", "-t", "3600", "-a"];
        let mut arguments = arguments.map(OsString::from).to_vec();
        arguments.extend([address.to_string().into(), "-f".into(), file.into()]);
        arguments.extend(["-n".into(), directory.join("varnish").into()]);
        arguments.extend(parameters.iter().flat_map(|parameter| ["-p", parameter]).map(OsString::from));
        Ok(arguments)
    }
}
