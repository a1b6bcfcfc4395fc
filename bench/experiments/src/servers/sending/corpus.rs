//! The files that are sent: pieces of one pool of random bytes, so that their contents need not be kept twice.

use std::path::Path;

use crate::kit::{Failure, Random, Result, While, compare};

/// Distance between the begins of two pieces in the pool, bytes; odd, so that their alignments differ.
const STEP_BYTES: usize = 7919;
/// Length of a piece of a large file, bytes.
const PIECE_BYTES: usize = 1 << 20;
/// Number of offsets in the pool where pieces of a large file begin.
const PIECE_OFFSETS: usize = 1024;
/// The mail's files: their number, average length and spread, so that lengths are from 50 KB to 650 KB.
const MAIL_FILES: usize = 63;
const MAIL_BYTES: usize = 350_000;
const MAIL_SPREAD_BYTES: u64 = 300_000;

/// A range of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    begin: usize,
    len_bytes: usize,
}

/// Files, in the order in which they are sent.
#[derive(Debug)]
pub struct Corpus {
    pool: Vec<u8>,
    files: Vec<Vec<Piece>>,
}

/// Position in a corpus that is received again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    file: usize,
    piece: usize,
    offset_bytes: usize,
}

impl Corpus {
    /// Returns the 63 files of 350 KB on average of the mail of 2001 (sendfile-zerocopy-cpu-load). The mail gives no
    /// single lengths; here they are spread evenly around the average.
    #[must_use]
    pub fn mail() -> Self {
        let mut random = Random::new(2001);
        let mut lengths = Vec::with_capacity(MAIL_FILES);
        while lengths.len() + 1 < MAIL_FILES {
            let off = usize::try_from(random.next() % MAIL_SPREAD_BYTES).unwrap_or(0);
            lengths.extend([MAIL_BYTES - off, MAIL_BYTES + off]);
        }
        lengths.push(MAIL_BYTES);
        let piece = |(number, len_bytes)| vec![Piece { begin: number * STEP_BYTES, len_bytes }];
        let files: Vec<_> = lengths.into_iter().enumerate().map(piece).collect();
        Self::of(random, files)
    }

    /// Returns a corpus of one file of `len_bytes`.
    #[must_use]
    pub fn single(len_bytes: usize) -> Self {
        let begins = (0..).map(|number: usize| number % PIECE_OFFSETS * STEP_BYTES);
        let rests = (0..len_bytes).step_by(PIECE_BYTES).map(|done| len_bytes - done);
        let piece = |(begin, rest): (usize, usize)| Piece { begin, len_bytes: rest.min(PIECE_BYTES) };
        Self::of(Random::new(1 << 30), vec![begins.zip(rests).map(piece).collect()])
    }

    fn of(mut random: Random, files: Vec<Vec<Piece>>) -> Self {
        let pool = files.iter().flatten().map(|piece| piece.begin + piece.len_bytes).max().unwrap_or(0);
        Self { pool: random.bytes(pool), files }
    }

    /// Returns the bytes of all files together.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.files.iter().flatten().map(|piece| piece.len_bytes as u64).sum()
    }

    /// Writes the files into `directory`, with names in their order, and syncs them, so that no write-back disturbs
    /// the traffic.
    ///
    /// # Errors
    /// [`Failure`] when the files cannot be written, such as for lack of space.
    pub fn write(&self, directory: &Path) -> Result<()> {
        for (number, pieces) in self.files.iter().enumerate() {
            let writing = || {
                let mut file = std::fs::File::create(directory.join(format!("{number:03}")))?;
                for piece in pieces {
                    std::io::Write::write_all(&mut file, self.bytes(*piece))?;
                }
                file.sync_all()
            };
            writing().doing("writing a file to send")?;
        }
        Ok(())
    }

    fn bytes(&self, piece: Piece) -> &[u8] {
        &self.pool[piece.begin..piece.begin + piece.len_bytes]
    }

    /// Compares `received` with the corpus from `position` on, wrapping around at its end, and advances `position`.
    ///
    /// # Errors
    /// [`Failure`] with the first wrong byte.
    pub fn verify(&self, position: &mut Position, mut received: &[u8]) -> Result<()> {
        while !received.is_empty() {
            let piece = self.bytes(self.files[position.file][position.piece]);
            let rest = &piece[position.offset_bytes..];
            let len_bytes = rest.len().min(received.len());
            let (now, later) = received.split_at(len_bytes);
            compare(&rest[..len_bytes], now).map_err(|mismatch| {
                let (file, begin) = (position.file, position.piece * PIECE_BYTES + position.offset_bytes);
                Failure::new(format!("wrong bytes of file {file:03} from byte {begin} on: {mismatch}"))
            })?;
            received = later;
            position.offset_bytes += len_bytes;
            if position.offset_bytes == piece.len() {
                *position = self.next_piece(*position);
            }
        }
        Ok(())
    }

    fn next_piece(&self, position: Position) -> Position {
        if position.piece + 1 < self.files[position.file].len() {
            Position { piece: position.piece + 1, offset_bytes: 0, ..position }
        } else {
            Position { file: (position.file + 1) % self.files.len(), ..Position::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::processes::cleanup::TemporaryDirectory;

    #[test]
    fn the_mail_files_have_the_stated_number_and_average_length() {
        let mail = Corpus::mail();
        assert_eq!((mail.files.len(), mail.len_bytes()), (63, 63 * 350_000));
        let lengths = || mail.files.iter().flatten().map(|piece| piece.len_bytes);
        assert!(lengths().min() >= Some(50_000) && lengths().max() <= Some(650_000));
        assert_eq!(lengths().collect::<Vec<_>>(), {
            let again = Corpus::mail();
            again.files.into_iter().flatten().map(|piece| piece.len_bytes).collect::<Vec<_>>()
        });
    }

    #[test]
    fn written_bytes_are_verified_in_any_pieces() {
        for corpus in [Corpus::mail(), Corpus::single(1), Corpus::single((5 << 20) + 3)] {
            let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
            corpus.write(directory.path()).expect("room");
            let mut names: Vec<_> = std::fs::read_dir(directory.path())
                .expect("it")
                .map(|file| file.expect("it").path())
                .collect();
            names.sort();
            let mut position = Position::default();
            for _ in 0..2 {
                for bytes in names.iter().map(|name| std::fs::read(name).expect("a file")) {
                    bytes
                        .chunks(65_537)
                        .for_each(|chunk| corpus.verify(&mut position, chunk).expect("right"));
                }
            }
            assert_eq!(position, Position::default());
        }
    }

    #[test]
    fn a_wrong_byte_is_reported_with_its_offset() {
        let corpus = Corpus::single((2 << 20) + 10);
        let mut position = Position::default();
        let mut bytes = corpus.bytes(corpus.files[0][0]).to_vec();
        corpus.verify(&mut position, &bytes).expect("the first piece");
        bytes = corpus.bytes(corpus.files[0][1]).to_vec();
        bytes[70] ^= 1;
        let failure = corpus.verify(&mut position, &bytes).expect_err("a wrong byte").to_string();
        assert!(
            failure.contains("file 000 from byte 1048576") && failure.contains("byte 70 is"),
            "{failure}"
        );
    }
}
