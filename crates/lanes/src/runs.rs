//! The ledger: which runs of this process's shared memory are in use, and by whom.
//!
//! A run is held by this process itself, and by peers to which a reference was sent, by whichever way it came to them:
//!
//! ```text
//! A ──reference──► B ──reference──► C      A's ledger:  hold(B)   before A sends
//!                                                       share(B, C), release(B): as B says, in this order
//!                                                       release(C): as C says, perhaps before it is known that C holds it
//! ```
//!
//! What B and C say comes by two ways, so a count may be below 0 for a while. A process that ends says nothing more: what
//! it said is read to its end, then all that it holds is dropped. So no run is used again that anybody may still read, and
//! none is lost.

extern crate alloc;
use alloc::collections::BTreeMap;
use smallvec::SmallVec;
use uncopy_core::addr::ArenaPages;

/// A run: its chunk, and its first page in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId {
    /// The chunk's number.
    pub chunk: u32,
    /// The run's first page.
    pub page: u32,
}

/// How often a peer holds a run.
#[derive(Debug)]
struct Hold {
    peer: u64,
    /// Below 0: what it was sent by another peer has not been told yet.
    times: i32,
}

#[derive(Debug)]
struct Run {
    pages: u32,
    /// This process needs it.
    is_own: bool,
    holds: SmallVec<[Hold; 2]>,
}

impl Run {
    fn is_free(&self) -> bool {
        !self.is_own && self.holds.iter().all(|hold| hold.times <= 0)
    }

    fn count(&mut self, peer: u64, by: i32) {
        match self.holds.iter().position(|hold| hold.peer == peer) {
            Some(at) => {
                self.holds[at].times = self.holds[at].times.saturating_add(by);
                if self.holds[at].times == 0 {
                    self.holds.swap_remove(at);
                }
            }
            None => self.holds.push(Hold { peer, times: by }),
        }
    }
}

/// The runs in use.
#[derive(Debug, Default)]
pub struct Ledger {
    runs: BTreeMap<RunId, Run>,
}

impl Ledger {
    /// No run is in use.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: BTreeMap::new() }
    }

    /// A run that this process begins to use.
    pub fn begin(&mut self, id: RunId, pages: u32) {
        let before = self.runs.insert(id, Run { pages, is_own: true, holds: SmallVec::new() });
        debug_assert!(before.is_none(), "a run that is in use");
    }

    /// Only the first `pages` of a run are needed, of which nobody else knows. The others, if there are any.
    #[must_use]
    pub fn shorten(&mut self, id: RunId, pages: u32) -> Option<ArenaPages> {
        let run =
            self.runs.get_mut(&id).filter(|run| run.holds.is_empty() && pages > 0 && pages < run.pages)?;
        let rest = ArenaPages::new(id.page + pages, id.page + run.pages);
        run.pages = pages;
        Some(rest)
    }

    /// A reference is about to go to a peer.
    pub fn hold(&mut self, id: RunId, peer: u64) {
        if let Some(run) = self.runs.get_mut(&id) {
            run.count(peer, 1);
        }
    }

    /// This process itself does not need the run any more. The pages that are free now, if they are.
    #[must_use]
    pub fn end(&mut self, id: RunId) -> Option<ArenaPages> {
        self.runs.get_mut(&id)?.is_own = false;
        self.take_free(id)
    }

    /// A peer says that it holds the run once less. The pages that are free now, if they are.
    #[must_use]
    pub fn release(&mut self, id: RunId, peer: u64) -> Option<ArenaPages> {
        self.runs.get_mut(&id)?.count(peer, -1);
        self.take_free(id)
    }

    /// A peer says that it has sent a reference on. False where it holds none itself: it is not to be believed.
    #[must_use]
    pub fn share(&mut self, id: RunId, from: u64, to: u64) -> bool {
        let Some(run) = self.runs.get_mut(&id) else { return false };
        let is_held = run.holds.iter().any(|hold| hold.peer == from && hold.times > 0);
        if is_held {
            run.count(to, 1);
        }
        is_held
    }

    /// A peer says that it has not sent it on after all. The pages that are free now, if they are.
    #[must_use]
    pub fn unshare(&mut self, id: RunId, from: u64, to: u64) -> Option<ArenaPages> {
        let run = self.runs.get_mut(&id)?;
        if !run.holds.iter().any(|hold| hold.peer == from && hold.times > 0) {
            return None;
        }
        run.count(to, -1);
        self.take_free(id)
    }

    /// A peer has ended. The runs that are free now.
    pub fn forget(&mut self, peer: u64) -> Vec<(RunId, ArenaPages)> {
        for run in self.runs.values_mut() {
            run.holds.retain(|hold| hold.peer != peer);
        }
        let free: Vec<RunId> = self.runs.iter().filter(|(_, run)| run.is_free()).map(|(id, _)| *id).collect();
        free.into_iter().filter_map(|id| Some((id, self.take_free(id)?))).collect()
    }

    /// Takes the run out if nobody needs it.
    fn take_free(&mut self, id: RunId) -> Option<ArenaPages> {
        self.runs.get(&id).filter(|run| run.is_free())?;
        let run = self.runs.remove(&id)?;
        Some(ArenaPages::new(id.page, id.page + run.pages))
    }

    /// How often peers hold runs, all together.
    #[must_use]
    pub fn holds(&self) -> usize {
        let times = |run: &Run| run.holds.iter().map(|hold| hold.times.max(0) as usize).sum::<usize>();
        self.runs.values().map(times).sum()
    }

    /// Whether no run is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = 11;
    const C: u64 = 12;
    const RUN: RunId = RunId { chunk: 3, page: 40 };
    const PAGES: ArenaPages = ArenaPages::new(40, 48);

    fn used() -> Ledger {
        let mut ledger = Ledger::new();
        ledger.begin(RUN, 8);
        ledger
    }

    #[test]
    fn a_run_is_free_when_neither_this_process_nor_a_peer_needs_it() {
        let mut ledger = used();
        ledger.hold(RUN, B);
        ledger.hold(RUN, B);
        assert_eq!(ledger.end(RUN), None);
        assert_eq!(ledger.release(RUN, B), None);
        assert_eq!(ledger.release(RUN, B), Some(PAGES));
        assert!(ledger.is_empty());
        assert_eq!(ledger.release(RUN, B), None, "a replay");
        let mut ledger = used();
        assert_eq!(ledger.end(RUN), Some(PAGES));
    }

    #[test]
    fn what_a_relay_sends_on_is_kept_in_whichever_order_it_is_told() {
        for late in [false, true] {
            let mut ledger = used();
            ledger.hold(RUN, B);
            assert_eq!(ledger.end(RUN), None);
            if late {
                // C has done with it before B's word is read.
                assert_eq!(ledger.release(RUN, C), None);
            }
            assert!(ledger.share(RUN, B, C));
            if !late {
                assert_eq!(ledger.release(RUN, B), None);
                assert_eq!(ledger.release(RUN, C), Some(PAGES));
            } else {
                assert_eq!(ledger.release(RUN, B), Some(PAGES));
            }
        }
    }

    #[test]
    fn what_was_not_filled_is_given_back_unless_somebody_may_know_of_it() {
        let mut ledger = used();
        let first = ArenaPages::new(RUN.page, RUN.page + 1);
        assert_eq!(ledger.shorten(RUN, 0), None);
        assert_eq!(ledger.shorten(RUN, PAGES.len()), None);
        assert_eq!(ledger.shorten(RUN, 1), Some(ArenaPages::new(first.end, PAGES.end)));
        assert_eq!(ledger.end(RUN), Some(first));
        let mut ledger = used();
        ledger.hold(RUN, B);
        assert_eq!(ledger.shorten(RUN, 1), None);
        assert_eq!(ledger.end(RUN), None);
        assert_eq!(ledger.release(RUN, B), Some(PAGES));
    }

    #[test]
    fn what_a_peer_held_is_dropped_with_it_and_nothing_else() {
        let mut ledger = used();
        let other = RunId { chunk: 3, page: 100 };
        ledger.begin(other, 1);
        for peer in [B, C] {
            ledger.hold(RUN, peer);
        }
        ledger.hold(other, B);
        assert_eq!((ledger.end(RUN), ledger.end(other)), (None, None));
        assert_eq!(ledger.holds(), 3);
        assert_eq!(ledger.forget(B), [(other, ArenaPages::new(100, 101))]);
        assert_eq!(ledger.forget(C), [(RUN, PAGES)]);
    }

    #[test]
    fn nobody_shares_or_releases_for_others() {
        let mut ledger = used();
        ledger.hold(RUN, B);
        assert!(!ledger.share(RUN, C, C), "C holds nothing");
        assert_eq!(ledger.end(RUN), None);
        for _ in 0..3 {
            assert_eq!(ledger.release(RUN, C), None);
        }
        assert!(!ledger.share(RunId { chunk: 9, page: 9 }, B, C));
        assert_eq!(ledger.release(RUN, B), Some(PAGES));
    }
}
