//! Loans of messages that the kernel has not completed yet.

use crate::Loan;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use uncopy_sys::lock::{Critical, Lock};
use uncopy_transmit::Token;

/// Maximum loans kept. Any further loan is dropped, so that its pages count as held by the kernel forever.
const MAX_KEPT: usize = 1024;

struct Pending {
    lock: Lock,
    kept: UnsafeCell<KeptLoans>,
}

struct KeptLoans {
    loans: [MaybeUninit<(Token, Loan)>; MAX_KEPT],
    count: usize,
}

// SAFETY: only `with` accesses `kept`, under the lock, and its contents may move between threads.
unsafe impl Sync for Pending {}

static PENDING: Pending = Pending {
    lock: Lock::new(),
    kept: UnsafeCell::new(KeptLoans { loans: [const { MaybeUninit::uninit() }; MAX_KEPT], count: 0 }),
};

/// Calls `section` with the loans kept. A forked child could inherit the lock locked, but servers that read
/// completions do not fork while threads are at work.
fn with<T>(section: impl FnOnce(&mut KeptLoans) -> T) -> T {
    let _critical = Critical::enter_briefly();
    let _guard = PENDING.lock.guard();
    // SAFETY: the guard holds the lock until the section ends, and no other code makes a reference to `kept`.
    section(unsafe { &mut *PENDING.kept.get() })
}

/// Keeps a confirmed loan until its message completes.
pub fn keep(token: Token, loan: Loan) {
    let refused = with(|kept| match kept.loans.get_mut(kept.count) {
        Some(slot) => {
            slot.write((token, loan));
            kept.count += 1;
            None
        }
        None => Some(loan),
    });
    drop(refused);
}

/// Settles the loans of a completed message.
pub fn complete(token: Token) {
    while let Some(loan) = remove(token) {
        crate::settle(loan);
    }
}

fn remove(token: Token) -> Option<Loan> {
    with(|kept| {
        // SAFETY: `keep` has initialised the first `count` slots, and only these are searched.
        let matches = |slot: &MaybeUninit<(Token, Loan)>| unsafe { slot.assume_init_ref() }.0 == token;
        let index = kept.loans[..kept.count].iter().position(matches)?;
        kept.count -= 1;
        kept.loans.swap(index, kept.count);
        // SAFETY: the slot was below the old count, so it is initialised; now above the count, it is read
        // once.
        Some(unsafe { kept.loans[kept.count].assume_init_read() }.1)
    })
}

pub fn count() -> usize {
    with(|kept| kept.count)
}
