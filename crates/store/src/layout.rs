//! What a log looks like on its device.
//!
//! ```text
//! 0            4 KiB         8 KiB            64 KiB                                          length
//! │ superblock │ checkpoint 0 │ checkpoint 1 │ … │ record │ record │ … free … │ record │ … free │
//!                                                                               ▲ tail
//! record │ head │ identity of the file │ extents │ pad │ bytes of the extents │ pad │      whole granules
//! ```
//!
//! Checkpoints are written in turn; the one with the higher serial that is whole counts. It says where the first record is that
//! was not digested, its sequence number, and the epoch: records of an earlier epoch are leftovers. A record that has no room
//! before the end of the ring lies at its beginning. Numbers are little-endian; every structure has a CRC-32C of all of it.

use crc32c::crc32c;

/// Version of all of this.
pub const VERSION: u32 = 1;
/// Where records begin, bytes.
pub const RING_OFFSET: u64 = 64 << 10;
/// Where the two checkpoints are, bytes.
pub const CHECKPOINTS: [u64; 2] = [4 << 10, 8 << 10];
/// Room for the superblock and for a checkpoint, bytes.
pub const BLOCK_BYTES: usize = 4 << 10;
/// Longest path, bytes.
pub const MAX_PATH_BYTES: usize = 4095;
/// Extents of a record, at most.
pub const MAX_EXTENTS: usize = 256;
/// Bytes of a record, at most.
pub const MAX_RECORD_BYTES: usize = 32 << 20;

/// Bytes of a record before those of its extents, at most: whole granules, whatever they are.
pub const MAX_FRONT_BYTES: usize = front_bytes(MAX_PATH_BYTES, MAX_EXTENTS).next_multiple_of(BLOCK_BYTES);

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"uncopylg");
const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"uncopycp");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"ucr1");
const HEAD_BYTES: usize = 64;
const EXTENT_BYTES: usize = 16;

/// What a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// By what it is known.
    pub log: u64,
    /// Its length, bytes.
    pub len_bytes: u64,
    /// Records are whole multiples of this, bytes: what its device writes at once.
    pub granule_bytes: u32,
    /// The machine that it was made on (a hash of `/etc/machine-id`).
    pub machine: u64,
}

/// Why records wait for a file that does not take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the file's sync has said: an error number.
    pub errno: i32,
    /// Until when the log's program alone wrote to the file, ns since 1970; 0: it still does.
    pub until_ns: u64,
    /// Before that, the program may have written something over what its syncs were promised.
    pub has_newer: bool,
}

/// How far a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Of two, the higher counts.
    pub serial: u64,
    /// Records of other epochs are leftovers.
    pub epoch: u64,
    /// Where the first record lies that was not digested.
    pub tail: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// When this was written, ns since 1970.
    pub time_ns: u64,
    /// The start of the kernel during which it was written (a hash of its `boot_id`): as long as it runs, files have all that was
    /// written to them.
    pub boot: u64,
    /// The process whose log this was then, or 0: nothing is needed of it.
    pub process: u64,
    /// A file could not be written.
    pub failure: Option<Failure>,
}

/// Which file a record's bytes belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// The inode's generation, or 0: numbers of inodes are used again.
    pub generation: u64,
    /// Where it lay when it was first written to by way of the log.
    pub path: Vec<u8>,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where they belong in the file.
    pub offset: u64,
    /// How many.
    pub len_bytes: usize,
    /// Where they begin in the record.
    pub at: usize,
}

/// A record, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub sequence: u64,
    /// All of it, bytes: whole granules.
    pub len_bytes: usize,
    /// When it was written, ns since 1970.
    pub time_ns: u64,
    /// All records below this number survived before this one was written.
    pub flushed: u64,
    /// Its file.
    pub file: Identity,
    /// The file's bytes.
    pub extents: Vec<Extent>,
}

/// What a record must be to be the next one of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The log.
    pub log: u64,
    /// The epoch.
    pub epoch: u64,
    /// Number of the record.
    pub sequence: u64,
    /// The log's granule, bytes.
    pub granule_bytes: usize,
}

/// What makes bytes no superblock that this program may go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLog {
    /// They are something else.
    Foreign,
    /// They are damaged.
    Damaged,
    /// They are of this version.
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

/// The number of the record that begins like this, if it is one.
#[must_use]
pub fn sequence_of(front: &[u8]) -> Option<u64> {
    let mut reader = Reader(front);
    reader.take(24)?;
    reader.u64()
}

/// A block whose last four bytes are the sum of all before them.
fn seal(block: &mut [u8; BLOCK_BYTES]) {
    let sum = crc32c(&block[..BLOCK_BYTES - 4]);
    block[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}

fn is_whole(block: &[u8; BLOCK_BYTES]) -> bool {
    block[BLOCK_BYTES - 4..] == crc32c(&block[..BLOCK_BYTES - 4]).to_le_bytes()
}

impl Superblock {
    /// What the record with this number must be.
    #[must_use]
    pub const fn expected(&self, epoch: u64, sequence: u64) -> Expected {
        Expected { log: self.log, epoch, sequence, granule_bytes: self.granule_bytes as usize }
    }

    /// As it is written.
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

    /// What was written.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, NoLog> {
        let mut reader = Reader(block);
        let (Some(SUPERBLOCK_MAGIC), Some(version)) = (reader.u64(), reader.u32()) else {
            return Err(NoLog::Foreign);
        };
        if version != VERSION {
            return Err(NoLog::Version(version));
        }
        if !is_whole(block) {
            return Err(NoLog::Damaged);
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
        read().filter(is_possible).ok_or(NoLog::Damaged)
    }
}

impl Checkpoint {
    /// As it is written.
    #[must_use]
    pub fn encode(&self, log: u64) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut writer = Writer { bytes: &mut block, at: 0 };
        let place = [self.serial, self.epoch, self.tail, self.sequence];
        let words =
            [CHECKPOINT_MAGIC, log].into_iter().chain(place).chain([self.time_ns, self.boot, self.process]);
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

    /// What was written for this log; `None`: it is not whole, or another log's.
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
                // Zeroes in those of earlier versions.
                let (errno, until_ns, has_newer) = (word()? as i32, word()?, word()? != 0);
                (errno != 0).then_some(Failure { errno, until_ns, has_newer })
            },
        };
        let is_possible = (RING_OFFSET..of.len_bytes).contains(&found.tail)
            && found.tail.is_multiple_of(u64::from(of.granule_bytes));
        (is_ours && is_possible).then_some(found)
    }
}

/// Bytes of what lies before the bytes of the extents, without padding.
const fn front_bytes(path_bytes: usize, extents: usize) -> usize {
    HEAD_BYTES + 24 + path_bytes.next_multiple_of(8) + extents * EXTENT_BYTES
}

/// Where a record's bytes go that has these `extents` (offset in the file, length), and how long it is, bytes; both whole
/// granules. `None`: it is too long for a record.
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

/// Writes a record's front into `record`, which has the extents' bytes already, one behind the other from where
/// [`measure`] says, and zeroes else.
///
/// # Panics
/// `record` is not as long as [`measure`] says.
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

/// The length of the record that begins like this, bytes, if it may be the expected one. The front's first 64 bytes suffice.
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

/// The record, if it is whole and the expected one.
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
