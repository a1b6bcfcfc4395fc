//! Loss detection: the scoreboard of RFC 6675, NewReno (RFC 6582) without SACK, and recovery by timeout.
//!
//! State is kept per range, not per packet: SACKed bytes, the extent of retransmission (HighRxt),
//! and a floor below which everything unacknowledged is lost. Of RFC 8985 that permits the tail loss
//! probe, and a simple RACK: gaps below a SACKed range are lost once the reordering window expires.

use std::ops::Range;

use crate::config::MAX_SACKED_RANGES;
use crate::ranges::Ranges;
use crate::sequence::Position;

/// DupThresh of RFC 6675.
pub const DUPLICATE_THRESHOLD: u32 = 3;

/// Phase of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No recovery in progress.
    Open,
    /// Fast recovery: losses below `end` (RecoveryPoint) are retransmitted as acknowledgements arrive.
    Fast {
        /// SND.NXT when recovery began.
        end: Position,
    },
    /// Recovery after a retransmission timeout.
    Timeout {
        /// SND.NXT when the timer expired.
        end: Position,
    },
}

/// A tail loss probe in flight (RFC 8985, section 7).
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// TLP.end_seq: SND.NXT after the probe.
    end: Position,
    /// TLP.is_retrans: whether the probe was a retransmission.
    is_retransmission: bool,
}

/// Scoreboard and phase of a sender.
#[derive(Debug)]
pub struct Recovery {
    has_sack: bool,
    mss: u64,
    phase: Phase,
    sacked: Ranges,
    /// HighRxt: all losses below this position have been retransmitted.
    retransmitted: Position,
    /// Number of SACKed bytes below HighRxt.
    sacked_below: u64,
    /// Everything unacknowledged below this position is lost, regardless of the scoreboard.
    lost_floor: Position,
    duplicates: u32,
    /// SND.NXT when the last recovery began; without SACK, none begins below it (RFC 6582, section 3.2).
    recover: Position,
    is_rescued: bool,
    /// SND.UNA, and SND.NXT when the segment there was last retransmitted or became the first.
    head: Range<Position>,
    tail: Option<Tail>,
}

impl Recovery {
    /// Returns the scoreboard of a connection whose first position is `first`.
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

    /// Sets the segment size.
    pub fn set_mss(&mut self, mss: u16) {
        self.mss = u64::from(mss);
    }

    /// Returns the phase of recovery.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the number of bytes acknowledged by SACK.
    pub fn sacked_bytes(&self) -> u64 {
        self.sacked.bytes()
    }

    /// Returns the number of ranges acknowledged by SACK.
    pub fn sacked_ranges(&self) -> usize {
        self.sacked.as_slice().len()
    }

    /// Adds SACK blocks and returns the bytes newly SACKed; ignores duplicates (RFC 2883) and invalid blocks.
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

    /// Counts a duplicate acknowledgement.
    pub fn on_duplicate(&mut self) {
        self.duplicates = self.duplicates.saturating_add(1);
    }

    /// Acknowledges everything below `position`. Returns whether that ended recovery.
    pub fn on_acknowledged(&mut self, position: Position) -> bool {
        let removed = self.sacked.remove_below(position);
        // `removed` may include bytes beyond HighRxt, which `sacked_below` never counted.
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
                // After a partial acknowledgement, the next segment is lost as well.
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

    /// Begins fast recovery if a loss is detected. Returns whether recovery began.
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

    /// Marks everything sent as lost after a timeout and forgets SACKed ranges, which the peer may
    /// have discarded (RFC 2018, section 8).
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

    /// Undoes a spurious timeout: the segments sent before are in flight (RFC 4015).
    pub fn undo_timeout(&mut self, sent: &Range<Position>) {
        self.phase = Phase::Open;
        self.lost_floor = sent.start;
        self.duplicates = 0;
    }

    /// True if bytes are missing below a SACKed range.
    pub fn has_gap(&self, sent: &Range<Position>) -> bool {
        self.sacked.as_slice().last().is_some_and(|highest| highest.start > sent.start)
    }

    /// Marks all gaps below the highest SACKed range as lost; called when the reordering window has
    /// expired (RACK_detect_loss of RFC 8985, section 6.2, step 5).
    pub fn mark_gaps_lost(&mut self) {
        if let Some(highest) = self.sacked.as_slice().last() {
            self.lost_floor = self.lost_floor.max(highest.start);
        }
    }

    /// True if a tail loss probe may be sent (RFC 8985, section 7.2).
    pub fn can_probe_tail(&self, sent: &Range<Position>) -> bool {
        let is_answered = self.tail.is_none_or(|tail| tail.end <= sent.start);
        self.has_sack
            && self.phase == Phase::Open
            && self.sacked.is_empty()
            && is_answered
            && !sent.is_empty()
    }

    /// Records a tail loss probe; `end` is SND.NXT after the probe.
    pub fn on_tail_probe(&mut self, end: Position, is_retransmission: bool) {
        self.tail = Some(Tail { end, is_retransmission });
    }

    /// True if this acknowledgement shows that a probe repaired an unnoticed loss (RFC 8985, section 7.4.2).
    /// `has_duplicate`: it reports bytes received twice. `is_bare`: it has no SACK blocks and
    /// advances nothing.
    pub fn has_probe_repaired(&mut self, ack: Position, has_duplicate: bool, is_bare: bool) -> bool {
        let Some(tail) = self.tail.filter(|tail| ack >= tail.end) else { return false };
        let is_needless = !tail.is_retransmission || has_duplicate;
        let is_repaired = !is_needless && ack > tail.end;
        if is_needless || is_repaired || is_bare {
            self.tail = None;
        }
        is_repaired
    }

    /// Returns the position below which everything unacknowledged is lost (IsLost of RFC 6675, section 4).
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

    /// Returns the number of SACKed bytes above `position`; linear in the ranges there.
    fn sacked_above(&self, position: Position) -> u64 {
        let above = self.sacked.as_slice().iter().rev().take_while(|range| range.end > position);
        above.map(|range| range.end - range.start.max(position)).sum()
    }

    /// Returns the number of bytes in flight (SetPipe of RFC 6675, section 4).
    pub fn pipe_bytes(&self, sent: &Range<Position>) -> u64 {
        let lost_start = self.retransmitted.max(sent.start);
        let lost_end = self.lost_end(sent);
        let lost = if lost_start < lost_end {
            // Cheap: at most DupThresh ranges end above `lost_end`.
            let sacked = self.sacked.bytes() - self.sacked_below - self.sacked_above(lost_end);
            lost_end - lost_start - sacked
        } else {
            0
        };
        let left = if self.has_sack { 0 } else { u64::from(self.duplicates) * self.mss };
        (sent.end - sent.start).saturating_sub(self.sacked.bytes() + lost + left)
    }

    /// Returns the number of unacknowledged bytes considered lost, and of those already
    /// retransmitted in this recovery. Both are 0 outside recovery.
    pub fn lost_and_retransmitted_bytes(&self, sent: &Range<Position>) -> (u64, u64) {
        if self.phase == Phase::Open {
            return (0, 0);
        }
        let lost_end = self.lost_end(sent);
        let sacked = self.sacked.bytes() - self.sacked_above(lost_end);
        let retransmitted = self.retransmitted.max(sent.start) - sent.start;
        (lost_end - sent.start - sacked, retransmitted - self.sacked_below)
    }

    /// Returns the next range to retransmit (NextSeg of RFC 6675, rule 1).
    pub fn next_lost(&self, sent: &Range<Position>) -> Option<Range<Position>> {
        if self.phase == Phase::Open {
            return None;
        }
        self.sacked.first_gap(self.retransmitted.max(sent.start)..self.lost_end(sent))
    }

    /// Starts counting later segments anew: the first missing one was retransmitted or replaced.
    pub fn mark_head(&mut self, sent: Range<Position>) {
        self.head = sent;
    }

    /// Returns the first missing range if its retransmission was lost too: DupThresh segments sent
    /// later have arrived (RFC 8985, section 4, without timestamps per packet).
    pub fn lost_head(&self, sent: &Range<Position>) -> Option<Range<Position>> {
        let is_retransmitted = self.head.start == sent.start && self.retransmitted > sent.start;
        let is_fast = self.has_sack && matches!(self.phase, Phase::Fast { .. });
        let is_lost = is_fast
            && is_retransmitted
            && self.sacked_above(self.head.end) > u64::from(DUPLICATE_THRESHOLD - 1) * self.mss;
        is_lost.then(|| self.sacked.first_gap(sent.clone())).flatten()
    }

    /// Returns a range to retransmit speculatively when nothing else can be sent (NextSeg, rules 3 and 4).
    pub fn next_speculative(&mut self, sent: &Range<Position>) -> Option<Range<Position>> {
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
            // The missing bytes below have been retransmitted once.
            return None;
        }
        self.is_rescued = true;
        Some(below.max(end.saturating_sub(self.mss)).max(sent.start)..end)
    }

    /// Records a retransmission that ended at `position`.
    pub fn on_retransmitted(&mut self, position: Position) {
        if position > self.retransmitted {
            self.sacked_below += self.sacked.count_within(self.retransmitted..position);
            self.retransmitted = position;
        }
    }

    /// True if the invariants hold.
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
        assert_eq!(recovery.lost_and_retransmitted_bytes(&(100..200)), (10, 10));
        assert_eq!(recovery.next_lost(&(100..200)), None);
        sack(&mut recovery, &[160..171]);
        assert_eq!(recovery.next_lost(&(100..200)), Some(120..130));
        assert_eq!(recovery.lost_and_retransmitted_bytes(&(100..200)), (30, 10));
        assert!(!recovery.on_acknowledged(140));
        assert_eq!(recovery.next_lost(&(140..200)), Some(140..150));
        assert!(recovery.on_acknowledged(200));
        assert_eq!(recovery.lost_and_retransmitted_bytes(&(200..200)), (0, 0));
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
        assert_eq!(recovery.next_speculative(&(100..200)), Some(190..200));
        assert_eq!(recovery.next_speculative(&(100..200)), None);
    }

    #[test]
    fn gap_below_a_range_beyond_the_recovery_point_is_not_rescued() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        recovery.on_sack([110..140].into_iter(), 100..150);
        assert!(recovery.begin_if_lost(100..150));
        recovery.on_retransmitted(110);
        // 140..150 is lost; bytes sent after the recovery point are not.
        recovery.on_sack([150..160].into_iter(), 100..200);
        recovery.on_retransmitted(150);
        assert_eq!(recovery.next_speculative(&(100..200)), None);
        assert!(recovery.is_valid(&(100..200)));
    }

    #[test]
    fn expired_gaps_are_lost_and_a_spurious_timeout_is_undone() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        sack(&mut recovery, &[150..160]);
        assert!(recovery.has_gap(&(100..200)) && !recovery.begin_if_lost(100..200));
        recovery.mark_gaps_lost();
        assert!(recovery.begin_if_lost(100..200));
        assert_eq!(recovery.next_lost(&(100..200)), Some(100..150));
        recovery.on_timeout(100..200);
        assert_eq!(recovery.pipe_bytes(&(100..200)), 0);
        recovery.undo_timeout(&(110..200));
        recovery.on_acknowledged(110);
        assert_eq!((recovery.phase(), recovery.pipe_bytes(&(110..200))), (Phase::Open, 90));
    }

    #[test]
    fn probe_repaired_a_loss_if_no_duplicate_is_reported() {
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
    fn sack_blocks_beyond_sent_data_are_ignored() {
        let mut recovery = Recovery::new(100, true, MSS as u16);
        assert_eq!(sack(&mut recovery, &[90..110, 190..201, 150..150]), 0);
        assert_eq!(recovery.sacked_bytes(), 0);
    }
}
