//! `uncopy-files`: a static file server that serves in many ways.

use std::process::ExitCode;

fn main() -> ExitCode {
    uncopy_servers::main::<uncopy_servers::files::Arguments>()
}
