//! The XDP program: packets for some addresses go to the socket, all others to the kernel.
//!
//! Assembled here (Documentation/bpf/standardization/instruction-set.rst), so that no compiler for it is needed. It is attached by a
//! link of bpf(2), Linux 5.9: the kernel takes it off once nobody has the descriptor, however its process ended.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

// Commands and numbers of linux/bpf.h.
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
/// Of `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// The destination in the low four bits, the source in the high ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

/// Where a jump goes, until it is known how far that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Label {
    V4,
    Arp,
    V6,
    /// The next address of IPv6, by index.
    Next(usize),
    Redirect,
    Pass,
}

/// A program in the making.
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

    /// `to = from`.
    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`.
    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    /// `to = *(u32 *)(from + offset)`.
    fn load_word(&mut self, to: u8, from: u8, offset: i16) {
        self.push(0x61, to, from, offset, 0);
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, immediate: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, to, from, 0, immediate);
    }

    fn go(&mut self, label: Label) {
        self.jump(0x05, 0, 0, 0, label);
    }

    /// Goes there if the low 32 bits are, or are not, those of memory (JMP32, Linux 5.1).
    fn go_if_word(&mut self, is_equal: bool, register: u8, bytes: [u8; 4], label: Label) {
        let code = if is_equal { 0x16 } else { 0x56 };
        self.jump(code, register, 0, i32::from_ne_bytes(bytes), label);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Goes to the end unless the packet (r2 to r3) has that many bytes. Changes r4.
    fn need(&mut self, packet_bytes: i16) {
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

/// The address to which neighbours of an address are asked for it (RFC 4291, section 2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// What sends packets for these addresses, and questions for their link address, to the map's socket.
pub(super) fn assemble(map: i32, own: &[IpAddr]) -> Vec<Instruction> {
    let v4: Vec<[u8; 4]> = own
        .iter()
        .filter_map(|own| if let IpAddr::V4(own) = own { Some(own.octets()) } else { None })
        .collect();
    let v6 = own.iter().filter_map(|own| if let IpAddr::V6(own) = own { Some(*own) } else { None });
    let v6: Vec<[u8; 16]> = v6.flat_map(|own| [own.octets(), solicited_node(own).octets()]).collect();
    let mut to = Assembler::default();
    // r6: the context; r2, r3: the packet's beginning and end.
    to.copy(6, 1);
    to.load_word(2, 6, DATA);
    to.load_word(3, 6, DATA_END);
    to.need(ETHERNET_BYTES);
    // r5 = *(u16 *)(r2 + 12): the EtherType.
    to.push(0x69, 5, 2, 12, 0);
    for (kind, label) in [(0x0800u16, Label::V4), (0x0806, Label::Arp), (0x86dd, Label::V6)] {
        to.jump(0x15, 5, 0, u16::from_ne_bytes(kind.to_be_bytes()).into(), label);
    }
    to.go(Label::Pass);
    // The destination of IPv4, the target of ARP.
    for (label, need, at) in [(Label::V4, 20, 16), (Label::Arp, 28, 24)] {
        to.label(label);
        to.need(ETHERNET_BYTES + need);
        to.load_word(5, 2, ETHERNET_BYTES + at);
        for address in &v4 {
            to.go_if_word(true, 5, *address, Label::Redirect);
        }
        to.go(Label::Pass);
    }
    to.label(Label::V6);
    to.need(ETHERNET_BYTES + 40);
    for (index, address) in v6.iter().enumerate() {
        for (word, bytes) in (0i16..).zip(address.chunks_exact(4)) {
            to.load_word(5, 2, ETHERNET_BYTES + 24 + 4 * word);
            to.go_if_word(false, 5, bytes.try_into().expect("four bytes"), Label::Next(index));
        }
        to.go(Label::Redirect);
        to.label(Label::Next(index));
    }
    to.go(Label::Pass);
    to.label(Label::Redirect);
    // r1 = the map (BPF_PSEUDO_MAP_FD, two slots).
    to.push(0x18, 1, 1, 0, map);
    to.push(0, 0, 0, 0, 0);
    to.load_word(2, 6, QUEUE);
    // What arrives at a queue without a socket is the kernel's (Linux 5.3).
    to.set(3, PASS);
    to.push(0x85, 0, 0, 0, REDIRECT_MAP);
    to.push(0x95, 0, 0, 0, 0);
    to.label(Label::Pass);
    to.set(0, PASS);
    to.push(0x95, 0, 0, 0, 0);
    to.finish()
}

/// Makes a call of bpf(2), whose argument is of the command's kind.
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: callers pass what the command reads, with pointers that are valid during the call.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn descriptor<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: these commands answer with a new descriptor.
    bpf(command, attributes).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Makes a map from queues to sockets, for queues up to this one.
///
/// # Errors
/// EPERM: it takes `CAP_BPF` and `CAP_NET_ADMIN`. ENOSYS: no bpf(2). EINVAL: no such maps.
pub(super) fn make_map(queue: u32) -> io::Result<OwnedFd> {
    // Type, bytes of a key and of a value, entries.
    descriptor(MAP_CREATE, &[MAP_TYPE_XSKMAP, 4, 4, queue.saturating_add(1)])
}

/// Puts a bound socket into the map.
///
/// # Errors
/// What the kernel says.
pub(super) fn enter(map: &OwnedFd, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket = socket.as_raw_fd();
    let pointer = |value: *const u8| value as u64;
    let attributes = [
        u64::from(map.as_raw_fd() as u32),
        pointer((&raw const queue).cast()),
        pointer((&raw const socket).cast()),
        0,
    ];
    // Little-endian: the descriptor is the first 32 bits of its word, and padding follows.
    const { assert!(cfg!(target_endian = "little")) };
    bpf(MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// `union bpf_attr` for a program, as far as it is filled here.
#[repr(C)]
struct Load {
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
/// EPERM: it takes `CAP_BPF` and `CAP_NET_ADMIN`. Else what the kernel says.
pub(super) fn load(map: &OwnedFd, own: &[IpAddr]) -> io::Result<OwnedFd> {
    let code = assemble(map.as_raw_fd(), own);
    let attributes = Load {
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

/// Attaches a program to a device in generic mode, for as long as the descriptor is there.
///
/// # Errors
/// EBUSY, EEXIST: the device has a program. EINVAL: a kernel before 5.9. Else what the kernel says.
pub(super) fn attach(program: &OwnedFd, device: u32) -> io::Result<OwnedFd> {
    descriptor(LINK_CREATE, &[program.as_raw_fd() as u32, device, ATTACH_XDP, FLAGS_SKB_MODE])
}
