//! Format of a log on its device.
//!
//! ```text
//! 0            4 KiB         8 KiB            64 KiB                                          length
//! │ superblock │ checkpoint 0 │ checkpoint 1 │ … │ record │ record │ … free … │ record │ … free │
//!                                                                               ▲ tail
//! record │ head │ identity of the file │ extents │ pad │ bytes of the extents │ pad │      whole granules
//! ```
//!
//! Checkpoints are written alternately; the valid one with the higher serial counts. It holds the position and
//! sequence number of the first undigested record, and the epoch: records of earlier epochs are leftovers. A
//! record that does not fit before the end of the ring starts at its beginning. Integers are little-endian;
//! every structure has a CRC-32C.

use crc32c::crc32c;
pub use uncopy_mapped::table::{Identity, MAX_PATH_BYTES};

/// Version of the format.
pub const VERSION: u32 = 1;
/// Offset of the ring of records, bytes.
pub const RING_OFFSET: u64 = 64 << 10;
/// Offsets of the two checkpoints, bytes.
pub const CHECKPOINTS: [u64; 2] = [4 << 10, 8 << 10];
/// Size of the superblock and of a checkpoint, bytes.
pub const BLOCK_BYTES: usize = 4 << 10;
/// Maximum number of extents in a record.
pub const MAX_EXTENTS: usize = 256;
/// Maximum length of a record, bytes.
pub const MAX_RECORD_BYTES: usize = 32 << 20;

/// Maximum length of a record's front, bytes, rounded up to the largest granule.
pub const MAX_FRONT_BYTES: usize = front_bytes(MAX_PATH_BYTES, MAX_EXTENTS).next_multiple_of(BLOCK_BYTES);

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"uncopylg");
const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"uncopycp");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"ucr1");
const HEAD_BYTES: usize = 64;
const EXTENT_BYTES: usize = 16;

/// Contents of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random identifier of the log.
    pub log: u64,
    /// Length of the log, bytes.
    pub len_bytes: u64,
    /// Granule, bytes: the unit of direct writes to the device, of which record lengths are multiples.
    pub granule_bytes: u32,
    /// Machine on which the log was made (a hash of `/etc/machine-id`).
    pub machine: u64,
}

/// Reason why records are kept for a file that lacks their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Error number of the file's sync.
    pub errno: i32,
    /// Time until which only the log's program wrote to the file, ns since 1970; 0: it still does.
    pub until_ns: u64,
    /// Whether the program may have written newer bytes before that time, which no record has.
    pub has_newer: bool,
}

/// Contents of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Serial number; the checkpoint with the higher one counts.
    pub serial: u64,
    /// Epoch of the valid records.
    pub epoch: u64,
    /// Offset of the first undigested record, bytes.
    pub tail: u64,
    /// Sequence number of the first undigested record.
    pub sequence: u64,
    /// Time at which the checkpoint was written, ns since 1970.
    pub time_ns: u64,
    /// Boot during which the checkpoint was written (a hash of the kernel's `boot_id`). While the same kernel
    /// runs, the page cache has everything that was written to the files.
    pub boot: u64,
    /// Process that owned the log; 0: the log is empty.
    pub process: u64,
    /// Failure to write a file, if any.
    pub failure: Option<Failure>,
}

/// A run of a file's bytes in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len_bytes: usize,
    /// Offset in the record, bytes.
    pub at: usize,
}

/// A record, decoded and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Sequence number of the record.
    pub sequence: u64,
    /// Length of the record, bytes: a multiple of the granule.
    pub len_bytes: usize,
    /// Time at which the record was written, ns since 1970.
    pub time_ns: u64,
    /// All records with lower sequence numbers were durable before this one was written.
    pub flushed: u64,
    /// File that the bytes belong to.
    pub file: Identity,
    /// Runs of the file's bytes, in the order of the writes.
    pub extents: Vec<Extent>,
}

/// Header fields that the next record of a log must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Identifier of the log.
    pub log: u64,
    /// Epoch of the log.
    pub epoch: u64,
    /// Sequence number of the record.
    pub sequence: u64,
    /// Granule of the log, bytes.
    pub granule_bytes: usize,
}

/// Reason why a block is not a usable superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// No superblock of any version.
    Foreign,
    /// Wrong checksum or impossible values.
    Damaged,
    /// A superblock of this other version.
    Version(u32),
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

/// Returns the sequence number in a record's front; the front is not checked.
#[must_use]
pub fn sequence_of(front: &[u8]) -> Option<u64> {
    let mut reader = Reader(front);
    reader.take(24)?;
    reader.u64()
}

fn seal(block: &mut [u8; BLOCK_BYTES]) {
    let sum = crc32c(&block[..BLOCK_BYTES - 4]);
    block[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}

fn is_whole(block: &[u8; BLOCK_BYTES]) -> bool {
    block[BLOCK_BYTES - 4..] == crc32c(&block[..BLOCK_BYTES - 4]).to_le_bytes()
}

impl Superblock {
    /// Returns the header fields that the record with this sequence number must have.
    #[must_use]
    pub const fn expected(&self, epoch: u64, sequence: u64) -> Expected {
        Expected { log: self.log, epoch, sequence, granule_bytes: self.granule_bytes as usize }
    }

    /// Encodes the superblock as a block.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut writer = Writer { bytes: &mut block, at: 0 };
        writer.put_u64(SUPERBLOCK_MAGIC);
        writer.put_u32(VERSION);
        writer.put_u32(self.granule_bytes);
        writer.put_u64(self.log);
        writer.put_u64(self.len_bytes);
        writer.put_u64(self.machine);
        seal(&mut block);
        block
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// The reason why the block is not usable.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, SuperblockError> {
        let mut reader = Reader(block);
        let (Some(SUPERBLOCK_MAGIC), Some(version)) = (reader.u64(), reader.u32()) else {
            return Err(SuperblockError::Foreign);
        };
        if version != VERSION {
            return Err(SuperblockError::Version(version));
        }
        if !is_whole(block) {
            return Err(SuperblockError::Damaged);
        }
        let mut read = || {
            let granule_bytes = reader.u32()?;
            Some(Self { log: reader.u64()?, len_bytes: reader.u64()?, machine: reader.u64()?, granule_bytes })
        };
        let is_possible = |found: &Self| {
            found.granule_bytes.is_power_of_two()
                && (512..=BLOCK_BYTES as u32).contains(&found.granule_bytes)
                && found.len_bytes > RING_OFFSET
                && found.len_bytes.is_multiple_of(u64::from(found.granule_bytes))
        };
        read().filter(is_possible).ok_or(SuperblockError::Damaged)
    }
}

impl Checkpoint {
    /// Encodes the checkpoint of a log as a block.
    #[must_use]
    pub fn encode(&self, log: u64) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut writer = Writer { bytes: &mut block, at: 0 };
        let position = [self.serial, self.epoch, self.tail, self.sequence];
        let words = [CHECKPOINT_MAGIC, log].into_iter().chain(position).chain([
            self.time_ns,
            self.boot,
            self.process,
        ]);
        let failure = self.failure.unwrap_or(Failure { errno: 0, until_ns: 0, has_newer: false });
        let words = words.chain([
            u64::from(failure.errno.unsigned_abs()),
            failure.until_ns,
            u64::from(failure.has_newer),
        ]);
        words.for_each(|word| writer.put_u64(word));
        seal(&mut block);
        block
    }

    /// Decodes a checkpoint of this log; `None`: the block is damaged or belongs to another log.
    #[must_use]
    pub fn decode(block: &[u8; BLOCK_BYTES], of: &Superblock) -> Option<Self> {
        let mut reader = Reader(block);
        let is_ours = reader.u64()? == CHECKPOINT_MAGIC && reader.u64()? == of.log && is_whole(block);
        let mut word = || reader.u64();
        let found = Self {
            serial: word()?,
            epoch: word()?,
            tail: word()?,
            sequence: word()?,
            time_ns: word()?,
            boot: word()?,
            process: word()?,
            failure: {
                // Earlier versions wrote zeroes here.
                let (errno, until_ns, has_newer) = (word()? as i32, word()?, word()? != 0);
                (errno != 0).then_some(Failure { errno, until_ns, has_newer })
            },
        };
        let is_possible = (RING_OFFSET..of.len_bytes).contains(&found.tail)
            && found.tail.is_multiple_of(u64::from(of.granule_bytes));
        (is_ours && is_possible).then_some(found)
    }
}

/// Length of a record's front without padding, bytes.
const fn front_bytes(path_bytes: usize, extents: usize) -> usize {
    HEAD_BYTES + 24 + path_bytes.next_multiple_of(8) + extents * EXTENT_BYTES
}

/// Returns the lengths of the front and of the whole record that holds `extents` (offset in the file, length),
/// bytes; both are multiples of the granule. `None`: the record would be too long.
#[must_use]
pub fn measure(path: &[u8], extents: &[(u64, usize)], granule_bytes: usize) -> Option<(usize, usize)> {
    if path.len() > MAX_PATH_BYTES || extents.is_empty() || extents.len() > MAX_EXTENTS {
        return None;
    }
    let front = front_bytes(path.len(), extents.len()).next_multiple_of(granule_bytes);
    let bytes = extents.iter().try_fold(0usize, |sum, (_, len_bytes)| sum.checked_add(*len_bytes))?;
    let whole = front.checked_add(bytes)?.next_multiple_of(granule_bytes);
    (whole <= MAX_RECORD_BYTES).then_some((front, whole))
}

/// Writes the front of a record. `record` already holds the bytes of the extents back to back behind the front,
/// whose length [`measure`] returns, and zeroes elsewhere.
///
/// # Panics
/// If `record` does not have the length that [`measure`] returns.
pub fn seal_record(
    record: &mut [u8],
    expected: &Expected,
    time_ns: u64,
    flushed: u64,
    file: &Identity,
    extents: &[(u64, usize)],
) {
    let measured = measure(&file.path, extents, expected.granule_bytes);
    let (front, whole) = measured.expect("a record that was measured");
    assert_eq!(record.len(), whole, "a record that was measured");
    let mut writer = Writer { bytes: record, at: 0 };
    writer.put_u32(RECORD_MAGIC);
    writer.put_u32(0);
    writer.put_u64(expected.log);
    writer.put_u64(expected.epoch);
    writer.put_u64(expected.sequence);
    writer.put_u64(time_ns);
    writer.put_u32(whole as u32);
    writer.put_u32(extents.len() as u32);
    writer.put_u32(file.path.len() as u32);
    writer.put_u32(front as u32);
    writer.put_u64(flushed);
    writer.put_u64(file.device);
    writer.put_u64(file.inode);
    writer.put_u64(file.generation);
    writer.put(&file.path);
    writer.at = writer.at.next_multiple_of(8);
    for (offset, len_bytes) in extents {
        writer.put_u64(*offset);
        writer.put_u64(*len_bytes as u64);
    }
    let sum = crc32c(&record[8..]);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the length of the expected record, bytes, given at least the first 64; `None`: it is another one.
#[must_use]
pub fn record_bytes(front: &[u8], expected: &Expected) -> Option<usize> {
    let mut reader = Reader(front);
    if reader.u32()? != RECORD_MAGIC {
        return None;
    }
    let _sum = reader.u32()?;
    let named = [reader.u64()?, reader.u64()?, reader.u64()?];
    let _time_ns = reader.u64()?;
    let whole = reader.u32()? as usize;
    let is_possible = whole.is_multiple_of(expected.granule_bytes) && (1..=MAX_RECORD_BYTES).contains(&whole);
    (named == [expected.log, expected.epoch, expected.sequence] && is_possible).then_some(whole)
}

/// Decodes a record; `None`: it is damaged, or not the expected one.
#[must_use]
pub fn decode_record(record: &[u8], expected: &Expected) -> Option<Record> {
    let len_bytes = record_bytes(record, expected)?;
    let record = record.get(..len_bytes)?;
    let mut reader = Reader(record);
    reader.take(4)?;
    if reader.u32()? != crc32c(&record[8..]) {
        return None;
    }
    reader.take(24)?;
    let time_ns = reader.u64()?;
    reader.take(4)?;
    let (count, path_bytes, front) = (reader.u32()? as usize, reader.u32()? as usize, reader.u32()? as usize);
    let flushed = reader.u64()?;
    let (device, inode, generation) = (reader.u64()?, reader.u64()?, reader.u64()?);
    if path_bytes > MAX_PATH_BYTES || !(1..=MAX_EXTENTS).contains(&count) {
        return None;
    }
    let path = reader.take(path_bytes.next_multiple_of(8))?[..path_bytes].to_vec();
    let mut extents = Vec::with_capacity(count);
    let mut at = front;
    for _ in 0..count {
        let (offset, len_bytes) = (reader.u64()?, usize::try_from(reader.u64()?).ok()?);
        let end = at.checked_add(len_bytes).filter(|end| *end <= record.len())?;
        offset.checked_add(len_bytes as u64).filter(|end| *end <= i64::MAX as u64)?;
        extents.push(Extent { offset, len_bytes, at });
        at = end;
    }
    let file = Identity { device, inode, generation, path };
    (front >= front_bytes(path_bytes, count)).then_some(Record {
        sequence: expected.sequence,
        len_bytes,
        time_ns,
        flushed,
        file,
        extents,
    })
}
