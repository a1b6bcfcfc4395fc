//! Recovery of memory that anybody may have written to.

use std::cell::RefCell;
use std::rc::Rc;

use crc32c::crc32c_append;
use uncopy_core::random::test_size;
use uncopy_mapped::chunks::load;
use uncopy_mapped::digest::{Digester, Limits};
use uncopy_mapped::layout::{CHECKPOINTS_AT, ENTRY_BYTES, RELEASED_AT, TABLE_AT};
use uncopy_mapped::log::Log;
use uncopy_mapped::memory::LINE_BYTES;
use uncopy_mapped::parts::Part;
use uncopy_mapped::plan::FilePlan;
use uncopy_mapped::reader::Reader;
use uncopy_mapped::record::{MAX_FILE_BYTES, State, head_bytes};
use uncopy_mapped::recovery::Recovery;
use uncopy_mapped::table::{FileId, Identity};

use crate::memory::{Cells, Random, Region, Sim};
use crate::system::{CHUNK_BYTES, CHUNKS, ENTRIES, LOG_BYTES, MEMORY_BYTES, killed_memory, superblock};

struct Memory {
    log: Region,
    chunks: Vec<Region>,
}

impl Memory {
    fn new(cells: Cells, chunks: usize) -> Self {
        let sim = Sim::new(cells, None, Rc::new(RefCell::default()));
        let region = |base, len| Region { sim: Rc::clone(&sim), base, len, thread: 0 };
        let chunk = |number| region(LOG_BYTES + number * CHUNK_BYTES, CHUNK_BYTES);
        Self { log: region(0, LOG_BYTES), chunks: (0..chunks).map(chunk).collect() }
    }

    /// Reads everything that a plan would write.
    fn read(&self, plan: &FilePlan) {
        for write in &plan.writes {
            assert!(write.offset + write.len_bytes <= MAX_FILE_BYTES, "{write:?}");
            let mut len_bytes = 0;
            for extent in &write.sources {
                let mut bytes = vec![0; extent.len_bytes];
                assert!(load(&self.log, &self.chunks[..], extent.source, &mut bytes), "{extent:?}");
                len_bytes += extent.len_bytes as u64;
            }
            assert_eq!(len_bytes, write.len_bytes);
        }
        assert!(plan.shrink_to.max(plan.grow_to).is_none_or(|size| size <= MAX_FILE_BYTES));
    }

    /// Digests beside a writer that is believed to live, then recovers, attaches and appends. Returns whether the
    /// log was readable, and whether damage was found.
    fn use_all(&self, boot: u64) -> (bool, bool) {
        const MAX_BATCHES: usize = LOG_BYTES / LINE_BYTES;
        let chunks = &self.chunks[..];
        let limits = Limits { extents: 8, bytes: 4096 };
        if let Ok(mut digester) = Digester::open(self.log.clone()) {
            if let Ok(batch) = digester.plan(chunks, limits) {
                batch.files.iter().for_each(|plan| self.read(plan));
                if let Some(plan) = batch.files.first() {
                    // Later records of the file may be damaged.
                    if let Ok(found) = digester.plan_file(chunks, plan.file, None, limits) {
                        found.plan.iter().for_each(|plan| self.read(plan));
                    }
                    digester.forget(plan.file);
                }
                assert!(digester.retire(&batch, 1));
                digester.heartbeat(2);
            }
            digester.forget(FileId { entry: u16::MAX, incarnation: digester.reader().checkpoint().tail });
        }
        let Ok(mut recovery) = Recovery::open(self.log.clone(), chunks, boot) else { return (false, false) };
        let (summary, pins) = (recovery.summary(), recovery.pins());
        assert!(summary.len() <= MAX_BATCHES && pins.bytes() < u64::MAX / 2);
        let is_damaged = recovery.damage().is_some();
        recovery.give_up_damaged();
        let mut batches = 0;
        while let Some(batch) = recovery.plan(chunks, limits).expect("records that were checked") {
            batch.files.iter().for_each(|plan| self.read(plan));
            assert!(recovery.retire(&batch));
            batches += 1;
            assert!(batches <= MAX_BATCHES);
        }
        let Ok(log) = recovery.finish() else { panic!("all is retired") };
        let mut log = Log::attach(log, boot, 1);
        let identity = Identity { device: 0, inode: 0, generation: 0, path: Vec::new() };
        let file = log.register(&identity).expect("an empty table");
        log.append(chunks, file, 0, &[Part::Bytes(b"abc")]).expect("an empty log");
        assert_eq!(log.sync(file), Ok(true));
        log.release();
        (true, is_damaged)
    }
}

/// Writes the checksum of a structure again, after a change of its fields.
fn seal(cells: &mut Cells, at: usize, len: usize, key: u64) {
    let bytes = &cells.bytes()[at..at + len];
    let sum = crc32c_append(crc32c_append(0, &key.to_le_bytes()), &bytes[8..12]);
    let sum = crc32c_append(sum, &bytes[16..]);
    sum.to_le_bytes().into_iter().enumerate().for_each(|(index, byte)| cells.damage(at + 12 + index, byte));
}

/// Changes a byte, or a word to an extreme value.
fn damage(cells: &mut Cells, at: usize, random: &mut Random) {
    let value = random.word();
    match random.below(4) {
        0 => cells.damage(at, value as u8),
        1 => cells.damage(at, cells.bytes()[at] ^ 1 << (value % 8)),
        kind => {
            let at = at / 8 * 8;
            let extreme = [0, u64::MAX, i64::MAX as u64, u64::MAX << 32, 1 << (value % 64)][random.below(5)];
            let word = if kind == 2 { extreme } else { value };
            word.to_le_bytes()
                .into_iter()
                .enumerate()
                .for_each(|(index, byte)| cells.damage(at + index, byte));
        }
    }
}

#[test]
fn whatever_the_memory_holds_is_recovered_without_harm() {
    let mut random = Random::new(5);
    let (mut readable, mut damaged, wanted) = (0, 0, 20_000 * test_size() as usize);
    let mut images = Vec::new();
    for seed in 0..40 {
        let cells = killed_memory(seed);
        let memory = Memory::new(cells.clone(), CHUNKS);
        let reader = Reader::open(memory.log.clone()).expect("a log");
        let of = *reader.superblock();
        let records: Vec<usize> =
            reader.records(reader.checkpoint().tail).map(|record| of.position(record.lsn)).collect();
        images.push((cells, of, records));
    }
    for turn in 0..wanted {
        let (cells, of, records) = &images[turn % images.len()];
        let mut cells = cells.clone();
        for _ in 0..=random.below(3) {
            // Where something is that matters.
            let record = records.get(random.below(records.len().max(1))).copied().unwrap_or(of.ring_at());
            let entry = TABLE_AT + random.below(ENTRIES as usize) * ENTRY_BYTES;
            let checkpoint = CHECKPOINTS_AT[random.below(2)];
            let at = [0, checkpoint, entry, record, record, record, RELEASED_AT][random.below(7)];
            damage(&mut cells, at + random.below(96), &mut random);
            if random.one_in(2) {
                let extents =
                    u32::from_le_bytes(cells.bytes()[at + 44..at + 48].try_into().expect("4 bytes"));
                let (len, key) = match at {
                    0 => (LINE_BYTES, 0),
                    at if at == checkpoint => (LINE_BYTES, of.log),
                    at if at == entry => {
                        (LINE_BYTES, of.log ^ (1 + (at - TABLE_AT) as u64 / ENTRY_BYTES as u64))
                    }
                    _ => (head_bytes(extents.min(20) as usize), of.log),
                };
                seal(&mut cells, at, len.min(MEMORY_BYTES - at), key);
            }
        }
        let chunks = if random.one_in(8) { random.below(CHUNKS) } else { CHUNKS };
        let (is_readable, is_damaged) = Memory::new(cells, chunks).use_all(1 + random.below(2) as u64);
        readable += usize::from(is_readable);
        damaged += usize::from(is_damaged);
    }
    println!("{wanted} memories, {readable} readable, {damaged} damaged");
    assert!(
        readable > wanted / 2 && damaged > wanted / 50,
        "changes too large or too small to test anything"
    );
}

#[test]
fn noise_is_no_log() {
    let mut random = Random::new(6);
    for turn in 0..200 {
        let mut cells = Cells::new(MEMORY_BYTES);
        (0..MEMORY_BYTES).for_each(|at| cells.damage(at, random.word() as u8));
        if turn % 2 == 0 {
            // A superblock and a checkpoint before noise.
            let of = superblock(7);
            let checkpoint = uncopy_mapped::layout::Checkpoint {
                serial: 1,
                tail: uncopy_mapped::layout::Lsn(64 * random.below(1 << 20) as u64),
                boot: 1,
                process: 1,
                time_ns: 0,
                failure: 0,
            };
            for (at, line) in [(0, of.encode()), (CHECKPOINTS_AT[0], checkpoint.encode(&of))] {
                line.into_iter().enumerate().for_each(|(index, byte)| cells.damage(at + index, byte));
            }
        }
        assert_eq!(Memory::new(cells, CHUNKS).use_all(1), (turn % 2 == 0, false));
    }
}

#[test]
fn damage_of_an_acknowledged_record_is_noticed() {
    for (kind, state) in [(1, State::Written), (2, State::Committed)] {
        let mut noticed = 0;
        for seed in 0..40 {
            let cells = killed_memory(seed);
            let memory = Memory::new(cells.clone(), CHUNKS);
            let recovery = Recovery::open(memory.log, &memory.chunks[..], kind).expect("a log");
            assert_eq!((recovery.accepts(), recovery.damage()), (state, None));
            let reader = recovery.reader();
            let all: Vec<_> = reader.records(reader.checkpoint().tail).collect();
            let count = all.iter().rposition(|record| record.state >= state).unwrap_or(0);
            for record in &all[..count] {
                for byte in [0, 9, 17, 40, 47] {
                    let mut cells = cells.clone();
                    let at = reader.superblock().position(record.lsn) + byte;
                    cells.damage(at, cells.bytes()[at] ^ 0x40);
                    let memory = Memory::new(cells, CHUNKS);
                    let mut found = Recovery::open(memory.log, &memory.chunks[..], kind).expect("a log");
                    assert!(found.damage().is_some(), "seed {seed}: record {}, byte {byte}", record.lsn);
                    assert!(found.plan(&memory.chunks[..], Limits::default()).is_err());
                    noticed += 1;
                }
            }
        }
        assert!(noticed > 500, "{noticed}");
    }
}
