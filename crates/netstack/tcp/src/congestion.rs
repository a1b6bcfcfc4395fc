//! Congestion control: slow start (RFC 5681), then CUBIC (RFC 9438) or NewReno's additive increase.

use crate::config::{CongestionControl, SECOND_NS};

/// Minimum slow start threshold (RFC 5681, equation 4).
const MIN_THRESHOLD_SEGMENTS: u64 = 2;
/// Initial window (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;
/// β and C of RFC 9438, sections 4.6 and 5.1.
const CUBIC_DECREASE: f64 = 0.7;
const CUBIC_GROWTH: f64 = 0.4;
const RENO_DECREASE: f64 = 0.5;
/// Largest window that the scaled window field can express.
const MAX_WINDOW_BYTES: u64 = 1 << 30;

/// Congestion window of one connection.
#[derive(Clone, Debug)]
pub struct Congestion {
    control: CongestionControl,
    mss: u64,
    window: u64,
    threshold: u64,
    /// Acknowledged bytes not yet converted into window growth.
    credit: u64,
    cubic: Cubic,
}

/// CUBIC state, in segments (RFC 9438, section 4.1).
#[derive(Clone, Debug, Default)]
struct Cubic {
    max_window: f64,
    /// Start of the current congestion avoidance epoch, in nanoseconds, and the window then.
    epoch: Option<(u64, f64)>,
    estimate: f64,
}

impl Congestion {
    /// Returns the state of a new connection.
    pub fn new(control: CongestionControl, mss: u16) -> Self {
        let mss = u64::from(mss);
        // The initial threshold is as high as possible (RFC 5681, section 3.1).
        let window = INITIAL_SEGMENTS * mss;
        Self { control, mss, window, threshold: u64::MAX, credit: 0, cubic: Cubic::default() }
    }

    /// Sets the segment size, first negotiated (`is_start`) or later reduced.
    pub fn set_mss(&mut self, mss: u16, is_start: bool) {
        self.mss = u64::from(mss);
        if is_start {
            self.window = INITIAL_SEGMENTS * self.mss;
        }
        self.window = self.window.max(self.mss);
    }

    /// Reduces the window after the handshake lost a segment (RFC 6928, section 2; RFC 5681, section 3.1).
    pub fn on_handshake_loss(&mut self) {
        self.window = self.mss;
    }

    /// Returns the congestion window: bytes allowed in flight.
    pub fn window_bytes(&self) -> u64 {
        self.window
    }

    /// Returns the slow start threshold, in bytes.
    pub fn threshold_bytes(&self) -> u64 {
        self.threshold
    }

    /// Grows the window by acknowledged `bytes`, as slow start or congestion avoidance prescribes.
    pub fn acknowledge(&mut self, bytes: u64, round_trip_ns: u64, now_ns: u64) {
        let mut bytes = bytes;
        if self.window < self.threshold {
            // No limit per acknowledgement (RFC 3465, section 2.2): super-packets are acknowledged rarely.
            let growth = bytes.min(self.threshold - self.window);
            self.window += growth;
            bytes -= growth;
        }
        if bytes > 0 {
            match self.control {
                CongestionControl::Cubic => self.grow_cubic(bytes, round_trip_ns, now_ns),
                CongestionControl::NewReno => self.grow_by(bytes, self.window),
            }
        }
        self.window = self.window.min(MAX_WINDOW_BYTES);
    }

    /// Grows the window by one segment per `per` bytes.
    fn grow_by(&mut self, bytes: u64, per: u64) {
        self.credit += bytes;
        let segments = self.credit / per.max(1);
        self.credit -= segments * per;
        self.window += segments * self.mss;
    }

    fn grow_cubic(&mut self, bytes: u64, round_trip_ns: u64, now_ns: u64) {
        let segments = |bytes: u64| bytes as f64 / self.mss as f64;
        let window = segments(self.window);
        let cubic = &mut self.cubic;
        let (epoch_ns, epoch_window) = *cubic.epoch.get_or_insert_with(|| {
            cubic.estimate = window;
            if cubic.max_window < window {
                cubic.max_window = window;
            }
            (now_ns, window)
        });
        let seconds = |ns: u64| ns as f64 / SECOND_NS as f64;
        let plateau = ((cubic.max_window - epoch_window).max(0.0) / CUBIC_GROWTH).cbrt();
        let elapsed = seconds(now_ns.saturating_sub(epoch_ns));
        let target = CUBIC_GROWTH * (elapsed + seconds(round_trip_ns) - plateau).powi(3) + cubic.max_window;
        let target = target.clamp(window, 1.5 * window);
        // Section 4.3: at least as fast as Reno; α is 1 once the old window is reached.
        let alpha = if cubic.estimate < cubic.max_window {
            3.0 * (1.0 - CUBIC_DECREASE) / (1.0 + CUBIC_DECREASE)
        } else {
            1.0
        };
        cubic.estimate += alpha * segments(bytes) / window;
        let grown =
            (window + (target - window) * segments(bytes) / window).max(cubic.estimate.min(1.5 * window));
        self.window = (grown * self.mss as f64) as u64;
    }

    /// Reduces the window on a loss of `flight` bytes in flight (RFC 6675, section 5; RFC 9438, section 4.6).
    pub fn on_loss(&mut self, flight: u64) {
        self.reduce(flight);
        self.window = self.threshold;
    }

    /// Reduces the window after the retransmission timer expired (RFC 5681, section 3.1).
    pub fn on_timeout(&mut self, flight: u64, is_first: bool) {
        if is_first {
            self.reduce(flight);
        }
        self.window = self.mss;
    }

    fn reduce(&mut self, flight: u64) {
        let decrease = match self.control {
            CongestionControl::Cubic => {
                let window = self.window as f64 / self.mss as f64;
                // Fast convergence (section 4.7) releases bandwidth to other flows.
                let is_less = window < self.cubic.max_window;
                self.cubic.max_window = if is_less { window * (1.0 + CUBIC_DECREASE) / 2.0 } else { window };
                CUBIC_DECREASE
            }
            CongestionControl::NewReno => RENO_DECREASE,
        };
        self.cubic.epoch = None;
        self.credit = 0;
        let bytes = (flight.min(self.window) as f64 * decrease) as u64;
        self.threshold = bytes.max(MIN_THRESHOLD_SEGMENTS * self.mss);
    }

    /// Restarts from the initial window after an idle timeout (RFC 5681, section 4.1).
    pub fn restart(&mut self) {
        self.window = self.window.min(INITIAL_SEGMENTS * self.mss);
        self.cubic.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MILLISECOND_NS;

    const MSS: u64 = 1000;

    /// Returns the windows, in segments, after each of `rounds` round trips of 50 ms that follow a
    /// loss at `segments`.
    fn windows_after_loss(control: CongestionControl, segments: u64, rounds: u64) -> Vec<u64> {
        let mut congestion = Congestion::new(control, MSS as u16);
        congestion.acknowledge((segments - INITIAL_SEGMENTS) * MSS, 0, 0);
        assert_eq!(congestion.window_bytes(), segments * MSS);
        congestion.on_loss(segments * MSS);
        let mut windows = vec![congestion.window_bytes() / MSS];
        for round in 0..rounds {
            for _ in 0..congestion.window_bytes() / MSS {
                congestion.acknowledge(MSS, 50 * MILLISECOND_NS, round * 50 * MILLISECOND_NS);
            }
            windows.push(congestion.window_bytes() / MSS);
        }
        windows
    }

    #[test]
    fn reno_halves_and_adds_a_segment_each_round_trip() {
        let windows = windows_after_loss(CongestionControl::NewReno, 100, 10);
        assert_eq!(windows[0], 50);
        assert!((59..=60).contains(&windows[10]), "{windows:?}");
    }

    #[test]
    fn cubic_returns_to_its_plateau_on_time_and_grows_beyond() {
        let windows = windows_after_loss(CongestionControl::Cubic, 1000, 300);
        assert_eq!(windows[0], 700);
        // K = ∛(300 / 0.4) = 9.1 s: 182 round trips.
        assert!((990..=1010).contains(&windows[182]), "{}", windows[182]);
        assert!(windows[91] > 930 && windows[300] > 1060, "{} {}", windows[91], windows[300]);
        assert!(windows.is_sorted());
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_the_threshold_of_its_first_time() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, MSS as u16);
        congestion.on_timeout(10 * MSS, true);
        congestion.on_timeout(MSS, false);
        assert_eq!((congestion.window_bytes(), congestion.threshold_bytes()), (MSS, 7 * MSS));
    }
}
