//! `uncopy net ls` and `net stats`.

use crate::output::{self, EXIT_FAILURE, EXIT_OK, Quoted, Reason};
use crate::table::{self, bytes};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use uncopy_core::schema::NET;
use uncopy_net::client;
use uncopy_net::message::Request;
use uncopy_net::paths::ServicePaths;
use uncopy_netd::list::List;

/// Maximum size of a list, bytes.
const MAX_LIST_BYTES: usize = 256 << 20;
/// Bytes of a list read at a time.
const PART_BYTES: usize = 64 << 10;

fn ask(control: &Path) -> io::Result<List> {
    let paths = ServicePaths::of_control(control.as_os_str().as_bytes())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let (_, fd) = client::send_request(&paths, &Request::List)?;
    let file =
        fd.map(OwnedFd::from).map(File::from).ok_or_else(|| io::Error::other("the service sent no list"))?;
    // Reads at explicit offsets, wherever the service's offset is. Such reads fail on anything but
    // a file, where others would block.
    let mut text = Vec::new();
    let mut part = vec![0; PART_BYTES];
    while text.len() < MAX_LIST_BYTES {
        match file.read_at(&mut part, text.len() as u64)? {
            0 => break,
            len_bytes => text.extend_from_slice(&part[..len_bytes]),
        }
    }
    let list: List = serde_json::from_slice(&text)?;
    if list.schema == NET {
        Ok(list)
    } else {
        Err(io::Error::other("the service is of another version of uncopy"))
    }
}

fn show(control: &Path, is_json: bool, table: impl Fn(&List) -> String) -> u8 {
    match ask(control) {
        Ok(list) if is_json => match serde_json::to_string_pretty(&list) {
            Ok(text) => output::print(format!("{text}\n").as_bytes(), EXIT_OK),
            Err(error) => {
                output::print_message(error);
                EXIT_FAILURE
            }
        },
        Ok(list) => output::print(table(&list).as_bytes(), EXIT_OK),
        Err(error) => {
            let name = Quoted(control.as_os_str());
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ECONNREFUSED) => {
                    output::print_message(format_args!(
                        "no service listens at {name}; start one with: uncopy net --tun NAME --address ADDRESS/BITS"
                    ));
                }
                Some(libc::EPERM | libc::EACCES) => {
                    output::print_message(format_args!(
                        "{name} is a service of another user; retry as that user"
                    ));
                }
                _ => output::print_message(format_args!("{name}: {}", Reason(&error))),
            }
            EXIT_FAILURE
        }
    }
}

/// Lists listeners and connections.
pub fn list(control: &Path, is_json: bool) -> u8 {
    show(control, is_json, |list| {
        let head = ["STATE", "LOCAL", "REMOTE", "RECEIVED", "SENT", "RETRANS", "RECV-Q", "SEND-Q", "RTT"]
            .map(str::to_owned);
        let mut rows = vec![head];
        for listener in &list.listeners {
            let sockets =
                if listener.sockets == 1 { "*".to_owned() } else { format!("* ({})", listener.sockets) };
            let none = || "-".to_owned();
            rows.push([
                "LISTEN".to_owned(),
                listener.address.to_string(),
                sockets,
                none(),
                none(),
                none(),
                none(),
                none(),
                none(),
            ]);
        }
        for connection in &list.connections {
            rows.push([
                connection.state.clone(),
                connection.local.to_string(),
                connection.remote.to_string(),
                bytes(connection.received_bytes),
                bytes(connection.acknowledged_bytes),
                connection.retransmissions.to_string(),
                bytes(connection.waiting_bytes),
                bytes(connection.queued_bytes),
                format!("{} us", connection.round_trip_us),
            ]);
        }
        table::align_columns(&rows, |column| column < 3)
    })
}

/// Prints the traffic counters of a service.
pub fn statistics(control: &Path, is_json: bool) -> u8 {
    show(control, is_json, |list| {
        let traffic = &list.traffic;
        let mut text = String::new();
        let addresses: Vec<String> =
            list.addresses.iter().map(|(address, bits)| format!("{address}/{bits}")).collect();
        let _ = writeln!(
            text,
            "{}, process {}, up {} s, MTU {}",
            addresses.join(", "),
            list.pid,
            list.up_s,
            list.mtu_bytes
        );
        let lines = [
            (
                "received",
                format!("{} in {} packets", bytes(traffic.received_bytes), traffic.received_packets),
            ),
            ("sent", format!("{} in {} packets", bytes(traffic.sent_bytes), traffic.sent_packets)),
            ("retransmitted", format!("{} TCP segments", traffic.retransmissions)),
            ("dropped", format!("{} packets", traffic.dropped_packets)),
            ("copied between TCP and programs", bytes(traffic.copied_bytes)),
            (
                "connections",
                format!("{} now, {} since the start", list.connections.len(), traffic.connections),
            ),
            ("listeners", list.listeners.len().to_string()),
        ];
        for (name, value) in lines {
            let _ = writeln!(text, "  {name:<33}{value}");
        }
        text
    })
}
