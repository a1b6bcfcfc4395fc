//! Ending all links of a process that lives on, because it is about to change its user or lose rights: peers'
//! memory that it still needs is replaced by private copies.
//!
//! ```text
//! every end ended, nobody announces ──► own memory private ──► boards ──► what is announced is held ──► what is held ──► links closed
//! ```
//!
//! Addresses do not change, so views and calls in progress read the same bytes before and after. Boards come
//! first, so that announcements do not change while they are read. Links are closed last, because peers then reuse
//! the memory that this process held.

use crate::ends::Ends;
use crate::peers::Peers;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::Arc;

/// Replaces peers' memory that is held, or announced at `ends` and not yet received, by private copies, and ends
/// every link. Nothing is announced, and nobody adds peers or chunks, meanwhile.
///
/// # Errors
/// The error of the mapping that failed; peers' memory may then still be mapped.
pub(crate) fn detach(peers: &Peers, ends: &Ends) -> Result<(), Errno> {
    peers.read_returns();
    let known = peers.known_peers();
    let ends = ends.with_descriptors();
    let bound: Vec<_> = ends.iter().filter_map(|(_, end)| Some((end, end.remote_end()?))).collect();
    for peer in &known {
        let slots = bound.iter().filter(|(_, far)| Arc::ptr_eq(&far.peer, peer)).map(|(_, far)| far.slot);
        peer.detach_board(slots)?;
    }
    for (end, far) in &bound {
        let Some(slot) = far.peer.slot(far.slot) else { continue };
        // The lock ensures that a concurrent receive has the announcement outstanding, or holds its bytes.
        let receiver = end.receiver.lock();
        for announcement in receiver.outstanding(slot.sending.of(far.lane)) {
            peers.hold_while_known(&announcement.reference);
        }
    }
    known.iter().try_for_each(|peer| peer.detach_chunks())?;
    known.iter().for_each(|peer| peers.remove(peer.id(), &[]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{Announcement, Reference};
    use crate::ends::RemoteEnd;
    use crate::protocol::Stream;
    use crate::tests::two;
    use uncopy_sys::descriptor::ProgramFd;

    #[test]
    fn what_is_held_or_announced_stays_and_nothing_else_does() {
        const LEN_BYTES: usize = 9000;
        const STREAM: Stream = Stream::Unix { near: 1, far: 2 };
        let [sender, reader] = two();
        let of_reader = sender.peers.find(22).expect("linked");
        let of_sender = reader.peers.find(21).expect("linked");
        let fill = |byte: u8| sender.fill(&[byte; LEN_BYTES]).expect("room");
        let share = |held| sender.peers.share(held, 0, LEN_BYTES, &of_reader).expect("known");
        let [held, announced, released, others] = [8, 7, 6, 5].map(fill);
        let mine = reader.peers.resolve(&Announcement { at: 0, reference: share(&held) }).expect("held");
        let given = reader.peers.resolve(&Announcement { at: 1, reference: share(&released) }).expect("held");
        let others_address = mine.address() + (others.address() - held.address());
        let given_address = given.address();
        reader.peers.release(given);
        let ends = Ends::new();
        let end = ends.add(ProgramFd::new(5), STREAM, 9, reader.board).expect("a slot");
        let far = RemoteEnd { peer: Arc::clone(&of_sender), slot: 0, lane: 0 };
        assert!(ends.bind(STREAM.mirrored(), far).is_some());
        assert!(
            sender.board.slots[0].sending.announce(&Announcement { at: 2, reference: share(&announced) }, 0)
        );
        let bytes_at = |address: usize| {
            // SAFETY: `LEN_BYTES` at `address` lie in a chunk of the peer's, mapped while the peer is known.
            unsafe { std::slice::from_raw_parts(address as *const u8, LEN_BYTES) }
        };
        assert_eq!(bytes_at(others_address), [5; LEN_BYTES]);
        detach(&reader.peers, &ends).expect("memory");
        assert!(of_sender.is_gone() && reader.peers.find(21).is_none());
        for theirs in [&held, &announced, &released, &others] {
            // SAFETY: `theirs` is a run of this test with `LEN_BYTES` bytes, which only this thread writes.
            unsafe { (theirs.address() as *mut u8).write_bytes(1, LEN_BYTES) };
        }
        let nonsense = Reference { len_bytes: u32::MAX, ..share(&others) };
        assert!(sender.board.slots[0].sending.announce(&Announcement { at: 3, reference: nonsense }, 0));
        let slot = of_sender.slot(0).expect("a slot");
        let outstanding = end.receiver.lock().outstanding(slot.sending.of(0));
        assert_eq!(outstanding.iter().map(|announcement| announcement.at).collect::<Vec<_>>(), [2]);
        let received = reader.peers.resolve(&outstanding[0]).expect("its bytes are here");
        assert_eq!(bytes_at(mine.address()), [8; LEN_BYTES]);
        assert_eq!(bytes_at(received.address()), [7; LEN_BYTES]);
        assert_eq!(bytes_at(given_address), [0; LEN_BYTES]);
        assert_eq!(bytes_at(others_address), [0; LEN_BYTES]);
        reader.peers.release(received);
        reader.peers.release(mine);
    }
}
