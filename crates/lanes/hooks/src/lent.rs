//! Message parts in twin memory. The copy in shared memory from which a part was sent is reused until the program
//! writes to the part, which the twin allocator's write protection detects.

use smallvec::SmallVec;
use uncopy_lanes::copies::Stamp;
use uncopy_lanes::message::{MIN_REFERENCE_BYTES, SendPart, SharedBuf};
use uncopy_lanes::peers::HeldBytes;
use uncopy_lanes::process::Process;
use uncopy_sys::iovec::Part;
use uncopy_twin::{self as twin, Loan, Until};

/// Bytes of a message with a stamp that tells whether they have changed.
pub(super) struct Stamped {
    /// Index of the part of the message that contains the bytes.
    pub index: usize,
    /// Address and length of the bytes.
    pub bytes: Part,
    /// Stamp of the bytes.
    pub stamp: Stamp,
}

/// Large parts in twin memory, lent so that writes to them are detected while they are sent.
#[derive(Default)]
pub(super) struct Lent {
    /// Bytes lent, in message order.
    pub stamped: SmallVec<[Stamped; 2]>,
    loans: SmallVec<[Loan; 2]>,
}

impl Lent {
    /// Reports that the part with this number had to be copied.
    pub(super) fn note_copied(&self, number: usize) {
        if let Some(loan) = self.loans.get(number) {
            loan.note_copied();
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The kernel keeps no reference to these pages.
        self.loans.drain(..).for_each(twin::settle);
    }
}

/// Lends the large parts in twin memory. Outside of critical sections, since the first call starts a thread.
pub(super) fn lend(parts: &[Part]) -> Lent {
    let mut lent = Lent::default();
    if !twin::is_used() {
        return lent;
    }
    for (index, part) in parts.iter().enumerate() {
        let (address, len_bytes) = twin::worth_lending(part.address, part.len_bytes);
        if len_bytes >= MIN_REFERENCE_BYTES
            && let Some(loan) = twin::lend(address, len_bytes, Until::Completed)
        {
            let (bytes, stamp) = (Part { address, len_bytes }, loan.stamp().words());
            lent.stamped.push(Stamped { index, bytes, stamp });
            lent.loans.push(loan);
        }
    }
    lent
}

/// Index of a part of the message, the bytes copied, and their copy in shared memory.
pub(super) type PartCopy = (usize, Part, SharedBuf);

/// Returns copies of the stamped bytes, cached or new, as far as there is room. Calls `note_copied` with the number
/// of each new one.
///
/// # Safety
/// The stamped bytes must be readable.
pub(super) unsafe fn copy_stamped(
    process: &'static Process,
    stamped: &[Stamped],
    note_copied: impl Fn(usize),
) -> SmallVec<[PartCopy; 2]> {
    let copy = |(number, Stamped { index, bytes, stamp }): (usize, &Stamped)| {
        // SAFETY: the caller guarantees that the stamped bytes are readable.
        let (kept, is_earlier) = unsafe { process.copy_of(*bytes, *stamp) }?;
        if !is_earlier {
            note_copied(number);
        }
        Some((*index, *bytes, kept))
    };
    stamped.iter().enumerate().filter_map(copy).collect()
}

/// Returns the message's parts, with copies in place of the bytes that were copied.
pub(super) fn with_copies<'a>(parts: &[Part], copies: &'a [PartCopy]) -> SmallVec<[SendPart<'a>; 16]> {
    let mut all: SmallVec<[SendPart<'a>; 16]> = SmallVec::new();
    let mut copies = copies.iter().peekable();
    for (index, part) in parts.iter().enumerate() {
        let mut rest = *part;
        if let Some((_, bytes, kept)) = copies.next_if(|(of, _, _)| *of == index) {
            let before_bytes = bytes.address - part.address;
            all.push(SendPart::Plain(Part { address: part.address, len_bytes: before_bytes }));
            let copy = kept.held().map_or(0, HeldBytes::address);
            all.push(SendPart::Shared(Part { address: copy, len_bytes: bytes.len_bytes }, kept));
            let behind = bytes.address + bytes.len_bytes;
            rest = Part { address: behind, len_bytes: part.address + part.len_bytes - behind };
        }
        all.push(SendPart::Plain(rest));
    }
    all.retain(|given| !matches!(given, SendPart::Plain(Part { len_bytes: 0, .. })));
    all
}
