//! Sending outputs by reference, if their bytes are sent repeatedly.
//!
//! A blocking call must be a cancellation point, and a signal must interrupt it as the program's own. So this
//! module blocks only in libc's `poll`; if there is no room at all, the program's own call is made.

use core::ffi::c_int;
use uncopy_engine::call::output::Output;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::fd::FdKind;
use uncopy_sys::socket;
use uncopy_transmit::{self as transmit, Envelope, Hold, Part, Plan, Sent, Way};

/// Result of an attempt to send by reference.
pub enum Lending {
    /// Output sent: bytes, or an error.
    Sent(Result<usize, Errno>),
    /// Nothing was sent: gather the output instead.
    Gather,
}

/// Sends an output by reference if that pays, or is due to be measured.
pub fn send_lent(fd: ProgramFd, output: &mut Output, flags: c_int) -> Lending {
    let lendable_bytes = output.lendable_bytes();
    if lendable_bytes < transmit::min_bytes() || output.kind() != FdKind::Socket {
        return Lending::Gather;
    }
    let plan = transmit::plan(fd, output.len_bytes(), lendable_bytes, flags, &Envelope::default());
    if plan.way != Way::Splice {
        return Lending::Gather;
    }
    let waits = flags & libc::MSG_DONTWAIT == 0 && !socket::is_non_blocking(fd);
    let flags = if waits { flags | libc::MSG_DONTWAIT } else { flags };
    let mut parts = output.lend(|part, is_lent| {
        let (ptr, len) = (part.address as *const u8, part.len_bytes);
        if is_lent { Part::Lent { ptr, len } } else { Part::Copied { ptr, len } }
    });
    let mut is_referred = false;
    let sent = output.call(|_| send(fd, &mut parts, flags, plan, waits, &mut is_referred));
    if !is_referred {
        output.mark_copied();
    }
    match sent {
        Err(Errno::EAGAIN) if waits => Lending::Gather,
        sent => Lending::Sent(sent),
    }
}

/// Sends the parts, all if the call `waits`. Also returns whether any were sent by reference.
fn send(
    fd: ProgramFd,
    parts: &mut [Part],
    flags: c_int,
    plan: Plan,
    waits: bool,
    is_referred: &mut bool,
) -> Result<usize, Errno> {
    let whole_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut send_some = |parts: &[Part]| -> Result<usize, Errno> {
        let Sent { len_bytes, hold } = transmit::send(fd, parts, flags, &Envelope::default(), plan)?;
        *is_referred |= hold != Hold::Nothing;
        Ok(len_bytes)
    };
    let mut sent_bytes = send_some(parts)?;
    let mut behind_bytes = sent_bytes;
    let mut first = 0;
    while waits && sent_bytes < whole_bytes && transmit::wait_for_room(fd) {
        first += skip(&mut parts[first..], behind_bytes);
        behind_bytes = match send_some(&parts[first..]) {
            Ok(len_bytes) => len_bytes,
            Err(Errno::EAGAIN) => {
                uncopy_sys::thread::pause();
                0
            }
            // The next call gets the error.
            Err(_) => break,
        };
        sent_bytes += behind_bytes;
    }
    Ok(sent_bytes)
}

/// Removes the first `len_bytes` bytes from the parts; returns the number of parts removed completely.
fn skip(parts: &mut [Part], mut len_bytes: usize) -> usize {
    for (index, part) in parts.iter_mut().enumerate() {
        if len_bytes < part.len() {
            *part = part.from(len_bytes);
            return index;
        }
        len_bytes -= part.len();
    }
    parts.len()
}
