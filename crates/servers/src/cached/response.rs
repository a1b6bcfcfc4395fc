//! What goes out on one connection, or as the answer to one datagram: text of our own with values in between, kept
//! until all of it is sent, so that the answers to all requests at hand leave as one message.

use std::collections::VecDeque;

use smallvec::{Array, SmallVec};

use crate::cached::stripe::Item;
use crate::cached::value::{END_OF_ANSWER, Value};

/// From this length on a value goes out as a part by itself; below, its bytes are copied into the text, which costs
/// less than another part of a message (`uncopy bench cache --sizes 512,1024,2048`).
const PART_BYTES: usize = 1024;
/// Bytes that wait to be sent at which no further request is served: what a client that does not read can hold.
const FULL_BYTES: usize = 1 << 20;
/// Parts of one message at most; Linux's IOV_MAX is 1,024.
pub const PARTS_LIMIT: usize = 256;
/// Answers after which a value is worth a reference. What was sent by reference costs more to overwrite (its pages
/// are dropped and new ones put in their place), so that a value that is overwritten sooner should have been copied:
/// `uncopy bench cache --only mixed`, with `--transmit splice` and `auto`.
const SETTLED_AFTER: u32 = 8;
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
    /// Whether the item was an answer so often that it will likely be one again before it is changed.
    is_settled: bool,
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

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Whether it is a value, which may go by reference, and one for which that is worth its price.
    pub kind: Kind,
}

/// What a part of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text of our own, which changes once it is sent.
    Text,
    /// A value that was stored or changed a short while ago.
    Fresh,
    /// A value that was an answer several times.
    Settled,
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
        self.push(crate::cached::number::decimal(number, &mut digits));
    }

    /// Appends an item's value with its CR LF.
    pub fn value(&mut self, item: &mut Item) {
        let line = item.value.line();
        if line.len() < PART_BYTES {
            self.push(line);
            return;
        }
        self.pending_bytes += line.len();
        let (text_end, value) = (self.text.len(), item.value.clone());
        let is_settled = item.answers >= SETTLED_AFTER;
        item.answers = item.answers.saturating_add(1);
        self.values.push_back(Inserted { text_end, value, is_last: false, is_settled });
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
    pub fn largest_bytes(&self) -> usize {
        self.values.iter().map(|inserted| inserted.bytes().len()).max().unwrap_or(0)
    }

    /// Bytes that are not sent yet.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Whether nothing more should be put there before something is sent.
    pub fn is_full(&self) -> bool {
        self.pending_bytes >= FULL_BYTES || self.values.len() >= VALUES_LIMIT
    }

    /// Where it ends.
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
    pub fn gather<'a, A: Array<Item = Piece<'a>>>(&'a self, parts: &mut SmallVec<A>) {
        let text = |bytes| Piece { bytes, kind: Kind::Text };
        let mut text_at = self.text_sent;
        let mut skip = self.value_sent;
        for inserted in &self.values {
            if parts.len() + 2 > PARTS_LIMIT {
                return;
            }
            if text_at < inserted.text_end {
                parts.push(text(&self.text[text_at..inserted.text_end]));
                text_at = inserted.text_end;
            }
            let kind = if inserted.is_settled { Kind::Settled } else { Kind::Fresh };
            parts.push(Piece { bytes: &inserted.bytes()[skip..], kind });
            skip = 0;
        }
        if text_at < self.text.len() && parts.len() < PARTS_LIMIT {
            parts.push(text(&self.text[text_at..]));
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
    use crate::cached::budget::Budget;
    use crate::cached::value::Draft;
    use std::sync::Arc;

    fn item(value: Value) -> Item {
        Item {
            value,
            flags: 0,
            cas: 0,
            expiry: crate::cached::expiry::Expiry::NEVER,
            stored: crate::cached::expiry::Seconds(0),
            used_ms: 0,
            is_fetched: false,
            answers: 0,
            is_stale: false,
            has_winner: false,
            is_key_binary: false,
        }
    }

    fn bytes(response: &Response) -> Vec<u8> {
        let mut parts = SmallVec::<[Piece<'_>; 4]>::new();
        response.gather(&mut parts);
        parts.iter().flat_map(|part| part.bytes.to_vec()).collect()
    }

    #[test]
    fn whatever_part_was_sent_the_rest_follows_in_order() {
        let budget = Arc::new(Budget::new(1 << 20));
        let value = |byte, len| item(Draft::of(&[&vec![byte; len]], &budget).expect("room"));
        let make = || {
            let mut response = Response::default();
            response.line(b"VALUE a 0 2000");
            response.value(&mut value(b'a', 2000));
            response.value(&mut value(b'b', 1022));
            response.push(b"VALUE c 0 1\r\n");
            response.value(&mut value(b'c', 1));
            response.value(&mut value(b'd', 5000));
            response.end();
            response.line(b"VALUE e 0 1");
            response.end();
            response.value(&mut value(b'f', 3000));
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
    fn a_value_is_settled_once_it_was_an_answer_several_times() {
        let budget = Arc::new(Budget::new(1 << 20));
        let mut value = item(Draft::of(&[&[1; 2000]], &budget).expect("room"));
        for answer in 0..2 * SETTLED_AFTER {
            let mut response = Response::default();
            response.line(b"VALUE");
            response.value(&mut value);
            response.end();
            let mut parts = SmallVec::<[Piece<'_>; 4]>::new();
            response.gather(&mut parts);
            let expected = if answer < SETTLED_AFTER { Kind::Fresh } else { Kind::Settled };
            assert_eq!(parts.iter().map(|part| part.kind).collect::<Vec<_>>(), [Kind::Text, expected]);
        }
    }

    #[test]
    fn it_goes_back_to_a_mark() {
        let budget = Arc::new(Budget::new(1 << 20));
        let mut response = Response::default();
        response.line(b"kept");
        let mark = response.mark();
        response.value(&mut item(Draft::of(&[&[1; 4000]], &budget).expect("room")));
        response.line(b"not kept");
        response.truncate(mark);
        assert_eq!((bytes(&response), response.pending_bytes()), (b"kept\r\n".to_vec(), 6));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn many_values_fill_it_and_a_message_has_a_limit_of_parts() {
        let budget = Arc::new(Budget::new(8 << 20));
        let mut response = Response::default();
        let mut value = item(Draft::of(&[&[1; 2000]], &budget).expect("room"));
        while !response.is_full() {
            response.line(b"VALUE");
            response.value(&mut value);
        }
        for _ in 0..PARTS_LIMIT {
            response.line(b"VALUE");
            response.value(&mut value);
        }
        let pending = response.pending_bytes();
        let mut sent = 0;
        while response.pending_bytes() > 0 {
            let mut parts = SmallVec::<[Piece<'_>; 4]>::new();
            response.gather(&mut parts);
            assert!(parts.len() <= PARTS_LIMIT);
            let part = parts.iter().map(|part| part.bytes.len()).sum();
            sent += part;
            drop(parts);
            response.advance(part);
        }
        assert_eq!(sent, pending);
    }
}
