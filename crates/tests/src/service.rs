//! A service of user-level TCP (`uncopy net`) in a network namespace of its own, and programs at both of its sides.

use std::path::PathBuf;
use std::time::Duration;

use crate::artifacts::bin_dir;
use crate::launch::{Mode, Program};
use crate::running::{Finished, Running};
use crate::scratch::{Scratch, wait_until};

/// The service's address.
pub const SERVICE: &str = "10.77.0.2";
/// The kernel's in the same network.
pub const KERNEL: &str = "10.77.0.1";
/// The service's of IPv6.
pub const SERVICE_V6: &str = "fd77::2";

/// A running service.
#[derive(Debug)]
pub struct Service {
    running: Running,
    control: PathBuf,
    cable: Option<Cable>,
    _directory: Scratch,
}

impl Service {
    /// Starts one.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(scratch: &Scratch, options: &[&str]) -> Self {
        // A listener's path has to fit a name of a socket.
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
        Self { running, control, cable: None, _directory: directory }
    }

    /// Starts one at the near end of a cable between two network namespaces, by AF_XDP. `None`: the kernel has none, as is said.
    ///
    /// # Panics
    /// When it does not start for another reason.
    #[must_use]
    pub fn start_by_xdp(scratch: &Scratch, options: &[&str]) -> Option<Self> {
        let cable = Cable::lay(scratch);
        let directory = Scratch::in_memory("net");
        let control = directory.join("n/control");
        let uncopy = bin_dir().join("uncopy");
        let running = cable
            .near(&[uncopy.to_str().expect("UTF-8"), "net", "--xdp", Cable::NEAR])
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
        Some(Self { running, control, cable: Some(cable), _directory: directory })
    }

    /// The cable of a service by AF_XDP.
    #[must_use]
    pub fn cable(&self) -> Option<&Cable> {
        self.cable.as_ref()
    }

    /// Its control socket.
    #[must_use]
    pub fn control(&self) -> &std::path::Path {
        &self.control
    }

    /// A program whose connections in the service's networks are the service's.
    #[must_use]
    pub fn program(&self, program: Program, mode: Mode) -> Program {
        program.env("UNCOPY_NET", &self.control).mode(mode)
    }

    /// A shell command in the service's network namespace, at the kernel's side.
    #[must_use]
    pub fn outside(&self, command: &[&str]) -> Program {
        if let Some(cable) = &self.cable {
            return inside(&cable.far, command);
        }
        let namespace = format!("--net={}", self.namespace());
        Program::new("/usr/bin/nsenter").args([namespace.as_str()]).args(command)
    }

    /// The service's network namespace.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.running.pid())
    }

    /// What `uncopy net ls` says as JSON.
    ///
    /// # Panics
    /// When it says nothing.
    #[must_use]
    pub fn list(&self) -> serde_json::Value {
        self.document("ls")
    }

    /// What `uncopy net ls` or `uncopy net stats` says as JSON.
    ///
    /// # Panics
    /// When it says nothing.
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

    /// Resident memory of its own, bytes: without what it shares with programs.
    ///
    /// # Panics
    /// When it is not there.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("RssAnon:")
    }

    /// Resident memory that it shares with programs, bytes.
    ///
    /// # Panics
    /// When it is not there.
    #[must_use]
    pub fn shared_bytes(&self) -> u64 {
        self.status_bytes("RssShmem:")
    }

    fn status_bytes(&self, field: &str) -> u64 {
        self.running.status_bytes(field)
    }

    /// Waits until there is no connection any more.
    ///
    /// # Panics
    /// When there still is.
    pub fn wait_until_empty(&self) {
        wait_until("no connections", || {
            self.list()["connections"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
    }

    /// Kills it as it is.
    pub fn kill(&self) {
        self.running.signal(libc::SIGKILL);
    }

    /// Ends it as a user does; what it has made is gone.
    ///
    /// # Panics
    /// When it does not end well.
    pub fn stop(self) -> Finished {
        let done = self.running.stop(libc::SIGTERM);
        if let Some(cable) = self.cable {
            cable.take();
        }
        assert!(done.status.success(), "{}", done.text());
        assert!(!self.control.exists() && !self.control.with_file_name("l").exists());
        done
    }
}

/// A command in a process's network namespace.
fn inside(process: &Running, command: &[&str]) -> Program {
    let namespace = format!("--net=/proc/{}/ns/net", process.pid());
    Program::new("/usr/bin/nsenter").args([namespace.as_str()]).args(command)
}

/// Two network namespaces with a pair of veth devices between them: the near one without addresses, the far one with the kernel's.
#[derive(Debug)]
pub struct Cable {
    near: Running,
    far: Running,
}

impl Cable {
    /// The near device.
    pub const NEAR: &str = "near";

    /// Makes one.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn lay(scratch: &Scratch) -> Self {
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        let [near, far] = ["near", "far"].map(|name| {
            let held = Program::new("/usr/bin/unshare").args(["--net", "sleep", "900"]).start(scratch, name);
            let namespace = format!("/proc/{}/ns/net", held.pid());
            wait_until("another namespace", || {
                std::fs::read_link(&namespace).ok().filter(|other| *other != own)
            });
            held
        });
        // A veth device leaves checksums out unless it is told otherwise (ETHTOOL_STXCSUM): no cable does.
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
            let done = inside(end, command).start(scratch, "cable").finish(Duration::from_secs(20));
            assert!(done.status.success(), "{}", done.text());
        }
        Self { near, far }
    }

    /// A command in the near namespace.
    #[must_use]
    pub fn near(&self, command: &[&str]) -> Program {
        inside(&self.near, command)
    }

    /// Whether the near device has an XDP program.
    ///
    /// # Panics
    /// When that cannot be asked.
    #[must_use]
    pub fn has_program(&self, scratch: &Scratch) -> bool {
        let shown = self.near(&["ip", "link", "show", Self::NEAR]).start(scratch, "shown");
        let shown = shown.finish(Duration::from_secs(20));
        assert!(shown.status.success(), "{}", shown.text());
        shown.text().contains("xdp")
    }

    /// Takes it away.
    pub fn take(self) {
        drop(self.near.stop(libc::SIGKILL));
        drop(self.far.stop(libc::SIGKILL));
    }
}

/// What a network does to packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// What is random depends on it only.
    pub seed: u32,
    /// The share that is lost.
    pub loss: f64,
    /// How late each is, ms.
    pub delay_ms: f64,
    /// How much later each is at most, ms.
    pub jitter_ms: f64,
    /// The share that comes twice.
    pub duplicates: f64,
    /// The share of those that may be marked (RFC 3168) which is.
    pub marked: f64,
}

/// A host of the kernel's, [`FAR`], that a service and the kernel beside it reach through a bad network.
#[derive(Debug)]
pub struct FarHost {
    host: Running,
    relay: Running,
}

/// The address of a [`FarHost`].
pub const FAR: &str = "10.78.0.2";

impl FarHost {
    /// Starts one.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(service: &Service, scratch: &Scratch, network: Network) -> Self {
        let host = Program::new("/usr/bin/unshare").args(["--net", "sleep", "600"]).start(scratch, "far");
        let namespace = format!("/proc/{}/ns/net", host.pid());
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        wait_until("another namespace", || std::fs::read_link(&namespace).ok().filter(|other| *other != own));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/src/servers/bad_relay.py");
        let Network { seed, loss, delay_ms, jitter_ms, duplicates, marked } = network;
        let shares =
            [seed.into(), loss, delay_ms, jitter_ms, duplicates, marked].map(|share| share.to_string());
        let relay = service.outside(&["python3", script, &namespace]).args(shares).start(scratch, "relay");
        wait_until("the relay", || {
            assert!(!relay.has_ended(), "{}", relay.errors());
            relay.output().contains("ready").then_some(())
        });
        Self { host, relay }
    }

    /// A command there.
    #[must_use]
    pub fn program(&self, command: &[&str]) -> Program {
        let namespace = format!("--net=/proc/{}/ns/net", self.host.pid());
        Program::new("/usr/bin/nsenter").args([namespace.as_str()]).args(command)
    }

    /// Ends it.
    pub fn stop(self) {
        drop(self.relay.stop(libc::SIGKILL));
        drop(self.host.stop(libc::SIGKILL));
    }
}
