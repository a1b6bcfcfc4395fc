//! What goes out of this process: by reference where the other end attends, else counted in.

use super::Process;
use crate::copies::Stamp;
use crate::descriptors::{Descriptor, descriptor};
use crate::ends::{self, End};
use crate::forks;
use crate::kernel::Kernel;
use crate::message::{self, Given, Kept, MIN_REFERENCE_BYTES, Prepared};
use crate::pool::CHUNK_BYTES;
use crate::send::{self, Far, Piece};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use smallvec::SmallVec;
use uncopy_core::policy::trials::catalogue::by_lane;
use uncopy_sys::bytes;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
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
        if self.lanes.ends.find(fd).is_some_and(|end| self.withholds(&end, len_bytes)) {
            return None;
        }
        let end = self.bound(fd).filter(|_| descriptor(fd).is_some_and(Descriptor::is_own))?;
        let far = end.far().filter(|far| !far.peer.is_gone())?;
        far.attends().then_some(Outlet { end, far })
    }

    /// Whether large parts may go by reference at a descriptor: a look without a system call.
    #[must_use]
    pub fn may_refer(&self, fd: i32) -> bool {
        self.find_alone(fd).filter(|(_, end)| !end.has_ended()).is_some_and(|(_critical, end)| {
            let own = self.lanes.board.slots.get(end.slot as usize);
            own.is_some_and(|own| own.sending.withholds()) || end.far().is_some_and(|far| far.attends())
        })
    }

    /// The end behind a descriptor, with no handler of the program on top, which could find locks taken; a load where there is none.
    fn find_alone(&self, fd: i32) -> Option<(Critical, Arc<End>)> {
        if !self.lanes.ends.may_have(fd) {
            return None;
        }
        let critical = Critical::enter_briefly();
        self.lanes.ends.find(fd).map(|end| (critical, end))
    }

    /// Takes note that something large was sent at a descriptor of which nothing is known.
    pub fn sent(&self, fd: i32) {
        if !forks::is_shared() {
            self.know(fd);
        }
    }

    /// Whether references to parts of `len_bytes` bytes are withheld at an end that could take them, because they cost both ends more
    /// time than copies, or that is being tried. Its receiver is told.
    fn withholds(&self, end: &End, len_bytes: usize) -> bool {
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return false };
        let Some(far) = end.far().filter(|far| !end.has_ended() && !far.peer.is_gone()) else {
            own.sending.withhold(false);
            return false;
        };
        if !far.attends() && !own.sending.withholds() {
            return false;
        }
        far.peer.note_sent_to();
        let withholds = !uncopy_trials::is_on(by_lane(len_bytes));
        own.sending.withhold(withholds);
        withholds
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
        if forks::is_shared() {
            return None;
        }
        if own.sending.room(slot.receiving.consumed()) == 0 {
            return None;
        }
        let prepared = message::prepare(parts, &self.lanes.peers, || self.want_room());
        let copied = prepared.iter().filter(|prepared| matches!(prepared, Prepared::Copied(_)));
        self.count_copied(copied.map(|prepared| prepared.piece().len_bytes()).sum());
        if prepared.iter().all(|prepared| !matches!(prepared, Prepared::Copied(_))) {
            // Whoever takes memory hears what was given back; who takes none does it here, or peers have more and more to say.
            self.lanes.peers.hear();
        }
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
        let is_legal = (MIN_REFERENCE_BYTES..=CHUNK_BYTES).contains(&len_bytes);
        if !is_legal || forks::is_shared() || self.is_stopping() {
            return None;
        }
        let peers = &self.lanes.peers;
        let is_roomy = peers.pool.is_roomy() || {
            peers.hear();
            peers.pool.is_roomy()
        };
        let held = if is_roomy { peers.take(len_bytes) } else { None };
        if held.is_none() {
            // What was sent before may not be sent again.
            self.copies.lock().drop_one();
            if is_roomy {
                self.want_room();
            }
        }
        held.map(|held| Kept::of(Some(Arc::new(held)), &self.lanes))
    }

    /// A copy in shared memory of bytes of the program's, and whether it is that of an earlier call, whose `stamp` was the same: else
    /// it is made now, and kept. `None`: there is no room now. What is written meanwhile may be in it: then its stamp does not come
    /// again.
    ///
    /// # Safety
    /// The part can be read.
    #[must_use]
    pub unsafe fn copy_of(&'static self, part: Part, stamp: Stamp) -> Option<(Kept, bool)> {
        if self.has_no_stamps() {
            return None;
        }
        if let Some(kept) = self.copies.lock().find(part, stamp) {
            return Some((kept, true));
        }
        let kept = self.take(part.len_bytes)?;
        let held = kept.held()?;
        // SAFETY: a run of that length that nobody else knows; the caller answers for the part.
        unsafe { bytes::copy(held.address() as *mut u8, part.address as *const u8, part.len_bytes) };
        self.count_copied(part.len_bytes);
        self.copies.lock().put(part, stamp, kept.again());
        Some((kept, false))
    }

    /// Stamps are not to be believed from here on.
    pub fn forget_stamps(&self) {
        self.has_no_stamps.store(true, SeqCst);
        self.copies.lock().clear();
    }

    /// Whether stamps are not to be believed any more.
    #[must_use]
    pub fn has_no_stamps(&self) -> bool {
        self.has_no_stamps.load(SeqCst)
    }

    fn count_copied(&self, len_bytes: usize) {
        self.copied_bytes.fetch_add(len_bytes, Relaxed);
    }

    /// Bytes that were copied into shared memory since this was asked last.
    pub fn take_copied_bytes(&self) -> usize {
        self.copied_bytes.swap(0, Relaxed)
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
        let (_, end) = self.find_alone(fd)?;
        end.begin_literal();
        Some(LiteralSend(end))
    }
}
