//! Conditional requests (RFC 9110, section 13): what identifies a state of a file, and whether a request
//! wants that state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

use crate::files::request::Request;

/// What one state of a file is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device and inode.
    pub inode: (u64, u64),
    /// Length, bytes.
    pub len_bytes: u64,
    /// Last change of the contents, seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
    /// Last change of anything, seconds and nanoseconds since 1970: also when `modified` was set back.
    pub changed: (i64, i64),
}

impl Identity {
    /// Of the file that `stat` describes.
    pub fn of(stat: &Stat) -> Self {
        Self {
            inode: (stat.st_dev, stat.st_ino),
            len_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// The strong entity tag, quoted.
    pub fn etag(&self) -> String {
        let (seconds, nanoseconds) = self.modified;
        format!("\"{:x}-{:x}-{seconds:x}-{nanoseconds:x}\"", self.inode.1, self.len_bytes)
    }

    /// When the contents were changed last, whole seconds, never in the future.
    pub fn last_modified(&self, now: SystemTime) -> SystemTime {
        let seconds = u64::try_from(self.modified.0).unwrap_or(0);
        // Later than that no date can be written with four digits for the year.
        let seconds = seconds.min(253_402_300_799);
        (UNIX_EPOCH + Duration::from_secs(seconds)).min(now)
    }
}

/// What the conditions of a request lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is to be done.
    Send,
    /// The client has this state already: 304.
    NotModified,
    /// The client asked for another state only: 412.
    Failed,
}

/// Weighs the conditions in the order of RFC 9110, section 13.2.2.
pub fn weigh(request: &Request, identity: &Identity, now: SystemTime) -> Verdict {
    let modified = seconds(identity.last_modified(now));
    let date = |text: &Option<String>| text.as_deref().and_then(|text| httpdate::parse_http_date(text).ok());
    if let Some(list) = &request.if_match {
        if !matches(list, &identity.etag(), false) {
            return Verdict::Failed;
        }
    } else if let Some(limit) = date(&request.if_unmodified_since)
        && modified > seconds(limit)
    {
        return Verdict::Failed;
    }
    if let Some(list) = &request.if_none_match {
        if matches(list, &identity.etag(), true) {
            return Verdict::NotModified;
        }
    } else if let Some(limit) = date(&request.if_modified_since)
        && modified <= seconds(limit)
    {
        return Verdict::NotModified;
    }
    Verdict::Send
}

/// Whether ranges of this state are what a request with this If-Range field wants: only if the field is the
/// tag, or a date that is exactly the last change and is at least a second old, since two changes within
/// one second have the same date (RFC 9110, sections 13.1.5 and 8.8.2.2).
pub fn ranges_apply(if_range: Option<&str>, identity: &Identity, now: SystemTime) -> bool {
    let Some(text) = if_range.map(str::trim) else { return true };
    if text.starts_with('"') || text.starts_with("W/") {
        return text == identity.etag();
    }
    let modified = identity.last_modified(now);
    httpdate::parse_http_date(text).is_ok_and(|date| {
        seconds(date) == seconds(modified) && seconds(now).saturating_sub(seconds(modified)) > 1
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether `tag` is in a list of tags; by the weak comparison, `W/` in front does not count.
fn matches(list: &str, tag: &str, weak: bool) -> bool {
    let mut rest = list.trim();
    if rest == "*" {
        return true;
    }
    // Tags may hold commas, so the quotes decide where one ends.
    while !rest.is_empty() {
        let (is_weak, after) = rest.strip_prefix("W/").map_or((false, rest), |after| (true, after));
        let Some(end) = after.strip_prefix('"').and_then(|inner| inner.find('"')) else { return false };
        if &after[..end + 2] == tag && (weak || !is_weak) {
            return true;
        }
        rest = after[end + 2..].trim_start_matches([' ', '\t', ',']);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity =
        Identity { inode: (1, 0xabc), len_bytes: 100, modified: (784_111_777, 5), changed: (784_111_777, 5) };
    const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    fn verdict(fill: impl FnOnce(&mut Request)) -> Verdict {
        let mut request = Request::default();
        fill(&mut request);
        weigh(&request, &IDENTITY, SystemTime::now())
    }

    #[test]
    fn a_state_that_the_client_has_is_not_sent() {
        let tag = IDENTITY.etag();
        for list in [
            tag.clone(),
            format!("W/{tag}"),
            "*".into(),
            format!("\"a,b\", {tag}"),
            format!("\"\",W/\"x\",{tag}"),
        ] {
            assert_eq!(
                verdict(|request| request.if_none_match = Some(list.clone())),
                Verdict::NotModified,
                "{list}"
            );
        }
        for list in ["\"x\"", "", "x", &tag[1..], "\"x", "W/"] {
            assert_eq!(verdict(|request| request.if_none_match = Some(list.into())), Verdict::Send, "{list}");
        }
        assert_eq!(
            verdict(|request| request.if_modified_since = Some(MODIFIED.into())),
            Verdict::NotModified
        );
        assert_eq!(verdict(|request| request.if_modified_since = Some(EARLIER.into())), Verdict::Send);
        assert_eq!(verdict(|request| request.if_modified_since = Some("yesterday".into())), Verdict::Send);
    }

    #[test]
    fn a_tag_outweighs_a_date() {
        let both = |request: &mut Request| {
            request.if_none_match = Some("\"x\"".into());
            request.if_modified_since = Some(MODIFIED.into());
        };
        assert_eq!(verdict(both), Verdict::Send);
    }

    #[test]
    fn another_state_than_the_one_asked_for_fails() {
        let tag = IDENTITY.etag();
        assert_eq!(verdict(|request| request.if_match = Some(tag.clone())), Verdict::Send);
        assert_eq!(verdict(|request| request.if_match = Some(format!("W/{tag}"))), Verdict::Failed);
        assert_eq!(verdict(|request| request.if_match = Some("\"x\"".into())), Verdict::Failed);
        assert_eq!(verdict(|request| request.if_unmodified_since = Some(EARLIER.into())), Verdict::Failed);
        assert_eq!(verdict(|request| request.if_unmodified_since = Some(MODIFIED.into())), Verdict::Send);
    }

    #[test]
    fn ranges_apply_to_the_state_that_they_were_meant_for() {
        let now = SystemTime::now();
        let tag = IDENTITY.etag();
        assert!(ranges_apply(None, &IDENTITY, now) && ranges_apply(Some(&tag), &IDENTITY, now));
        assert!(ranges_apply(Some(MODIFIED), &IDENTITY, now));
        for other in [&format!("W/{tag}"), "\"x\"", EARLIER, "x", ""] {
            assert!(!ranges_apply(Some(other), &IDENTITY, now), "{other}");
        }
        let just_now = UNIX_EPOCH + Duration::from_secs(784_111_778);
        assert!(!ranges_apply(Some(MODIFIED), &IDENTITY, just_now), "it may change again in this second");
    }
}
