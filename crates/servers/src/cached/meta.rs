//! The meta commands (memcached's protocol.txt, "Meta Commands"): `mg`, `ms`, `md`, `ma`, `mn`, `me`.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::cached::arithmetic::{Changed, change};
use crate::cached::cache::Caller;
use crate::cached::command::{self, Answer, Next, Storing};
use crate::cached::expiry::{Expiry, Seconds};
use crate::cached::number;
use crate::cached::response::Response;
use crate::cached::statistics::Counter;
use crate::cached::store::{KEY_LIMIT_BYTES, Mode, Offer, Outcome, Slot};
use crate::cached::stripe::Item;
use crate::cached::tokens::Tokens;
use crate::cached::value::{Draft, Value};

const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
/// Words of a meta command at most.
const WORDS_LIMIT: usize = 19;
/// Longest opaque token, bytes.
const OPAQUE_LIMIT_BYTES: usize = 32;

/// What the flags of a command say; those that only ask for something to be told stay in the line.
#[derive(Debug, Default)]
struct Flags {
    is_quiet: bool,
    with_value: bool,
    is_peek: bool,
    is_key_binary: bool,
    invalidates: bool,
    mode: Option<u8>,
    vivify: Option<Expiry>,
    expiry: Option<Expiry>,
    recache: Option<Expiry>,
    cas: Option<u64>,
    client_flags: u32,
    delta: Option<u64>,
    initial: u64,
}

impl Flags {
    fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Self, &'static str> {
        let mut flags = Self::default();
        let mut seen = [false; 128];
        let mut error = None;
        for word in words {
            let (kind, token) = (word[0], &word[1..]);
            match seen.get_mut(usize::from(kind)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err("CLIENT_ERROR duplicate flag"),
            }
            let mut time = || match number::signed_32(token) {
                Some(time) => Some(Expiry::from_client(i64::from(time))),
                None => {
                    error = Some(BAD_TOKEN);
                    None
                }
            };
            match kind {
                b'N' => flags.vivify = time(),
                b'T' => flags.expiry = time(),
                b'R' => flags.recache = time(),
                b'v' => flags.with_value = true,
                b'u' => flags.is_peek = true,
                b'q' => flags.is_quiet = true,
                b'b' => flags.is_key_binary = true,
                b'I' => flags.invalidates = true,
                b'O' if word.len() > OPAQUE_LIMIT_BYTES => {
                    error = Some(LONG_OPAQUE);
                }
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
                b'F' => match number::unsigned_32(token) {
                    Some(number) => flags.client_flags = number,
                    None => error = error.or(Some(BAD_LINE)),
                },
                b'C' => match number::unsigned(token) {
                    Some(cas) => flags.cas = Some(cas),
                    None => error = Some(BAD_TOKEN),
                },
                b'M' if token.len() == 1 => flags.mode = Some(token[0]),
                b'M' => error = Some("CLIENT_ERROR incorrect length for M token"),
                b'J' => match number::unsigned(token) {
                    Some(initial) => flags.initial = initial,
                    None => error = Some("CLIENT_ERROR invalid numeric initial value"),
                },
                b'D' => match number::unsigned(token) {
                    Some(delta) => flags.delta = Some(delta),
                    None => error = Some("CLIENT_ERROR invalid numeric delta value"),
                },
                _ => return Err("CLIENT_ERROR invalid flag"),
            }
        }
        error.map_or(Ok(flags), Err)
    }

    /// Does what `word` says about the time at which an item expires, which may have been made just now.
    fn set_expiry(&self, word: &[u8], is_made: bool, item: &mut Item) {
        match (word[0], self.expiry, self.vivify) {
            (b'T', Some(expiry), _) => item.expiry = expiry,
            (b'N', _, Some(expiry)) if is_made => item.expiry = expiry,
            _ => {}
        }
    }
}

/// The bytes of a key that is given in base 64, with its padding and nothing else; `None` if it is not, or empty.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok().filter(|key| !key.is_empty())
}

/// A command's key and flags.
#[derive(Debug)]
struct Request<'a> {
    key: Cow<'a, [u8]>,
    flags: Flags,
}

impl<'a> Request<'a> {
    /// Of `tokens`, whose flags begin at `first_flag`.
    fn parse(tokens: &Tokens<'a>, first_flag: usize) -> Result<Self, &'static str> {
        let key = tokens.get(1);
        if key.len() > KEY_LIMIT_BYTES {
            return Err(BAD_LINE);
        }
        if tokens.len() > WORDS_LIMIT {
            return Err("CLIENT_ERROR options flags are too long");
        }
        let parse = || {
            let flags = Flags::parse(tokens.from(first_flag))?;
            let key = if flags.is_key_binary {
                Cow::Owned(decoded(key).ok_or("CLIENT_ERROR error decoding key")?)
            } else {
                Cow::Borrowed(key)
            };
            Ok(Self { key, flags })
        };
        // memcached has one line for all that may be wrong with these.
        let says_all = !matches!(tokens.get(0), b"md" | b"ma");
        parse().map_err(|error| match says_all || error == LONG_OPAQUE {
            true => error,
            false => "CLIENT_ERROR invalid or duplicate flag",
        })
    }
}

/// Runs `mX`, where `kind` is the X.
pub fn run(kind: u8, tokens: &Tokens<'_>, caller: &mut Caller<'_>) -> Next {
    if kind == b'n' {
        caller.response.line(b"MN");
        return Next::Line;
    }
    if !b"gsdae".contains(&kind) {
        caller.response.line(b"ERROR");
        return Next::Line;
    }
    caller.count(Counter::Metas);
    if tokens.len() < 2 {
        caller.response.line(if kind == b'e' { BAD_LINE.as_bytes() } else { b"ERROR" });
        return Next::Line;
    }
    if kind == b's' {
        return set(tokens, caller);
    }
    let mark = caller.response.mark();
    let first_flag = if kind == b'e' { tokens.len() } else { 2 };
    let done = Request::parse(tokens, first_flag).and_then(|request| match kind {
        b'g' => get(&request, tokens, caller),
        b'd' => delete(&request, tokens, caller),
        b'a' => arithmetic(&request, tokens, caller),
        _ => debug(&request, tokens, caller),
    });
    if let Err(error) = done {
        caller.response.truncate(mark);
        caller.response.line(error.as_bytes());
    }
    Next::Line
}

/// Appends what `flags` ask for that is known without an item: the opaque token and the key.
fn tell_request(word: &[u8], key: &[u8], is_binary: bool, response: &mut Response) {
    match word[0] {
        b'O' => {
            response.push(b" ");
            response.push(word);
        }
        b'k' => {
            response.push(b" k");
            if is_binary {
                response.push(STANDARD.encode(key).as_bytes());
                response.push(b" b");
            } else {
                response.push(key);
            }
        }
        _ => {}
    }
}

/// Appends what `word` asks for of `item`.
fn tell_item(
    word: &[u8],
    item: &Item,
    now: Seconds,
    used_s: u64,
    was_fetched: bool,
    response: &mut Response,
) {
    let mut tell = |flag: &[u8; 2], number| {
        response.push(flag);
        response.number(number);
    };
    match word[0] {
        b's' => tell(b" s", item.value.bytes().len() as u64),
        b'c' => tell(b" c", item.cas),
        b'f' => tell(b" f", u64::from(item.flags)),
        b'l' => tell(b" l", used_s),
        b'h' => tell(b" h", u64::from(was_fetched)),
        b't' => match u64::try_from(item.expiry.left(now)) {
            Ok(left) => tell(b" t", left),
            Err(_) => response.push(b" t-1"),
        },
        _ => {}
    }
}

fn head(value: Option<&Value>, response: &mut Response) {
    match value {
        Some(value) => {
            response.push(b"VA ");
            response.number(value.bytes().len() as u64);
        }
        None => response.push(b"HD"),
    }
}

fn get(request: &Request<'_>, tokens: &Tokens<'_>, caller: &mut Caller<'_>) -> Result<(), &'static str> {
    let Request { key, flags } = request;
    let mut slot = caller.cache.store.slot(key);
    let is_hit = slot.item().is_some();
    let is_made = !is_hit && flags.vivify.is_some();
    if is_made {
        let nothing = Draft::of(&[], caller.cache.store.budget()).ok_or("SERVER_ERROR out of memory")?;
        slot.store(nothing, 0, Expiry::NEVER, flags.is_key_binary);
    }
    caller.count(if flags.expiry.is_some() { Counter::Touches } else { Counter::Gets });
    caller.count(match (flags.expiry.is_some(), slot.item().is_some()) {
        (true, true) => Counter::TouchHits,
        (true, false) => Counter::TouchMisses,
        (false, true) => Counter::GetHits,
        (false, false) => Counter::GetMisses,
    });
    let Some(item) = slot.item() else {
        if !flags.is_quiet {
            caller.response.push(b"EN");
            for word in tokens.from(2) {
                tell_request(word, key, flags.is_key_binary, caller.response);
            }
            caller.response.line(b"");
        }
        return Ok(());
    };
    let (used_s, was_fetched) = (age_s(item, &slot), item.is_fetched);
    let now = slot.now();
    let response = &mut *caller.response;
    let Some(item) = slot.item_mut() else { return Ok(()) };
    head(flags.with_value.then_some(&item.value), response);
    let mut wins = is_made;
    // In the order in which the client gave them: `t` before `T` tells the time that was left.
    for word in tokens.from(2) {
        flags.set_expiry(word, is_made, item);
        if let (b'R', Some(recache)) = (word[0], flags.recache) {
            wins |= !item.has_winner && !is_made && item.expiry.is_before(recache);
        }
        tell_item(word, item, now, used_s, was_fetched, response);
        tell_request(word, key, item.is_key_binary, response);
    }
    if item.has_winner {
        response.push(b" Z");
    }
    if item.is_stale {
        response.push(b" X");
        wins |= !item.has_winner;
    }
    if wins {
        response.push(b" W");
        item.has_winner = true;
    }
    response.line(b"");
    if flags.with_value {
        response.value(item);
    }
    if !flags.is_peek {
        slot.mark_fetched();
    }
    Ok(())
}

/// Seconds since the item was used.
fn age_s(item: &Item, slot: &Slot<'_>) -> u64 {
    u64::from(slot.now().0).saturating_sub(item.used_ms / 1000)
}

fn set(tokens: &Tokens<'_>, caller: &mut Caller<'_>) -> Next {
    let mut fail = |error: &str| {
        caller.response.line(error.as_bytes());
        Next::Line
    };
    if tokens.get(1).len() > KEY_LIMIT_BYTES || tokens.len() < 3 {
        return fail(BAD_LINE);
    }
    if tokens.len() > WORDS_LIMIT {
        return fail("CLIENT_ERROR options flags too long");
    }
    let len = number::signed_32(tokens.get(2)).filter(|len| *len <= i32::MAX - 2);
    let Some(len_bytes) = len.and_then(|len| usize::try_from(len).ok()) else { return fail(BAD_LINE) };
    let begin = |caller: &Caller<'_>| {
        let Request { key, flags } = Request::parse(tokens, 3)?;
        let mode = match flags.mode {
            None | Some(b'S') => Mode::Set,
            Some(b'E') => Mode::Add,
            Some(b'A') => Mode::Append,
            Some(b'P') => Mode::Prepend,
            Some(b'R') => Mode::Replace,
            Some(_) => return Err("CLIENT_ERROR invalid mode for ms M token"),
        };
        let draft = command::begin_value(&key, len_bytes, caller).inspect_err(|_| {
            caller.cache.store.slot(&key).remove();
        })?;
        let offer = Offer {
            mode,
            cas: flags.cas.filter(|_| mode != Mode::Add),
            may_be_stale: flags.invalidates,
            flags: flags.client_flags,
            expiry: flags.expiry.unwrap_or_default(),
            is_key_binary: flags.is_key_binary,
            otherwise: flags.vivify,
        };
        let words: Vec<&[u8]> = tokens.from(3).collect();
        let answer = Answer::Meta { is_quiet: flags.is_quiet, flags: words.join(&b' ').into() };
        Ok(Storing { draft, key: key.into(), offer, answer })
    };
    match begin(caller) {
        Ok(storing) => Next::Body(Box::new(storing)),
        Err(error) => {
            caller.response.line(error.as_bytes());
            command::refused(len_bytes)
        }
    }
}

/// Tells what came of `ms`.
pub fn tell_outcome(
    outcome: Outcome,
    key: &[u8],
    offer: &Offer,
    is_quiet: bool,
    flags: &[u8],
    caller: &mut Caller<'_>,
) {
    let (code, cas) = match outcome {
        Outcome::Stored(_) if is_quiet => return,
        Outcome::Stored(cas) => ("HD", cas),
        Outcome::NotStored => ("NS", 0),
        Outcome::Exists => ("EX", 0),
        Outcome::NotFound => ("NF", 0),
        Outcome::NoMemory => return caller.answer("SERVER_ERROR out of memory storing object", false),
    };
    let response = &mut *caller.response;
    response.push(code.as_bytes());
    for word in flags.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
        if word[0] == b'c' {
            response.push(b" c");
            response.number(cas);
        }
        tell_request(word, key, offer.is_key_binary, response);
    }
    response.line(b"");
}

fn delete(request: &Request<'_>, tokens: &Tokens<'_>, caller: &mut Caller<'_>) -> Result<(), &'static str> {
    let Request { key, flags } = request;
    let mut slot = caller.cache.store.slot(key);
    let cas = slot.item().map(|item| item.cas);
    let code = match cas {
        None => {
            caller.count(Counter::DeleteMisses);
            "NF"
        }
        Some(cas) if flags.cas.is_some_and(|wanted| wanted != cas) => {
            caller.count(Counter::DeleteMisses);
            "EX"
        }
        Some(_) => {
            if flags.invalidates {
                let cas = caller.cache.store.next_cas();
                if let Some(item) = slot.item_mut() {
                    item.expiry = flags.expiry.unwrap_or(item.expiry);
                    (item.is_stale, item.has_winner, item.cas) = (true, false, cas);
                }
            } else {
                caller.count(Counter::DeleteHits);
                slot.remove();
            }
            "HD"
        }
    };
    drop(slot);
    tell(code, request, tokens, caller);
    Ok(())
}

/// A code with what was asked for that is known without an item. Quiet clients want to know of failures only.
fn tell(code: &str, request: &Request<'_>, tokens: &Tokens<'_>, caller: &mut Caller<'_>) {
    if request.flags.is_quiet && code == "HD" {
        return;
    }
    caller.response.push(code.as_bytes());
    for word in tokens.from(2) {
        tell_request(word, &request.key, request.flags.is_key_binary, caller.response);
    }
    caller.response.line(b"");
}

fn arithmetic(
    request: &Request<'_>,
    tokens: &Tokens<'_>,
    caller: &mut Caller<'_>,
) -> Result<(), &'static str> {
    let Request { key, flags } = request;
    let is_increment = match flags.mode {
        None | Some(b'I' | b'+') => true,
        Some(b'D' | b'-') => false,
        Some(_) => return Err("CLIENT_ERROR invalid mode for ma M token"),
    };
    let mut slot = caller.cache.store.slot(key);
    let not_a_number = Err("CLIENT_ERROR cannot increment or decrement non-numeric value");
    if slot.item().is_some_and(|item| item.value.bytes().is_empty()) {
        return not_a_number;
    }
    if let (Some(wanted), Some(item)) = (flags.cas.filter(|cas| *cas != 0), slot.item())
        && wanted != item.cas
    {
        drop(slot);
        tell("EX", request, tokens, caller);
        return Ok(());
    }
    let mut is_made = false;
    let number = match change(&mut slot, is_increment, flags.delta.unwrap_or(1), caller) {
        Changed::To(number) => number,
        Changed::NotANumber => return not_a_number,
        Changed::NoMemory => return Err("SERVER_ERROR out of memory"),
        Changed::NotFound => {
            if flags.vivify.is_none() {
                drop(slot);
                tell("NF", request, tokens, caller);
                return Ok(());
            }
            is_made = true;
            let mut digits = [0; 20];
            let digits = number::decimal(flags.initial, &mut digits);
            let value = Draft::of(&[digits], caller.cache.store.budget())
                .ok_or("SERVER_ERROR Out of memory allocating new item")?;
            slot.store(value, 0, Expiry::NEVER, flags.is_key_binary);
            flags.initial
        }
    };
    let now = slot.now();
    let Some(item) = slot.item_mut() else { return Ok(()) };
    let mut digits = [0; 20];
    let digits = number::decimal(number, &mut digits);
    let mark = caller.response.mark();
    let response = &mut *caller.response;
    if flags.with_value {
        response.push(b"VA ");
        response.number(digits.len() as u64);
    } else {
        response.push(b"HD");
    }
    for word in tokens.from(2) {
        flags.set_expiry(word, is_made, item);
        if matches!(word[0], b'c' | b't') {
            tell_item(word, item, now, 0, false, response);
        }
        tell_request(word, key, flags.is_key_binary, response);
    }
    response.line(b"");
    if flags.with_value {
        response.line(digits);
    }
    // What memcached makes anew it tells of, quiet or not.
    if flags.is_quiet && !is_made {
        response.truncate(mark);
    }
    Ok(())
}

/// `me`: what is known of an item, for people.
fn debug(request: &Request<'_>, tokens: &Tokens<'_>, caller: &mut Caller<'_>) -> Result<(), &'static str> {
    let key = match tokens.get(2) {
        b"b" => Cow::Owned(decoded(&request.key).ok_or(BAD_LINE)?),
        _ => Cow::Borrowed(&*request.key),
    };
    let slot = caller.cache.store.slot(&key);
    let Some(item) = slot.item() else {
        drop(slot);
        caller.response.line(b"EN");
        return Ok(());
    };
    let response = &mut *caller.response;
    response.push(b"ME ");
    if item.is_key_binary {
        response.push(STANDARD.encode(&key).as_bytes());
    } else {
        response.push(&key);
    }
    let expires = item.expiry.left(slot.now());
    let fetched = if item.is_fetched { "yes" } else { "no" };
    let (age, cas, size) = (age_s(item, &slot), item.cas, item.value.line().len() + key.len());
    let text = format!(" exp={expires} la={age} cas={cas} fetch={fetched} cls=1 size={size}");
    response.line(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_base_64_of_every_length_comes_back_and_anything_else_is_refused() {
        for len in 1..70_u8 {
            let bytes: Vec<u8> = (0..len).map(|at| at.wrapping_mul(211).wrapping_add(len)).collect();
            assert_eq!(decoded(STANDARD.encode(&bytes).as_bytes()), Some(bytes));
        }
        assert_eq!(decoded(b"Zm9vYmFy").as_deref(), Some(&b"foobar"[..]));
        assert_eq!(decoded(b"Zm9vYmE=").as_deref(), Some(&b"fooba"[..]));
        for text in [
            "",
            "A",
            "AA",
            "AAA",
            "A===",
            "====",
            "AA=A",
            "AAAA=",
            "Zm9v!mFy",
            "Zm9vYm==A",
            "Zm9=YmFy",
            "Zm9vYmF=",
            "Zm9vYh==",
        ] {
            assert_eq!(decoded(text.as_bytes()), None, "{text}");
        }
    }
}
