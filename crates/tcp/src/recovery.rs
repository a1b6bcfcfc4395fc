//! What is lost: the scoreboard of RFC 6675, NewReno (RFC 6582) without SACK, and what a timeout means for both.
//!
//! It keeps ranges only: what was acknowledged selectively, how far has been retransmitted, and below what everything
//! unacknowledged counts as lost. Of RFC 8985 it has the tail loss probe, and of RACK what needs no time of each packet: what lies
//! below a selectively acknowledged range is lost when nothing has filled it for the time of a reordering.

use std::ops::Range;

use crate::config::MAX_SACKED_RANGES;
use crate::ranges::Ranges;
use crate::sequence::Position;

/// DupThresh.
pub const DUPLICATE_THRESHOLD: u32 = 3;

/// Whether something is being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is.
    Open,
    /// Losses below `end`, RecoveryPoint, are retransmitted while acknowledgements come.
    Fast {
        /// What was sent when it began.
        end: Position,
    },
    /// The timer expired.
    Timeout {
        /// What was sent when it did.
        end: Position,
    },
}

/// A tail loss probe (RFC 8985, section 7).
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// TLP.end_seq: what had been sent after it.
    end: Position,
    /// TLP.is_retrans.
    is_retransmission: bool,
}

/// The sender's picture of what is on its way.
#[derive(Debug)]
pub struct Recovery {
    has_sack: bool,
    mss: u64,
    phase: Phase,
    sacked: Ranges,
    /// HighRxt: below it everything has been retransmitted that had to be.
    retransmitted: Position,
    /// How many bytes below HighRxt were acknowledged selectively.
    sacked_below: u64,
    /// Below it everything unacknowledged is lost, whatever the scoreboard says.
    lost_floor: Position,
    duplicates: u32,
    /// What was sent when the last recovery began: without SACK, no other begins below it (RFC 6582, section 3.2).
    recover: Position,
    is_rescued: bool,
    /// From what is missing first to what had been sent when that was retransmitted last, or became the first.
    head: Range<Position>,
    tail: Option<Tail>,
}

impl Recovery {
    /// Of a connection that begins at `first`.
    pub fn new(first: Position, has_sack: bool, mss: u16) -> Self {
        Self {
            has_sack,
            mss: u64::from(mss),
            phase: Phase::Open,
            sacked: Ranges::default(),
            retransmitted: first,
            sacked_below: 0,
            lost_floor: first,
            duplicates: 0,
            recover: first,
            is_rescued: false,
            head: first..first,
            tail: None,
        }
    }

    /// The segment size has become another.
    pub fn set_mss(&mut self, mss: u16) {
        self.mss = u64::from(mss);
    }

    /// Whether something is being repaired.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// How many bytes were acknowledged selectively.
    pub fn sacked_bytes(&self) -> u64 {
        self.sacked.bytes()
    }

    /// How many ranges were acknowledged selectively.
    pub fn sacked_ranges(&self) -> usize {
        self.sacked.as_slice().len()
    }

    /// Takes SACK blocks. Returns how many bytes they add. Duplicates (RFC 2883) and nonsense are passed over.
    pub fn on_sack(&mut self, blocks: impl Iterator<Item = Range<Position>>, sent: Range<Position>) -> u64 {
        let mut added = 0;
        for block in blocks {
            if block.start >= sent.start
                && block.end <= sent.end
                && self.sacked.as_slice().len() < MAX_SACKED_RANGES
            {
                let at = self.retransmitted.clamp(block.start, block.end.max(block.start));
                let below = self.sacked.insert(block.start..at);
                self.sacked_below += below;
                added += below + self.sacked.insert(at..block.end);
            }
        }
        added
    }

    /// An acknowledgement that acknowledges nothing more, while data is on its way.
    pub fn on_duplicate(&mut self) {
        self.duplicates = self.duplicates.saturating_add(1);
    }

    /// Everything below `position` was acknowledged. Returns whether that ended a phase.
    pub fn on_acknowledged(&mut self, position: Position) -> bool {
        let removed = self.sacked.remove_below(position);
        // What is beyond HighRxt was not counted, and HighRxt is not below `position` afterwards.
        self.sacked_below = self.sacked_below.saturating_sub(removed);
        self.retransmitted = self.retransmitted.max(position);
        self.lost_floor = self.lost_floor.max(position);
        match self.phase {
            Phase::Fast { end } | Phase::Timeout { end } if position >= end => {
                self.phase = Phase::Open;
                self.duplicates = 0;
                true
            }
            Phase::Fast { end } if !self.has_sack => {
                // A partial acknowledgement: the next segment is lost as well.
                self.duplicates = self.duplicates.saturating_sub(1);
                self.retransmitted = position;
                self.lost_floor = (position + self.mss).min(end);
                false
            }
            Phase::Fast { .. } | Phase::Timeout { .. } => false,
            Phase::Open => {
                self.duplicates = 0;
                false
            }
        }
    }

    /// Begins fast recovery if a loss is known. Returns whether it did.
    pub fn begin_if_lost(&mut self, sent: Range<Position>) -> bool {
        if self.phase != Phase::Open || sent.is_empty() {
            return false;
        }
        let by_duplicates =
            self.duplicates >= DUPLICATE_THRESHOLD && (self.has_sack || sent.start > self.recover);
        if !by_duplicates && self.lost_end(&sent) <= sent.start {
            return false;
        }
        self.phase = Phase::Fast { end: sent.end };
        self.recover = sent.end;
        self.retransmitted = sent.start;
        self.sacked_below = 0;
        self.lost_floor = self.lost_floor.max(sent.start + self.mss).min(sent.end);
        self.is_rescued = false;
        self.tail = None;
        true
    }

    /// The timer expired: everything sent is lost, and what was acknowledged selectively may have been discarded
    /// (RFC 2018, section 8).
    pub fn on_timeout(&mut self, sent: Range<Position>) {
        self.phase = Phase::Timeout { end: sent.end };
        self.recover = sent.end;
        self.sacked.clear();
        self.retransmitted = sent.start;
        self.sacked_below = 0;
        self.lost_floor = sent.end;
        self.duplicates = 0;
        self.is_rescued = true;
        self.tail = None;
    }

    /// The timeout was spurious: what was sent before it is on its way (RFC 4015).
    pub fn undo_timeout(&mut self, sent: &Range<Position>) {
        self.phase = Phase::Open;
        self.lost_floor = sent.start;
        self.duplicates = 0;
    }

    /// Whether something that is missing lies below a selectively acknowledged range.
    pub fn has_gap(&self, sent: &Range<Position>) -> bool {
        self.sacked.as_slice().last().is_some_and(|highest| highest.start > sent.start)
    }

    /// Nothing has filled the gaps for the time of a reordering: what lies below the highest selectively acknowledged range is
    /// lost (RACK_detect_loss of RFC 8985, section 6.2, step 5).
    pub fn give_gaps_up(&mut self) {
        if let Some(highest) = self.sacked.as_slice().last() {
            self.lost_floor = self.lost_floor.max(highest.start);
        }
    }

    /// Whether a tail loss probe may be sent when nothing is acknowledged for a while (RFC 8985, section 7.2).
    pub fn can_probe_tail(&self, sent: &Range<Position>) -> bool {
        let is_answered = self.tail.is_none_or(|tail| tail.end <= sent.start);
        self.has_sack
            && self.phase == Phase::Open
            && self.sacked.is_empty()
            && is_answered
            && !sent.is_empty()
    }

    /// A tail loss probe is sent; everything that has been sent then ends at `end`.
    pub fn on_tail_probe(&mut self, end: Position, is_retransmission: bool) {
        self.tail = Some(Tail { end, is_retransmission });
    }

    /// Whether this acknowledgement says that a probe repaired a loss, which nothing else would tell (RFC 8985, section 7.4.2).
    /// `has_duplicate` says that it reports bytes which came twice, `is_bare` that it has no blocks and acknowledges nothing more.
    pub fn has_probe_repaired(&mut self, ack: Position, has_duplicate: bool, is_bare: bool) -> bool {
        let Some(tail) = self.tail.filter(|tail| ack >= tail.end) else { return false };
        let is_needless = !tail.is_retransmission || has_duplicate;
        let is_repaired = !is_needless && ack > tail.end;
        if is_needless || is_repaired || is_bare {
            self.tail = None;
        }
        is_repaired
    }

    /// Below it, everything that is not acknowledged is lost (IsLost of RFC 6675, section 4).
    fn lost_end(&self, sent: &Range<Position>) -> Position {
        let (mut ranges, mut bytes) = (0, 0);
        for range in self.sacked.as_slice().iter().rev() {
            ranges += 1;
            bytes += range.end - range.start;
            if ranges >= DUPLICATE_THRESHOLD || bytes > u64::from(DUPLICATE_THRESHOLD - 1) * self.mss {
                return range.start.max(self.lost_floor);
            }
        }
        self.lost_floor.clamp(sent.start, sent.end)
    }

    /// How many bytes above `position` were acknowledged selectively. Quick where few ranges lie there.
    fn sacked_above(&self, position: Position) -> u64 {
        let above = self.sacked.as_slice().iter().rev().take_while(|range| range.end > position);
        above.map(|range| range.end - range.start.max(position)).sum()
    }

    /// Bytes that are believed to be on their way (SetPipe of RFC 6675, section 4).
    pub fn pipe_bytes(&self, sent: &Range<Position>) -> u64 {
        let lost_start = self.retransmitted.max(sent.start);
        let lost_end = self.lost_end(sent);
        let lost = if lost_start < lost_end {
            // No more than DupThresh ranges end above `lost_end`.
            let sacked = self.sacked.bytes() - self.sacked_below - self.sacked_above(lost_end);
            lost_end - lost_start - sacked
        } else {
            0
        };
        let left = if self.has_sack { 0 } else { u64::from(self.duplicates) * self.mss };
        (sent.end - sent.start).saturating_sub(self.sacked.bytes() + lost + left)
    }

    /// Bytes that are not acknowledged in any way: those that are believed lost, and those that have been retransmitted in this
    /// recovery. 0 of both where nothing is being repaired.
    pub fn repair_bytes(&self, sent: &Range<Position>) -> (u64, u64) {
        if self.phase == Phase::Open {
            return (0, 0);
        }
        let lost_end = self.lost_end(sent);
        let sacked = self.sacked.bytes() - self.sacked_above(lost_end);
        let retransmitted = self.retransmitted.max(sent.start) - sent.start;
        (lost_end - sent.start - sacked, retransmitted - self.sacked_below)
    }

    /// What is to be retransmitted next (NextSeg of RFC 6675, rule 1).
    pub fn next_lost(&self, sent: &Range<Position>) -> Option<Range<Position>> {
        if self.phase == Phase::Open {
            return None;
        }
        self.sacked.first_gap(self.retransmitted.max(sent.start)..self.lost_end(sent))
    }

    /// What is missing first was retransmitted, or has become the first: what is sent from here on is sent later.
    pub fn mark_head(&mut self, sent: Range<Position>) {
        self.head = sent;
    }

    /// What is missing first, if its retransmission is lost, too: DupThresh segments that were sent later have come
    /// (RFC 8985, section 4, without its clock).
    pub fn lost_head(&self, sent: &Range<Position>) -> Option<Range<Position>> {
        let is_retransmitted = self.head.start == sent.start && self.retransmitted > sent.start;
        let is_fast = self.has_sack && matches!(self.phase, Phase::Fast { .. });
        let is_lost = is_fast
            && is_retransmitted
            && self.sacked_above(self.head.end) > u64::from(DUPLICATE_THRESHOLD - 1) * self.mss;
        is_lost.then(|| self.sacked.first_gap(sent.clone())).flatten()
    }

    /// What may be retransmitted though nothing says that it is lost, where there is nothing else to send
    /// (NextSeg, rules 3 and 4).
    pub fn next_suspect(&mut self, sent: &Range<Position>) -> Option<Range<Position>> {
        let Phase::Fast { end } = self.phase else { return None };
        if !self.has_sack {
            return None;
        }
        let below = self.sacked.end().unwrap_or(sent.start);
        if let Some(range) = self.sacked.first_gap(self.retransmitted.max(sent.start)..below) {
            return Some(range);
        }
        let end = end.min(sent.end);
        if self.is_rescued || below >= end {
            // What is missing below has been retransmitted once.
            return None;
        }
        self.is_rescued = true;
        Some(below.max(end.saturating_sub(self.mss)).max(sent.start)..end)
    }

    /// A retransmission ended at `position`.
    pub fn on_retransmitted(&mut self, position: Position) {
        if position > self.retransmitted {
            self.sacked_below += self.sacked.count_within(self.retransmitted..position);
            self.retransmitted = position;
        }
    }

    /// Whether the invariants hold.
    pub fn is_valid(&self, sent: &Range<Position>) -> bool {
        self.sacked.is_valid()
            && self.sacked.as_slice().len() <= MAX_SACKED_RANGES
            && self.sacked.as_slice().first().is_none_or(|first| first.start >= sent.start)
            && self.sacked.end().is_none_or(|end| end <= sent.end)
            && self.sacked_below == self.sacked.count_within(sent.start..self.retransmitted.max(sent.start))
            && self.pipe_bytes(sent) <= sent.end - sent.start
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one block is a list too")]
mod tests {
    use super::*;

    const MSS: u64 = 10;

    fn sack(recovery: &mut Recovery, blocks: &[Range<Position>]) -> u64 {
        recovery.on_sack(blocks.iter().cloned(), 100..200)
    }

    #[test]
    fn gaps_below_three_ranges_or_two_segments_are_lost() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        assert_eq!(sack(&mut recovery, &[110..120, 130..140]), 20);
        assert!(!recovery.begin_if_lost(100..200));
        assert_eq!(sack(&mut recovery, &[150..160]), 10);
        assert!(recovery.begin_if_lost(100..200));
        assert_eq!(recovery.next_lost(&(100..200)), Some(100..110));
        assert_eq!(recovery.pipe_bytes(&(100..200)), 60);
        recovery.on_retransmitted(110);
        assert_eq!(recovery.pipe_bytes(&(100..200)), 70);
        assert_eq!(recovery.repair_bytes(&(100..200)), (10, 10));
        assert_eq!(recovery.next_lost(&(100..200)), None);
        sack(&mut recovery, &[160..171]);
        assert_eq!(recovery.next_lost(&(100..200)), Some(120..130));
        assert_eq!(recovery.repair_bytes(&(100..200)), (30, 10));
        assert!(!recovery.on_acknowledged(140));
        assert_eq!(recovery.next_lost(&(140..200)), Some(140..150));
        assert!(recovery.on_acknowledged(200));
        assert_eq!(recovery.repair_bytes(&(200..200)), (0, 0));
        assert!(recovery.is_valid(&(200..200)));
    }

    #[test]
    fn a_lost_retransmission_is_repeated_once_enough_that_was_sent_later_has_come() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        sack(&mut recovery, &[110..140]);
        assert!(recovery.begin_if_lost(100..200));
        recovery.on_retransmitted(110);
        recovery.mark_head(100..200);
        sack(&mut recovery, &[140..200]);
        assert_eq!(recovery.lost_head(&(100..230)), None, "all of that was sent before");
        recovery.on_sack([200..220].into_iter(), 100..230);
        assert_eq!(recovery.lost_head(&(100..230)), None);
        recovery.on_sack([220..230].into_iter(), 100..230);
        assert_eq!(recovery.lost_head(&(100..230)), Some(100..110));
        recovery.mark_head(100..230);
        assert_eq!(recovery.lost_head(&(100..230)), None);
    }

    #[test]
    fn the_last_segment_is_rescued_once() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        sack(&mut recovery, &[110..190]);
        assert!(recovery.begin_if_lost(100..200));
        recovery.on_retransmitted(110);
        assert_eq!(recovery.next_suspect(&(100..200)), Some(190..200));
        assert_eq!(recovery.next_suspect(&(100..200)), None);
    }

    #[test]
    fn what_lies_below_a_range_beyond_the_recovery_point_is_not_rescued() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        recovery.on_sack([110..140].into_iter(), 100..150);
        assert!(recovery.begin_if_lost(100..150));
        recovery.on_retransmitted(110);
        // 140..150 is lost, what was sent after the recovery point is not.
        recovery.on_sack([150..160].into_iter(), 100..200);
        recovery.on_retransmitted(150);
        assert_eq!(recovery.next_suspect(&(100..200)), None);
        assert!(recovery.is_valid(&(100..200)));
    }

    #[test]
    fn gaps_are_given_up_and_a_spurious_timeout_takes_nothing() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        sack(&mut recovery, &[150..160]);
        assert!(recovery.has_gap(&(100..200)) && !recovery.begin_if_lost(100..200));
        recovery.give_gaps_up();
        assert!(recovery.begin_if_lost(100..200));
        assert_eq!(recovery.next_lost(&(100..200)), Some(100..150));
        recovery.on_timeout(100..200);
        assert_eq!(recovery.pipe_bytes(&(100..200)), 0);
        recovery.undo_timeout(&(110..200));
        recovery.on_acknowledged(110);
        assert_eq!((recovery.phase(), recovery.pipe_bytes(&(110..200))), (Phase::Open, 90));
    }

    #[test]
    fn a_probe_has_repaired_a_loss_if_nothing_came_twice() {
        for (duplicate, bare, later, repaired) in
            [(true, false, 210, false), (false, true, 210, false), (false, false, 210, true)]
        {
            let mut recovery = Recovery::new(100, true, MSS as u16);
            assert!(recovery.can_probe_tail(&(100..200)));
            recovery.on_tail_probe(200, true);
            assert!(!recovery.can_probe_tail(&(100..200)));
            assert!(!recovery.has_probe_repaired(190, false, false));
            assert!(!recovery.has_probe_repaired(200, duplicate, bare));
            assert_eq!(recovery.has_probe_repaired(later, false, false), repaired);
        }
    }

    #[test]
    fn without_sack_each_partial_acknowledgement_repairs_one_segment() {
        let mut recovery = Recovery::new(99, false, MSS as u16);
        (0..3).for_each(|_| recovery.on_duplicate());
        assert!(recovery.begin_if_lost(100..200));
        assert_eq!(recovery.next_lost(&(100..200)), Some(100..110));
        recovery.on_retransmitted(110);
        assert_eq!(recovery.next_lost(&(100..200)), None);
        recovery.on_acknowledged(130);
        assert_eq!(recovery.next_lost(&(130..200)), Some(130..140));
        assert!(recovery.on_acknowledged(200));
        (0..3).for_each(|_| recovery.on_duplicate());
        assert!(!recovery.begin_if_lost(200..250));
    }

    #[test]
    fn a_timeout_loses_everything_that_was_sent() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        sack(&mut recovery, &[110..120]);
        recovery.on_timeout(100..200);
        assert_eq!(recovery.pipe_bytes(&(100..200)), 0);
        recovery.on_retransmitted(110);
        sack(&mut recovery, &[110..120]);
        assert_eq!(recovery.next_lost(&(100..200)), Some(120..200));
        assert_eq!(recovery.pipe_bytes(&(100..200)), 10);
    }

    #[test]
    fn blocks_of_what_was_never_sent_are_passed_over() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        assert_eq!(sack(&mut recovery, &[90..110, 190..201, 150..150]), 0);
        assert_eq!(recovery.sacked_bytes(), 0);
    }
}
