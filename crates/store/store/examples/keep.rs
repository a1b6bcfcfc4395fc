//! Keeps logs as `uncopy log keep` does, with faults injected into system calls: see `uncopy_sys::inject`.
//!
//! ```text
//! keep DIRECTORY LOG-BYTES SOCKET ROOT
//! ```

use std::ffi::CString;
use std::process::ExitCode;

use uncopy_store::keeper::{Keeper, Settings};

fn main() -> ExitCode {
    uncopy_sys::inject::begin();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, log_bytes, socket, root] = &words[..] else { return ExitCode::from(2) };
    let settings = Settings {
        directory: directory.into(),
        log_bytes: log_bytes.parse().expect("a number of bytes"),
        emulates_dax: false,
        socket: CString::new(socket.as_str()).expect("no NUL"),
        root_pid: root.parse().expect("a process"),
    };
    match Keeper::begin(settings) {
        Ok(keeper) => {
            keeper.keep();
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}
