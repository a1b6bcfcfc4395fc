//! What goes out of this process: by reference where the other end attends, else counted in.

use super::Process;
use crate::descriptors::{Descriptor, descriptor};
use crate::ends::{self, End};
use crate::forks;
use crate::kernel::Kernel;
use crate::message::{self, Given, Kept, MIN_REFERENCE_BYTES, Prepared};
use crate::send::{self, Far, Piece};
use smallvec::SmallVec;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::Arc;

/// An end at which bytes go by reference, if they do so now.
pub struct Outlet {
    end: Arc<End>,
    far: Arc<ends::Far>,
}

/// A literal send under way.
pub struct LiteralSend(Arc<End>);

impl LiteralSend {
    /// It is over: so many bytes went.
    pub fn sent(self, len_bytes: usize) {
        self.0.count_sent(len_bytes);
    }
}

impl Drop for LiteralSend {
    fn drop(&mut self) {
        self.0.end_literal();
    }
}

impl Process {
    /// Where a part of `len_bytes` bytes may go by reference, if it may.
    #[must_use]
    pub fn outlet(&self, fd: i32, len_bytes: usize) -> Option<Outlet> {
        if len_bytes < MIN_REFERENCE_BYTES || forks::is_shared() {
            return None;
        }
        let end = self.bound(fd).filter(|_| descriptor(fd).is_some_and(Descriptor::is_own))?;
        let far = end.far().filter(|far| !far.peer.is_gone())?;
        let attends = far.peer.slot(far.slot)?.receiving.attends(far.lane);
        attends.then_some(Outlet { end, far })
    }

    /// Sends parts of the program's, the large ones by reference. How many bytes are on their way;
    /// `None`: nothing was sent, and the call is to be made as it is. With no handler of the program on top of it.
    #[must_use]
    pub fn send(
        &self,
        fd: i32,
        Outlet { end, far }: &Outlet,
        parts: &[Given<'_>],
        flags: i32,
    ) -> Option<Result<usize, Errno>> {
        let own = self.lanes.board.slots.get(end.slot as usize)?;
        let slot = far.peer.slot(far.slot)?;
        let _alone = end.send_alone()?;
        let prepared = message::prepare(parts, &self.lanes.peers, || self.want_room());
        let pieces: SmallVec<[Piece<'_>; 8]> = prepared.iter().map(Prepared::piece).collect();
        let kernel = Kernel { fd, end, own, far: slot, flags };
        let target = Far { peer: &far.peer, slot, lane: far.lane };
        let sent = send::send(&kernel, &pieces, own, target, &self.lanes.peers);
        drop(pieces);
        for prepared in prepared {
            if let Prepared::Copied(held) = prepared {
                self.lanes.peers.release(held);
            }
        }
        sent.filter(|sent| *sent != Err(Errno(libc::EAGAIN)))
    }

    /// Takes shared memory for `len_bytes` bytes, which the caller fills and may keep for long; `None`: there is no room now.
    #[must_use]
    pub fn take(&'static self, len_bytes: usize) -> Option<Kept> {
        if len_bytes < MIN_REFERENCE_BYTES || forks::is_shared() || !self.lanes.peers.pool.is_roomy() {
            return None;
        }
        let held = self.lanes.peers.take(len_bytes);
        if held.is_none() {
            self.want_room();
        }
        held.map(|held| Kept::of(Some(Arc::new(held)), &self.lanes))
    }

    /// There is no room: another chunk is wanted.
    fn want_room(&self) {
        if self.lanes.peers.pool.want_chunk() {
            self.ring();
        }
    }

    /// Counts a send in that is made as it is; `None`: nothing is known of the descriptor.
    #[must_use]
    pub fn begin_literal(&self, fd: i32) -> Option<LiteralSend> {
        if let Some(descriptor) = descriptor(fd) {
            descriptor.note_user();
        }
        let end = self.lanes.ends.find(fd)?;
        end.begin_literal();
        Some(LiteralSend(end))
    }
}
