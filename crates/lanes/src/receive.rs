//! What a stream's receiver does: finds out how far it may read the kernel's socket, and what a token stands for.
//!
//! ```text
//! stream   … literal bytes … │T│ … literal bytes …        n bytes can be read; the first of them has the offset `read`
//!          ▲                  ▲
//!         read               the next announcement's `at`
//! ```
//!
//! The kernel is asked for `n` before the announcements are looked at. A token among those `n` bytes was announced before it
//! was sent, so whatever is not announced by then is literal. Nobody ever reads more than `n` bytes.
//!
//! Where the next byte is announced as a token and there is room for all that it stands for, that byte is read and then
//! looked at again: if there is an announcement of it still, it was the token, which may stand for something else by now, but not for
//! more; one that was taken back was not sent.
//!
//! Where there is room for several, literal bytes and all that tokens among them stand for, they are read at once: see [`Stretch`].
//!
//! Otherwise a token stays in the socket until the last byte that it stands for was received: poll, select and epoll see that there is
//! something to read as long as there is.

use crate::board::{Announcement, Announcements, MAX_ANNOUNCEMENTS, Slot};
use crate::peers::{Held, Peers};
use smallvec::SmallVec;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::Arc;

/// The kernel's side of a stream's end.
pub trait Socket {
    /// Bytes that can be read at once.
    ///
    /// # Errors
    /// What the kernel says.
    fn unread(&self) -> Result<usize, Errno>;
    /// Offset in the stream of the next byte that is read, which is among `unread` that can be. `None`: it cannot be told.
    fn read_bytes(&self, unread: usize) -> Option<u64>;
    /// Takes one byte that can be read.
    ///
    /// # Errors
    /// What the kernel says.
    fn take_token(&self) -> Result<(), Errno>;
}

/// What comes next.
pub enum Next<'a> {
    /// Nothing can be read: what the kernel says to a read is true.
    Nothing,
    /// So many bytes may be read from the socket, which are all that there are; never 0.
    Literal(usize),
    /// So many bytes may be read from the socket, behind which there is a token; never 0.
    Before(usize),
    /// These, from `taken_bytes` on.
    Reference {
        /// The bytes.
        held: &'a Arc<Held>,
        /// Bytes of it that were received before.
        taken_bytes: usize,
    },
    /// The sender has announced what cannot be: the connection is not to be believed.
    Broken(&'static str),
}

/// A stretch of what can be received at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// So many literal bytes; never 0.
    Literal(usize),
    /// A token, and what it stands for.
    Token(Announcement),
}

/// What can be received at once, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stretches {
    /// The stretches.
    pub all: SmallVec<[Stretch; 4]>,
    /// Bytes that they bring.
    pub len_bytes: usize,
    /// Nothing was behind the last of them.
    pub are_all: bool,
}

/// What a sender says that cannot be.
const OUTSIDE: &str = "bytes outside of what was shared";

struct Current {
    held: Arc<Held>,
    taken_bytes: usize,
}

/// How far a receiver is. Behind a lock.
#[derive(Default)]
pub struct Receiver {
    /// Number of the next announcement.
    next: u32,
    /// What the token at hand stands for.
    current: Option<Current>,
    /// Receives since the last reference that brought literal bytes only.
    literal_receives: u32,
    /// The last receive found nothing at first.
    pub has_waited: bool,
}

impl Receiver {
    /// Whether there is an announcement of which not all was received.
    #[must_use]
    pub fn has_announced(&self, far: Announcements<'_>) -> bool {
        self.current.is_some() || far.has_beyond(self.next)
    }

    /// Whether there is such an announcement of memory of this process.
    #[must_use]
    pub fn has_announced_of(&self, far: Announcements<'_>, owner: u64) -> bool {
        self.outstanding(far).iter().any(|announcement| announcement.reference.owner == owner)
    }

    /// What is announced and was not received whole.
    #[must_use]
    pub fn outstanding(&self, far: Announcements<'_>) -> SmallVec<[Announcement; 4]> {
        let numbers = (0..MAX_ANNOUNCEMENTS).map(|ahead| self.next.wrapping_add(ahead));
        numbers.map_while(|number| far.get(number)).collect()
    }

    /// Receives since the last reference that brought literal bytes only.
    #[must_use]
    pub const fn literal_receives(&self) -> u32 {
        self.literal_receives
    }

    /// The announcement of the next byte that is read, if there is one and none behind it: it may still be taken back. Several are
    /// received at once, see [`Self::stretches`].
    #[must_use]
    pub fn due(&self, read_bytes: u64, far: Announcements<'_>) -> Option<Announcement> {
        let is_alone = self.current.is_none() && !far.has_beyond(self.next.wrapping_add(1));
        let announcement = if is_alone { far.get(self.next) } else { None };
        announcement.filter(|announcement| announcement.at == read_bytes)
    }

    /// The byte that was due was read: what it stands for, if it was the token. `None`: it was a byte.
    ///
    /// # Errors
    /// There is nothing such.
    pub fn took_due(
        &mut self,
        announcement: Announcement,
        far: Announcements<'_>,
        own: &Slot,
        peers: &Peers,
    ) -> Option<Result<Held, &'static str>> {
        let token = far.get(self.next).filter(|token| token.at == announcement.at)?;
        if token.reference.len_bytes > announcement.reference.len_bytes {
            return Some(Err("more bytes than were announced before"));
        }
        Some(self.took_token(&token, own, peers))
    }

    /// What is among the `unread` bytes that the socket has, the first of which has the offset `read_bytes`, as far as there is room for
    /// `room_bytes` bytes. `None`: no token of which all has room, or one is received already; see [`Self::next`]. The socket was asked
    /// before `far` is looked at.
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
            // Offsets wrap around.
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
        found.are_all = left_bytes == 0;
        (tokens > 0).then_some(found)
    }

    /// A token of [`Self::stretches`] was read.
    ///
    /// # Errors
    /// There is nothing such as it stands for.
    pub fn took_token(
        &mut self,
        token: &Announcement,
        own: &Slot,
        peers: &Peers,
    ) -> Result<Held, &'static str> {
        self.next = self.next.wrapping_add(1);
        self.literal_receives = 0;
        own.receiving.consume();
        peers.resolve(token).ok_or(OUTSIDE)
    }

    /// What comes next from a sender whose board says `far`.
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
            // Offsets wrap around; what lies behind is not among what can be read, or no announcement of this stream's.
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

    /// How many bytes can be received, of which the socket has `unread`; the next one has the offset `read_bytes`.
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

    /// Literal bytes were read, if any were.
    pub const fn took_literal(&mut self, len_bytes: usize) {
        self.literal_receives = self.literal_receives.saturating_add((len_bytes > 0) as u32);
    }

    /// Attention begins, or ends.
    pub const fn count_anew(&mut self) {
        self.literal_receives = 0;
    }

    /// Bytes of the current reference were received: with its last one the token goes. What is not needed any more is
    /// returned, to be released.
    ///
    /// # Errors
    /// What the kernel says to taking the token.
    pub fn took(
        &mut self,
        len_bytes: usize,
        socket: &impl Socket,
        own: &Slot,
    ) -> Result<Option<Arc<Held>>, Errno> {
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

    /// Ends it: whatever was announced and not received, to be released. The sender announces nothing any more.
    pub fn end(&mut self, far: Announcements<'_>, own: &Slot, peers: &Peers) -> Vec<Held> {
        let mut left = Vec::new();
        if let Some(current) = self.current.take() {
            self.next = self.next.wrapping_add(1);
            left.extend(Arc::into_inner(current.held));
        }
        // A hostile sender could go on for ever.
        for _ in 0..MAX_ANNOUNCEMENTS {
            let Some(announcement) = far.get(self.next) else { break };
            self.next = self.next.wrapping_add(1);
            left.extend(peers.resolve(&announcement));
            own.receiving.consume();
        }
        left
    }
}
