//! `uncopy-cached`: a cache that speaks memcached's protocol, its values in twin memory.

use std::process::ExitCode;

fn main() -> ExitCode {
    uncopy_servers::main::<uncopy_servers::cached::Settings>()
}
