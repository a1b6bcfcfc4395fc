//! A stream's receiver: determines how far the kernel's socket may be read, and what a token stands for.
//!
//! ```text
//! stream   … literal bytes … │T│ … literal bytes …        n bytes can be read; the first of them has the offset `read`
//!          ▲                  ▲
//!         read               the next announcement's `at`
//! ```
//!
//! The kernel is asked for `n` before the announcements are read. A token among those `n` bytes was announced
//! before it was sent, so every byte not announced by then is literal. No read exceeds `n` bytes.
//!
//! If the next byte is announced as a token and its whole reference fits, the byte is read, and then the
//! announcement is read again. If it is still there, the byte was the token. The announcement may have been
//! replaced meanwhile, but not by a longer one. If it was withdrawn, the token was not sent, and the byte is
//! literal.
//!
//! If several tokens with their references and the literal bytes between them fit, they are read by one call: see
//! [`Stretch`].
//!
//! Otherwise a token stays in the socket until the last byte of its reference was received, so that poll, select
//! and epoll report input for as long as there is some.

use crate::board::{Announcement, Announcements, MAX_ANNOUNCEMENTS, Slot};
use crate::peers::{HeldBytes, Peers};
use smallvec::SmallVec;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::Arc;

/// Kernel side of a stream end.
pub trait Socket {
    /// Returns the number of bytes that can be read at once.
    ///
    /// # Errors
    /// The error of the system call.
    fn unread(&self) -> Result<usize, Errno>;
    /// Returns the stream offset of the next of the `unread` bytes that can be read. `None` if it is unknown.
    fn read_bytes(&self, unread: usize) -> Option<u64>;
    /// Reads one byte, which is known to be there.
    ///
    /// # Errors
    /// The error of the system call.
    fn take_token(&self) -> Result<(), Errno>;
}

/// Next input of a stream.
pub enum Next<'a> {
    /// Nothing can be read; a read of the kernel's socket gives the right result.
    Nothing,
    /// This many literal bytes can be read, all that there are; never 0.
    Literal(usize),
    /// This many literal bytes can be read, followed by a token; never 0.
    Before(usize),
    /// The rest of a reference.
    Reference {
        /// Bytes of the reference.
        held: &'a Arc<HeldBytes>,
        /// Number of its bytes received before.
        taken_bytes: usize,
    },
    /// The sender has announced something invalid: the connection is to be reset.
    Broken(&'static str),
}

/// A run of input of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// This many literal bytes; never 0.
    Literal(usize),
    /// A token with its announcement.
    Token(Announcement),
}

/// Input that one call can receive, in stream order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stretches {
    /// Runs of literal bytes, and tokens.
    pub all: SmallVec<[Stretch; 4]>,
    /// Number of bytes delivered, with references in place of tokens.
    pub len_bytes: usize,
    /// True if nothing was unread beyond the last stretch.
    pub is_complete: bool,
}

/// Reason given for an invalid reference.
const OUTSIDE: &str = "bytes outside of what was shared";

struct Current {
    held: Arc<HeldBytes>,
    taken_bytes: usize,
}

/// Progress of a receiver; protected by a lock.
#[derive(Default)]
pub struct Receiver {
    /// Number of the next announcement.
    next: u32,
    /// Reference whose token is the next byte of the socket.
    current: Option<Current>,
    /// Receives that brought only literal bytes since the last reference.
    literal_receives: u32,
    /// True if the last receive found nothing at first.
    pub has_waited: bool,
}

impl Receiver {
    /// True if an announcement was not received completely.
    #[must_use]
    pub fn has_announced(&self, far: Announcements<'_>) -> bool {
        self.current.is_some() || far.has_more_than(self.next)
    }

    /// True if an announcement of memory of the process `owner` was not received completely.
    #[must_use]
    pub fn has_announced_of(&self, far: Announcements<'_>, owner: u64) -> bool {
        self.outstanding(far).iter().any(|announcement| announcement.reference.owner == owner)
    }

    /// Returns the announcements that were not received completely.
    #[must_use]
    pub fn outstanding(&self, far: Announcements<'_>) -> SmallVec<[Announcement; 4]> {
        let numbers = (0..MAX_ANNOUNCEMENTS).map(|ahead| self.next.wrapping_add(ahead));
        numbers.map_while(|number| far.get(number)).collect()
    }

    /// Returns the number of receives that brought only literal bytes since the last reference.
    #[must_use]
    pub const fn literal_receives(&self) -> u32 {
        self.literal_receives
    }

    /// Returns the announcement of the next byte to read, if it is the only one; it may still be withdrawn. For
    /// several see [`Self::stretches`].
    #[must_use]
    pub fn due(&self, read_bytes: u64, far: Announcements<'_>) -> Option<Announcement> {
        let is_alone = self.current.is_none() && !far.has_more_than(self.next.wrapping_add(1));
        let announcement = if is_alone { far.get(self.next) } else { None };
        announcement.filter(|announcement| announcement.at == read_bytes)
    }

    /// Resolves the announcement after its byte was read. `None` if it was withdrawn, so that the byte is literal.
    ///
    /// # Errors
    /// A message, if the reference is invalid.
    pub fn resolve_due(
        &mut self,
        announcement: Announcement,
        far: Announcements<'_>,
        own: &Slot,
        peers: &Peers,
    ) -> Option<Result<HeldBytes, &'static str>> {
        let token = far.get(self.next).filter(|token| token.at == announcement.at)?;
        if token.reference.len_bytes > announcement.reference.len_bytes {
            return Some(Err("more bytes than were announced before"));
        }
        Some(self.resolve_token(&token, own, peers))
    }

    /// Lays out the `unread` bytes of the socket, which begin at the offset `read_bytes`, as far as they fit into
    /// `room_bytes` bytes. `None` if no token's reference fits completely, or one is partly received: see
    /// [`Self::next`]. The caller asks the socket before it reads `far`.
    #[must_use]
    pub fn stretches(
        &self,
        unread: usize,
        read_bytes: u64,
        far: Announcements<'_>,
        room_bytes: usize,
    ) -> Option<Stretches> {
        if self.current.is_some() {
            return None;
        }
        let mut found = Stretches::default();
        let (mut at, mut left_bytes) = (read_bytes, unread);
        let mut tokens = 0;
        while tokens < MAX_ANNOUNCEMENTS && left_bytes > 0 {
            let announcement = far.get(self.next.wrapping_add(tokens));
            // Offsets wrap around modulo 2⁶⁴.
            let ahead = announcement.map(|announcement| announcement.at.wrapping_sub(at));
            let token = announcement.filter(|_| ahead.is_some_and(|ahead| ahead < left_bytes as u64));
            if token.is_none() && ahead.is_some_and(|ahead| ahead >= 1 << 62) {
                return None;
            }
            let before_bytes = token.and(ahead).map_or(left_bytes, |ahead| ahead as usize);
            let literal_bytes = before_bytes.min(room_bytes - found.len_bytes);
            if literal_bytes > 0 {
                found.all.push(Stretch::Literal(literal_bytes));
            }
            found.len_bytes += literal_bytes;
            left_bytes -= literal_bytes;
            at = at.wrapping_add(literal_bytes as u64);
            let Some(token) = token.filter(|_| literal_bytes == before_bytes) else { break };
            let token_bytes = token.reference.len_bytes as usize;
            if token_bytes == 0 || token_bytes > room_bytes - found.len_bytes {
                break;
            }
            found.all.push(Stretch::Token(token));
            found.len_bytes += token_bytes;
            left_bytes -= 1;
            at = at.wrapping_add(1);
            tokens += 1;
        }
        found.is_complete = left_bytes == 0;
        (tokens > 0).then_some(found)
    }

    /// Resolves a token of [`Self::stretches`] that was read.
    ///
    /// # Errors
    /// A message, if the reference is invalid.
    pub fn resolve_token(
        &mut self,
        token: &Announcement,
        own: &Slot,
        peers: &Peers,
    ) -> Result<HeldBytes, &'static str> {
        self.next = self.next.wrapping_add(1);
        self.literal_receives = 0;
        own.receiving.consume();
        peers.resolve(token).ok_or(OUTSIDE)
    }

    /// Determines the next input from a sender with the announcements `far`.
    pub fn next(&mut self, socket: &impl Socket, far: Announcements<'_>, peers: &Peers) -> Next<'_> {
        let Ok(unread) = socket.unread() else { return Next::Nothing };
        if unread == 0 {
            return Next::Nothing;
        }
        if self.current.is_none() {
            let Some(Announcement { at, reference }) = far.get(self.next) else {
                return Next::Literal(unread);
            };
            let Some(read) = socket.read_bytes(unread) else { return Next::Broken("its offset is unknown") };
            // Offsets wrap around: one far behind was passed over, or is not of this stream.
            let ahead = at.wrapping_sub(read);
            if ahead >= unread as u64 {
                return if ahead < 1 << 62 {
                    Next::Literal(unread)
                } else {
                    Next::Broken("a token was passed over")
                };
            }
            if ahead > 0 {
                return Next::Before(ahead as usize);
            }
            let Some(held) = peers.resolve(&Announcement { at, reference }) else {
                return Next::Broken(OUTSIDE);
            };
            self.current = Some(Current { held: Arc::new(held), taken_bytes: 0 });
        }
        match &self.current {
            Some(Current { held, taken_bytes }) => Next::Reference { held, taken_bytes: *taken_bytes },
            None => Next::Nothing,
        }
    }

    /// Returns the number of bytes that can be received, given that the socket has `unread`, which begin at the
    /// offset `read_bytes`.
    #[must_use]
    pub fn receivable(&self, unread: usize, read_bytes: u64, far: Announcements<'_>) -> usize {
        if unread == 0 {
            return 0;
        }
        let mut number = self.next;
        let mut receivable = unread;
        if let Some(current) = &self.current {
            receivable += (current.held.len_bytes() - current.taken_bytes).saturating_sub(1);
            number = number.wrapping_add(1);
        }
        for _ in 0..MAX_ANNOUNCEMENTS {
            match far.get(number) {
                Some(announcement) if announcement.at.wrapping_sub(read_bytes) < unread as u64 => {
                    receivable = receivable
                        .saturating_add((announcement.reference.len_bytes as usize).saturating_sub(1));
                    number = number.wrapping_add(1);
                }
                _ => break,
            }
        }
        receivable
    }

    /// Notes that `len_bytes` literal bytes were read.
    pub const fn note_literal(&mut self, len_bytes: usize) {
        self.literal_receives = self.literal_receives.saturating_add((len_bytes > 0) as u32);
    }

    /// Restarts the count of literal receives.
    pub const fn reset_literal_receives(&mut self) {
        self.literal_receives = 0;
    }

    /// Notes that `len_bytes` bytes of the current reference were received. After its last byte, reads the token
    /// and returns the reference, to be released.
    ///
    /// # Errors
    /// The error of reading the token.
    pub fn note_delivered(
        &mut self,
        len_bytes: usize,
        socket: &impl Socket,
        own: &Slot,
    ) -> Result<Option<Arc<HeldBytes>>, Errno> {
        let Some(current) = &mut self.current else { return Ok(None) };
        current.taken_bytes += len_bytes;
        if current.taken_bytes < current.held.len_bytes() {
            return Ok(None);
        }
        socket.take_token()?;
        self.next = self.next.wrapping_add(1);
        self.literal_receives = 0;
        own.receiving.consume();
        Ok(self.current.take().map(|current| current.held))
    }

    /// Ends the receiver and returns all references not received. The sender announces nothing more.
    pub fn end(&mut self, far: Announcements<'_>, own: &Slot, peers: &Peers) -> Vec<HeldBytes> {
        let mut left = Vec::new();
        if let Some(current) = self.current.take() {
            self.next = self.next.wrapping_add(1);
            left.extend(Arc::into_inner(current.held));
        }
        // Bounded, because a hostile sender could announce for ever.
        for _ in 0..MAX_ANNOUNCEMENTS {
            let Some(announcement) = far.get(self.next) else { break };
            self.next = self.next.wrapping_add(1);
            left.extend(peers.resolve(&announcement));
            own.receiving.consume();
        }
        left
    }
}
