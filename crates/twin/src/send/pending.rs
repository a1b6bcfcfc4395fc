//! Loans of messages that the kernel has not completed yet.

use crate::Loan;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use uncopy_sys::lock::{Critical, Lock};
use uncopy_transmit::Token;

/// Loans that are kept. One more is dropped, which says that the kernel may hold the pages for good.
const MAX_KEPT: usize = 1024;

struct Pending {
    lock: Lock,
    kept: UnsafeCell<Kept>,
}

struct Kept {
    loans: [MaybeUninit<(Token, Loan)>; MAX_KEPT],
    count: usize,
}

// SAFETY: `kept` is reached by `with` only, under the lock; a loan and a token may be sent to another thread.
unsafe impl Sync for Pending {}

static PENDING: Pending = Pending {
    lock: Lock::new(),
    kept: UnsafeCell::new(Kept { loans: [const { MaybeUninit::uninit() }; MAX_KEPT], count: 0 }),
};

/// Runs a section with what is kept. The lock is only tried where a forked child may have inherited it locked: never,
/// because servers that read completions do not fork with threads at work.
fn with<T>(section: impl FnOnce(&mut Kept) -> T) -> T {
    let _critical = Critical::enter_briefly();
    let _guard = PENDING.lock.guard();
    // SAFETY: the guard holds the lock until the section ends, and nothing else makes a reference.
    section(unsafe { &mut *PENDING.kept.get() })
}

/// Keeps a confirmed loan until its message is completed.
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

/// Settles the loans of a message that is completed.
pub fn complete(token: Token) {
    while let Some(loan) = take(token) {
        crate::settle(loan);
    }
}

fn take(token: Token) -> Option<Loan> {
    with(|kept| {
        // SAFETY: `keep` initialised the first `count`, and of no others is asked.
        let is_of = |slot: &MaybeUninit<(Token, Loan)>| unsafe { slot.assume_init_ref() }.0 == token;
        let index = kept.loans[..kept.count].iter().position(is_of)?;
        kept.count -= 1;
        kept.loans.swap(index, kept.count);
        // SAFETY: it was below the count, so initialised, and is beyond it from here on, so read once.
        Some(unsafe { kept.loans[kept.count].assume_init_read() }.1)
    })
}

/// Number of loans that are kept.
pub fn count() -> usize {
    with(|kept| kept.count)
}
