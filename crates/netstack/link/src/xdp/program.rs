//! The XDP program: packets for the given addresses go to the socket, all others to the kernel.
//!
//! The program is assembled here (Documentation/bpf/standardization/instruction-set.rst), without a
//! compiler. A BPF link (bpf(2), Linux 5.9) attaches it: the kernel detaches it with the last
//! descriptor, however the process ends.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

// Commands and constants of linux/bpf.h.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAGS_SKB_MODE: u32 = 1 << 1;
const REDIRECT_MAP: i32 = 51;
const PASS: i32 = 2;

const LICENCE: &CStr = c"Dual MIT/GPL";

const ETHERNET_BYTES: i16 = 14;
/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// One instruction, `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// Destination register in the low four bits, source in the high ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

/// Jump target, resolved by [`Assembler::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Label {
    V4,
    Arp,
    V6,
    /// Comparison with the next IPv6 address, by index.
    Next(usize),
    Redirect,
    Pass,
}

#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(instruction(code, to, from, offset, immediate));
    }

    /// Emits `to = from`.
    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// Emits `to = value`.
    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    /// Emits `to = *(u32 *)(from + offset)`.
    fn load_word(&mut self, to: u8, from: u8, offset: i16) {
        self.push(0x61, to, from, offset, 0);
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, immediate: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, to, from, 0, immediate);
    }

    fn jump_to(&mut self, label: Label) {
        self.jump(0x05, 0, 0, 0, label);
    }

    /// Jumps if the low 32 bits of the register equal `bytes`, or if not (JMP32, Linux 5.1).
    fn jump_if_word(&mut self, is_equal: bool, register: u8, bytes: [u8; 4], label: Label) {
        let code = if is_equal { 0x16 } else { 0x56 };
        self.jump(code, register, 0, i32::from_ne_bytes(bytes), label);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Jumps to `Pass` unless the packet (r2 to r3) has that many bytes. Changes r4.
    fn require_bytes(&mut self, packet_bytes: i16) {
        self.copy(4, 2);
        self.push(0x07, 4, 0, 0, packet_bytes.into());
        self.jump(0x2d, 4, 3, 0, Label::Pass);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let target =
                self.labels.iter().find(|(known, _)| known == label).expect("every label is placed").1;
            self.code[*at].offset = i16::try_from(target - at - 1).expect("a short program");
        }
        self.code
    }
}

/// Returns the solicited-node multicast address (RFC 4291, section 2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Returns the program that redirects packets and address resolution for `own` to the map's socket.
pub(super) fn assemble(map: i32, own: &[IpAddr]) -> Vec<Instruction> {
    let v4: Vec<[u8; 4]> = own
        .iter()
        .filter_map(|own| if let IpAddr::V4(own) = own { Some(own.octets()) } else { None })
        .collect();
    let v6 = own.iter().filter_map(|own| if let IpAddr::V6(own) = own { Some(*own) } else { None });
    let v6: Vec<[u8; 16]> = v6.flat_map(|own| [own.octets(), solicited_node(own).octets()]).collect();
    let mut to = Assembler::default();
    // r6: the context; r2, r3: start and end of the packet.
    to.copy(6, 1);
    to.load_word(2, 6, DATA);
    to.load_word(3, 6, DATA_END);
    to.require_bytes(ETHERNET_BYTES);
    // r5 = *(u16 *)(r2 + 12): the EtherType.
    to.push(0x69, 5, 2, 12, 0);
    for (kind, label) in [(0x0800u16, Label::V4), (0x0806, Label::Arp), (0x86dd, Label::V6)] {
        to.jump(0x15, 5, 0, u16::from_ne_bytes(kind.to_be_bytes()).into(), label);
    }
    to.jump_to(Label::Pass);
    // The destination in IPv4, the target in ARP.
    for (label, require_bytes, at) in [(Label::V4, 20, 16), (Label::Arp, 28, 24)] {
        to.label(label);
        to.require_bytes(ETHERNET_BYTES + require_bytes);
        to.load_word(5, 2, ETHERNET_BYTES + at);
        for address in &v4 {
            to.jump_if_word(true, 5, *address, Label::Redirect);
        }
        to.jump_to(Label::Pass);
    }
    to.label(Label::V6);
    to.require_bytes(ETHERNET_BYTES + 40);
    for (index, address) in v6.iter().enumerate() {
        for (word, bytes) in (0i16..).zip(address.chunks_exact(4)) {
            to.load_word(5, 2, ETHERNET_BYTES + 24 + 4 * word);
            to.jump_if_word(false, 5, bytes.try_into().expect("four bytes"), Label::Next(index));
        }
        to.jump_to(Label::Redirect);
        to.label(Label::Next(index));
    }
    to.jump_to(Label::Pass);
    to.label(Label::Redirect);
    // r1 = the map (BPF_PSEUDO_MAP_FD, two slots).
    to.push(0x18, 1, 1, 0, map);
    to.push(0, 0, 0, 0, 0);
    to.load_word(2, 6, QUEUE);
    // PASS if the queue has no socket (Linux 5.3).
    to.set(3, PASS);
    to.push(0x85, 0, 0, 0, REDIRECT_MAP);
    to.push(0x95, 0, 0, 0, 0);
    to.label(Label::Pass);
    to.set(0, PASS);
    to.push(0x95, 0, 0, 0, 0);
    to.finish()
}

/// Calls bpf(2) with the attributes that `command` requires.
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` is valid for the size passed, and callers keep what its pointers refer to.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn descriptor<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: callers pass commands that return a new descriptor, which has no other owner.
    bpf(command, attributes).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Creates a map from queues to sockets, for queues up to `queue`.
///
/// # Errors
/// EPERM: requires `CAP_BPF` and `CAP_NET_ADMIN`. ENOSYS: no bpf(2). EINVAL: no such map type.
pub(super) fn make_map(queue: u32) -> io::Result<OwnedFd> {
    // Map type, sizes of keys and values in bytes, number of entries.
    descriptor(MAP_CREATE, &[MAP_TYPE_XSKMAP, 4, 4, queue.saturating_add(1)])
}

/// Enters a bound socket into the map.
///
/// # Errors
/// The error of bpf(2).
pub(super) fn insert_socket(map: &OwnedFd, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket = socket.as_raw_fd();
    let pointer = |value: *const u8| value as u64;
    let attributes = [
        u64::from(map.as_raw_fd() as u32),
        pointer((&raw const queue).cast()),
        pointer((&raw const socket).cast()),
        0,
    ];
    // Little-endian: the descriptor is the first 32 bits of its word, followed by padding.
    const { assert!(cfg!(target_endian = "little")) };
    bpf(MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// The start of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
struct LoadAttributes {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel: u32,
    flags: u32,
}

/// Loads the program for these addresses.
///
/// # Errors
/// EPERM: requires `CAP_BPF` and `CAP_NET_ADMIN`. Else the error of bpf(2).
pub(super) fn load(map: &OwnedFd, own: &[IpAddr]) -> io::Result<OwnedFd> {
    let code = assemble(map.as_raw_fd(), own);
    let attributes = LoadAttributes {
        kind: PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel: 0,
        flags: 0,
    };
    descriptor(PROG_LOAD, &attributes)
}

/// Attaches a program to a device in generic mode, until the descriptor is closed.
///
/// # Errors
/// EBUSY, EEXIST: the device has a program. EINVAL: kernel before 5.9. Else the error of bpf(2).
pub(super) fn attach(program: &OwnedFd, device: u32) -> io::Result<OwnedFd> {
    descriptor(LINK_CREATE, &[program.as_raw_fd() as u32, device, ATTACH_XDP, FLAGS_SKB_MODE])
}
