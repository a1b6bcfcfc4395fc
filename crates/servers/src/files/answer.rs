//! What a request is answered with.

use std::collections::hash_map::RandomState;
use std::fmt::{Arguments, Display, Formatter};
use std::hash::BuildHasher;
use std::io::Write;
use std::ops::Range;
use std::time::SystemTime;

use crate::files::cache::Cache;
use crate::files::clock::Clock;
use crate::files::content_type::{self, UNKNOWN};
use crate::files::ranges::{Selection, select};
use crate::files::request::{Method, Request};
use crate::files::root::{Found, Opened, Root};
use crate::files::status::Status;
use crate::files::target::Target;
use crate::files::transmission::Transmission;
use crate::files::validators::{Identity, Verdict, ranges_apply, weigh};
use crate::files::ways::{Content, Tools, Way, header};

/// Room for the head of most answers, bytes.
const HEAD_BYTES: usize = 512;

/// What is served, and how.
#[derive(Debug)]
pub struct Site {
    /// The directory.
    pub root: Root,
    /// The way that files are sent.
    pub way: Way,
    /// Files in twin memory.
    pub cache: Cache,
}

/// What every head of one answer depends on, besides the status.
struct Context<'a> {
    date: &'a str,
    is_1_0: bool,
    keep_alive: bool,
    /// Whether a body follows where the status has one.
    body: bool,
}

/// Answers `request`; `keep_alive`: another may follow.
pub fn answer(
    site: &Site,
    request: &Request,
    keep_alive: bool,
    clock: &Clock,
    tools: &mut Tools,
) -> Transmission {
    let body = request.method != Method::Head;
    let context = Context { date: clock.date(), is_1_0: request.is_1_0, keep_alive, body };
    let found = match request.method {
        Method::NotAllowed => Err(Status::MethodNotAllowed),
        Method::Unknown => Err(Status::NotImplemented),
        Method::Get | Method::Head => Target::parse(&request.target)
            .and_then(|target| site.root.find(&target).map(|found| (target, found))),
    };
    match found {
        Ok((_, Found::File(opened))) => file(site, request, opened, clock.now(), &context, tools)
            .unwrap_or_else(|status| plain(status, &context, "")),
        Ok((target, Found::Elsewhere)) => {
            let location = format!("Location: {}\r\n", target.as_directory());
            plain(Status::MovedPermanently, &context, &location)
        }
        Err(status @ Status::MethodNotAllowed) => plain(status, &context, "Allow: GET, HEAD\r\n"),
        Err(status) => plain(status, &context, ""),
    }
}

/// The answer to something that is no request, or comes too late; the connection ends with it.
pub fn refusal(status: Status, clock: &Clock) -> Transmission {
    plain(status, &Context { date: clock.date(), is_1_0: false, keep_alive: false, body: true }, "")
}

fn file(
    site: &Site,
    request: &Request,
    opened: Opened,
    now: SystemTime,
    context: &Context<'_>,
    tools: &mut Tools,
) -> Result<Transmission, Status> {
    let identity = Identity::of(&opened.stat);
    let validators = |text: &mut Vec<u8>| {
        let modified = httpdate::HttpDate::from(identity.last_modified(now));
        put(text, format_args!("Last-Modified: {modified}\r\nETag: {}\r\n", identity.etag()));
    };
    match weigh(request, &identity, now) {
        Verdict::Send => {}
        Verdict::NotModified => {
            let mut text = Vec::new();
            begin_head(&mut text, Status::NotModified, context);
            validators(&mut text);
            text.extend_from_slice(b"\r\n");
            return Ok(Transmission::of_text(text));
        }
        Verdict::Failed => return Err(Status::PreconditionFailed),
    }
    let len_bytes = identity.len_bytes;
    // HEAD has no ranges (RFC 9110, section 14.2).
    let wanted = request.range.as_deref().filter(|_| request.method == Method::Get);
    let selection = match wanted {
        Some(range) if ranges_apply(request.if_range.as_deref(), &identity, now) => select(range, len_bytes),
        _ => Selection::Whole,
    };
    if selection == Selection::Unsatisfiable {
        let range = format!("Content-Range: bytes */{len_bytes}\r\n");
        return Ok(plain(Status::RangeNotSatisfiable, context, &range));
    }
    let kind = content_type::by_name(&opened.path).unwrap_or_else(|| {
        let header = header(site.way, &opened.file, len_bytes);
        header.map_or(UNKNOWN, |header| content_type::by_content(&header))
    });
    let mut transmission = if context.body && len_bytes > 0 {
        let content = Content::new(site.way, opened.file, &identity, &site.cache, tools);
        Transmission::of_content(content.map_err(|_| Status::ServiceUnavailable)?)
    } else {
        Transmission::default()
    };
    let status = if selection == Selection::Whole { Status::Ok } else { Status::PartialContent };
    let text = transmission.text();
    begin_head(text, status, context);
    validators(text);
    text.extend_from_slice(b"Accept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n");
    match selection {
        Selection::Several(ranges) => several(&mut transmission, &ranges, len_bytes, kind),
        Selection::One(range) => {
            put(text, format_args!("{}", ContentRange(&range, len_bytes)));
            end_head(text, kind, range.end - range.start);
            transmission.end_step(range);
        }
        Selection::Whole | Selection::Unsatisfiable => {
            end_head(text, kind, len_bytes);
            transmission.end_step(if context.body { 0..len_bytes } else { 0..0 });
        }
    }
    Ok(transmission)
}

/// The rest of an answer of type multipart/byteranges (RFC 9110, section 14.6).
fn several(transmission: &mut Transmission, ranges: &[Range<u64>], len_bytes: u64, kind: &str) {
    let random = || RandomState::new().hash_one(len_bytes);
    let boundary = format!("uncopy-{:016x}{:016x}", random(), random());
    let part_head = |range: &Range<u64>| {
        let content_range = ContentRange(range, len_bytes);
        format!("\r\n--{boundary}\r\nContent-Type: {kind}\r\n{content_range}\r\n")
    };
    let end = format!("\r\n--{boundary}--\r\n");
    let total: u64 = ranges.iter().map(|range| part_head(range).len() as u64 + range.end - range.start).sum();
    let kind = format!("multipart/byteranges; boundary={boundary}");
    end_head(transmission.text(), &kind, total + end.len() as u64);
    for range in ranges {
        transmission.text().extend_from_slice(part_head(range).as_bytes());
        transmission.end_step(range.clone());
    }
    transmission.text().extend_from_slice(end.as_bytes());
    transmission.end_step(0..0);
}

/// The field Content-Range: a range, and the length of the whole, bytes.
struct ContentRange<'a>(&'a Range<u64>, u64);

impl Display for ContentRange<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self(range, len_bytes) = self;
        write!(f, "Content-Range: bytes {}-{}/{len_bytes}\r\n", range.start, range.end - 1)
    }
}

/// An answer that names its status in its body.
fn plain(status: Status, context: &Context<'_>, fields: &str) -> Transmission {
    let body = format!("{} {}\n", status.code(), status.reason());
    let mut text = Vec::with_capacity(HEAD_BYTES);
    begin_head(&mut text, status, context);
    text.extend_from_slice(fields.as_bytes());
    end_head(&mut text, "text/plain; charset=utf-8", body.len() as u64);
    if context.body {
        text.extend_from_slice(body.as_bytes());
    }
    Transmission::of_text(text)
}

/// The fields that every answer has.
fn begin_head(text: &mut Vec<u8>, status: Status, context: &Context<'_>) {
    let connection = match (context.keep_alive, context.is_1_0) {
        (false, _) => "Connection: close\r\n",
        (true, true) => "Connection: keep-alive\r\n",
        (true, false) => "",
    };
    let (code, reason, date) = (status.code(), status.reason(), context.date);
    text.reserve(HEAD_BYTES);
    put(
        text,
        format_args!("HTTP/1.1 {code} {reason}\r\nDate: {date}\r\nServer: uncopy-files\r\n{connection}"),
    );
}

/// The fields that every answer with a body has, and the end.
fn end_head(text: &mut Vec<u8>, kind: &str, len_bytes: u64) {
    put(text, format_args!("Content-Type: {kind}\r\nContent-Length: {len_bytes}\r\n\r\n"));
}

/// Adds `words`: writing into memory does not fail.
fn put(text: &mut Vec<u8>, words: Arguments<'_>) {
    let _ = text.write_fmt(words);
}
