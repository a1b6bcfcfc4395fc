//! The ledger of runs: which runs of this process's shared memory are in use, and by whom.
//!
//! A run is held by this process and by every peer to which a reference was sent, directly or through other peers:
//!
//! ```text
//! A ──reference──► B ──reference──► C      A's ledger:  hold(B)   before A sends
//!                                                       share(B, C), release(B): as B says, in this order
//!                                                       release(C): as C says, perhaps before it is known that C holds it
//! ```
//!
//! A reference that comes back to A is claimed, at most as often as A's ledger was told that it was sent there. So
//! a peer cannot name memory that it does not hold.
//!
//! Reports of B and C arrive independently, so a count may be negative for a while. When a process ends, its
//! remaining reports are read, then everything that it holds is dropped. So no run is reused while anybody may
//! read it, and none leaks.

extern crate alloc;
use alloc::collections::BTreeMap;
use smallvec::SmallVec;
use uncopy_core::addr::ArenaPages;

/// Identity of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId {
    /// Number of the chunk.
    pub chunk: u32,
    /// First page of the run in the chunk.
    pub page: u32,
}

/// References to a run that a peer holds.
#[derive(Debug)]
struct Hold {
    peer: u64,
    /// Number of references; negative while the report of another peer's sending is outstanding.
    times: i32,
}

#[derive(Debug)]
struct Run {
    pages: u32,
    /// True if this process uses the run.
    is_own: bool,
    /// References that came back to this process and are held.
    claims: i32,
    holds: SmallVec<[Hold; 2]>,
}

impl Run {
    fn is_free(&self) -> bool {
        !self.is_own && self.claims == 0 && self.holds.iter().all(|hold| hold.times <= 0)
    }

    /// Returns the number of references that a peer is known to hold.
    fn times(&self, peer: u64) -> i32 {
        self.holds.iter().find(|hold| hold.peer == peer).map_or(0, |hold| hold.times)
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

/// Runs in use, and their holders.
#[derive(Debug, Default)]
pub struct RunHolders {
    runs: BTreeMap<RunId, Run>,
}

impl RunHolders {
    /// Returns an empty ledger.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: BTreeMap::new() }
    }

    /// Adds a run that this process starts to use.
    pub fn begin(&mut self, id: RunId, pages: u32) {
        let before = self.runs.insert(id, Run { pages, is_own: true, claims: 0, holds: SmallVec::new() });
        debug_assert!(before.is_none(), "a run that is in use");
    }

    /// Keeps only the first `pages` of a run that was not shared; returns the remaining ones, if any.
    #[must_use]
    pub fn shorten(&mut self, id: RunId, pages: u32) -> Option<ArenaPages> {
        let run =
            self.runs.get_mut(&id).filter(|run| run.holds.is_empty() && pages > 0 && pages < run.pages)?;
        let rest = ArenaPages::new(id.page + pages, id.page + run.pages);
        run.pages = pages;
        Some(rest)
    }

    /// Counts a reference that is about to be sent to a peer.
    pub fn hold(&mut self, id: RunId, peer: u64) {
        if let Some(run) = self.runs.get_mut(&id) {
            run.count(peer, 1);
        }
    }

    /// Ends this process's own use of a run. Returns its pages if they are free now.
    #[must_use]
    pub fn end(&mut self, id: RunId) -> Option<ArenaPages> {
        self.runs.get_mut(&id)?.is_own = false;
        self.take_free(id)
    }

    /// Discounts a reference that a peer has released. Returns the run's pages if they are free now.
    #[must_use]
    pub fn release(&mut self, id: RunId, peer: u64) -> Option<ArenaPages> {
        self.runs.get_mut(&id)?.count(peer, -1);
        self.take_free(id)
    }

    /// Counts a reference that a peer has sent on. False if that peer holds none.
    #[must_use]
    pub fn share(&mut self, id: RunId, from: u64, to: u64) -> bool {
        let Some(run) = self.runs.get_mut(&id) else { return false };
        let is_held = run.times(from) > 0;
        if is_held {
            run.count(to, 1);
        }
        is_held
    }

    /// Undoes [`Self::share`] for a reference that was not sent. Returns the run's pages if they are free now.
    #[must_use]
    pub fn unshare(&mut self, id: RunId, from: u64, to: u64) -> Option<ArenaPages> {
        let run = self.runs.get_mut(&id).filter(|run| run.times(from) > 0)?;
        run.count(to, -1);
        self.take_free(id)
    }

    /// Holds pages of a run to which a reference has come back; `this` is this process's id. False if no peer has
    /// reported it, or the pages lie outside the run.
    #[must_use]
    pub fn claim(&mut self, id: RunId, this: u64, pages: ArenaPages) -> bool {
        let Some(run) = self.runs.get_mut(&id) else { return false };
        let is_within = id.page <= pages.start && pages.end <= id.page + run.pages;
        let is_told = is_within && run.times(this) > run.claims;
        run.claims += i32::from(is_told);
        is_told
    }

    /// Releases a claim. Returns the run's pages if they are free now.
    #[must_use]
    pub fn unclaim(&mut self, id: RunId, this: u64) -> Option<ArenaPages> {
        let run = self.runs.get_mut(&id).filter(|run| run.claims > 0)?;
        run.claims -= 1;
        // The peer may have withdrawn its report.
        if run.times(this) > 0 {
            run.count(this, -1);
        }
        self.take_free(id)
    }

    /// Drops everything that a peer held. Returns the runs that are free now.
    pub fn forget(&mut self, peer: u64) -> Vec<(RunId, ArenaPages)> {
        for run in self.runs.values_mut() {
            run.holds.retain(|hold| hold.peer != peer);
        }
        let free: Vec<RunId> = self.runs.iter().filter(|(_, run)| run.is_free()).map(|(id, _)| *id).collect();
        free.into_iter().filter_map(|id| Some((id, self.take_free(id)?))).collect()
    }

    /// Has `holder` hold each run of a chunk that a peer holds, once. Returns how many.
    pub fn hold_with(&mut self, chunk: u32, peer: u64, holder: u64) -> usize {
        let first = RunId { chunk, page: 0 };
        let of_chunk = self.runs.range_mut(first..=RunId { chunk, page: u32::MAX });
        let held = of_chunk.filter(|(_, run)| run.times(peer) > 0);
        held.map(|(_, run)| run.count(holder, 1)).count()
    }

    /// Removes the run if nobody uses it.
    fn take_free(&mut self, id: RunId) -> Option<ArenaPages> {
        self.runs.get(&id).filter(|run| run.is_free())?;
        let run = self.runs.remove(&id)?;
        Some(ArenaPages::new(id.page, id.page + run.pages))
    }

    /// Returns the number of references that all peers hold.
    #[must_use]
    pub fn holds(&self) -> usize {
        let times = |run: &Run| run.holds.iter().map(|hold| hold.times.max(0) as usize).sum::<usize>();
        self.runs.values().map(times).sum()
    }

    /// True if a run is in use.
    #[must_use]
    pub fn is_used(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// True if no run is in use.
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

    fn used() -> RunHolders {
        let mut ledger = RunHolders::new();
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
                // C releases the run before B's report is read.
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
    fn what_comes_back_is_held_as_often_as_was_told_and_until_it_is_given_up() {
        const THIS: u64 = 10;
        let mut ledger = used();
        assert!(!ledger.claim(RUN, THIS, PAGES), "nobody has told of it");
        ledger.hold(RUN, B);
        assert_eq!(ledger.end(RUN), None);
        assert!(ledger.share(RUN, B, THIS));
        for (start, end) in [(39, 41), (47, 49), (20, 30)] {
            assert!(!ledger.claim(RUN, THIS, ArenaPages::new(start, end)), "other pages");
        }
        assert!(ledger.claim(RUN, THIS, ArenaPages::new(41, 43)));
        assert!(!ledger.claim(RUN, THIS, PAGES), "told once");
        assert_eq!(ledger.unshare(RUN, B, THIS), None, "it is claimed");
        assert_eq!(ledger.release(RUN, B), None);
        assert_eq!(ledger.forget(B), []);
        assert_eq!(ledger.unclaim(RUN, THIS), Some(PAGES));
        assert_eq!(ledger.unclaim(RUN, THIS), None);
        assert!(!ledger.claim(RUN, THIS, PAGES));
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
