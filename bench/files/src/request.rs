//! Parser of requests. Clients may be hostile: any doubt about a request's length ends the connection.

/// Longest head of a request, bytes.
pub const MAX_HEAD_BYTES: usize = 16 << 10;

/// A status code (RFC 9110, section 15) and its reason.
pub type Status = &'static str;
const BAD_REQUEST: Status = "400 Bad Request";
pub const NOT_FOUND: Status = "404 Not Found";

/// A GET or HEAD request without a body.
pub struct Request {
    /// Decoded path, in which no name begins with a dot.
    pub path: Vec<u8>,
    /// True if the method is HEAD.
    pub is_head: bool,
    /// True if another request may follow on this connection.
    pub keep_alive: bool,
}

/// Parses the request at the beginning of `bytes`. Returns the request and the length of its head, or `None` if
/// more bytes must come. An error is the status to answer with, after which the connection ends.
pub fn parse(bytes: &[u8]) -> Result<Option<(usize, Request)>, Status> {
    let mut fields = [httparse::EMPTY_HEADER; 100];
    let mut head = httparse::Request::new(&mut fields);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD_BYTES => Ok(Some((len, validate(&head)?))),
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err("431 Request Header Fields Too Large"),
        Err(_) => Err(BAD_REQUEST),
    }
}

fn validate(head: &httparse::Request<'_, '_>) -> Result<Request, Status> {
    let is_head = match head.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err("405 Method Not Allowed"),
    };
    let (mut stays, mut ends) = (head.version != Some(0), false);
    for field in head.headers.iter() {
        let (is_named, value) = (|name| field.name.eq_ignore_ascii_case(name), field.value.trim_ascii());
        if is_named("connection") {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                stays |= word.eq_ignore_ascii_case(b"keep-alive");
                ends |= word.eq_ignore_ascii_case(b"close");
            }
        } else if is_named("transfer-encoding") || is_named("content-length") && value != b"0" {
            // Bodies are never read, so a request with one ends the connection.
            return Err(BAD_REQUEST);
        }
    }
    let path = decode(head.path.unwrap_or_default())?;
    Ok(Request { path, is_head, keep_alive: stays && !ends })
}

/// Returns the decoded path of `target`, which is an absolute path with an optional query.
fn decode(target: &str) -> Result<Vec<u8>, Status> {
    let path = target.strip_prefix('/').ok_or(BAD_REQUEST)?;
    let mut rest = path.bytes().take_while(|byte| *byte != b'?');
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = rest.next() {
        let mut digit = || {
            let digit = rest.next().and_then(|byte| char::from(byte).to_digit(16));
            digit.and_then(|digit| u8::try_from(digit).ok()).ok_or(BAD_REQUEST)
        };
        decoded.push(if byte == b'%' { digit()? << 4 | digit()? } else { byte });
    }
    if decoded.contains(&0) {
        return Err(BAD_REQUEST);
    }
    let has_dot_name = decoded.split(|byte| *byte == b'/').any(|name| name.first() == Some(&b'.'));
    if has_dot_name { Err(NOT_FOUND) } else { Ok(decoded) }
}
