//! A service of user-level TCP (`uncopy net`) in a network namespace of its own, and programs on both sides.

use std::path::PathBuf;

use crate::artifacts::bin_dir;
use crate::launch::{Mode, Program};
use crate::running::{Finished, Running};
use crate::scratch::{Scratch, wait_until};

/// IPv4 address of the service.
pub const SERVICE_V4: &str = "10.77.0.2";
/// IPv4 address of the kernel in the same network.
pub const KERNEL_V4: &str = "10.77.0.1";
/// IPv6 address of the service.
pub const SERVICE_V6: &str = "fd77::2";

/// A running `uncopy` network service.
#[derive(Debug)]
pub struct NetService {
    running: Running,
    control: PathBuf,
    veth_pair: Option<VethPair>,
    _directory: Scratch,
}

impl NetService {
    /// Starts a service on a TUN device.
    ///
    /// # Panics
    /// When the service does not start.
    #[must_use]
    pub fn start(scratch: &Scratch, options: &[&str]) -> Self {
        // The path of a listening socket is limited in length (unix(7)).
        let directory = Scratch::in_memory("net");
        let control = directory.join("n/control");
        let uncopy = bin_dir().join("uncopy");
        let script = r#"ip link set lo up; exec "$0" net "$@""#;
        let running = Program::new("/usr/bin/unshare")
            .args(["--net", "sh", "-ec", script])
            .args([uncopy.as_os_str()])
            .args(["--tun", "utun0", "--address", "10.77.0.2/24", "--address", "fd77::2/64"])
            .args(["--socket".as_ref(), control.as_os_str()])
            .args(options)
            .mode(Mode::Plain)
            .start(scratch, "service");
        wait_until("the service", || {
            assert!(!running.has_ended(), "{}", running.errors());
            running.errors().contains("run programs by").then_some(())
        });
        Self { running, control, veth_pair: None, _directory: directory }
    }

    /// Starts a service by AF_XDP at the near end of a [`VethPair`]; `None`, with a message, without AF_XDP.
    ///
    /// # Panics
    /// When the service does not start for another reason.
    #[must_use]
    pub fn start_by_xdp(scratch: &Scratch, options: &[&str]) -> Option<Self> {
        let veth_pair = VethPair::create(scratch);
        let directory = Scratch::in_memory("net");
        let control = directory.join("n/control");
        let uncopy = bin_dir().join("uncopy");
        let running = veth_pair
            .near(&[uncopy.to_str().expect("UTF-8"), "net", "--xdp", VethPair::NEAR])
            .args(["--address", "10.77.0.2/24", "--address", "fd77::2/64"])
            .args(["--socket".as_ref(), control.as_os_str()])
            .args(options)
            .mode(Mode::Plain)
            .start(scratch, "service");
        let is_there = wait_until("the service", || {
            let is_impossible = running.errors().contains("this kernel ");
            assert!(is_impossible || !running.has_ended(), "{}", running.errors());
            (is_impossible || running.errors().contains("run programs by")).then_some(!is_impossible)
        });
        if !is_there {
            eprintln!("skipped: {}", running.errors());
            return None;
        }
        Some(Self { running, control, veth_pair: Some(veth_pair), _directory: directory })
    }

    /// Returns the cable of a service by AF_XDP.
    #[must_use]
    pub fn veth_pair(&self) -> Option<&VethPair> {
        self.veth_pair.as_ref()
    }

    /// Returns the path of the service's control socket.
    #[must_use]
    pub fn control(&self) -> &std::path::Path {
        &self.control
    }

    /// Returns a program whose connections in the service's networks go through the service.
    #[must_use]
    pub fn program(&self, program: Program, mode: Mode) -> Program {
        program.env("UNCOPY_NET", &self.control).mode(mode)
    }

    /// Returns a command in the service's network namespace that uses the kernel's TCP.
    #[must_use]
    pub fn kernel_program(&self, command: &[&str]) -> Program {
        if let Some(veth_pair) = &self.veth_pair {
            return in_network_namespace(&veth_pair.far, command);
        }
        let namespace = format!("--net={}", self.namespace());
        Program::new("/usr/bin/nsenter").args([namespace.as_str()]).args(command)
    }

    /// Returns the path of the service's network namespace.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.running.pid())
    }

    /// Returns the JSON output of `uncopy net ls`.
    ///
    /// # Panics
    /// When the command prints no JSON.
    #[must_use]
    pub fn list(&self) -> serde_json::Value {
        self.document("ls")
    }

    /// Returns the JSON output of `uncopy net COMMAND`, where the command is `ls` or `stats`.
    ///
    /// # Panics
    /// When the command prints no JSON.
    #[must_use]
    pub fn document(&self, command: &str) -> serde_json::Value {
        let listed = std::process::Command::new(bin_dir().join("uncopy"))
            .args(["net", command, "--json"])
            .arg(&self.control)
            .output()
            .expect("started");
        let errors = String::from_utf8_lossy(&listed.stderr).into_owned();
        serde_json::from_slice(&listed.stdout).unwrap_or_else(|why| panic!("{why}: {errors}"))
    }

    /// Returns the private resident memory of the service in bytes, without memory shared with programs.
    ///
    /// # Panics
    /// When the service has ended.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.running.status_bytes("RssAnon:")
    }

    /// Returns the resident memory that the service shares with programs, in bytes.
    ///
    /// # Panics
    /// When the service has ended.
    #[must_use]
    pub fn shared_bytes(&self) -> u64 {
        self.running.status_bytes("RssShmem:")
    }

    /// Waits until the service has no connection any more.
    ///
    /// # Panics
    /// When a connection is left at the time limit.
    pub fn wait_until_no_connections(&self) {
        wait_until("no connections", || {
            self.list()["connections"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
    }

    /// Kills the service without any cleanup.
    pub fn kill(&self) {
        self.running.signal(libc::SIGKILL);
    }

    /// Ends the service as a user does; everything it made must be gone.
    ///
    /// # Panics
    /// When the service fails, or leaves something behind.
    pub fn stop(self) -> Finished {
        let done = self.running.stop(libc::SIGTERM);
        if let Some(veth_pair) = self.veth_pair {
            veth_pair.remove();
        }
        assert!(done.status.success(), "{}", done.text());
        assert!(!self.control.exists() && !self.control.with_file_name("l").exists());
        done
    }
}

/// Returns a command in a process's network namespace.
fn in_network_namespace(process: &Running, command: &[&str]) -> Program {
    let namespace = format!("--net=/proc/{}/ns/net", process.pid());
    Program::new("/usr/bin/nsenter").args([namespace.as_str()]).args(command)
}

/// Two network namespaces joined by a veth pair: near without addresses, far with the kernel's.
#[derive(Debug)]
pub struct VethPair {
    near: Running,
    far: Running,
}

impl VethPair {
    /// Name of the device at the near end.
    pub const NEAR: &str = "near";

    /// Makes the namespaces and the devices.
    ///
    /// # Panics
    /// When a command fails.
    #[must_use]
    pub fn create(scratch: &Scratch) -> Self {
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        let [near, far] = ["near", "far"].map(|name| {
            let holder =
                Program::new("/usr/bin/unshare").args(["--net", "sleep", "900"]).start(scratch, name);
            let namespace = format!("/proc/{}/ns/net", holder.pid());
            wait_until("another namespace", || {
                std::fs::read_link(&namespace).ok().filter(|other| *other != own)
            });
            holder
        });
        // A veth device leaves checksums out unless told otherwise (ETHTOOL_STXCSUM), as no real cable does.
        let script = r#"
import array, fcntl, socket, struct, subprocess
for line in ("link set lo up", "address add 10.77.0.1/24 dev far", "address add fd77::1/64 nodad dev far", "link set far up"):
    subprocess.run(["ip", *line.split()], check=True)
value = array.array("I", [0x17, 0])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    fcntl.ioctl(asked, 0x8946, struct.pack("16sP16x", b"far", value.buffer_info()[0]))
"#;
        let lay =
            r#"ip link set lo up; ip link add near type veth peer name far netns "$0"; ip link set near up"#;
        let pid = far.pid().to_string();
        for (end, command) in [(&near, &["sh", "-ec", lay, &pid][..]), (&far, &["python3", "-c", script])] {
            let done = in_network_namespace(end, command).start(scratch, "cable").finish();
            assert!(done.status.success(), "{}", done.text());
        }
        Self { near, far }
    }

    /// Returns a command in the near namespace.
    #[must_use]
    pub fn near(&self, command: &[&str]) -> Program {
        in_network_namespace(&self.near, command)
    }

    /// Whether the near device has an XDP program.
    ///
    /// # Panics
    /// When the device cannot be queried.
    #[must_use]
    pub fn has_program(&self, scratch: &Scratch) -> bool {
        let shown = self.near(&["ip", "link", "show", Self::NEAR]).start(scratch, "shown");
        let shown = shown.finish();
        assert!(shown.status.success(), "{}", shown.text());
        shown.text().contains("xdp")
    }

    /// Removes the cable by killing the processes that hold its ends.
    pub fn remove(self) {
        drop(self.near.stop(libc::SIGKILL));
        drop(self.far.stop(libc::SIGKILL));
    }
}

/// Faults that a network inflicts on packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkFaults {
    /// Seed of all random decisions.
    pub seed: u32,
    /// Share of packets that are lost.
    pub loss: f64,
    /// Delay of each packet, ms.
    pub delay_ms: f64,
    /// Maximum additional delay of a packet, ms.
    pub jitter_ms: f64,
    /// Share of packets that arrive twice.
    pub duplicates: f64,
    /// Share of ECN-capable packets that are marked (RFC 3168).
    pub marked: f64,
}

/// A host with the kernel's TCP, [`FAR`], reached by service and kernel through a bad network.
#[derive(Debug)]
pub struct FarHost {
    host: Running,
    relay: Running,
}

/// The address of a [`FarHost`].
pub const FAR: &str = "10.78.0.2";

impl FarHost {
    /// Starts the host and the relay in front of it.
    ///
    /// # Panics
    /// When a command fails.
    #[must_use]
    pub fn start(service: &NetService, scratch: &Scratch, faults: NetworkFaults) -> Self {
        let host = Program::new("/usr/bin/unshare").args(["--net", "sleep", "600"]).start(scratch, "far");
        let namespace = format!("/proc/{}/ns/net", host.pid());
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        wait_until("another namespace", || std::fs::read_link(&namespace).ok().filter(|other| *other != own));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/experiments/src/servers/bad_relay.py");
        let NetworkFaults { seed, loss, delay_ms, jitter_ms, duplicates, marked } = faults;
        let shares =
            [seed.into(), loss, delay_ms, jitter_ms, duplicates, marked].map(|share| share.to_string());
        let relay =
            service.kernel_program(&["python3", script, &namespace]).args(shares).start(scratch, "relay");
        wait_until("the relay", || {
            assert!(!relay.has_ended(), "{}", relay.errors());
            relay.output().contains("ready").then_some(())
        });
        Self { host, relay }
    }

    /// Returns a program that runs `command` in the host's network namespace.
    #[must_use]
    pub fn program(&self, command: &[&str]) -> Program {
        let namespace = format!("--net=/proc/{}/ns/net", self.host.pid());
        Program::new("/usr/bin/nsenter").args([namespace.as_str()]).args(command)
    }

    /// Stops the relay and the host.
    pub fn stop(self) {
        drop(self.relay.stop(libc::SIGKILL));
        drop(self.host.stop(libc::SIGKILL));
    }
}
