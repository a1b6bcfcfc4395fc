//! The protocol on one connection: bytes in, answers out, whatever pieces the bytes come in. Knows nothing of
//! sockets.
//!
//! ```text
//!            storage command            all of it there
//!   Line ───────────────────► Body ───────────────────────► Line
//!     │ refused value          ┌─── its length is skipped ──► Line
//!     ├──────────────────► Skip┘
//!     │ get, gets, gat, gats
//!     └──────────────────► Keys ── line end ──► Line
//! ```
//!
//! No state holds more than a line of 2,048 bytes or one value, whatever a client sends: the keys of a `get` are
//! answered as they come.

use crate::cached::cache::Caller;
use crate::cached::command::{Answer, Next, Retrieval, Storing};
use crate::cached::meta;
use crate::cached::statistics::Counter;
use crate::cached::store::{KEY_LIMIT_BYTES, Outcome};
use crate::cached::text;
use crate::cached::tokens::Tokens;
use crate::cached::value::Draft;

/// A line that is longer than this and has no end yet is refused, unless it asks for many keys (as memcached does).
const LINE_LIMIT_BYTES: usize = 2048;
/// Blanks in front of a command that are put up with.
const BLANKS_LIMIT: usize = 100;

/// One client's place in the protocol.
#[derive(Debug, Default)]
pub struct Session {
    state: State,
    is_closing: bool,
}

#[derive(Debug, Default)]
enum State {
    /// Before a command.
    #[default]
    Line,
    /// In the keys of a command that asks for values.
    Keys(Retrieval),
    /// In a value.
    Body(Box<Storing>),
    /// In a value that is refused: bytes of it to come.
    Skip(usize),
    /// In a line that is refused.
    SkipLine,
}

impl Session {
    /// Whether the connection is to be closed once the answers are sent.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// The value that is missing bytes, so that they may be received without a detour.
    pub fn draft(&mut self) -> Option<&mut Draft> {
        match &mut self.state {
            State::Body(storing) => Some(&mut storing.draft),
            _ => None,
        }
    }

    /// Takes what it can of `input`, and says how many bytes that were. It stops where something is incomplete, or
    /// where enough answers wait to be sent.
    pub fn feed(&mut self, input: &[u8], caller: &mut Caller<'_>) -> usize {
        let mut at = 0;
        while !self.is_closing && !caller.response.is_full() {
            let rest = &input[at..];
            let (taken, goes_on) = match &mut self.state {
                State::Line => self.line(rest, caller),
                State::Keys(retrieval) => {
                    let retrieval = *retrieval;
                    self.keys(rest, retrieval, caller)
                }
                State::Body(storing) => {
                    let taken = storing.draft.append(rest);
                    let is_complete = storing.draft.missing_bytes() == 0;
                    if is_complete && let State::Body(storing) = std::mem::take(&mut self.state) {
                        store(*storing, caller);
                    }
                    (taken, is_complete)
                }
                State::Skip(missing) => {
                    let taken = rest.len().min(*missing);
                    *missing -= taken;
                    let is_complete = *missing == 0;
                    if is_complete {
                        self.state = State::Line;
                    }
                    (taken, is_complete)
                }
                State::SkipLine => match line_end(rest) {
                    Some(end) => {
                        self.state = State::Line;
                        (end + 1, true)
                    }
                    None => (rest.len(), false),
                },
            };
            at += taken;
            if !goes_on {
                break;
            }
        }
        at
    }

    fn line(&mut self, input: &[u8], caller: &mut Caller<'_>) -> (usize, bool) {
        let Some(end) = line_end(input) else {
            if input.len() > LINE_LIMIT_BYTES {
                return self.endless_line(input);
            }
            return (0, false);
        };
        let mut line = &input[..end];
        if end > 1 && line.ends_with(b"\r") {
            line = &line[..end - 1];
        }
        if let Some(nul) = line.iter().position(|byte| *byte == 0) {
            line = &line[..nul];
        }
        let tokens = Tokens::of(line);
        let command = tokens.get(0);
        let next = match command {
            [b'm', kind] => meta::run(*kind, &tokens, caller),
            [] | [_] => {
                caller.response.line(b"ERROR");
                Next::Line
            }
            _ => text::run(command, &tokens, line, caller),
        };
        match next {
            Next::Line => {}
            Next::Keys(retrieval) => {
                self.state = State::Keys(retrieval);
                // The keys are read where they are.
                let words = if retrieval.touch.is_some() { 2 } else { 1 };
                return (behind_words(input, words), true);
            }
            Next::Body(storing) => self.state = State::Body(storing),
            Next::Skip(bytes) => self.state = State::Skip(bytes),
            Next::Close => self.is_closing = true,
        }
        (end + 1, true)
    }

    /// A line that grew too long before it ended: many keys are answered as they come, all else is no client.
    fn endless_line(&mut self, input: &[u8]) -> (usize, bool) {
        let blanks = input.iter().take_while(|byte| **byte == b' ').count();
        let line = &input[blanks..];
        let with_cas = line.starts_with(b"gets ");
        if blanks > BLANKS_LIMIT || !(with_cas || line.starts_with(b"get ")) {
            self.is_closing = true;
            return (input.len(), false);
        }
        self.state = State::Keys(Retrieval { with_cas, touch: None });
        (blanks + if with_cas { 4 } else { 3 }, true)
    }

    fn keys(&mut self, input: &[u8], retrieval: Retrieval, caller: &mut Caller<'_>) -> (usize, bool) {
        let blanks = input.iter().take_while(|byte| **byte == b' ').count();
        let rest = &input[blanks..];
        let word = rest.iter().position(|byte| matches!(byte, b' ' | b'\n'));
        let end = word.unwrap_or(rest.len());
        let mut key = &rest[..end];
        let is_last = rest.get(end) == Some(&b'\n');
        if is_last {
            key = key.strip_suffix(b"\r").unwrap_or(key);
        }
        if key.len() > KEY_LIMIT_BYTES + 1 || word.is_some() && key.len() > KEY_LIMIT_BYTES {
            // Only in lines that were answered before they ended: see text::run.
            caller.response.line(b"CLIENT_ERROR bad command line format");
            self.state = State::SkipLine;
            return (blanks, true);
        }
        if word.is_none() {
            return (blanks, false);
        }
        if !key.is_empty() {
            text::retrieve(key, retrieval, caller);
        }
        if is_last {
            caller.response.end();
            self.state = State::Line;
            return (blanks + end + 1, true);
        }
        (blanks + end, true)
    }
}

fn line_end(input: &[u8]) -> Option<usize> {
    input.iter().position(|byte| *byte == b'\n')
}

/// Where the blank or line end behind the first `words` words of a line is.
fn behind_words(line: &[u8], words: usize) -> usize {
    let mut at = 0;
    for _ in 0..words {
        at += line[at..].iter().take_while(|byte| **byte == b' ').count();
        at += line[at..].iter().take_while(|byte| !matches!(byte, b' ' | b'\n')).count();
    }
    at
}

/// Stores a value all of whose bytes have come, and answers.
fn store(storing: Storing, caller: &mut Caller<'_>) {
    let Storing { draft, key, offer, answer } = storing;
    caller.count(Counter::Sets);
    let Some(value) = draft.finish() else {
        let is_silent = matches!(answer, Answer::Text { is_silent: true });
        caller.answer("CLIENT_ERROR bad data chunk", is_silent);
        return;
    };
    let outcome = caller.cache.store.put(&key, &offer, value);
    if offer.cas.is_some() {
        match outcome {
            Outcome::Stored(_) => caller.count(Counter::CasHits),
            Outcome::Exists => caller.count(Counter::CasBad),
            Outcome::NotFound => caller.count(Counter::CasMisses),
            _ => {}
        }
    }
    if outcome == Outcome::NoMemory {
        caller.count(Counter::NoMemory);
    }
    match answer {
        Answer::Text { is_silent } => text::tell_outcome(outcome, is_silent, caller),
        Answer::Meta { is_quiet, flags } => {
            meta::tell_outcome(outcome, &key, &offer, is_quiet, &flags, caller);
        }
    }
}
