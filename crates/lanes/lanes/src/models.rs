//! Loom models of the board: two threads stand for two processes, an atomic word for the socket.

use crate::board::{Announcement, Reference, Slot};
use uncopy_sys::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use uncopy_sys::sync::{Arc, check, spawn};

const LANE: u32 = 3;
const REFERENCE: Reference = Reference { owner: 1, chunk: 2, run: 3, offset_bytes: 4, len_bytes: 5 };
/// Contents of the socket: 0 for nothing, a token, or a byte.
const TOKEN: u32 = 1;
const BYTE: u32 = 2;

#[derive(Default)]
struct Two {
    sender: Slot,
    receiver: Slot,
    socket: AtomicU32,
}

impl Two {
    fn announce(&self) -> bool {
        self.announce_this(REFERENCE)
    }

    fn announce_this(&self, reference: Reference) -> bool {
        self.sender.sending.announce(&Announcement { at: 0, reference }, 0)
    }

    /// Announces a different reference of `len_bytes` bytes at the same offset.
    fn announce_anew(&self, len_bytes: u32) -> bool {
        self.announce_this(Reference { run: 9, len_bytes, ..REFERENCE })
    }

    /// Sends a reference if the receiver accepts references.
    fn send(&self) {
        self.sender.sending.begin();
        if self.receiver.receiving.accepts_refs(LANE) && self.announce() {
            self.socket.store(TOKEN, Release);
        }
        self.sender.sending.end();
    }

    /// Announces a reference and withdraws it, as if the socket had no room for the token.
    fn send_in_vain(&self) {
        self.sender.sending.begin();
        if self.announce() {
            self.sender.sending.withdraw_last(1);
        }
        self.sender.sending.end();
    }
}

#[test]
fn after_a_withdrawal_nothing_is_announced_that_was_not_seen() {
    check(3, || {
        let two = Arc::new(Two::default());
        two.receiver.receiving.accept_refs(LANE);
        let sender = Arc::clone(&two);
        let sender = spawn(move || sender.send());
        two.receiver.receiving.accept_refs(0);
        // The order matters: busy first, then the number of announcements.
        let seen = (!two.sender.sending.is_busy()).then(|| two.sender.sending.produced());
        sender.join().expect("thread");
        if let Some(seen) = seen {
            assert_eq!(seen, two.sender.sending.produced());
            assert_eq!(seen == 1, two.socket.load(Relaxed) == TOKEN);
        }
    });
}

#[test]
fn what_is_announced_as_a_token_is_one() {
    check(3, || {
        let two = Arc::new(Two::default());
        two.receiver.receiving.accept_refs(LANE);
        let sender = Arc::clone(&two);
        let sender = spawn(move || {
            sender.send_in_vain();
            sender.socket.store(BYTE, Release);
        });
        let found = two.socket.load(Acquire);
        if found != 0 {
            assert_eq!(two.sender.sending.of(0).get(0), None, "it was a byte");
        }
        sender.join().expect("thread");
    });
}

#[test]
fn what_is_announced_anew_finds_the_room_that_was_made() {
    check(3, || {
        let two = Arc::new(Two::default());
        let sender = Arc::clone(&two);
        let sender = spawn(move || {
            sender.send_in_vain();
            assert!(!sender.announce_anew(REFERENCE.len_bytes + 1));
            assert!(sender.announce_anew(REFERENCE.len_bytes - 1));
            sender.socket.store(TOKEN, Release);
        });
        let due = two.sender.sending.of(0).get(0);
        if two.socket.load(Acquire) == TOKEN {
            let token = two.sender.sending.of(0).get(0).expect("announced");
            assert_eq!((token.at, token.reference.run), (0, 9));
            assert!(
                due.is_none_or(|due| due.at == 0 && due.reference.len_bytes >= token.reference.len_bytes)
            );
        }
        sender.join().expect("thread");
    });
}

#[test]
fn a_token_is_announced_before_it_is_there() {
    check(3, || {
        let two = Arc::new(Two::default());
        two.receiver.receiving.accept_refs(LANE);
        let sender = Arc::clone(&two);
        let sender = spawn(move || sender.send());
        if two.socket.load(Acquire) == TOKEN {
            let announcement = two.sender.sending.of(0).get(0).expect("announced");
            assert_eq!(announcement, Announcement { at: 0, reference: REFERENCE });
        }
        sender.join().expect("thread");
    });
}

#[test]
fn a_slot_that_comes_to_be_another_ends_announces_nothing_to_the_first() {
    check(3, || {
        let two = Arc::new(Two::default());
        two.sender.clear(LANE);
        let sender = Arc::clone(&two);
        let sender = spawn(move || {
            // All announcements of the first lane have been received.
            sender.sender.clear(LANE + 1);
            assert!(sender.announce());
        });
        assert_eq!(two.sender.sending.of(LANE).get(0), None);
        assert!(!two.sender.sending.of(LANE).has_more_than(0));
        sender.join().expect("thread");
        assert_eq!(two.sender.sending.of(LANE).get(0), None);
        assert!(two.sender.sending.of(LANE + 1).has_more_than(0));
    });
}

#[test]
fn a_count_that_is_quiet_is_what_was_read() {
    check(3, || {
        let two = Arc::new(Two::default());
        two.socket.store(1, Relaxed);
        let receiver = Arc::clone(&two);
        let receiver = spawn(move || {
            receiver.receiver.receiving.begin_reading();
            receiver.socket.store(0, Release);
            receiver.receiver.receiving.end_reading(1);
        });
        let quiet = two.receiver.receiving.read_bytes_if_empty(|| two.socket.load(Acquire) == 0);
        assert!(quiet.is_none_or(|bytes| bytes == 1), "{quiet:?} of 1 was read");
        receiver.join().expect("thread");
    });
}
