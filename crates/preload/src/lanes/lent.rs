//! Parts of a message that lie in twin memory: the copy in shared memory that one was sent from serves again until the program
//! writes there, which the twin allocator's protection tells.

use smallvec::SmallVec;
use uncopy_lanes::copies::Stamp;
use uncopy_lanes::message::{Given, Kept, MIN_REFERENCE_BYTES};
use uncopy_lanes::peers::Held;
use uncopy_lanes::process::Process;
use uncopy_sys::iovec::Part;
use uncopy_twin::{self as twin, Loan, Until};

/// Bytes of a message of which a stamp tells whether they have changed.
pub(super) struct Stamped {
    /// Which part of the message they lie in.
    pub index: usize,
    /// Where.
    pub bytes: Part,
    /// The stamp.
    pub stamp: Stamp,
}

/// Large parts in twin memory, protected against writes unnoticed while they are sent.
#[derive(Default)]
pub(super) struct Lent {
    /// What they are.
    pub stamped: SmallVec<[Stamped; 2]>,
    loans: SmallVec<[Loan; 2]>,
}

impl Lent {
    /// The one with this number among them had to be copied anew.
    pub(super) fn was_copied(&self, number: usize) {
        if let Some(loan) = self.loans.get(number) {
            loan.forfeit();
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The kernel does not get these pages.
        self.loans.drain(..).for_each(twin::settle);
    }
}

/// The large parts in twin memory. Outside of critical sections: the first call makes a thread.
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

/// A copy in shared memory, what it is a copy of, and which part of the message that lies in.
pub(super) type Copy = (usize, Part, Kept);

/// Their copies, as far as there are some or room for them. `was_copied` is told which are made now.
///
/// # Safety
/// They can be read.
pub(super) unsafe fn copies(
    process: &'static Process,
    stamped: &[Stamped],
    was_copied: impl Fn(usize),
) -> SmallVec<[Copy; 2]> {
    let copy = |(number, Stamped { index, bytes, stamp }): (usize, &Stamped)| {
        // SAFETY: the caller answers for it.
        let (kept, is_earlier) = unsafe { process.copy_of(*bytes, *stamp) }?;
        if !is_earlier {
            was_copied(number);
        }
        Some((*index, *bytes, kept))
    };
    stamped.iter().enumerate().filter_map(copy).collect()
}

/// The message's parts, copies in place of what they are copies of.
pub(super) fn given<'a>(parts: &[Part], copies: &'a [Copy]) -> SmallVec<[Given<'a>; 16]> {
    let mut all: SmallVec<[Given<'a>; 16]> = SmallVec::new();
    let mut copies = copies.iter().peekable();
    for (index, part) in parts.iter().enumerate() {
        let mut rest = *part;
        if let Some((_, bytes, kept)) = copies.next_if(|(of, _, _)| *of == index) {
            let before_bytes = bytes.address - part.address;
            all.push(Given::Plain(Part { address: part.address, len_bytes: before_bytes }));
            let copy = kept.held().map_or(0, Held::address);
            all.push(Given::Kept(Part { address: copy, len_bytes: bytes.len_bytes }, kept));
            let behind = bytes.address + bytes.len_bytes;
            rest = Part { address: behind, len_bytes: part.address + part.len_bytes - behind };
        }
        all.push(Given::Plain(rest));
    }
    all.retain(|given| !matches!(given, Given::Plain(Part { len_bytes: 0, .. })));
    all
}
