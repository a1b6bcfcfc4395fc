//! This process's lanes: begun once, asked by every hook.
//!
//! ```text
//! hook of a receive ──► [`receive`]: a lane that is attended ──► literal bytes, no further than the next token; or a reference
//!                  └──► otherwise libc's call, counted in ([`Plain`]): nobody attends while somebody reads plainly
//! hook of a send ─────► [`send`]: large parts by reference, where the other end attends; else libc's call, counted in
//! ```

extern crate alloc;
use crate::board::{Board, Slot};
use crate::ends::End;
use crate::peers::Held;
use crate::protocol::{Address, Stream};
use crate::receive::{self, Next};
use crate::send::{self, Far, MAX_REFERENCE_BYTES, Piece};
use crate::service::{Lanes, SUFFIX, Service, board_bytes};
use alloc::ffi::CString;
use core::ffi::{CStr, c_void};
use smallvec::SmallVec;
use std::sync::OnceLock;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::handler::Start;
use uncopy_sys::iovec::Part;
use uncopy_sys::mem::Shared;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use uncopy_sys::{bytes, link, socket, stream, thread, wait};

/// A part that is worth a reference, bytes: below, two copies of the kernel's cost less than the token and the copy into
/// shared memory.
pub const MIN_REFERENCE_BYTES: usize = 32 << 10;
/// A receive that brings so much makes its stream one that may become a lane.
const MIN_LARGE_BYTES: usize = 16 << 10;
/// So many literal bytes without a reference end attention.
const MAX_LITERAL_BYTES: u64 = 64 << 20;
/// Pauses, some 70 µs each, for a sender that is between announcing and sending.
const MAX_PAUSES: u32 = 1000;
/// How long the thread sleeps at most: it looks then whether peers have given memory back.
const SLEEP_MS: i32 = 1000;
/// Descriptors whose plain receives are counted; others never become lanes.
const DESCRIPTORS: usize = 1 << 16;
/// In a count of plain receives: there is a lane that is attended.
const ATTENDED: u32 = 1 << 31;

/// Plain receives under way, by descriptor.
static PLAIN: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

fn plain(fd: i32) -> Option<&'static AtomicU32> {
    PLAIN.get(usize::try_from(fd).ok()?)
}

/// The lanes of this process.
pub struct Process {
    lanes: Lanes,
    /// Name of this process's socket.
    path: CString,
}

static PROCESS: OnceLock<&'static Process> = OnceLock::new();
static START: Start = Start::new();
/// What the thread begins with: the directory, and this process's name.
static BEGINNING: Guarded<Option<(String, u64)>> = Guarded::new(None);

/// The process's lanes, if they have begun.
#[inline]
#[must_use]
pub fn process() -> Option<&'static Process> {
    PROCESS.get().copied()
}

/// Begins: this process can be linked with, and links with those that wait in `directory`, which only its owner can
/// enter. `id` tells it from all others.
///
/// # Errors
/// What memory, the thread or the socket need and do not get.
pub fn begin(directory: &str, id: u64) -> Result<(), Errno> {
    *BEGINNING.lock() = Some((directory.to_owned(), id));
    START.run(serve, 0)
}

extern "C" fn serve(argument: *mut c_void) -> *mut c_void {
    let _critical = uncopy_sys::lock::Critical::enter();
    let beginning = BEGINNING.lock().take();
    // Before a descriptor is made: where it is refused (seccomp), they are the program's to close.
    let _ = thread::isolate_lanes();
    match beginning.ok_or(Errno(libc::EINVAL)).and_then(|(directory, id)| make(&directory, id)) {
        Err(errno) => START.tell(Err(errno)),
        Ok(mut service) => {
            START.tell(Ok(()));
            loop {
                service.turn();
                wait::for_any(service.descriptors(), SLEEP_MS);
            }
        }
    }
    argument
}

/// Makes what this process has, in its thread.
fn make(directory: &str, id: u64) -> Result<Service, Errno> {
    let board = Shared::make(c"uncopy-board", board_bytes())?;
    // SAFETY: zeroed memory of that length, mapped for good; all of a board is atomic words, for which zero is valid.
    let words = unsafe { &*(board.base() as *const Board) };
    let suffix = core::str::from_utf8(SUFFIX).unwrap_or_default();
    let entries = std::fs::read_dir(directory).map_err(|_| Errno(libc::ENOENT))?.flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(suffix));
    let others = paths.filter_map(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok());
    let path = CString::new(format!("{directory}/{id:016x}{suffix}")).map_err(|_| Errno(libc::EINVAL))?;
    let made = Process { lanes: Lanes::new(id, words), path };
    PROCESS.set(Box::leak(Box::new(made))).map_err(|_| Errno(libc::EEXIST))?;
    let process = process().ok_or(Errno(libc::EINVAL))?;
    Service::begin(&process.lanes, board, &process.path, others)
}

/// What became of a receive.
pub enum Received {
    /// It is not one of a lane's: the call is to be made as it is.
    Plainly,
    /// There is nothing now: what the kernel says to a look at one byte is true, and if there is one, this is to be asked again.
    Nothing,
    /// So many bytes, or an error.
    Done(Result<usize, Errno>),
}

/// A plain receive under way.
pub struct Plain(&'static AtomicU32);

impl Drop for Plain {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

/// A literal send under way.
pub struct LiteralSend(Arc<End>);

impl LiteralSend {
    /// It is over: so many bytes went.
    pub fn sent(self, len_bytes: usize) {
        self.0.count_sent(len_bytes);
    }
}

impl Drop for LiteralSend {
    fn drop(&mut self) {
        self.0.end_literal();
    }
}

/// A socket's side of an end.
struct Kernel<'a> {
    fd: i32,
    end: &'a End,
    own: &'a Slot,
    far: &'a Slot,
    flags: i32,
}

impl Kernel<'_> {
    const fn is_tcp(&self) -> bool {
        matches!(self.end.stream, Stream::Tcp { .. })
    }
}

impl receive::Socket for Kernel<'_> {
    fn unread(&self) -> Result<usize, Errno> {
        stream::unread(self.fd)
    }

    fn read_bytes(&self, unread: usize) -> Option<u64> {
        if !self.is_tcp() {
            return Some(self.own.receiving.read_bytes());
        }
        let mut unread = unread as u64;
        // Nobody else reads, so what can be read only grows, and was so much all the while where it has not.
        loop {
            let received = stream::progress(self.fd).ok()?.received_bytes;
            let now = stream::unread(self.fd).ok()? as u64;
            if now == unread {
                return Some(received.wrapping_sub(now));
            }
            unread = now;
        }
    }

    fn take_token(&self) -> Result<(), Errno> {
        let mut token = [0u8; 1];
        let part = Part { address: token.as_mut_ptr() as usize, len_bytes: 1 };
        self.own.receiving.begin_reading();
        // SAFETY: one byte of our own.
        let taken = unsafe { socket::receive(self.fd, &[part], libc::MSG_DONTWAIT) };
        self.own.receiving.end_reading(*taken.as_ref().unwrap_or(&0));
        taken.and_then(|taken| if taken == 1 { Ok(()) } else { Err(Errno(libc::EAGAIN)) })
    }
}

impl send::Socket for Kernel<'_> {
    fn sent_bytes(&self) -> Option<u64> {
        if self.is_tcp() {
            return stream::progress(self.fd).ok().map(|progress| progress.sent_bytes);
        }
        self.end.sent_bytes().or_else(|| {
            let is_empty = || stream::unsent(self.fd) == Ok(0);
            let sent = self.far.receiving.quiet_bytes(is_empty)?;
            self.end.count_from(sent);
            Some(sent)
        })
    }

    fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        let flags = self.flags | libc::MSG_DONTWAIT;
        let sent = socket::send(self.fd, parts, flags, &socket::Envelope::default());
        if let Ok(sent) = sent {
            self.end.count_sent(sent);
        }
        sent
    }
}

impl Process {
    /// The lane that is attended at a descriptor. A load where there is none.
    fn attended(&self, fd: i32) -> Option<Arc<End>> {
        let count = plain(fd)?;
        if count.load(Acquire) & ATTENDED == 0 { None } else { self.lanes.ends.find(fd) }
    }

    /// Counts a plain receive in; `None`: there is a lane that is attended, ask [`Process::receive`].
    #[must_use]
    pub fn begin_plain(&self, fd: i32) -> Option<Option<Plain>> {
        let Some(count) = plain(fd) else { return Some(None) };
        if count.fetch_add(1, AcqRel) & ATTENDED != 0 {
            count.fetch_sub(1, AcqRel);
            return None;
        }
        Some(Some(Plain(count)))
    }

    /// Receives into parts of the program's, if the descriptor has a lane that is attended. With no handler of the program
    /// on top of it.
    ///
    /// # Safety
    /// The parts must be memory that may be written.
    #[must_use]
    pub unsafe fn receive(&self, fd: i32, parts: &[Part], flags: i32) -> Received {
        let Some(end) = self.attended(fd) else { return Received::Plainly };
        let Some(far) = end.far() else { return Received::Plainly };
        let (Some(far_slot), Some(own)) =
            (far.peer.slot(far.slot), self.lanes.board.slots.get(end.slot as usize))
        else {
            return Received::Plainly;
        };
        let kernel = Kernel { fd, end: &end, own, far: far_slot, flags };
        let wanted: usize = parts.iter().map(|part| part.len_bytes).sum();
        let peeks = flags & libc::MSG_PEEK != 0;
        let mut receiver = end.receiver.lock();
        if receiver.has_announced(&far_slot.sending) && socket::cookie(fd) != Ok(end.cookie) {
            drop(receiver);
            self.close(fd);
            return Received::Plainly;
        }
        let taken = match receiver.next(&kernel, &far_slot.sending, &self.lanes.peers) {
            Next::Nothing => return Received::Nothing,
            Next::Broken(why) => {
                uncopy_sys::mem::say(format_args!("uncopy: a lane is reset: its sender announced {why}\n"));
                socket::reset(fd);
                return Received::Done(Err(Errno(libc::ECONNRESET)));
            }
            Next::Literal(most) => {
                let parts = first_bytes(parts, most.min(wanted));
                own.receiving.begin_reading();
                // SAFETY: the caller answers for the parts.
                let got = unsafe { socket::receive(fd, &parts, flags | libc::MSG_DONTWAIT) };
                let got_bytes = got.as_ref().map_or(0, |got| if peeks { 0 } else { *got });
                own.receiving.end_reading(got_bytes);
                receiver.took_literal(got_bytes);
                return Received::Done(got);
            }
            Next::Reference { held, taken_bytes } => {
                let mut copied = 0;
                for part in first_bytes(parts, wanted.min(held.len_bytes() - taken_bytes)) {
                    let from = held.address() + taken_bytes + copied;
                    // SAFETY: held bytes of a mapping; the caller answers for the part.
                    unsafe { bytes::copy(part.address as *mut u8, from as *const u8, part.len_bytes) };
                    copied += part.len_bytes;
                }
                copied
            }
        };
        if peeks {
            return Received::Done(Ok(taken));
        }
        match receiver.took(taken, &kernel, own) {
            Ok(done) => {
                if let Some(held) = done.and_then(Arc::into_inner) {
                    self.lanes.peers.release(held);
                }
                Received::Done(Ok(taken))
            }
            Err(errno) => Received::Done(Err(errno)),
        }
    }

    /// Takes note of what a plain receive has brought, which is over.
    pub fn received(&self, fd: i32, len_bytes: usize) {
        if len_bytes < MIN_LARGE_BYTES {
            return;
        }
        let Some(end) = self.end_of(fd) else { return };
        let (Some(own), Some(_)) = (self.lanes.board.slots.get(end.slot as usize), end.far()) else { return };
        // Nobody may be in a plain receive: it would take a token for a byte.
        if let Some(count) = plain(fd)
            && !end.has_ended()
            && count.compare_exchange(0, ATTENDED, AcqRel, Relaxed).is_ok()
        {
            end.attend(own);
        }
    }

    /// The end behind a descriptor, which is made known if it was not.
    fn end_of(&self, fd: i32) -> Option<Arc<End>> {
        let known = self.lanes.ends.find(fd);
        let Some(end) = known.filter(|end| self.is_still(fd, end)) else { return self.know(fd) };
        Some(end)
    }

    /// Whether a descriptor is still that end's. If not, it was closed by a way that nobody saw, and the end is given up.
    fn is_still(&self, fd: i32, end: &End) -> bool {
        let is_still = socket::cookie(fd) == Ok(end.cookie);
        if !is_still {
            self.close(fd);
        }
        is_still
    }

    /// Makes an end known, and tells the peers of it.
    fn know(&self, fd: i32) -> Option<Arc<End>> {
        let end = self.lanes.ends.add(fd, stream_of(fd)?, socket::cookie(fd).ok()?, self.lanes.board)?;
        self.lanes.tell(Arc::clone(&end));
        self.ring();
        Some(end)
    }

    /// Wakes the thread.
    fn ring(&self) {
        if let Ok(fd) = link::connect(&self.path) {
            link::end(fd);
        }
    }

    /// Sends parts of the program's, the large ones by reference if the other end attends. How many bytes are on their way;
    /// `None`: nothing was sent, and the call is to be made as it is. With no handler of the program on top of it.
    #[must_use]
    pub fn send(&self, fd: i32, parts: &[Part], flags: i32) -> Option<Result<usize, Errno>> {
        if !parts.iter().any(|part| part.len_bytes >= MIN_REFERENCE_BYTES) {
            return None;
        }
        let end = self.end_of(fd)?;
        let far = end.far()?;
        let own = self.lanes.board.slots.get(end.slot as usize)?;
        let slot = far.peer.slot(far.slot).filter(|slot| slot.receiving.attends(far.lane))?;
        if far.peer.is_gone() {
            return None;
        }
        let _alone = end.send_alone()?;
        let copies = self.copies(parts);
        let pieces: SmallVec<[Piece<'_>; 8]> = copies
            .iter()
            .map(|(part, held)| match held {
                Some(held) => Piece::Shared { held, offset_bytes: 0, len_bytes: part.len_bytes },
                None => Piece::Literal(*part),
            })
            .collect();
        let kernel = Kernel { fd, end: &end, own, far: slot, flags };
        let target = Far { peer: &far.peer, slot, lane: far.lane };
        let sent = send::send(&kernel, &pieces, own, target, &self.lanes.peers);
        drop(pieces);
        for held in copies.into_iter().filter_map(|(_, held)| held) {
            self.lanes.peers.release(held);
        }
        sent.filter(|sent| *sent != Err(Errno(libc::EAGAIN)))
    }

    /// Counts a send in that is made as it is; `None`: nothing is known of the descriptor.
    #[must_use]
    pub fn begin_literal(&self, fd: i32) -> Option<LiteralSend> {
        let end = self.lanes.ends.find(fd)?;
        end.begin_literal();
        Some(LiteralSend(end))
    }

    /// The parts, the large ones copied into shared memory as far as there is room.
    fn copies(&self, parts: &[Part]) -> SmallVec<[(Part, Option<Held>); 8]> {
        let mut copies = SmallVec::new();
        for part in parts {
            let mut rest = *part;
            while rest.len_bytes >= MIN_REFERENCE_BYTES {
                let len_bytes = rest.len_bytes.min(MAX_REFERENCE_BYTES);
                let Some(held) = self.lanes.peers.take(len_bytes) else {
                    if self.lanes.peers.pool.want_chunk() {
                        self.ring();
                    }
                    break;
                };
                // SAFETY: a run of that length that nobody else knows; the program's part is readable, as it says itself.
                unsafe { bytes::copy(held.address() as *mut u8, rest.address as *const u8, len_bytes) };
                copies.push((Part { len_bytes, ..rest }, Some(held)));
                rest = Part { address: rest.address + len_bytes, len_bytes: rest.len_bytes - len_bytes };
            }
            if rest.len_bytes > 0 {
                copies.push((rest, None));
            }
        }
        copies
    }

    /// A descriptor is about to be closed.
    pub fn close(&self, fd: i32) {
        let Some(end) = self.lanes.ends.remove(fd) else { return };
        if let Some(count) = plain(fd) {
            count.fetch_and(!ATTENDED, AcqRel);
        }
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return };
        own.receiving.attend(0);
        let far = end.far();
        if let Some(far) = &far
            && let Some(slot) = far.peer.slot(far.slot)
        {
            // A few system calls that do not wait, unless that process is stopped in between: then what it announces is
            // given back when it ends.
            for _ in 0..MAX_PAUSES {
                if !slot.sending.is_busy() || far.peer.is_gone() {
                    break;
                }
                thread::pause();
            }
            for held in end.receiver.lock().end(&slot.sending, own, &self.lanes.peers) {
                self.lanes.peers.release(held);
            }
        }
        own.receiving.close(end.lane);
        self.lanes.ends.give_slot(end.slot, far);
    }

    /// Literal bytes without a reference after which a lane is left.
    #[must_use]
    pub const fn max_literal_bytes() -> u64 {
        MAX_LITERAL_BYTES
    }
}

/// The parts, as far as `len_bytes` reach.
fn first_bytes(parts: &[Part], mut len_bytes: usize) -> SmallVec<[Part; 8]> {
    let mut first = SmallVec::new();
    for part in parts {
        let taken = part.len_bytes.min(len_bytes);
        if taken == 0 {
            break;
        }
        first.push(Part { address: part.address, len_bytes: taken });
        len_bytes -= taken;
    }
    first
}

/// The stream that a descriptor is an end of; `None`: it is not a connected TCP socket.
fn stream_of(fd: i32) -> Option<Stream> {
    let (domain, kind, protocol) = socket::kind(fd).ok()?;
    let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind == libc::SOCK_STREAM
        && protocol == libc::IPPROTO_TCP;
    if !is_tcp {
        return None;
    }
    let [near, far] = socket::ends(fd)?.map(|address| parse(&address));
    Some(Stream::Tcp { namespace: socket::namespace(fd).ok()?, near: near?, far: far? })
}

/// An address as the kernel writes it.
fn parse(address: &[u8; 28]) -> Option<Address> {
    let family = i32::from(u16::from_ne_bytes([address[0], address[1]]));
    let port = u16::from_be_bytes([address[2], address[3]]);
    let mut ip = [0u8; 16];
    match family {
        libc::AF_INET => {
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(&address[4..8]);
        }
        libc::AF_INET6 => ip.copy_from_slice(&address[8..24]),
        _ => return None,
    }
    let word = |half: &[u8]| half.try_into().map_or(0, u64::from_be_bytes);
    Some(Address { ip: [word(&ip[..8]), word(&ip[8..])], port })
}

/// A name for a file in the directory of lanes.
#[must_use]
pub fn is_name(name: &CStr) -> bool {
    name.to_bytes().ends_with(SUFFIX)
}
