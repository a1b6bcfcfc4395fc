//! Lanes of two processes within one, over a simulated stream of limited room, compared with the expected bytes.

use crate::board::{Announcement, Board, LinkPart, Reference, Slot};
use crate::lane_thread::board_bytes;
use crate::peers::{HeldBytes, Peer, Peers};
use crate::pool::CHUNK_BYTES;
use crate::receive::{self, Next, Receiver, Stretch, Stretches};
use crate::send::{self, Piece, RemoteSlot, send};
use std::cell::RefCell;
use std::collections::VecDeque;
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;
use uncopy_sys::mem::SharedMemory;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A simulated process with its board and peers.
pub(crate) struct Process {
    pub(crate) board: &'static Board,
    shared: &'static SharedMemory,
    pub(crate) peers: Peers,
}

impl Process {
    fn new(id: u64) -> Self {
        let shared: &'static SharedMemory =
            Box::leak(Box::new(SharedMemory::make(c"board", board_bytes()).expect("memory")));
        // SAFETY: the mapping has the length of a `Board`, is page-aligned and lives as long as `shared`, which
        // the process owns; it is zero, which is valid for a board's atomics.
        let board = unsafe { &*(shared.base() as *const Board) };
        Self { board, shared, peers: Peers::new(id) }
    }

    /// Links this process with another, which maps this one's memory.
    fn link(&self, part: usize, other: &Self, others_part: usize) {
        let board = SharedMemory::map_others(duplicate(other.shared), board_bytes()).expect("a board");
        let own = &self.board.links[part];
        own.begin(other.peers.id());
        assert!(self.peers.add(Arc::new(Peer::new(other.peers.id(), board, others_part, own))));
    }

    /// Adds a chunk and maps it in the other processes.
    fn add_chunk(&self, others: &[&Self]) {
        let chunk = SharedMemory::make(c"chunk", CHUNK_BYTES).expect("memory");
        self.peers.pool.add_chunk(chunk.base());
        for other in others {
            let mapped = SharedMemory::map_others(duplicate(&chunk), CHUNK_BYTES).expect("a chunk");
            other.peers.find(self.peers.id()).expect("linked").add_chunk(mapped);
        }
    }

    pub(crate) fn fill(&self, bytes: &[u8]) -> Option<HeldBytes> {
        let held = self.peers.alloc(bytes.len())?;
        // SAFETY: `held` is a new run of at least `bytes.len()` bytes that nobody else knows.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), held.address() as *mut u8, bytes.len()) };
        Some(held)
    }
}

fn duplicate(shared: &SharedMemory) -> OwnFd {
    uncopy_sys::fd::duplicate_high(shared.fd().expect("its maker has it")).expect("a descriptor")
}

/// One direction of a stream.
#[derive(Default)]
struct Stream {
    queue: VecDeque<u8>,
    sent: u64,
    read: u64,
    room: usize,
}

struct Wire<'a>(&'a RefCell<Stream>);

impl send::Socket for Wire<'_> {
    fn sent_bytes(&self) -> Option<u64> {
        Some(self.0.borrow().sent)
    }

    fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        let stream = &mut *self.0.borrow_mut();
        let mut sent = 0;
        for part in parts {
            // SAFETY: `part` describes bytes of the message being sent, which the test keeps alive and unchanged.
            let bytes = unsafe { std::slice::from_raw_parts(part.address as *const u8, part.len_bytes) };
            let len = bytes.len().min(stream.room);
            stream.queue.extend(&bytes[..len]);
            stream.room -= len;
            sent += len;
        }
        stream.sent += sent as u64;
        if sent == 0 { Err(Errno(libc::EAGAIN)) } else { Ok(sent) }
    }
}

impl receive::Socket for Wire<'_> {
    fn unread(&self) -> Result<usize, Errno> {
        Ok(self.0.borrow().queue.len())
    }

    fn read_bytes(&self, _unread: usize) -> Option<u64> {
        Some(self.0.borrow().read)
    }

    fn take_token(&self) -> Result<(), Errno> {
        let stream = &mut *self.0.borrow_mut();
        stream.read += 1;
        stream.queue.pop_front().map(drop).ok_or(Errno(libc::EAGAIN))
    }
}

/// Receiving end of a stream.
struct Reader<'a> {
    process: &'a Process,
    sender: u64,
    receiver: Receiver,
    slot: &'a Slot,
}

impl Reader<'_> {
    /// Receives up to `len` bytes, or returns the reason for a reset.
    fn read(
        &mut self,
        stream: &RefCell<Stream>,
        len: usize,
        into: &mut Vec<u8>,
    ) -> Result<usize, &'static str> {
        let sender = self.process.peers.find(self.sender).expect("linked");
        let far = sender.slot(0).expect("a slot").sending.of(0);
        let wire = Wire(stream);
        if self.receiver.has_announced(far) && len.is_multiple_of(2) {
            let unread = stream.borrow().queue.len();
            let read = stream.borrow().read;
            if let Some(stretches) = self.receiver.stretches(unread, read, far, len) {
                return self.read_stretches(&stretches, stream, into);
            }
        }
        let taken = match self.receiver.next(&wire, far, &self.process.peers) {
            Next::Nothing => return Ok(0),
            Next::Broken(why) => return Err(why),
            Next::Literal(max_bytes) | Next::Before(max_bytes) => {
                let stream = &mut *stream.borrow_mut();
                let taken = len.min(max_bytes).min(stream.queue.len());
                into.extend(stream.queue.drain(..taken));
                stream.read += taken as u64;
                self.receiver.note_literal(taken);
                return Ok(taken);
            }
            Next::Reference { held, taken_bytes } => {
                let taken = len.min(held.len_bytes() - taken_bytes);
                // SAFETY: the bytes lie within a held range, which stays mapped and unchanged.
                let bytes =
                    unsafe { std::slice::from_raw_parts((held.address() + taken_bytes) as *const u8, taken) };
                into.extend_from_slice(bytes);
                taken
            }
        };
        let done = self.receiver.note_delivered(taken, &wire, self.slot).expect("a token");
        if let Some(held) = done.and_then(Arc::into_inner) {
            self.process.peers.release(held);
        }
        Ok(taken)
    }

    /// Receives all of these stretches.
    fn read_stretches(
        &mut self,
        stretches: &Stretches,
        stream: &RefCell<Stream>,
        into: &mut Vec<u8>,
    ) -> Result<usize, &'static str> {
        let before = into.len();
        let stream = &mut *stream.borrow_mut();
        for stretch in &stretches.all {
            let len = if let Stretch::Literal(len) = stretch { *len } else { 1 };
            stream.read += len as u64;
            let read = stream.queue.drain(..len);
            let Stretch::Token(token) = stretch else {
                into.extend(read);
                continue;
            };
            drop(read);
            let held = self.receiver.resolve_token(token, self.slot, &self.process.peers)?;
            // SAFETY: the bytes are a held range, which stays mapped and unchanged.
            let bytes = unsafe { std::slice::from_raw_parts(held.address() as *const u8, held.len_bytes()) };
            into.extend_from_slice(bytes);
            self.process.peers.release(held);
        }
        assert_eq!(into.len() - before, stretches.len_bytes);
        assert_eq!(stream.queue.is_empty(), stretches.is_complete);
        Ok(stretches.len_bytes)
    }
}

/// Reproducible random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Returns two linked processes, of which the first has memory.
pub(crate) fn two() -> [Process; 2] {
    let both = [Process::new(21), Process::new(22)];
    both[0].link(3, &both[1], 5);
    both[1].link(5, &both[0], 3);
    both[0].add_chunk(&[&both[1]]);
    both
}

#[test]
fn every_byte_arrives_in_order_whatever_the_socket_takes() {
    let [sender, reader] = two();
    let stream = RefCell::new(Stream::default());
    let (near, far) = (&sender.board.slots[0], &reader.board.slots[0]);
    let to = sender.peers.find(22).expect("linked");
    let mut end = Reader { process: &reader, sender: 21, receiver: Receiver::default(), slot: far };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut wanted, mut got, mut references) = (Vec::new(), Vec::new(), 0);
    for step in 0..20_000 {
        stream.borrow_mut().room = [0, 1, 7, 3000, 9000][random.below(5)];
        if step % 64 == 0 {
            far.receiving.accept_refs(u32::from(random.below(4) > 0) * 9);
        }
        let sizes: Vec<usize> = (0..=random.below(4)).map(|_| 1 + random.below(6000)).collect();
        let texts: Vec<Vec<u8>> =
            sizes.iter().map(|size| (0..*size).map(|_| random.below(256) as u8).collect()).collect();
        let held: Vec<Option<HeldBytes>> =
            texts.iter().map(|text| if text.len() > 2000 { sender.fill(text) } else { None }).collect();
        let pieces: Vec<Piece<'_>> = texts
            .iter()
            .zip(&held)
            .map(|(text, held)| match held {
                Some(held) => Piece::Shared { held, offset_bytes: 0, len_bytes: text.len() },
                None => Piece::Literal(Part { address: text.as_ptr() as usize, len_bytes: text.len() }),
            })
            .collect();
        let all: Vec<u8> = texts.concat();
        let target = RemoteSlot { peer: &to, slot: to.slot(0).expect("a slot"), lane: 9 };
        let sent = match send(&Wire(&stream), &pieces, near, target, &sender.peers) {
            Some(Ok(sent)) => {
                references += 1;
                sent
            }
            Some(Err(_)) => 0,
            None => {
                let part = Part { address: all.as_ptr() as usize, len_bytes: all.len() };
                send::Socket::send(&Wire(&stream), &[part]).unwrap_or(0)
            }
        };
        wanted.extend_from_slice(&all[..sent]);
        held.into_iter().flatten().for_each(|held| sender.peers.release(held));
        for _ in 0..random.below(5) {
            end.read(&stream, 1 + random.below(7000), &mut got).expect("an honest sender");
        }
        sender.peers.read_returns();
        assert!(wanted.starts_with(&got), "step {step}");
        wanted.drain(..got.len());
        got.clear();
    }
    while end.read(&stream, 5000, &mut got).expect("an honest sender") > 0 {}
    assert_eq!(got, wanted);
    sender.peers.read_returns();
    assert_eq!(sender.peers.pool.usage(), (1, 0), "nothing is held any more");
    assert!(references > 1000, "{references} went by reference");
}

/// Returns linked processes that know the first one's memory; its list has them from the last to the second.
fn linked<const N: usize>() -> [Process; N] {
    let all = core::array::from_fn(|at| Process::new(1 + at as u64));
    for (at, one) in all.iter().enumerate() {
        for (other_at, other) in all.iter().enumerate().rev() {
            if at != other_at {
                one.link(other_at, other, at);
            }
        }
    }
    all[0].add_chunk(&all[1..].iter().collect::<Vec<_>>());
    all
}

/// Sends held bytes to another process, which holds them too from here on.
fn pass(held: &HeldBytes, from: &Process, to: &Process) -> HeldBytes {
    let peer = from.peers.find(to.peers.id()).expect("linked");
    let reference = from.peers.share(held, 0, held.len_bytes(), &peer).expect("known");
    to.peers.resolve(&Announcement { at: 0, reference }).expect("known")
}

#[test]
fn what_is_passed_on_by_who_is_heard_first_is_kept() {
    let [a, b, c, d] = linked();
    let held = a.fill(&[7; 5000]).expect("room");
    let at_b = pass(&held, &a, &b);
    a.peers.release(held);
    let at_c = pass(&at_b, &b, &c);
    let at_d = pass(&at_c, &c, &d);
    b.peers.release(at_b);
    c.peers.release(at_c);
    a.peers.read_returns();
    assert_eq!(a.peers.pool.usage(), (1, 1), "the fourth holds it");
    d.peers.release(at_d);
    a.peers.read_returns();
    assert_eq!(a.peers.pool.usage(), (1, 0));
}

#[test]
fn what_comes_back_is_held_also_when_who_sent_it_is_gone() {
    let [a, b, c] = linked();
    let held = a.fill(&[7; 5000]).expect("room");
    let at_b = pass(&held, &a, &b);
    let back = pass(&pass(&at_b, &b, &c), &c, &a);
    a.peers.release(held);
    b.peers.release(at_b);
    [2, 3].into_iter().for_each(|id| a.peers.remove(id, &[]));
    let again = a.fill(&[9; 5000]).expect("room");
    // SAFETY: `back` holds 5,000 bytes, which stay mapped and unchanged until it is released.
    assert_eq!(unsafe { std::slice::from_raw_parts(back.address() as *const u8, 5000) }, [7; 5000]);
    assert_eq!(a.peers.pool.usage(), (1, 1), "it is held once");
    a.peers.release(back);
    assert_eq!(a.peers.pool.usage(), (1, 0));
    a.peers.release(again);
}

#[test]
fn what_does_not_come_back_is_refused() {
    let [a, b] = linked();
    let held = a.fill(&[7; 5000]).expect("room");
    let peer = a.peers.find(2).expect("linked");
    let reference = a.peers.share(&held, 0, 5000, &peer).expect("known");
    let resolved = |reference| a.peers.resolve(&Announcement { at: 0, reference }).is_some();
    assert!(!resolved(reference), "the other one holds it, and has not sent it");
    let to_a = b.peers.find(1).expect("linked");
    let at_b = b.peers.resolve(&Announcement { at: 0, reference }).expect("known");
    let back = b.peers.share(&at_b, 0, 5000, &to_a).expect("known");
    for wrong in [
        Reference { len_bytes: 0, ..back },
        Reference { len_bytes: 9000, ..back },
        Reference { run: back.run + 1, ..back },
        Reference { offset_bytes: 3 * 4096, ..back },
        Reference { chunk: 1, ..back },
    ] {
        assert!(!resolved(wrong), "{wrong:?}");
    }
    assert!(resolved(back) && !resolved(back), "it was sent once");
}

#[test]
fn impossible_returns_are_ignored() {
    let [a, b, c] = linked();
    let held = a.fill(&[7; 5000]).expect("room");
    let at_b = pass(&held, &a, &b);
    a.peers.release(held);
    let to_a = c.peers.find(1).expect("linked");
    // The third process holds nothing, but reports repeatedly that it has sent the run on.
    for _ in 0..200 {
        c.peers.report_shared(&to_a, &at_b, 2);
    }
    b.peers.release(at_b);
    while a.peers.pool.usage() != (1, 0) {
        a.peers.read_returns();
    }
    let heard = |peer: u64| a.board.links[peer as usize - 1].returns_read();
    assert_eq!((heard(2), heard(3)), (1, 200), "all was heard");
}

#[test]
fn what_is_passed_on_is_kept_until_the_last_has_read_it() {
    let [a, b, c] = &linked();
    let stream = RefCell::new(Stream { room: 100, ..Stream::default() });
    let text = vec![7; 50_000];
    let held = a.fill(&text).expect("room");
    let link = |from: &Process, to: u64| from.peers.find(to).expect("linked");
    let announce = |from: &Process, to: u64, held: &HeldBytes| {
        let peer = link(from, to);
        let target = RemoteSlot { peer: &peer, slot: peer.slot(0).expect("a slot"), lane: 1 };
        let piece = Piece::Shared { held, offset_bytes: 0, len_bytes: text.len() };
        send(&Wire(&stream), &[piece], &from.board.slots[0], target, &from.peers)
    };
    for process in [b, c] {
        process.board.slots[0].receiving.accept_refs(1);
    }
    assert_eq!(announce(a, 2, &held), Some(Ok(50_000)));
    a.peers.release(held);
    let announcement = link(b, 1).slot(0).expect("a slot").sending.of(0).get(0).expect("announced");
    let at_b = b.peers.resolve(&announcement).expect("known");
    assert_eq!(announce(b, 3, &at_b), Some(Ok(50_000)));
    b.peers.release(at_b);
    a.peers.read_returns();
    assert_eq!(a.peers.pool.usage(), (1, 1), "the third holds it");
    let announcement = link(c, 2).slot(0).expect("a slot").sending.of(0).get(0).expect("announced");
    let at_c = c.peers.resolve(&announcement).expect("known");
    // SAFETY: `at_c` holds 50,000 bytes, which stay mapped and unchanged until it is released.
    assert_eq!(unsafe { std::slice::from_raw_parts(at_c.address() as *const u8, 50_000) }, text);
    c.peers.release(at_c);
    a.peers.read_returns();
    assert_eq!(a.peers.pool.usage(), (1, 0));
}

#[test]
fn a_process_that_ends_holds_nothing_any_more() {
    let [sender, reader] = two();
    let stream = RefCell::new(Stream { room: 10, ..Stream::default() });
    let held = sender.fill(&[1; 9000]).expect("room");
    reader.board.slots[0].receiving.accept_refs(4);
    let peer = sender.peers.find(22).expect("linked");
    let target = RemoteSlot { peer: &peer, slot: peer.slot(0).expect("a slot"), lane: 4 };
    let piece = Piece::Shared { held: &held, offset_bytes: 0, len_bytes: 9000 };
    assert_eq!(send(&Wire(&stream), &[piece], &sender.board.slots[0], target, &sender.peers), Some(Ok(9000)));
    sender.peers.release(held);
    assert_eq!(sender.peers.pool.usage(), (1, 1));
    sender.peers.remove(22, &[]);
    assert_eq!(sender.peers.pool.usage(), (1, 0));
}

#[test]
fn what_a_process_has_announced_is_received_after_its_end() {
    let [sender, reader] = two();
    let stream = RefCell::new(Stream { room: 10, ..Stream::default() });
    let held = sender.fill(&[8; 9000]).expect("room");
    let slot = &reader.board.slots[0];
    slot.receiving.accept_refs(4);
    let peer = sender.peers.find(22).expect("linked");
    let target = RemoteSlot { peer: &peer, slot: peer.slot(0).expect("a slot"), lane: 4 };
    let piece = Piece::Shared { held: &held, offset_bytes: 0, len_bytes: 9000 };
    assert_eq!(send(&Wire(&stream), &[piece], &sender.board.slots[0], target, &sender.peers), Some(Ok(9000)));
    let gone = reader.peers.find(21).expect("linked");
    reader.peers.remove(21, &[]);
    let far = gone.slot(0).expect("a slot").sending.of(0);
    let mut receiver = Receiver::default();
    assert!(receiver.has_announced_of(far, 21) && !receiver.has_announced_of(far, 22));
    let Next::Reference { held, .. } = receiver.next(&Wire(&stream), far, &reader.peers) else {
        panic!("its memory is still mapped");
    };
    // SAFETY: `held` holds 9,000 bytes, which stay mapped and unchanged until it is released.
    assert_eq!(unsafe { std::slice::from_raw_parts(held.address() as *const u8, 9000) }, [8; 9000]);
}

#[test]
fn of_two_links_that_were_made_at_once_the_one_that_stayed_is_remembered() {
    let [sender, reader] = [Process::new(21), Process::new(22)];
    reader.link(4, &sender, 2);
    reader.peers.remove(21, &[]);
    sender.link(3, &reader, 5);
    reader.link(5, &sender, 3);
    sender.add_chunk(&[&reader]);
    let held = sender.fill(&[8; 9000]).expect("room");
    let peer = sender.peers.find(22).expect("linked");
    let reference = sender.peers.share(&held, 0, 9000, &peer).expect("it has that memory");
    reader.peers.remove(21, &[]);
    let found = reader.peers.resolve(&Announcement { at: 0, reference }).expect("it is still mapped");
    // SAFETY: `found` holds 9,000 bytes, which stay mapped and unchanged until it is released.
    assert_eq!(unsafe { std::slice::from_raw_parts(found.address() as *const u8, 9000) }, [8; 9000]);
}

#[test]
fn what_a_hostile_sender_announces_is_refused() {
    use crate::board::{Announcement, Reference};
    let honest = Reference { owner: 21, chunk: 0, run: 0, offset_bytes: 0, len_bytes: 100 };
    let hostile = [
        Reference { owner: 20, ..honest },
        Reference { owner: 22, ..honest },
        Reference { chunk: 1, ..honest },
        Reference { len_bytes: 0, ..honest },
        Reference { len_bytes: CHUNK_BYTES as u32 + 1, ..honest },
        Reference { offset_bytes: CHUNK_BYTES as u32 - 99, ..honest },
        Reference { offset_bytes: u32::MAX, len_bytes: u32::MAX, ..honest },
    ];
    for reference in hostile {
        let [sender, reader] = two();
        let stream = RefCell::new(Stream { queue: [0; 5].into(), sent: 5, ..Stream::default() });
        let slot = &reader.board.slots[0];
        let mut end = Reader { process: &reader, sender: 21, receiver: Receiver::default(), slot };
        assert!(sender.board.slots[0].sending.announce(&Announcement { at: 2, reference }, 0));
        let mut got = Vec::new();
        assert_eq!(end.read(&stream, 100, &mut got), Ok(2), "{reference:?}");
        assert!(end.read(&stream, 100, &mut got).is_err(), "{reference:?}");
    }
    let [sender, reader] = two();
    let stream = RefCell::new(Stream { queue: [0; 5].into(), sent: 9, read: 4, ..Stream::default() });
    let slot = &reader.board.slots[0];
    let mut end = Reader { process: &reader, sender: 21, receiver: Receiver::default(), slot };
    assert!(sender.board.slots[0].sending.announce(&Announcement { at: 2, reference: honest }, 0));
    assert!(end.read(&stream, 100, &mut Vec::new()).is_err(), "a token that was passed over");
}

#[test]
fn whatever_is_on_a_hostile_board_nothing_outside_of_shared_memory_is_read() {
    let [sender, reader] = two();
    let slot = &reader.board.slots[0];
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut end = Reader { process: &reader, sender: 21, receiver: Receiver::default(), slot };
    let mut outcomes = [0; 2];
    for _ in 0..50_000 {
        let parts = [
            (core::ptr::from_ref(&sender.board.slots[0]) as usize, size_of::<Slot>()),
            (core::ptr::from_ref(&sender.board.links[3]) as usize, size_of::<LinkPart>()),
        ];
        for _ in 0..1 + random.below(12) {
            let (base, len_bytes) = parts[usize::from(random.below(8) == 0)];
            // Half of the writes go near the front, to the counts and the first entries.
            let limit = if random.below(2) == 0 { 256 } else { len_bytes };
            let at = base + random.below(limit) / 4 * 4;
            let word = [0, 1, 2, 21, 4096, 9000, CHUNK_BYTES as u32 - 1, u32::MAX][random.below(8)];
            // SAFETY: `at` is an aligned word of this test's own board, which is mapped and consists of atomics.
            unsafe { &*(at as *const AtomicU32) }.store(word, Relaxed);
        }
        // Mostly restore the lane that is read: with another one, announcements are ignored.
        if random.below(8) > 0 {
            // SAFETY: the slot is mapped, and its first word is the lane, an aligned atomic.
            unsafe { &*(parts[0].0 as *const AtomicU32) }.store(0, Relaxed);
        }
        let (unread, read) = (random.below(20), random.below(30) as u64);
        let stream = RefCell::new(Stream { queue: vec![0; unread].into(), sent: 50, read, room: 0 });
        let mut got = Vec::new();
        match end.read(&stream, 1 + random.below(20_000), &mut got) {
            Ok(_) => outcomes[0] += 1,
            Err(_) => {
                outcomes[1] += 1;
                end.receiver = Receiver::default();
            }
        }
        reader.peers.read_returns();
    }
    assert!(outcomes.iter().all(|times| *times > 1000), "{outcomes:?}");
}

/// Runs the fuzz targets with almost valid input: small numbers for offsets and lengths.
#[test]
fn what_fuzzing_calls_holds_for_random_peers() {
    let mut random = Random(41);
    let small = |random: &mut Random| match random.below(6) {
        0 => u32::MAX,
        1 => random.below(usize::MAX) as u32,
        2 => CHUNK_BYTES as u32 - random.below(3) as u32,
        _ => random.below(5) as u32,
    };
    for _ in 0..3_000 {
        let mut data: Vec<u8> = Vec::new();
        // Length and offset of the stream.
        for limit in [200, 3] {
            data.extend((random.below(limit) as u16).to_ne_bytes());
        }
        // Lane, number of announcements, busy flag.
        for word in [1, random.below(40) as u32, 0] {
            data.extend(word.to_ne_bytes());
        }
        data.extend([0; 4]);
        for _ in 0..32 {
            // Stream offset and owner, then chunk, run, offset and length.
            for word in [random.below(250) as u64, 1 + random.below(3) as u64] {
                data.extend(word.to_ne_bytes());
            }
            for _ in 0..4 {
                data.extend(small(&mut random).to_ne_bytes());
            }
        }
        crate::oracles::sender(&data);
        crate::oracles::message_words(&data);
    }
}
