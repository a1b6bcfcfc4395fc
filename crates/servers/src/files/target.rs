//! What a request asks for: from the target of its first line to a path below the root.
//!
//! ```text
//!   http://host/a/./b%20c/../d/?query   →   "a/d/", a directory is meant
//! ```
//!
//! Invariant: a [`Target`] is relative, has no empty, `.` or `..` segment and no zero byte, so that it
//! never leaves the root by its own words. Symbolic links are the business of [`crate::files::root`].

use crate::files::status::Status;

/// A path below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Decoded segments with a slash between them; empty for the root itself.
    pub path: Vec<u8>,
    /// Whether it ended with a slash: a directory is meant.
    pub is_directory: bool,
    /// What follows the path, from its question mark on, as it came; empty: nothing.
    pub query: String,
}

impl Target {
    /// Takes the target of a request apart: `/path?query` or `http://host/path?query`.
    ///
    /// # Errors
    /// [`Status::BadRequest`] for anything that is no path or leads out of the root,
    /// [`Status::NotFound`] for a path that no file can have.
    pub fn parse(text: &str) -> Result<Self, Status> {
        let origin = origin(text).ok_or(Status::BadRequest)?;
        let origin = origin.split('#').next().unwrap_or_default();
        let (path, query) = origin.split_at(origin.find('?').unwrap_or(origin.len()));
        let mut kept: Vec<Vec<u8>> = Vec::new();
        let mut is_directory = true;
        for segment in path.split('/').skip(1) {
            let segment = decode(segment.as_bytes()).ok_or(Status::BadRequest)?;
            is_directory = matches!(segment.as_slice(), b"" | b"." | b"..");
            match segment.as_slice() {
                b"" | b"." => {}
                b".." => {
                    kept.pop().ok_or(Status::BadRequest)?;
                }
                name if name.contains(&0) => return Err(Status::BadRequest),
                name if name.contains(&b'/') => return Err(Status::NotFound),
                _ => kept.push(segment),
            }
        }
        Ok(Self { path: kept.join(&b'/'), is_directory, query: query.to_owned() })
    }

    /// Whether a segment begins with a dot, `.well-known` (RFC 8615) apart.
    pub fn is_hidden(&self) -> bool {
        self.path
            .split(|byte| *byte == b'/')
            .any(|segment| segment.first() == Some(&b'.') && segment != b".well-known")
    }

    /// The target again, encoded, as a directory: where a request for a directory without its slash is sent.
    pub fn as_directory(&self) -> String {
        let mut text = String::from("/");
        encode(&self.path, |byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte), &mut text);
        text.push('/');
        encode(self.query.as_bytes(), |byte| byte.is_ascii_graphic(), &mut text);
        text
    }
}

/// The path and query of a target in origin or absolute form (RFC 9112, section 3.2).
fn origin(text: &str) -> Option<&str> {
    if text.starts_with('/') {
        return Some(text);
    }
    let (scheme, rest) = text.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // "http://host" and "http://host?query" mean the root.
    Some(if rest[end..].starts_with('/') { &rest[end..] } else { "/" }).filter(|_| end > 0)
}

/// Adds bytes to a text, each as `%XX` where it may not be there as it is.
fn encode(bytes: &[u8], is_kept: impl Fn(u8) -> bool, text: &mut String) {
    for byte in bytes {
        if is_kept(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// Replaces `%XX`; `None` where two hexadecimal digits do not follow.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        decoded.push(match byte {
            b'%' => digit(rest.next()?)? << 4 | digit(rest.next()?)?,
            byte => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Result<(String, bool), Status> {
        let target = Target::parse(text)?;
        Ok((String::from_utf8(target.path).expect("UTF-8"), target.is_directory))
    }

    #[test]
    fn paths_are_decoded_and_lose_dots_and_queries() {
        for (text, path, is_directory) in [
            ("/", "", true),
            ("/a", "a", false),
            ("/a/", "a/", true),
            ("//a//b", "a/b", false),
            ("/a/./b%20c/../d?x=/../y", "a/d", false),
            ("/a/b/..", "a", true),
            ("/%61#x", "a", false),
            ("http://host", "", true),
            ("HTTP://host:80/a/b", "a/b", false),
            ("https://host?x", "", true),
        ] {
            let expected = (path.trim_end_matches('/').to_owned(), is_directory);
            assert_eq!(parsed(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_leads_out_of_the_root_or_is_no_path_is_refused() {
        for text in ["/..", "/a/../..", "/%2e%2e/x", "/a/%2E%2e/../x", "", "a", "*", "file:///a", "http:///a"]
        {
            assert_eq!(parsed(text), Err(Status::BadRequest), "{text}");
        }
        for text in ["/%", "/%4", "/%zz", "/a%00b", "/%+1"] {
            assert_eq!(parsed(text), Err(Status::BadRequest), "{text}");
        }
        assert_eq!(parsed("/a%2Fb"), Err(Status::NotFound));
        assert_eq!(parsed("/..%2f..%2fetc"), Err(Status::NotFound));
    }

    #[test]
    fn hidden_names_are_told() {
        for (text, hidden) in
            [("/.git/config", true), ("/a/.b", true), ("/a.b", false), ("/.well-known/x", false)]
        {
            assert_eq!(Target::parse(text).expect("a path").is_hidden(), hidden, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_target_leaves_the_root_and_its_encoding_means_the_same(text in "/([a./%2eEfF5]|\\PC){0,40}") {
            if let Ok(target) = Target::parse(&text) {
                if !target.path.is_empty() {
                    for segment in target.path.split(|byte| *byte == b'/') {
                        prop_assert!(!segment.is_empty() && segment != b"." && segment != b"..");
                        prop_assert!(!segment.contains(&0));
                    }
                }
                let encoded = target.as_directory();
                prop_assert!(target.path.is_empty() || !encoded.starts_with("//"));
                let again = Target::parse(&encoded).expect("encoded");
                prop_assert_eq!(again.as_directory(), encoded);
                prop_assert_eq!(again.path, target.path);
            }
        }
    }
}
