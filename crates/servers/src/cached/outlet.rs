//! How messages leave: copied, or with the values that lie in twin memory by reference.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmsg, sendmsg_addr, sockopt,
};
use smallvec::SmallVec;
use uncopy_transmit::{Envelope, Part, Token, Way};
use uncopy_twin::{Loan, Until, lend, send::Loans};

use crate::cached::arguments::Transmit;
use crate::cached::lane;
use crate::cached::response::{Kind, Piece};
use crate::transmit;

/// Parts of a message that are described without allocating.
const INLINE_PARTS: usize = 8;
/// Values of a message that are lent; others of it are copied. A response holds fewer.
const MAX_LOANS: usize = 128;

/// Shorter parts of a message are copied, however many there are: a page's reference costs as much as copying a page that
/// the processor has in its cache (`uncopy bench cache --only get --sizes 4096,8192 --transmit splice`).
const MIN_PART_BYTES: usize = 8 << 10;

/// Says what is true of a connection's socket, if values may leave by reference.
pub fn own(transmit: Transmit, socket: BorrowedFd<'_>) {
    if transmit != Transmit::Copy {
        transmit::own(socket, transmit == Transmit::Zerocopy);
    }
}

/// Sends `parts` as one message on a connected, non-blocking socket: how many bytes were taken.
///
/// # Errors
/// As sendmsg(2).
pub fn send(
    transmit: Transmit,
    socket: BorrowedFd<'_>,
    parts: &[Piece<'_>],
    lent: &mut Lent,
) -> io::Result<usize> {
    if transmit != Transmit::Copy {
        let lane = lane::Lane::find();
        if let Some(sent) = lane.and_then(|lane| by_lane(lane, socket.as_raw_fd(), parts)) {
            return sent;
        }
        // A lane over a UNIX socket counts what is sent, and does not see the system calls of `refer`.
        let is_counted = || sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX);
        if (lane.is_none() || !is_counted())
            && let Some(sent) = refer(transmit, socket.as_raw_fd(), parts, lent)
        {
            return sent;
        }
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(socket, &slices(parts), &mut SendAncillaryBuffer::default(), flags)?)
}

/// What the kernel holds of a connection's values until it says that it is done. What it holds when the connection is
/// closed it may hold for good.
#[derive(Debug, Default)]
pub struct Lent(Vec<(Token, Loan)>);

impl Lent {
    /// Whether the kernel may still hold something.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes back what the kernel has done with.
    pub fn take_back(&mut self, socket: BorrowedFd<'_>) {
        uncopy_transmit::completions(socket.as_raw_fd(), &mut |done| {
            for (_, loan) in self.0.extract_if(.., |(token, _)| *token == done) {
                uncopy_twin::settle(loan);
            }
        });
    }
}

/// The parts as the kernel copies them.
fn slices<'a>(parts: &[Piece<'a>]) -> SmallVec<[IoSlice<'a>; INLINE_PARTS]> {
    parts.iter().map(|part| IoSlice::new(part.bytes)).collect()
}

/// Whether a part may go by reference and should.
fn is_worth(transmit: Transmit, part: &Piece<'_>) -> bool {
    match transmit {
        Transmit::Copy => false,
        Transmit::Splice => part.kind != Kind::Text,
        _ => part.kind == Kind::Settled && part.bytes.len() >= MIN_PART_BYTES,
    }
}

/// Sends `parts`, values among them by reference, if that is the way for them. [`uncopy_twin::send`] could not know which
/// of them are worth it.
fn refer(transmit: Transmit, fd: i32, parts: &[Piece<'_>], lent: &mut Lent) -> Option<io::Result<usize>> {
    let len_bytes = parts.iter().map(|part| part.bytes.len()).sum();
    let worth = parts.iter().filter(|part| is_worth(transmit, part));
    let value_bytes = worth.map(|part| part.bytes.len()).sum();
    if value_bytes < uncopy_transmit::min_bytes() {
        return None;
    }
    let plan = uncopy_transmit::plan(fd, len_bytes, value_bytes, 0, &Envelope::default());
    if plan.way == Way::Copy && !plan.is_counted() {
        return None;
    }
    let mut loans = Loans::<MAX_LOANS>::new(plan);
    let mut offset = 0;
    let described: SmallVec<[Part; INLINE_PARTS]> = parts
        .iter()
        .map(|part| {
            let (ptr, len) = (part.bytes.as_ptr(), part.bytes.len());
            let lends = plan.way != Way::Copy && is_worth(transmit, part);
            let described = if lends { loans.lend(offset, ptr, len) } else { Part::Copied { ptr, len } };
            offset += len;
            described
        })
        .collect();
    let sent =
        loans.send(|| uncopy_transmit::write(fd, &described, plan), |token, loan| lent.0.push((token, loan)));
    Some(sent.map_err(|error| io::Error::from_raw_os_error(error.0)))
}

/// Sends `parts` by a lane, values from the copies in shared memory that they were sent from before, where this program is under
/// `uncopy run --lanes` and the other end is, too.
fn by_lane(lane: lane::Lane, fd: i32, parts: &[Piece<'_>]) -> Option<io::Result<usize>> {
    let is_large = |part: &Piece<'_>| part.kind != Kind::Text && part.bytes.len() >= lane::MIN_BYTES;
    let longest = parts.iter().filter(|part| is_large(part)).map(|part| part.bytes.len()).max()?;
    if !lane.takes(fd, longest) {
        return None;
    }
    let mut loans: SmallVec<[Loan; INLINE_PARTS]> = SmallVec::new();
    let described = parts.iter().map(|part| {
        let (address, len) = (part.bytes.as_ptr() as usize, part.bytes.len());
        let loan = if part.kind == Kind::Settled && is_large(part) {
            lend(address, len, Until::Completed)
        } else {
            None
        };
        let stamp = loan.as_ref().map_or([0; 2], |loan| loan.stamp().words());
        loans.extend(loan);
        lane::Part { address, len, stamp }
    });
    let described: SmallVec<[lane::Part; INLINE_PARTS]> = described.collect();
    let sent = lane.send(fd, &described);
    // The kernel did not get these pages.
    loans.into_iter().for_each(uncopy_twin::settle);
    sent
}

/// Sends `parts` as one datagram to `peer`, copied.
///
/// # Errors
/// As sendmsg(2).
pub fn send_to(socket: BorrowedFd<'_>, parts: &[Piece<'_>], peer: &SocketAddrAny) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg_addr(socket, peer, &slices(parts), &mut SendAncillaryBuffer::default(), flags)?)
}
