//! The classic commands (memcached's protocol.txt).

use std::sync::atomic::Ordering::Relaxed;

use crate::cached::arithmetic::{Changed, change};
use crate::cached::cache::{Caller, VERSION};
use crate::cached::command::{self, Answer, Next, Retrieval, Storing};
use crate::cached::expiry::{self, Expiry, Seconds};
use crate::cached::number;
use crate::cached::statistics::Counter;
use crate::cached::store::{KEY_LIMIT_BYTES, Mode, Offer, Outcome};
use crate::cached::tokens::Tokens;

const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory";
/// The highest level of verbosity.
const VERBOSITY_LIMIT: u32 = 2;

/// Runs the command whose words are `tokens`, the words of `line`.
pub fn run(command: &[u8], tokens: &Tokens<'_>, line: &[u8], caller: &mut Caller<'_>) -> Next {
    let words = tokens.len();
    match command {
        b"get" | b"gets" if words >= 2 => retrieval(command == b"gets", None, 1, line, caller),
        b"gat" | b"gats" if words >= 2 => {
            let Some(time) = number::signed_32(tokens.get(1)) else {
                caller.answer("CLIENT_ERROR invalid exptime argument", false);
                return Next::Line;
            };
            let touch = Some(Expiry::from_client(i64::from(time)));
            retrieval(command == b"gats", touch, 2, line, caller)
        }
        b"set" if matches!(words, 5 | 6) => update(Mode::Set, false, tokens, caller),
        b"add" if matches!(words, 5 | 6) => update(Mode::Add, false, tokens, caller),
        b"replace" if matches!(words, 5 | 6) => update(Mode::Replace, false, tokens, caller),
        b"append" if matches!(words, 5 | 6) => update(Mode::Append, false, tokens, caller),
        b"prepend" if matches!(words, 5 | 6) => update(Mode::Prepend, false, tokens, caller),
        b"cas" if matches!(words, 6 | 7) => update(Mode::Set, true, tokens, caller),
        b"quit" => Next::Close,
        _ => {
            run_short(command, tokens, caller);
            Next::Line
        }
    }
}

/// The commands without keys or values behind them.
fn run_short(command: &[u8], tokens: &Tokens<'_>, caller: &mut Caller<'_>) {
    let words = tokens.len();
    let is_silent = words > 1 && tokens.last() == b"noreply";
    match command {
        b"delete" if (2..=4).contains(&words) => delete(tokens, is_silent, caller),
        b"incr" if matches!(words, 3 | 4) => arithmetic(true, tokens, is_silent, caller),
        b"decr" if matches!(words, 3 | 4) => arithmetic(false, tokens, is_silent, caller),
        b"touch" if matches!(words, 3 | 4) => touch(tokens, is_silent, caller),
        b"flush_all" if (1..=3).contains(&words) => flush_all(tokens, is_silent, caller),
        b"version" => caller.response.line(format!("VERSION {VERSION}").as_bytes()),
        b"verbosity" if matches!(words, 2 | 3) => match number::unsigned_32(tokens.get(1)) {
            Some(level) => {
                caller.cache.verbosity.store(level.min(VERBOSITY_LIMIT), Relaxed);
                caller.answer("OK", is_silent);
            }
            None => caller.answer(BAD_LINE, is_silent),
        },
        b"stats" => match tokens.get(1) {
            b"" => caller.cache.tell_statistics(caller.response),
            b"settings" => caller.cache.tell_settings(caller.response),
            b"items" | b"slabs" | b"sizes" | b"conns" => caller.response.line(b"END"),
            b"reset" => caller.response.line(b"RESET"),
            _ => caller.response.line(b"ERROR"),
        },
        b"shutdown" => caller.response.line(b"ERROR: shutdown not enabled"),
        _ => caller.response.line(b"ERROR"),
    }
}

/// The keys follow, unless one of them is too long: then nothing is answered but that.
fn retrieval(
    with_cas: bool,
    touch: Option<Expiry>,
    skipped: usize,
    line: &[u8],
    caller: &mut Caller<'_>,
) -> Next {
    let keys = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).skip(skipped);
    if keys.into_iter().any(|key| key.len() > KEY_LIMIT_BYTES) {
        caller.answer(BAD_LINE, false);
        return Next::Line;
    }
    Next::Keys(Retrieval { with_cas, touch })
}

/// Answers one key of `get` and its relatives.
pub fn retrieve(key: &[u8], retrieval: Retrieval, caller: &mut Caller<'_>) {
    let mut slot = caller.cache.store.slot(key);
    if let Some(expiry) = retrieval.touch
        && let Some(item) = slot.item_mut()
    {
        item.expiry = expiry;
    }
    let is_hit = slot.item().is_some();
    slot.mark_fetched();
    if let Some(item) = slot.item_mut() {
        let response = &mut *caller.response;
        response.push(b"VALUE ");
        response.push(key);
        response.push(b" ");
        response.number(u64::from(item.flags));
        response.push(b" ");
        response.number(item.value.bytes().len() as u64);
        if retrieval.with_cas {
            response.push(b" ");
            response.number(item.cas);
        }
        response.push(b"\r\n");
        response.value(item);
    }
    drop(slot);
    if retrieval.touch.is_some() {
        caller.count(Counter::Touches);
        caller.count(if is_hit { Counter::TouchHits } else { Counter::TouchMisses });
    } else {
        caller.count(Counter::Gets);
        caller.count(if is_hit { Counter::GetHits } else { Counter::GetMisses });
    }
}

fn update(mode: Mode, has_cas: bool, tokens: &Tokens<'_>, caller: &mut Caller<'_>) -> Next {
    let is_silent = tokens.last() == b"noreply";
    let key = tokens.get(1);
    let numbers = (
        number::unsigned_32(tokens.get(2)),
        number::signed_32(tokens.get(3)),
        number::signed_32(tokens.get(4)),
        has_cas.then(|| number::unsigned(tokens.get(5))),
    );
    let (Some(flags), Some(time), Some(len), cas @ (None | Some(Some(_)))) = numbers else {
        caller.answer(BAD_LINE, is_silent);
        return Next::Line;
    };
    let len_bytes = match usize::try_from(len) {
        Ok(len_bytes) if key.len() <= KEY_LIMIT_BYTES && len <= i32::MAX - 2 => len_bytes,
        _ => {
            caller.answer(BAD_LINE, is_silent);
            return Next::Line;
        }
    };
    let draft = match command::begin_value(key, len_bytes, caller) {
        Ok(draft) => draft,
        Err(why) => {
            // What the client meant to overwrite must not be found any more.
            if mode == Mode::Set && !has_cas {
                caller.cache.store.slot(key).remove();
            }
            caller.answer(why, is_silent);
            return command::refused(len_bytes);
        }
    };
    let offer = Offer {
        mode,
        cas: cas.flatten(),
        may_be_stale: false,
        flags,
        expiry: Expiry::from_client(i64::from(time)),
        is_key_binary: false,
        otherwise: None,
    };
    Next::Body(Box::new(Storing { draft, key: key.into(), offer, answer: Answer::Text { is_silent } }))
}

/// Tells what came of storing.
pub fn tell_outcome(outcome: Outcome, is_silent: bool, caller: &mut Caller<'_>) {
    let line = match outcome {
        Outcome::Stored(_) => "STORED",
        Outcome::NotStored => "NOT_STORED",
        Outcome::Exists => "EXISTS",
        Outcome::NotFound => "NOT_FOUND",
        Outcome::NoMemory => "SERVER_ERROR out of memory storing object",
    };
    caller.answer(line, is_silent);
}

fn delete(tokens: &Tokens<'_>, is_silent: bool, caller: &mut Caller<'_>) {
    let is_zero = tokens.get(2) == b"0";
    let is_valid = match tokens.len() {
        2 => true,
        3 => is_zero || is_silent,
        _ => is_zero && is_silent,
    };
    if !is_valid {
        caller.answer("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]", is_silent);
        return;
    }
    let key = tokens.get(1);
    if key.len() > KEY_LIMIT_BYTES {
        return caller.answer(BAD_LINE, is_silent);
    }
    let is_hit = caller.cache.store.slot(key).remove();
    caller.count(if is_hit { Counter::DeleteHits } else { Counter::DeleteMisses });
    caller.answer(if is_hit { "DELETED" } else { "NOT_FOUND" }, is_silent);
}

fn touch(tokens: &Tokens<'_>, is_silent: bool, caller: &mut Caller<'_>) {
    let key = tokens.get(1);
    if key.len() > KEY_LIMIT_BYTES {
        return caller.answer(BAD_LINE, is_silent);
    }
    let Some(time) = number::signed_32(tokens.get(2)) else {
        return caller.answer("CLIENT_ERROR invalid exptime argument", is_silent);
    };
    let mut slot = caller.cache.store.slot(key);
    let is_hit = slot.item().is_some();
    if let Some(item) = slot.item_mut() {
        item.expiry = Expiry::from_client(i64::from(time));
    }
    slot.mark_fetched();
    drop(slot);
    caller.count(Counter::Touches);
    caller.count(if is_hit { Counter::TouchHits } else { Counter::TouchMisses });
    caller.answer(if is_hit { "TOUCHED" } else { "NOT_FOUND" }, is_silent);
}

fn flush_all(tokens: &Tokens<'_>, is_silent: bool, caller: &mut Caller<'_>) {
    caller.count(Counter::Flushes);
    let mut delay = 0;
    if tokens.len() != if is_silent { 2 } else { 1 } {
        match number::signed_32(tokens.get(1)) {
            Some(time) => delay = time,
            None => return caller.answer("CLIENT_ERROR invalid exptime argument", is_silent),
        }
    }
    let at = if delay > 0 { Expiry::from_client(i64::from(delay)).0 } else { None };
    let now = expiry::now();
    caller.cache.store.flush(at.filter(|at: &Seconds| *at > now));
    caller.answer("OK", is_silent);
}

fn arithmetic(is_increment: bool, tokens: &Tokens<'_>, is_silent: bool, caller: &mut Caller<'_>) {
    let key = tokens.get(1);
    if key.len() > KEY_LIMIT_BYTES {
        return caller.answer(BAD_LINE, is_silent);
    }
    let Some(delta) = number::unsigned(tokens.get(2)) else {
        return caller.answer("CLIENT_ERROR invalid numeric delta argument", is_silent);
    };
    let mut slot = caller.cache.store.slot(key);
    let changed = change(&mut slot, is_increment, delta, caller);
    drop(slot);
    match changed {
        Changed::To(number) => {
            let mut digits = [0; 20];
            if !is_silent {
                caller.response.line(number::decimal(number, &mut digits));
            }
        }
        Changed::NotFound => caller.answer("NOT_FOUND", is_silent),
        Changed::NotANumber => caller.answer(NOT_A_NUMBER, is_silent),
        Changed::NoMemory => caller.answer(OUT_OF_MEMORY, is_silent),
    }
}
