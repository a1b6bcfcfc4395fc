//! Keeps logs as `uncopy log keep` does, with faults injected into system calls: see `uncopy_sys::inject`.
//!
//! ```text
//! keep DIRECTORY LOG-BYTES SOCKET ROOT [only]
//! ```

use std::ffi::CString;
use std::process::ExitCode;

use uncopy_core::options::LogMode;
use uncopy_store::keeper::{Keeper, Settings};

fn main() -> ExitCode {
    uncopy_sys::inject::begin();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, log_bytes, socket, root, more @ ..] = &words[..] else { return ExitCode::from(2) };
    let is_only = more.iter().any(|word| word == "only");
    let settings = Settings {
        directory: directory.into(),
        log_bytes: log_bytes.parse().expect("a number of bytes"),
        emulates_dax: is_only,
        mode: if is_only { LogMode::Only } else { LogMode::Beside },
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
