//! Sending: by reference if the remote end accepts references, otherwise counted in as literal bytes.

use super::Process;
use crate::copies::Stamp;
use crate::descriptors::{Descriptor, descriptor};
use crate::ends::{self, End};
use crate::forks;
use crate::kernel::Kernel;
use crate::message::{self, MIN_REFERENCE_BYTES, Prepared, SendPart, SharedBuf};
use crate::pool::CHUNK_BYTES;
use crate::send::{self, Piece, RemoteSlot};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use smallvec::SmallVec;
use uncopy_core::policy::trials::catalogue::lane_factor;
use uncopy_sys::bytes;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::lock::Critical;
use uncopy_sys::sync::Arc;

/// An end that can send by reference now.
pub struct SendTarget {
    end: Arc<End>,
    far: Arc<ends::RemoteEnd>,
}

/// A literal send in progress.
pub struct LiteralSend(Arc<End>);

impl LiteralSend {
    /// Finishes the send of `len_bytes` bytes.
    pub fn finish(self, len_bytes: usize) {
        self.0.count_sent(len_bytes);
    }
}

impl Drop for LiteralSend {
    fn drop(&mut self) {
        self.0.end_literal();
    }
}

impl Process {
    /// Returns the known end of a descriptor; to be looked up once per call. Costs one load if there is none.
    #[must_use]
    pub fn find_end(&self, fd: ProgramFd) -> Option<Arc<End>> {
        if !self.lanes.ends.may_have(fd) {
            return None;
        }
        // A signal handler of the program that interrupted this could block on the lock.
        let _critical = Critical::enter_briefly();
        self.lanes.ends.find(fd)
    }

    /// Returns a target for a part of `len_bytes` bytes, if it may go by reference now.
    #[must_use]
    pub fn send_target(&self, fd: ProgramFd, end: &Arc<End>, len_bytes: usize) -> Option<SendTarget> {
        if len_bytes < MIN_REFERENCE_BYTES || forks::is_shared() || self.pauses_refs(end, len_bytes) {
            return None;
        }
        if !descriptor(fd).is_some_and(Descriptor::is_own) || !self.is_bound(fd, end) {
            return None;
        }
        let far = end.remote_end().filter(|far| !far.peer.is_gone())?;
        far.accepts_refs().then(|| SendTarget { end: Arc::clone(end), far })
    }

    /// True if large parts may go by reference at an end. Makes no system call.
    #[must_use]
    pub fn may_send_refs(&self, end: &End) -> bool {
        if end.has_ended() {
            return false;
        }
        let _critical = Critical::enter_briefly();
        let own = self.lanes.board.slots.get(end.slot as usize);
        own.is_some_and(|own| own.sending.pauses_refs())
            || end.remote_end().is_some_and(|far| far.accepts_refs())
    }

    /// Notes a large send at a descriptor that has no known end.
    pub fn note_large_send(&self, fd: ProgramFd) {
        if !forks::is_shared() {
            self.know(fd);
        }
    }

    /// True if references to parts of `len_bytes` bytes are paused at an end that could send them: they cost both
    /// ends more time than copies, or that is being measured. The receiver is notified.
    fn pauses_refs(&self, end: &End, len_bytes: usize) -> bool {
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return false };
        let Some(far) = end.remote_end().filter(|far| !end.has_ended() && !far.peer.is_gone()) else {
            own.sending.set_pauses_refs(false);
            return false;
        };
        if !far.accepts_refs() && !own.sending.pauses_refs() {
            return false;
        }
        far.peer.note_sent_to();
        let pauses_refs = !uncopy_trials::is_on(lane_factor(len_bytes));
        own.sending.set_pauses_refs(pauses_refs);
        pauses_refs
    }

    /// Sends parts of the program's, the large ones by reference. Returns the number of bytes sent; `None` if
    /// nothing was sent and the call is to be made unchanged. Signal handlers of the program must be deferred.
    #[must_use]
    pub fn send(
        &self,
        fd: ProgramFd,
        SendTarget { end, far }: &SendTarget,
        parts: &[SendPart<'_>],
        flags: i32,
    ) -> Option<Result<usize, Errno>> {
        let own = self.lanes.board.slots.get(end.slot as usize)?;
        let slot = far.peer.slot(far.slot)?;
        let _alone = end.try_lock_sends()?;
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
            // Taking memory reads the peers' returns, whose rings would fill up if nobody did.
            self.lanes.peers.read_returns();
        }
        let pieces: SmallVec<[Piece<'_>; 8]> = prepared.iter().map(Prepared::piece).collect();
        let kernel = Kernel { fd, end, own, far: slot, flags };
        let target = RemoteSlot { peer: &far.peer, slot, lane: far.lane };
        let sent = send::send(&kernel, &pieces, own, target, &self.lanes.peers);
        drop(pieces);
        for prepared in prepared {
            if let Prepared::Copied(held) = prepared {
                self.lanes.peers.release(held);
            }
        }
        sent.filter(|sent| *sent != Err(Errno(libc::EAGAIN)))
    }

    /// Takes shared memory of `len_bytes` bytes to fill, and perhaps keep for long. `None` if there is no room
    /// now.
    #[must_use]
    pub fn alloc_shared(&'static self, len_bytes: usize) -> Option<SharedBuf> {
        let is_legal = (MIN_REFERENCE_BYTES..=CHUNK_BYTES).contains(&len_bytes);
        if !is_legal || forks::is_shared() || self.is_stopping() {
            return None;
        }
        let peers = &self.lanes.peers;
        let has_headroom = peers.pool.has_headroom() || {
            peers.read_returns();
            peers.pool.has_headroom()
        };
        let held = if has_headroom { peers.alloc(len_bytes) } else { None };
        if held.is_none() {
            // A cached copy may never be sent again.
            self.copies.lock().drop_one();
            if has_headroom {
                self.want_room();
            }
        }
        held.map(|held| SharedBuf::of(Some(Arc::new(held)), &self.lanes))
    }

    /// Returns a copy of a part in shared memory, and true if it is a cached one with the same `stamp`; otherwise
    /// makes one and caches it. `None` if there is no room now. A concurrent write may or may not be in the copy,
    /// but then the stamp does not recur.
    ///
    /// # Safety
    /// The part must be readable.
    #[must_use]
    pub unsafe fn copy_of(&'static self, part: Part, stamp: Stamp) -> Option<(SharedBuf, bool)> {
        if self.has_no_stamps() {
            return None;
        }
        if let Some(kept) = self.copies.lock().find(part, stamp) {
            return Some((kept, true));
        }
        let kept = self.alloc_shared(part.len_bytes)?;
        let held = kept.held()?;
        // SAFETY: `held` is a new run of at least `len_bytes` bytes that nobody else knows; the caller guarantees
        // that the part is readable, and it does not overlap the run.
        unsafe { bytes::copy(held.address() as *mut u8, part.address as *const u8, part.len_bytes) };
        self.count_copied(part.len_bytes);
        self.copies.lock().put(part, stamp, kept.clone_handle());
        Some((kept, false))
    }

    /// Stops trusting stamps, and drops the cached copies.
    pub fn forget_stamps(&self) {
        self.has_no_stamps.store(true, SeqCst);
        self.copies.lock().clear();
    }

    /// True if stamps are no longer trusted.
    #[must_use]
    pub fn has_no_stamps(&self) -> bool {
        self.has_no_stamps.load(SeqCst)
    }

    fn count_copied(&self, len_bytes: usize) {
        self.copied_bytes.fetch_add(len_bytes, Relaxed);
    }

    /// Returns the bytes copied into shared memory since the last call.
    pub fn take_copied_bytes(&self) -> usize {
        self.copied_bytes.swap(0, Relaxed)
    }

    /// Requests another chunk of shared memory.
    fn want_room(&self) {
        if self.lanes.peers.pool.request_chunk() {
            self.ring();
        }
    }

    /// Counts in a send that is made unchanged; `None` if the descriptor has no known end.
    #[must_use]
    pub fn begin_literal(&self, fd: ProgramFd, end: Option<Arc<End>>) -> Option<LiteralSend> {
        if let Some(descriptor) = descriptor(fd) {
            descriptor.note_user();
        }
        end.map(|end| {
            end.begin_literal();
            LiteralSend(end)
        })
    }
}
