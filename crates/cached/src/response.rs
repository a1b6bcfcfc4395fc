//! What goes out on one connection, or as the answer to one datagram: text of our own with values in between, kept
//! until all of it is sent, so that the answers to all requests at hand leave as one message.

use std::collections::VecDeque;
use std::io::IoSlice;

use smallvec::{Array, SmallVec};

use crate::value::{END_OF_ANSWER, Value};

/// From this length on a value goes out as a part by itself; below, its bytes are copied into the text, which costs
/// less than another part of a message (`uncopy bench cache --sizes 512,1024,2048`).
const PART_BYTES: usize = 1024;
/// So much may wait to be sent before no further request is served: what a client that does not read can hold.
const FULL_BYTES: usize = 1 << 20;
/// Parts of one message at most; Linux's IOV_MAX is 1,024.
pub const PARTS_LIMIT: usize = 256;
/// Values that may wait to be sent: fewer than half the parts, so that one message can hold all of them.
const VALUES_LIMIT: usize = 120;
/// Text buffers that grew larger are given back once they are empty.
const KEPT_TEXT_BYTES: usize = 16 << 10;

/// A value between the text.
#[derive(Debug)]
struct Inserted {
    /// The end of the text that precedes it.
    text_end: usize,
    value: Value,
    /// Whether it ends the answer.
    is_last: bool,
}

impl Inserted {
    fn bytes(&self) -> &[u8] {
        if self.is_last { self.value.last_line() } else { self.value.line() }
    }
}

/// A queue of bytes to be sent.
#[derive(Debug, Default)]
pub struct Response {
    text: Vec<u8>,
    values: VecDeque<Inserted>,
    /// How much of the text is sent, and of the first value.
    text_sent: usize,
    value_sent: usize,
    pending_bytes: usize,
}

/// A length that [`Response::truncate`] goes back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    text: usize,
    values: usize,
    pending_bytes: usize,
}

impl Response {
    /// Appends text.
    pub fn push(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.pending_bytes += text.len();
    }

    /// Appends a line of text.
    pub fn line(&mut self, text: &[u8]) {
        self.push(text);
        self.push(b"\r\n");
    }

    /// Appends ` ` and a number.
    pub fn number(&mut self, number: u64) {
        let mut digits = [0; 20];
        self.push(crate::number::decimal(number, &mut digits));
    }

    /// Appends a value with its CR LF.
    pub fn value(&mut self, value: &Value) {
        let line = value.line();
        if line.len() < PART_BYTES {
            self.push(line);
        } else {
            self.values.push_back(Inserted {
                text_end: self.text.len(),
                value: value.clone(),
                is_last: false,
            });
            self.pending_bytes += line.len();
        }
    }

    /// Ends the answer to a `get`: with the last value's own end if that is what precedes.
    pub fn end(&mut self) {
        match self.values.back_mut() {
            Some(last) if last.text_end == self.text.len() && !last.is_last => {
                last.is_last = true;
                self.pending_bytes += END_OF_ANSWER.len();
            }
            _ => self.push(END_OF_ANSWER),
        }
    }

    /// The length of the largest part that is no text, bytes.
    #[must_use]
    pub fn largest_bytes(&self) -> usize {
        self.values.iter().map(|inserted| inserted.bytes().len()).max().unwrap_or(0)
    }

    /// Bytes that are not sent yet.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Whether nothing more should be put there before something is sent.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.pending_bytes >= FULL_BYTES || self.values.len() >= VALUES_LIMIT
    }

    /// Where it ends.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { text: self.text.len(), values: self.values.len(), pending_bytes: self.pending_bytes }
    }

    /// Takes back what was appended since `mark`, since when nothing was sent.
    pub fn truncate(&mut self, mark: Mark) {
        self.text.truncate(mark.text);
        self.values.truncate(mark.values);
        self.pending_bytes = mark.pending_bytes;
    }

    /// What is not sent yet, in order, as parts of a message; at most [`PARTS_LIMIT`].
    pub fn gather<'a, A: Array<Item = IoSlice<'a>>>(&'a self, parts: &mut SmallVec<A>) {
        let mut text_at = self.text_sent;
        let mut skip = self.value_sent;
        for inserted in &self.values {
            if parts.len() + 2 > PARTS_LIMIT {
                return;
            }
            if text_at < inserted.text_end {
                parts.push(IoSlice::new(&self.text[text_at..inserted.text_end]));
                text_at = inserted.text_end;
            }
            parts.push(IoSlice::new(&inserted.bytes()[skip..]));
            skip = 0;
        }
        if text_at < self.text.len() && parts.len() < PARTS_LIMIT {
            parts.push(IoSlice::new(&self.text[text_at..]));
        }
    }

    /// `sent_bytes` of what [`Response::gather`] gave are sent.
    pub fn advance(&mut self, mut sent_bytes: usize) {
        self.pending_bytes -= sent_bytes;
        while let Some(first) = self.values.front() {
            let text = sent_bytes.min(first.text_end - self.text_sent);
            self.text_sent += text;
            sent_bytes -= text;
            let rest = first.bytes().len() - self.value_sent;
            if self.text_sent < first.text_end || sent_bytes < rest {
                self.value_sent += sent_bytes;
                return;
            }
            sent_bytes -= rest;
            self.value_sent = 0;
            self.values.pop_front();
        }
        self.text_sent += sent_bytes;
        if self.text_sent == self.text.len() {
            self.clear();
        }
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        if self.text.capacity() > KEPT_TEXT_BYTES {
            self.text = Vec::new();
        }
        self.text.clear();
        self.values.clear();
        (self.text_sent, self.value_sent, self.pending_bytes) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::value::Draft;
    use std::sync::Arc;

    fn bytes(response: &Response) -> Vec<u8> {
        let mut parts = SmallVec::<[IoSlice<'_>; 4]>::new();
        response.gather(&mut parts);
        parts.iter().flat_map(|part| part.to_vec()).collect()
    }

    #[test]
    fn whatever_part_was_sent_the_rest_follows_in_order() {
        let budget = Arc::new(Budget::new(1 << 20));
        let value = |byte, len| Draft::of(&[&vec![byte; len]], &budget).expect("room");
        let make = || {
            let mut response = Response::default();
            response.line(b"VALUE a 0 2000");
            response.value(&value(b'a', 2000));
            response.value(&value(b'b', 1022));
            response.push(b"VALUE c 0 1\r\n");
            response.value(&value(b'c', 1));
            response.value(&value(b'd', 5000));
            response.end();
            response.line(b"VALUE e 0 1");
            response.end();
            response.value(&value(b'f', 3000));
            response.end();
            // The answer to a key that is not there.
            response.end();
            response
        };
        let whole = bytes(&make());
        assert!(
            whole.ends_with(b"f\r\nEND\r\nEND\r\n") && whole.windows(8).any(|end| end == b"d\r\nEND\r\n")
        );
        assert_eq!(whole.len(), make().pending_bytes());
        for step in (1..whole.len()).step_by(7).chain([whole.len()]) {
            let mut response = make();
            let mut seen = Vec::new();
            while response.pending_bytes() > 0 {
                let rest = bytes(&response);
                assert_eq!(rest.len(), response.pending_bytes());
                let sent = step.min(rest.len());
                seen.extend_from_slice(&rest[..sent]);
                response.advance(sent);
            }
            assert_eq!(seen, whole);
            assert!(response.text.is_empty() && response.values.is_empty());
        }
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn it_goes_back_to_a_mark() {
        let budget = Arc::new(Budget::new(1 << 20));
        let mut response = Response::default();
        response.line(b"kept");
        let mark = response.mark();
        response.value(&Draft::of(&[&[1; 4000]], &budget).expect("room"));
        response.line(b"not kept");
        response.truncate(mark);
        assert_eq!((bytes(&response), response.pending_bytes()), (b"kept\r\n".to_vec(), 6));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn many_values_fill_it_and_a_message_has_a_limit_of_parts() {
        let budget = Arc::new(Budget::new(8 << 20));
        let mut response = Response::default();
        let value = Draft::of(&[&[1; 2000]], &budget).expect("room");
        while !response.is_full() {
            response.line(b"VALUE");
            response.value(&value);
        }
        for _ in 0..PARTS_LIMIT {
            response.line(b"VALUE");
            response.value(&value);
        }
        let pending = response.pending_bytes();
        let mut sent = 0;
        while response.pending_bytes() > 0 {
            let mut parts = SmallVec::<[IoSlice<'_>; 4]>::new();
            response.gather(&mut parts);
            assert!(parts.len() <= PARTS_LIMIT);
            let part = parts.iter().map(|part| part.len()).sum();
            sent += part;
            drop(parts);
            response.advance(part);
        }
        assert_eq!(sent, pending);
    }
}
