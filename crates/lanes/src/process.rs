//! This process's lanes: begun once, asked by every hook.
//!
//! ```text
//! hook of a receive ──► [`receive`]: a lane that is attended ──► literal bytes, no further than the next token; or a reference
//!                  └──► otherwise libc's call, counted in ([`Plain`]): nobody attends while somebody reads plainly
//! hook of a send ─────► [`send`]: large parts by reference, where the other end attends; else libc's call, counted in
//! ```

extern crate alloc;
use crate::board::{Board, Slot};
use crate::ends::{self, End};
use crate::forks;
use crate::peers::Held;
use crate::protocol::{Address, Stream};
use crate::receive::{self, Next};
use crate::send::{self, Far, MAX_REFERENCE_BYTES, Piece};
use crate::service::{Lanes, SUFFIX, Service, board_bytes};
use alloc::ffi::CString;
use core::ffi::{CStr, c_void};
use core::sync::atomic::AtomicPtr;
use smallvec::SmallVec;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::handler::Start;
use uncopy_sys::iovec::Part;
use uncopy_sys::mem::Shared;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{
    AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use uncopy_sys::{bytes, diag, link, socket, stream, thread, wait};

/// A part that is worth a reference, bytes: below, two copies of the kernel's cost less than the token and the copy into
/// shared memory.
pub const MIN_REFERENCE_BYTES: usize = 32 << 10;
/// A receive that brings so much makes its stream one that may become a lane.
pub const MIN_LARGE_BYTES: usize = 16 << 10;
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
/// There: the descriptor has a duplicate, by which somebody may receive whom nobody counts.
const DUPLICATED: u32 = 1 << 30;
/// There: the process, counted by forks, that was the first to receive or send. What a parent used before its fork it may go
/// on using.
const USERS: u32 = 0x3F00_0000;
const USER_SHIFT: u32 = 24;
const RECEIVES: u32 = (1 << USER_SHIFT) - 1;
/// Forks that this process stems from, as far as that is counted.
static USER: AtomicU32 = AtomicU32::new(1);

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

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());
/// Of a parent's descriptors that this forked child has, those with something unread that only the parent can tell.
static LOST: Guarded<Vec<i32>> = Guarded::new(Vec::new());
static START: Start = Start::new();
/// What the thread begins with: the directory, and this process's name.
static BEGINNING: Guarded<Option<(String, u64)>> = Guarded::new(None);

/// The process's lanes, if they have begun.
#[inline]
#[must_use]
pub fn process() -> Option<&'static Process> {
    // SAFETY: null, or made by `make` and never freed.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// Notes who uses a descriptor, before anybody else does.
fn note_user(count: &AtomicU32, seen: u32) {
    let user = USER.load(Relaxed);
    if seen & USERS == 0 && user << USER_SHIFT <= USERS {
        count.fetch_or(user << USER_SHIFT, Relaxed);
    }
}

/// Makes a descriptor's stream one that receives references, if nobody receives plainly and nobody else may: whether it did.
fn claim(count: &AtomicU32) -> bool {
    let own = USER.load(Relaxed) << USER_SHIFT;
    own <= USERS && count.compare_exchange(own, own | ATTENDED, AcqRel, Relaxed).is_ok()
}

/// Before a fork. Nobody is at work in lanes but their thread.
pub fn prepare_fork() {
    if let Some(process) = process() {
        forks::prepare();
        process.withdraw_all();
    }
}

/// After a fork, in the parent, also if it failed.
pub fn after_fork() {
    if forks::is_forking() {
        forks::parent();
    }
}

/// After a fork, in the child, before the thread's id is forgotten: the lanes are the parent's, and it has none of their memory.
/// `has_own_descriptors`: they are not shared with the parent.
pub fn in_child(has_own_descriptors: bool) {
    if !forks::is_forking() {
        return;
    }
    forks::child(has_own_descriptors);
    PROCESS.store(core::ptr::null_mut(), Release);
    USER.fetch_add(1, Relaxed);
    // What is not lost is plain: no other thread is in a receive.
    for fd in LOST.lock().iter() {
        if let Some(count) = plain(*fd) {
            count.fetch_or(ATTENDED, Relaxed);
        }
    }
}

/// Nothing goes or comes by reference at a descriptor from here on, once what was announced is received.
pub fn end(fd: i32) {
    if let Some(process) = process() {
        process.end(fd);
    }
    if let Some(count) = plain(fd) {
        // Whoever comes to have it later is another socket.
        count.fetch_or(DUPLICATED, AcqRel);
    }
}

/// There is another descriptor of the same open file.
pub fn duplicated(from: i32, to: i32) {
    if let Some(process) = process() {
        process.lanes.ends.duplicate(from, to);
    }
    if let (Some(from), Some(to)) = (plain(from), plain(to)) {
        let seen = from.fetch_or(DUPLICATED, AcqRel);
        to.fetch_or(DUPLICATED | seen & (ATTENDED | USERS), AcqRel);
    }
}

/// A descriptor is about to be closed.
pub fn closed(fd: i32) {
    if let Some(process) = process() {
        process.close(fd);
    }
    if let Some(count) = plain(fd).filter(|count| count.load(Relaxed) != 0) {
        count.fetch_and(RECEIVES, AcqRel);
    }
}

/// Whether what comes next at a descriptor is only known to the parent of this forked child.
#[must_use]
pub fn is_lost(fd: i32) -> bool {
    plain(fd).is_some_and(|count| count.load(Acquire) & ATTENDED != 0)
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
    let process: &'static Process = Box::leak(Box::new(Process { lanes: Lanes::new(id, words), path }));
    PROCESS.store(core::ptr::from_ref(process).cast_mut(), Release);
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

/// Bytes of shared memory, kept as they are until this is dropped.
pub struct Kept(Option<Arc<Held>>);

impl Kept {
    /// What is held.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        self.0.as_deref()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(held) = self.0.take().and_then(Arc::into_inner)
            && let Some(process) = process()
        {
            process.lanes.peers.release(held);
        }
    }
}

/// An end at which bytes go by reference, if they do so now.
pub struct Outlet {
    end: Arc<End>,
    far: Arc<ends::Far>,
}

/// A part of what is to be sent.
#[derive(Clone, Copy)]
pub enum Given<'a> {
    /// Bytes of the program's.
    Plain(Part),
    /// Bytes that are kept in shared memory.
    Kept(Part, &'a Kept),
}

/// Longest part beside kept bytes that is compared with what lies beside those, bytes: what a few pages have.
const MAX_EDGE_BYTES: usize = 4 * uncopy_core::addr::PAGE_BYTES;

/// Makes plain parts that hold the same bytes as what lies beside a kept part, part of that: a view has whole pages only, and
/// what belongs to its edges was copied.
///
/// # Safety
/// Plain parts must be readable.
pub unsafe fn join<'a>(parts: &mut SmallVec<[Given<'a>; 16]>) {
    let is_same = |at: usize, part: Part| {
        // SAFETY: kept bytes of a mapping; the caller answers for the part.
        unsafe { bytes::equal(at as *const u8, part.address as *const u8, part.len_bytes) }
    };
    let mut at = 0;
    while at < parts.len() {
        if let Given::Kept(mut part, kept) = parts[at]
            && let Some(held) = kept.held()
        {
            let end = held.address() + held.len_bytes();
            if let Some(Given::Plain(next)) = parts.get(at + 1)
                && next.len_bytes <= MAX_EDGE_BYTES.min(end - (part.address + part.len_bytes))
                && is_same(part.address + part.len_bytes, *next)
            {
                part.len_bytes += next.len_bytes;
                parts.remove(at + 1);
            }
            if at > 0
                && let Given::Plain(before) = parts[at - 1]
                && before.len_bytes <= MAX_EDGE_BYTES.min(part.address - held.address())
                && is_same(part.address - before.len_bytes, before)
            {
                part.address -= before.len_bytes;
                part.len_bytes += before.len_bytes;
                parts.remove(at - 1);
                at -= 1;
            }
            parts[at] = Given::Kept(part, kept);
        }
        at += 1;
    }
}

impl Given<'_> {
    const fn part(&self) -> Part {
        match self {
            Self::Plain(part) | Self::Kept(part, _) => *part,
        }
    }
}

/// What becomes of a part that is to be sent.
enum Prepared<'a> {
    Literal(Part),
    Copied(Held),
    Kept(Part, &'a Held),
}

impl Prepared<'_> {
    fn piece(&self) -> Piece<'_> {
        match self {
            Self::Literal(part) => Piece::Literal(*part),
            Self::Copied(held) => Piece::Shared { held, offset_bytes: 0, len_bytes: held.len_bytes() },
            Self::Kept(part, held) => {
                let offset_bytes = part.address - held.address();
                Piece::Shared { held, offset_bytes, len_bytes: part.len_bytes }
            }
        }
    }
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

/// Offset in a TCP stream of the next byte that is read. Nobody else reads meanwhile.
fn read_bytes(fd: i32) -> Option<u64> {
    let mut unread = stream::unread(fd).ok()? as u64;
    // What can be read only grows, and was so much all the while where it has not.
    loop {
        let received = stream::progress(fd).ok()?.received_bytes;
        let now = stream::unread(fd).ok()? as u64;
        if now == unread {
            return Some(received.wrapping_sub(now));
        }
        unread = now;
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

    /// Reads one byte, without waiting; EAGAIN also at the end.
    fn take_byte(&self) -> Result<u8, Errno> {
        let mut byte = [0u8; 1];
        let part = Part { address: byte.as_mut_ptr() as usize, len_bytes: 1 };
        self.own.receiving.begin_reading();
        // SAFETY: one byte of our own.
        let taken = unsafe { socket::receive(self.fd, &[part], libc::MSG_DONTWAIT) };
        self.own.receiving.end_reading(*taken.as_ref().unwrap_or(&0));
        taken.and_then(|taken| if taken == 1 { Ok(byte[0]) } else { Err(Errno(libc::EAGAIN)) })
    }
}

impl receive::Socket for Kernel<'_> {
    fn unread(&self) -> Result<usize, Errno> {
        stream::unread(self.fd)
    }

    fn read_bytes(&self, _unread: usize) -> Option<u64> {
        Some(self.own.receiving.read_bytes())
    }

    fn take_token(&self) -> Result<(), Errno> {
        self.take_byte().map(drop)
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
    /// Where a part of `len_bytes` bytes may go by reference, if it may.
    #[must_use]
    pub fn outlet(&self, fd: i32, len_bytes: usize) -> Option<Outlet> {
        if len_bytes < MIN_REFERENCE_BYTES || forks::is_shared() {
            return None;
        }
        let end = self.bound(fd)?;
        let far = end.far().filter(|far| !far.peer.is_gone())?;
        let attends = far.peer.slot(far.slot)?.receiving.attends(far.lane);
        attends.then_some(Outlet { end, far })
    }

    /// The lane that is attended at a descriptor. A load where there is none.
    fn attended(&self, fd: i32) -> Option<Arc<End>> {
        let count = plain(fd)?;
        if count.load(Acquire) & ATTENDED == 0 { None } else { self.lanes.ends.find(fd) }
    }

    /// Counts a plain receive in; `None`: there is a lane that is attended, ask [`Process::receive`].
    #[must_use]
    pub fn begin_plain(&self, fd: i32) -> Option<Option<Plain>> {
        let Some(count) = plain(fd) else { return Some(None) };
        let seen = count.fetch_add(1, AcqRel);
        if seen & ATTENDED != 0 {
            count.fetch_sub(1, AcqRel);
            return None;
        }
        note_user(count, seen);
        Some(Some(Plain(count)))
    }

    /// Receives into parts of the program's, if the descriptor has a lane that is attended. With no handler of the program
    /// on top of it. `place` may take a part, to which the bytes at an address belong, and keeps these; else they are copied.
    /// With `waits_first` it may say that there is nothing without having looked.
    ///
    /// # Safety
    /// The parts must be memory that may be written.
    #[must_use]
    pub unsafe fn receive(
        &self,
        fd: i32,
        parts: &[Part],
        flags: i32,
        waits_first: bool,
        mut place: impl FnMut(Part, usize, &dyn Fn() -> Kept) -> bool,
    ) -> Received {
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
        if !end.is_attentive() && !receiver.has_announced(&far_slot.sending) && self.is_quiet(fd, far_slot) {
            return Received::Plainly;
        }
        if receiver.has_announced(&far_slot.sending) && socket::cookie(fd) != Ok(end.cookie) {
            drop(receiver);
            self.close(fd);
            return Received::Plainly;
        }
        let due = receiver.due(own.receiving.read_bytes(), &far_slot.sending);
        if let Some(due) = due.filter(|due| !peeks && due.reference.len_bytes as usize <= wanted) {
            let byte = match kernel.take_byte() {
                Ok(byte) => byte,
                Err(Errno(libc::EAGAIN)) => return Received::Nothing,
                Err(errno) => return Received::Done(Err(errno)),
            };
            return match receiver.took_due(due, &far_slot.sending, own, &self.lanes.peers) {
                Some(Ok(held)) => {
                    // SAFETY: the caller answers for the parts, which have room for as much.
                    let delivered = unsafe { deliver(Arc::new(held), 0, parts, &mut place) };
                    Received::Done(Ok(delivered))
                }
                Some(Err(why)) => break_off(fd, why),
                None => {
                    if let Some(part) = parts.iter().find(|part| part.len_bytes > 0) {
                        // SAFETY: the caller answers for the parts.
                        unsafe { (part.address as *mut u8).write(byte) };
                    }
                    Received::Done(Ok(1))
                }
            };
        }
        if waits_first && receiver.has_waited && !receiver.has_announced(&far_slot.sending) {
            // Most likely there is nothing yet: whoever looks whether there is waits for it as well.
            return Received::Nothing;
        }
        let taken = match receiver.next(&kernel, &far_slot.sending, &self.lanes.peers) {
            Next::Nothing => {
                receiver.has_waited = true;
                return Received::Nothing;
            }
            Next::Broken(why) => return break_off(fd, why),
            Next::Literal(most) => {
                let parts = first_bytes(parts, most.min(wanted));
                own.receiving.begin_reading();
                // SAFETY: the caller answers for the parts.
                let got = unsafe { socket::receive(fd, &parts, flags | libc::MSG_DONTWAIT) };
                let got_bytes = got.as_ref().map_or(0, |got| if peeks { 0 } else { *got });
                own.receiving.end_reading(got_bytes);
                receiver.has_waited = !waits_first;
                receiver.took_literal(got_bytes);
                return Received::Done(got);
            }
            Next::Reference { held, taken_bytes } => {
                let mut place =
                    |part: Part, from: usize, keep: &dyn Fn() -> Kept| !peeks && place(part, from, keep);
                // SAFETY: the caller answers for the parts.
                unsafe { deliver(Arc::clone(held), taken_bytes, parts, &mut place) }
            }
        };
        if peeks {
            return Received::Done(Ok(taken));
        }
        match receiver.took(taken, &kernel, own) {
            Ok(done) => {
                drop(Kept(done));
                Received::Done(Ok(taken))
            }
            Err(errno) => Received::Done(Err(errno)),
        }
    }

    /// Whether an end whose attention was withdrawn is plain from here on.
    fn is_quiet(&self, fd: i32, far: &Slot) -> bool {
        let is_quiet = !far.sending.is_busy();
        if is_quiet && let Some(count) = plain(fd) {
            count.fetch_and(!ATTENDED, AcqRel);
        }
        is_quiet
    }

    /// Takes note of what a plain receive has brought, which is over.
    pub fn received(&self, fd: i32, len_bytes: usize) {
        if len_bytes < MIN_LARGE_BYTES || forks::is_shared() {
            return;
        }
        let Some(end) = self.bound(fd) else { return };
        let (Some(own), Some(_)) = (self.lanes.board.slots.get(end.slot as usize), end.far()) else { return };
        // Nobody may be in a plain receive: it would take a token for a byte.
        let _receiver = end.receiver.lock();
        if let Some(count) = plain(fd)
            && !end.has_ended()
            && claim(count)
        {
            let read_bytes = if matches!(end.stream, Stream::Tcp { .. }) { read_bytes(fd) } else { Some(0) };
            match read_bytes {
                Some(read_bytes) => {
                    own.receiving.count_from(read_bytes);
                    end.attend(own);
                }
                None => _ = count.fetch_and(!ATTENDED, AcqRel),
            }
        }
    }

    /// The end behind a descriptor, if the other end is known. Makes it known if it was not.
    fn bound(&self, fd: i32) -> Option<Arc<End>> {
        let Some(end) = self.lanes.ends.find(fd) else {
            self.know(fd);
            return None;
        };
        if end.has_ended() || end.far().is_none() {
            return None;
        }
        if self.is_still(fd, &end) { Some(end) } else { self.know(fd).and(None) }
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

    /// Sends parts of the program's, the large ones by reference. How many bytes are on their way;
    /// `None`: nothing was sent, and the call is to be made as it is. With no handler of the program on top of it.
    #[must_use]
    pub fn send(
        &self,
        fd: i32,
        Outlet { end, far }: &Outlet,
        parts: &[Given<'_>],
        flags: i32,
    ) -> Option<Result<usize, Errno>> {
        let own = self.lanes.board.slots.get(end.slot as usize)?;
        let slot = far.peer.slot(far.slot)?;
        let _alone = end.send_alone()?;
        let copies = self.copies(parts);
        let pieces: SmallVec<[Piece<'_>; 8]> = copies.iter().map(Prepared::piece).collect();
        let kernel = Kernel { fd, end, own, far: slot, flags };
        let target = Far { peer: &far.peer, slot, lane: far.lane };
        let sent = send::send(&kernel, &pieces, own, target, &self.lanes.peers);
        drop(pieces);
        for prepared in copies {
            if let Prepared::Copied(held) = prepared {
                self.lanes.peers.release(held);
            }
        }
        sent.filter(|sent| *sent != Err(Errno(libc::EAGAIN)))
    }

    /// Counts a send in that is made as it is; `None`: nothing is known of the descriptor.
    #[must_use]
    pub fn begin_literal(&self, fd: i32) -> Option<LiteralSend> {
        if let Some(count) = plain(fd) {
            note_user(count, count.load(Relaxed));
        }
        let end = self.lanes.ends.find(fd)?;
        end.begin_literal();
        Some(LiteralSend(end))
    }

    /// The parts, the large ones copied into shared memory as far as there is room, unless they are there already.
    fn copies<'a>(&self, parts: &[Given<'a>]) -> SmallVec<[Prepared<'a>; 8]> {
        let mut prepared = SmallVec::new();
        for given in parts {
            let mut rest = given.part();
            if rest.len_bytes >= MIN_REFERENCE_BYTES
                && let Given::Kept(part, kept) = given
                && let Some(held) = kept.held()
            {
                prepared.push(Prepared::Kept(*part, held));
                continue;
            }
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
                prepared.push(Prepared::Copied(held));
                rest = Part { address: rest.address + len_bytes, len_bytes: rest.len_bytes - len_bytes };
            }
            if rest.len_bytes > 0 {
                prepared.push(Prepared::Literal(rest));
            }
        }
        prepared
    }

    /// Attention is withdrawn from an end; whether nothing is announced that was not received: then it is plain.
    fn withdraw(&self, fd: i32, end: &End) -> bool {
        let Some(own) = self.lanes.board.slots.get(end.slot as usize) else { return true };
        end.withdraw(own);
        if matches!(end.stream, Stream::Unix { .. }) {
            // The sender goes on with its count.
            end.end();
        }
        let Some(far) = end.far() else { return true };
        let Some(slot) = far.peer.slot(far.slot) else { return true };
        // A few system calls that do not wait, unless that process is stopped in between.
        for _ in 0..MAX_PAUSES {
            if !slot.sending.is_busy() || far.peer.is_gone() {
                break;
            }
            thread::pause();
        }
        let is_plain = !end.receiver.lock().has_announced(&slot.sending);
        if is_plain && let Some(count) = plain(fd) {
            count.fetch_and(!ATTENDED, AcqRel);
        }
        is_plain
    }

    /// How many bytes can be received at once; `None`: as many as the kernel says.
    #[must_use]
    pub fn receivable(&self, fd: i32) -> Option<usize> {
        let end = self.attended(fd)?;
        let far = end.far()?;
        let own = self.lanes.board.slots.get(end.slot as usize)?;
        let receiver = end.receiver.lock();
        let unread = stream::unread(fd).ok()?;
        Some(receiver.receivable(unread, own.receiving.read_bytes(), &far.peer.slot(far.slot)?.sending))
    }

    /// See [`end`].
    fn end(&self, fd: i32) {
        if let Some(end) = self.lanes.ends.find(fd) {
            end.end();
            let _ = self.withdraw(fd, &end);
        }
    }

    /// A descriptor is about to be read by somebody who knows nothing of tokens: no more of them come. Whether there are none
    /// that were not received.
    #[must_use]
    pub fn leave(&self, fd: i32) -> bool {
        self.attended(fd).is_none_or(|end| self.withdraw(fd, &end))
    }

    /// The same for all. Nobody receives or sends meanwhile.
    pub(crate) fn withdraw_all(&self) {
        let mut lost = LOST.lock();
        lost.clear();
        for (fd, end) in self.lanes.ends.with_descriptors() {
            if !self.withdraw(fd, &end) {
                lost.push(fd);
            }
        }
    }

    /// See [`closed`].
    fn close(&self, fd: i32) {
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

/// Puts held bytes from an offset on into the parts. How many.
///
/// # Safety
/// The parts must be memory that may be written.
unsafe fn deliver(
    held: Arc<Held>,
    offset_bytes: usize,
    parts: &[Part],
    place: &mut impl FnMut(Part, usize, &dyn Fn() -> Kept) -> bool,
) -> usize {
    let kept = Kept(Some(held));
    let Some(held) = &kept.0 else { return 0 };
    let mut delivered = 0;
    for part in first_bytes(parts, held.len_bytes() - offset_bytes) {
        let from = held.address() + offset_bytes + delivered;
        if !place(part, from, &|| Kept(Some(Arc::clone(held)))) {
            // SAFETY: held bytes of a mapping; the caller answers for the part.
            unsafe { bytes::copy(part.address as *mut u8, from as *const u8, part.len_bytes) };
        }
        delivered += part.len_bytes;
    }
    delivered
}

/// A sender has announced what cannot be: nothing of the connection is believed any more.
fn break_off(fd: i32, why: &str) -> Received {
    uncopy_sys::mem::say(format_args!("uncopy: a lane is reset: its sender announced {why}\n"));
    socket::reset(fd);
    Received::Done(Err(Errno(libc::ECONNRESET)))
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

/// The stream that a descriptor is an end of; `None`: it is no connected TCP or UNIX stream.
fn stream_of(fd: i32) -> Option<Stream> {
    let (domain, kind, protocol) = socket::kind(fd).ok()?;
    match domain {
        _ if kind != libc::SOCK_STREAM => None,
        libc::AF_UNIX => diag::unix_ends(fd).ok().map(|[near, far]| Stream::Unix { near, far }),
        libc::AF_INET | libc::AF_INET6 if protocol == libc::IPPROTO_TCP => {
            let [near, far] = socket::ends(fd)?.map(|address| parse(&address));
            Some(Stream::Tcp { namespace: socket::namespace(fd).ok()?, near: near?, far: far? })
        }
        _ => None,
    }
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
