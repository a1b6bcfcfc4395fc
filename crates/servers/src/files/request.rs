//! The head of a request, parsed by `httparse` and checked: what is asked for, and where the next
//! request begins. Every peer is taken to be hostile: whatever makes the length of a request doubtful
//! ends the connection.

use crate::files::status::Status;

/// Longest first line of a request, bytes (RFC 9112, section 3, recommends at least 8,000).
pub const LINE_LIMIT_BYTES: usize = 8 << 10;
/// Longest head of a request, bytes.
pub const HEAD_LIMIT_BYTES: usize = 16 << 10;
/// Longest body of a request that is read, and thrown away, bytes.
pub const BODY_LIMIT_BYTES: u64 = 64 << 10;
/// Most fields in a head.
const FIELDS_LIMIT: usize = 100;

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Send the file.
    #[default]
    Get,
    /// Send the head of what GET would send.
    Head,
    /// A method of RFC 9110 or RFC 5789 that files do not have.
    NotAllowed,
    /// A word that is no method known here.
    Unknown,
}

/// A request whose head is complete and well-formed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub method: Method,
    /// With what, as it was written.
    pub target: String,
    /// Whether the client speaks HTTP/1.0.
    pub is_1_0: bool,
    /// Whether another request may follow on this connection.
    pub keep_alive: bool,
    /// Bytes of its body, which follow the head.
    pub body_bytes: u64,
    /// The fields of these names. One that came several times is joined by commas, which makes those
    /// that must come once unreadable, and thus ignored.
    pub range: Option<String>,
    /// If-Range.
    pub if_range: Option<String>,
    /// If-Match.
    pub if_match: Option<String>,
    /// If-None-Match.
    pub if_none_match: Option<String>,
    /// If-Modified-Since.
    pub if_modified_since: Option<String>,
    /// If-Unmodified-Since.
    pub if_unmodified_since: Option<String>,
}

/// What the bytes received so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The beginning of a request.
    Incomplete,
    /// A request whose head has this many bytes.
    Complete(usize, Request),
    /// Nothing that can be answered otherwise; the connection ends with the answer.
    Refused(Status),
}

/// Parses the beginning of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_LIMIT];
    let mut head = httparse::Request::new(&mut fields);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) if len <= HEAD_LIMIT_BYTES => match checked(&head) {
            Ok(_) if line_len(bytes) > LINE_LIMIT_BYTES => Parsed::Refused(Status::UriTooLong),
            Ok(request) => Parsed::Complete(len, request),
            Err(status) => Parsed::Refused(status),
        },
        Ok(_) if line_len(bytes) > LINE_LIMIT_BYTES => Parsed::Refused(Status::UriTooLong),
        Ok(_) if bytes.len() >= HEAD_LIMIT_BYTES => Parsed::Refused(Status::HeaderFieldsTooLarge),
        Ok(_) => Parsed::Incomplete,
        Err(httparse::Error::TooManyHeaders) => Parsed::Refused(Status::HeaderFieldsTooLarge),
        Err(httparse::Error::Version) if names_a_version(bytes) => {
            Parsed::Refused(Status::VersionNotSupported)
        }
        Err(_) => Parsed::Refused(Status::BadRequest),
    }
}

/// Length of the first line that is not empty, as far as it was received.
fn line_len(bytes: &[u8]) -> usize {
    let begin = bytes.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(bytes.len());
    bytes[begin..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - begin)
}

/// Whether the first line is right but for its version, which exists or may some day.
fn names_a_version(bytes: &[u8]) -> bool {
    let line = bytes.trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.trim_ascii_end().split(|byte| *byte == b' ').collect();
    let [_, _, last] = words[..] else { return false };
    let Some(version) = last.strip_prefix(b"HTTP/") else { return false };
    version.first().is_some_and(u8::is_ascii_digit)
        && version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

fn checked(head: &httparse::Request<'_, '_>) -> Result<Request, Status> {
    let is_1_0 = head.version == Some(0);
    let mut request = Request {
        method: match head.method.unwrap_or_default() {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH" => Method::NotAllowed,
            _ => Method::Unknown,
        },
        target: head.path.unwrap_or_default().to_owned(),
        is_1_0,
        keep_alive: !is_1_0,
        ..Request::default()
    };
    let mut framing = Framing::default();
    let mut hosts = 0;
    for field in head.headers.iter() {
        let value = || String::from_utf8_lossy(field.value);
        match field.name.to_ascii_lowercase().as_str() {
            "host" => hosts += 1,
            "connection" => {
                for word in value().split(',').map(str::trim) {
                    if word.eq_ignore_ascii_case("close") {
                        framing.close = true;
                    } else if word.eq_ignore_ascii_case("keep-alive") {
                        request.keep_alive = true;
                    }
                }
            }
            "content-length" => framing.length(&value())?,
            "transfer-encoding" => framing.codings.push_str(&(value() + ",")),
            "expect" => framing.expect = Some(value().trim().eq_ignore_ascii_case("100-continue")),
            "range" => join(&mut request.range, &value()),
            "if-range" => join(&mut request.if_range, &value()),
            "if-match" => join(&mut request.if_match, &value()),
            "if-none-match" => join(&mut request.if_none_match, &value()),
            "if-modified-since" => join(&mut request.if_modified_since, &value()),
            "if-unmodified-since" => join(&mut request.if_unmodified_since, &value()),
            _ => {}
        }
    }
    if hosts > 1 || hosts == 0 && !is_1_0 {
        return Err(Status::BadRequest);
    }
    request.body_bytes = framing.body_bytes(is_1_0)?;
    // A body that waits for 100 (Continue) does not come: the answer is final, and the connection ends.
    let waits = framing.expect.is_some() && request.body_bytes > 0;
    request.keep_alive &= !framing.close && !waits;
    Ok(request)
}

fn join(field: &mut Option<String>, value: &str) {
    match field {
        Some(known) => {
            known.push_str(", ");
            known.push_str(value);
        }
        None => *field = Some(value.to_owned()),
    }
}

/// What says where a request ends.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    codings: String,
    /// Whether the field Expect was the one word that means something.
    expect: Option<bool>,
    close: bool,
}

impl Framing {
    fn length(&mut self, value: &str) -> Result<(), Status> {
        let value = value.trim();
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Status::BadRequest);
        }
        let length = value.parse().map_err(|_| Status::ContentTooLarge)?;
        match self.length.replace(length) {
            Some(other) if other != length => Err(Status::BadRequest),
            _ => Ok(()),
        }
    }

    /// The length of the body; an error where it is not known for sure (RFC 9112, section 6.3) or is not
    /// going to be read.
    fn body_bytes(&self, is_1_0: bool) -> Result<u64, Status> {
        if !self.codings.is_empty() {
            // Both fields, or one that HTTP/1.0 does not have: request smuggling.
            if self.length.is_some() || is_1_0 {
                return Err(Status::BadRequest);
            }
            let chunked = self.codings.trim_end_matches(',').trim().eq_ignore_ascii_case("chunked");
            return Err(if chunked { Status::LengthRequired } else { Status::NotImplemented });
        }
        if self.expect == Some(false) && !is_1_0 {
            return Err(Status::ExpectationFailed);
        }
        match self.length.unwrap_or(0) {
            length if length > BODY_LIMIT_BYTES => Err(Status::ContentTooLarge),
            length => Ok(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(text: &str) -> Request {
        match parse(text.as_bytes()) {
            Parsed::Complete(len, request) => {
                assert_eq!(len, text.len(), "{text:?}");
                request
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn refused(text: &str) -> u16 {
        match parse(text.as_bytes()) {
            Parsed::Refused(status) => status.code(),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn with(fields: &str) -> String {
        format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
    }

    #[test]
    fn a_request_is_complete_at_its_empty_line_and_not_before() {
        let text = with("Range: bytes=0-1\r\nIf-None-Match: \"a\"\r\nif-none-match: \"b\"\r\n");
        for len in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..len]), Parsed::Incomplete, "{len}");
        }
        let request = complete(&text);
        assert_eq!((request.method, request.target.as_str(), request.keep_alive), (Method::Get, "/a", true));
        assert_eq!(request.range.as_deref(), Some("bytes=0-1"));
        assert_eq!(request.if_none_match.as_deref(), Some("\"a\", \"b\""));
    }

    #[test]
    fn connections_stay_open_as_the_version_and_the_field_say() {
        assert!(!complete(&with("Connection: close\r\n")).keep_alive);
        assert!(!complete(&with("Connection: keep-alive, CLOSE\r\n")).keep_alive);
        assert!(!complete("GET / HTTP/1.0\r\n\r\n").keep_alive);
        assert!(complete("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep_alive);
        assert!(!complete(&with("Expect: 100-continue\r\nContent-Length: 5\r\n")).keep_alive);
    }

    #[test]
    fn methods_are_told_apart() {
        for (word, method) in [
            ("HEAD", Method::Head),
            ("POST", Method::NotAllowed),
            ("BREW", Method::Unknown),
            ("get", Method::Unknown),
        ] {
            assert_eq!(complete(&format!("{word} / HTTP/1.0\r\n\r\n")).method, method);
        }
    }

    #[test]
    fn malformed_and_doubtful_requests_are_refused() {
        for (text, code) in [
            ("GET /\r\n\r\n".to_owned(), 400),
            ("GET  / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("\x16\x03\x01\x02\0\x01\0\x01".to_owned(), 400),
            (with("Host: other\r\n"), 400),
            (with("a b: c\r\n"), 400),
            (with("a : c\r\n"), 400),
            (with("a: b\r\n c\r\n"), 400),
            (with("a: \0\r\n"), 400),
            (with("Content-Length: -1\r\n"), 400),
            (with("Content-Length: +1\r\n"), 400),
            (with("Content-Length: 1, 1\r\n"), 400),
            (with("Content-Length: 1\r\nContent-Length: 2\r\n"), 400),
            (with("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400),
            ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 400),
            (with("Transfer-Encoding: chunked\r\n"), 411),
            (with("Transfer-Encoding: gzip, chunked\r\n"), 501),
            (with("Content-Length: 99999999999999999999999\r\n"), 413),
            (with("Content-Length: 18446744073709551615\r\n"), 413),
            (with("Expect: the unexpected\r\n"), 417),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505),
            ("GET / HTTP/3.0\r\nHost: h\r\n\r\n".to_owned(), 505),
            ("GET / HTTP/x.y\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET / HTPP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            (format!("GET /{} HTTP/1.1\r\n", "a".repeat(9000)), 414),
            ("a".repeat(9000), 414),
            (format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(9000)), 414),
            (with(&format!("a: {}\r\n", "b".repeat(17_000))), 431),
            (with(&"a: b\r\n".repeat(101)), 431),
        ] {
            assert_eq!(refused(&text), code, "{:.60}", text);
        }
    }

    #[test]
    fn a_body_is_measured() {
        assert_eq!(complete(&with("Content-Length: 7\r\nContent-Length: 7\r\n")).body_bytes, 7);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..200), prefix in "(GET / HTTP/1.[01]\r\nHost: h\r\n)?") {
            let text = [prefix.as_bytes(), &bytes].concat();
            if let Parsed::Complete(len, request) = parse(&text) {
                prop_assert!(len <= text.len() && request.body_bytes <= BODY_LIMIT_BYTES);
            }
        }
    }
}
