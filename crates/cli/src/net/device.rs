//! Network devices of a service, and advice where one cannot be opened.

use crate::os;
use crate::output::{Quoted, Reason};
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use uncopy_link::pcap::Pcap;
use uncopy_link::tun::Tun;
use uncopy_link::{Link, device};
use uncopy_net::message::Prefix;

/// Returns why this process cannot create TUN devices; `None` if it can. Creates none.
pub fn why_no_tun() -> Option<io::Error> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return Some(error);
    }
    (!os::may_administer_network()).then(|| io::Error::from_raw_os_error(libc::EPERM))
}

fn tun_error(name: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            "there is no /dev/net/tun: load the module (modprobe tun), or give the container the device"
                .to_owned()
        }
        Some(libc::EACCES) => "/dev/net/tun cannot be opened by this user; retry with sudo".to_owned(),
        Some(libc::EPERM) => format!(
            "creating a TUN device needs CAP_NET_ADMIN; retry with sudo, or create it for this user: sudo ip tuntap add {name} mode tun user {}",
            os::effective_user_id()
        ),
        Some(libc::EBUSY) => format!("device {name} is in use; give another name by --tun"),
        _ => format!("--tun {name}: {}", Reason(error)),
    }
}

/// Returns why this process cannot create AF_XDP sockets and their programs; `None` if it can.
/// Leaves none behind.
#[cfg(feature = "xdp")]
pub fn why_no_xdp() -> Option<io::Error> {
    uncopy_link::xdp::probe().err().map(|failed| failed.error)
}

/// Returns that this build has no AF_XDP.
#[cfg(not(feature = "xdp"))]
pub fn why_no_xdp() -> Option<io::Error> {
    Some(io::Error::new(io::ErrorKind::Unsupported, NO_XDP))
}

/// Creates a TUN device for these networks. `kernel_addresses` are the kernel's addresses there, with the
/// bits of their prefixes.
pub fn open_tun(
    name: &str,
    mtu_bytes: usize,
    prefixes: &[Prefix],
    kernel_addresses: &[(IpAddr, u8)],
    pcap: Option<&Path>,
) -> Result<Box<dyn Link>, String> {
    for prefix in prefixes {
        if let Some((other, address, bits)) = conflicting_device(name, prefix) {
            return Err(format!(
                "the kernel routes {} to {other}, which has {address}/{bits}; give an --address in another network",
                prefix.service_address
            ));
        }
    }
    let tun = Tun::open(name, mtu_bytes).map_err(|error| tun_error(name, &error))?;
    device::set_up(name, mtu_bytes, kernel_addresses).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => {
            let mut ready =
                format!("sudo ip link set {name} mtu {mtu_bytes} txqueuelen {} up", device::QUEUE_PACKETS);
            for (address, bits) in kernel_addresses {
                let _ = write!(ready, "; sudo ip address replace {address}/{bits} dev {name}");
            }
            format!("{name} is not configured, which needs CAP_NET_ADMIN; type: {ready}")
        }
        _ => format!("{name} cannot be set up: {}", Reason(&error)),
    })?;
    with_capture(tun, pcap)
}

/// Returns another device to which the kernel would route the service's address: one with a network
/// that contains the address and is not wider.
fn conflicting_device(name: &str, prefix: &Prefix) -> Option<(String, IpAddr, u8)> {
    let found = device::addresses().unwrap_or_default();
    let conflicts = |(other, address, bits): &(String, IpAddr, u8)| {
        other != name
            && *bits >= prefix.bits
            && Prefix { service_address: *address, bits: *bits }.contains(prefix.service_address)
    };
    found.into_iter().find(conflicts)
}

/// Opens a queue of an Ethernet device for these addresses.
#[cfg(feature = "xdp")]
pub fn open_xdp(
    device: &str,
    queue: u32,
    prefixes: &[Prefix],
    routers: &[IpAddr],
    pcap: Option<&Path>,
) -> Result<Box<dyn Link>, String> {
    use uncopy_link::xdp::{Settings, Xdp};
    let own: Vec<(IpAddr, u8)> =
        prefixes.iter().map(|prefix| (prefix.service_address, prefix.bits)).collect();
    if let Some(router) =
        routers.iter().find(|router| prefixes.iter().any(|prefix| prefix.service_address == **router))
    {
        return Err(format!("--peer {router} is the service's own address"));
    }
    if let Some(router) =
        routers.iter().find(|router| !prefixes.iter().any(|prefix| prefix.contains(**router)))
    {
        return Err(format!("--peer {router} is not in a network of --address"));
    }
    let link = Xdp::open(&Settings { device, queue, own: &own, routers })
        .map_err(|failed| xdp_error(device, queue, &failed))?;
    with_capture(link, pcap)
}

#[cfg(not(feature = "xdp"))]
const NO_XDP: &str = "this uncopy was built without AF_XDP (the feature xdp of uncopy-cli); use --tun";

/// Fails because this build has no AF_XDP.
#[cfg(not(feature = "xdp"))]
pub fn open_xdp(
    _: &str,
    _: u32,
    _: &[Prefix],
    _: &[IpAddr],
    _: Option<&Path>,
) -> Result<Box<dyn Link>, String> {
    Err(NO_XDP.to_owned())
}

/// Explains why a queue cannot be opened, with the command to type.
#[cfg(feature = "xdp")]
fn xdp_error(device: &str, queue: u32, failed: &uncopy_link::xdp::SetupError) -> String {
    use uncopy_link::xdp::{MAX_MTU_BYTES, SetupStep};
    let reason = Reason(&failed.error);
    match (failed.step, failed.error.raw_os_error()) {
        (SetupStep::Device, Some(libc::ENODEV)) => {
            format!("--xdp {device}: there is no such device; ip link lists them")
        }
        (SetupStep::Ethernet, _) => format!("--xdp {device}: it is not an Ethernet device"),
        (SetupStep::Up, _) => format!("--xdp {device}: it is down; type: ip link set {device} up"),
        (SetupStep::Mtu(bytes), _) => format!(
            "--xdp {device}: its MTU is {bytes} bytes, and must be at most {MAX_MTU_BYTES}; type: ip link set {device} mtu 1500"
        ),
        (SetupStep::Socket, Some(libc::EAFNOSUPPORT)) => {
            "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use --tun".to_owned()
        }
        (SetupStep::Program, Some(libc::ENOSYS | libc::EINVAL)) => {
            "this kernel cannot load XDP programs (CONFIG_BPF_SYSCALL, Linux 5.9); use --tun".to_owned()
        }
        (SetupStep::Attachment, Some(libc::EINVAL)) => {
            "this kernel cannot attach XDP programs by links (Linux 5.9); use --tun".to_owned()
        }
        (_, Some(libc::EPERM | libc::EACCES)) => {
            "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF; retry with sudo".to_owned()
        }
        (SetupStep::Memory, Some(libc::ENOBUFS | libc::ENOMEM)) => {
            "AF_XDP locks 16 MiB of memory, more than 'ulimit -l' allows; retry with sudo".to_owned()
        }
        (SetupStep::Queue, Some(libc::EBUSY)) => {
            format!(
                "--xdp {device}: queue {queue} is in use; end its user, or give another: --xdp {device}:QUEUE"
            )
        }
        (SetupStep::Queue, Some(libc::EINVAL)) => {
            format!("--xdp {device}: it has no queue {queue}; ethtool -l {device} shows the number of queues")
        }
        (SetupStep::Attachment, Some(libc::EBUSY | libc::EEXIST)) => {
            format!("--xdp {device}: another XDP program is attached; ip link show {device} names it")
        }
        (step, _) => format!("--xdp {device}: {step:?}: {reason}"),
    }
}

/// Opens a capture file that only this user can read. Links, FIFOs and files of others are refused,
/// because root may write where others have planted them.
fn capture_file(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link"),
        Some(libc::ENXIO) => io::Error::other("it is a FIFO or a socket; give a regular file"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.uid() != os::effective_user_id() || found.nlink() != 1 {
        return Err(io::Error::other(
            "it belongs to another user or has a second hard link; give a new file",
        ));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

/// Captures the packets of a link if a file was given.
fn with_capture<L: Link + 'static>(link: L, pcap: Option<&Path>) -> Result<Box<dyn Link>, String> {
    let Some(path) = pcap else { return Ok(Box::new(link)) };
    let capture = capture_file(path).and_then(|file| Pcap::new(link, file));
    let capture =
        capture.map_err(|error| format!("--pcap {}: {}", Quoted(path.as_os_str()), Reason(&error)))?;
    Ok(Box::new(capture))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn packets_are_written_to_a_file_of_ones_own_and_to_nothing_else() {
        let directory = std::env::temp_dir().join(format!("uncopy-pcap-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("made");
        let path = |name: &str| directory.join(name);
        let mode = |name: &str| path(name).metadata().expect("there").permissions().mode() & 0o777;
        drop(capture_file(&path("new")).expect("made"));
        assert_eq!(mode("new"), 0o600);
        // An existing file is emptied and made private.
        std::fs::write(path("old"), "old").expect("written");
        std::fs::set_permissions(path("old"), Permissions::from_mode(0o644)).expect("set");
        drop(capture_file(&path("old")).expect("opened"));
        assert_eq!((mode("old"), path("old").metadata().expect("there").len()), (0o600, 0));
        std::fs::write(path("victim"), "victim").expect("written");
        symlink("victim", path("link")).expect("made");
        symlink("nothing", path("dangling")).expect("made");
        std::fs::hard_link(path("victim"), path("second")).expect("made");
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RWXU).expect("made");
        for name in ["link", "dangling", "second", "fifo", "."] {
            assert!(capture_file(&path(name)).is_err(), "{name}");
        }
        // A FIFO with a reader opens, and is refused all the same.
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path("fifo"));
        assert!(reader.is_ok() && capture_file(&path("fifo")).is_err());
        assert_eq!(std::fs::read(path("victim")).expect("there"), b"victim");
        assert!(!path("nothing").exists());
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
