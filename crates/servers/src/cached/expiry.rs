//! When items expire: in whole seconds since the server started, as memcached counts.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::clock;

/// Seconds since shortly before the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u32);

/// Longest time that is taken as relative to the present (memcached's protocol.txt): 30 days.
const RELATIVE_LIMIT_SECONDS: i64 = 60 * 60 * 24 * 30;

/// When an item expires: never if `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry(pub Option<Seconds>);

impl Expiry {
    /// Never.
    pub const NEVER: Self = Self(None);
    /// A moment before the server started ([`clock::START_MS`]).
    const PAST: Self = Self(Some(Seconds(1)));

    /// What a client's number means: 0 never, negative at once, up to 30 days from now on, else Unix time.
    pub fn from_client(time: i64) -> Self {
        let (now, started) = (now(), start_unix_s());
        match time {
            0 => Self::NEVER,
            ..0 => Self::PAST,
            1..=RELATIVE_LIMIT_SECONDS => Self(Some(Seconds(now.0.saturating_add(saturated(time))))),
            _ if time <= started => Self::PAST,
            _ => Self(Some(Seconds(saturated(time - started)))),
        }
    }

    /// Whether the moment has come.
    pub fn is_over(self, now: Seconds) -> bool {
        self.0.is_some_and(|at| at <= now)
    }

    /// Whether it comes before `other`, where never comes last.
    pub fn is_before(self, other: Self) -> bool {
        self.0.is_some_and(|at| other.0.is_some_and(|other| at < other))
    }

    /// Seconds left, or -1 for never.
    pub fn left(self, now: Seconds) -> i64 {
        self.0.map_or(-1, |at| i64::from(at.0.saturating_sub(now.0)))
    }
}

fn saturated(seconds: i64) -> u32 {
    u32::try_from(seconds).unwrap_or(if seconds < 0 { 0 } else { u32::MAX })
}

/// The time now.
pub fn now() -> Seconds {
    Seconds(u32::try_from(clock::now_ms() / 1000).unwrap_or(u32::MAX))
}

/// Unix time now, seconds.
pub fn unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The Unix time at which this clock would have shown 0, seconds.
fn start_unix_s() -> i64 {
    static STARTED: OnceLock<i64> = OnceLock::new();
    *STARTED.get_or_init(|| unix_s() - i64::from(now().0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_clients_mean_never_past_relative_or_unix_time() {
        let now = now();
        assert_eq!(Expiry::from_client(0), Expiry::NEVER);
        assert!(Expiry::from_client(-1).is_over(now));
        assert!(Expiry::from_client(i64::MIN).is_over(now));
        assert!((99..=101).contains(&Expiry::from_client(100).left(now)));
        assert!(Expiry::from_client(RELATIVE_LIMIT_SECONDS + 1).is_over(now), "Unix time in 1970");
        assert!((98..=101).contains(&Expiry::from_client(unix_s() + 100).left(now)));
        assert!(!Expiry::from_client(i64::MAX).is_over(now));
    }

    #[test]
    fn never_is_after_everything() {
        let soon = Expiry::from_client(5);
        assert!(soon.is_before(Expiry::from_client(500)));
        assert!(!soon.is_before(Expiry::NEVER) && !Expiry::NEVER.is_before(soon));
        assert!(!Expiry::NEVER.is_over(Seconds(u32::MAX)));
        assert_eq!(Expiry::NEVER.left(now()), -1);
    }
}
