//! Whole files in twin memory, for as long as they are what is on disk.
//!
//! Every request opens the file anew and compares: device, inode, length, last change of contents and of
//! anything else. Twin memory never changes while the kernel may hold it, so an answer that is under way
//! keeps its bytes when the file is changed or leaves the cache.
//!
//! Invariant: bytes held = memory of all files that are in the cache, being read into it, or being sent
//! from it, and that is at most the limit.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::fstat;
use uncopy_twin::Buffer;

use crate::files::memory::taken_bytes;
use crate::files::validators::Identity;

/// Files longer than this part of the limit are not kept: one must not push all others out.
const LARGEST_PART: u64 = 4;
/// A file that changed this recently may change again without its times telling: kernels before 6.13 note
/// times by the tick, which is 10 ms at most.
const SETTLED_AFTER: Duration = Duration::from_millis(50);
/// The same on file systems whose times have whole seconds, two of them on FAT.
const SETTLED_AFTER_COARSE: Duration = Duration::from_secs(3);

/// One file's bytes.
#[derive(Debug)]
pub struct Stored {
    buffer: Buffer,
    identity: Identity,
    /// Dropped after the bytes.
    _room: Room,
}

impl Stored {
    /// The bytes, all of them.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }
}

/// Bytes counted as held until this is dropped.
#[derive(Debug)]
struct Room {
    held: Arc<AtomicU64>,
    len_bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
}

/// The cache, used by all threads.
#[derive(Debug)]
pub struct Cache {
    limit_bytes: u64,
    held: Arc<AtomicU64>,
    files: Mutex<Files>,
}

/// Device and inode.
type Key = (u64, u64);

#[derive(Debug, Default)]
struct Files {
    /// With the moment of last use.
    by_inode: HashMap<Key, (Arc<Stored>, u64)>,
    /// By the moment of last use.
    by_use: BTreeMap<u64, Key>,
    moment: u64,
}

impl Files {
    fn put(&mut self, stored: Arc<Stored>) {
        let key = stored.identity.inode;
        self.remove(key);
        self.moment += 1;
        self.by_use.insert(self.moment, key);
        self.by_inode.insert(key, (stored, self.moment));
    }

    fn remove(&mut self, key: Key) -> Option<Arc<Stored>> {
        let (stored, moment) = self.by_inode.remove(&key)?;
        self.by_use.remove(&moment);
        Some(stored)
    }

    /// Takes out the file that was not used for the longest time.
    fn remove_oldest(&mut self) -> Option<Arc<Stored>> {
        let (_, key) = self.by_use.pop_first()?;
        self.by_inode.remove(&key).map(|(stored, _)| stored)
    }
}

impl Cache {
    /// An empty cache that holds at most `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, held: Arc::default(), files: Mutex::default() }
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The bytes of `file`, which has `identity`: those kept if they are still the same, else read.
    /// `None` where they cannot be kept: too many, changing, or no memory.
    pub fn get(&self, file: &File, identity: &Identity) -> Option<Arc<Stored>> {
        if identity.len_bytes == 0 || identity.len_bytes > self.limit_bytes / LARGEST_PART {
            return None;
        }
        let mut files = self.lock();
        // Dropped after the lock: releasing memory takes time.
        let stale = files.remove(identity.inode);
        if let Some(stored) = &stale
            && stored.identity == *identity
        {
            files.put(Arc::clone(stored));
            drop(files);
            return stale;
        }
        drop(files);
        drop(stale);
        let stored = Arc::new(self.read(file, identity)?);
        let stale = {
            let mut files = self.lock();
            let stale = files.remove(identity.inode);
            files.put(Arc::clone(&stored));
            stale
        };
        drop(stale);
        Some(stored)
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        // Nothing in here is left half-done by a panic.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, file: &File, identity: &Identity) -> Option<Stored> {
        if !has_settled(identity, SystemTime::now()) {
            return None;
        }
        let room = self.room(taken_bytes(identity.len_bytes))?;
        let mut buffer = Buffer::zeroed(usize::try_from(identity.len_bytes).ok()?).ok()?;
        file.read_exact_at(&mut buffer, 0).ok()?;
        // What was read while the file changed may be of neither state.
        let same = fstat(file).is_ok_and(|stat| Identity::of(&stat) == *identity);
        same.then(|| Stored { buffer, identity: *identity, _room: room })
    }

    /// Room for `len_bytes`, made by giving up files that were not used for the longest time.
    fn room(&self, len_bytes: u64) -> Option<Room> {
        let take = || {
            self.held
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                    held.checked_add(len_bytes).filter(|sum| *sum <= self.limit_bytes)
                })
                .is_ok()
        };
        while !take() {
            let oldest = self.lock().remove_oldest()?;
            drop(oldest);
        }
        Some(Room { held: Arc::clone(&self.held), len_bytes })
    }
}

/// Whether any later change would be seen in the file's times.
fn has_settled(identity: &Identity, now: SystemTime) -> bool {
    let (seconds, nanoseconds) = identity.changed.max(identity.modified);
    let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(seconds), u32::try_from(nanoseconds)) else {
        return true;
    };
    let Some(changed) = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds.min(999_999_999))) else {
        return true;
    };
    let limit = if nanoseconds == 0 { SETTLED_AFTER_COARSE } else { SETTLED_AFTER };
    // A time in the future is the disk's clock or somebody's whim; it says nothing.
    now.duration_since(changed).is_ok_and(|age| age >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("uncopy-files-cache-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        /// A file of `len` bytes that was changed an hour ago, as far as it tells, and its identity.
        fn file(&self, name: &str, len: usize, byte: u8) -> (File, Identity) {
            let path = self.0.join(name);
            std::fs::write(&path, vec![byte; len]).expect("a file");
            let file = File::open(path).expect("a file");
            let mut identity = Identity::of(&fstat(&file).expect("a stat"));
            identity.changed.0 -= 3600;
            identity.modified.0 -= 3600;
            (file, identity)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// As `get`, without the comparison with the real file that a made-up identity would not survive.
    fn put(cache: &Cache, file: &File, identity: &Identity) -> Option<Arc<Stored>> {
        let room = cache.room(identity.len_bytes)?;
        let mut buffer = Buffer::zeroed(usize::try_from(identity.len_bytes).ok()?).ok()?;
        file.read_exact_at(&mut buffer, 0).ok()?;
        let stored = Arc::new(Stored { buffer, identity: *identity, _room: room });
        cache.lock().put(Arc::clone(&stored));
        Some(stored)
    }

    #[test]
    fn a_file_that_is_the_same_is_not_read_again() {
        let place = Place::new("same");
        let cache = Cache::new(1 << 20);
        let (file, identity) = place.file("a", 1000, 1);
        let first = put(&cache, &file, &identity).expect("room");
        let second = cache.get(&file, &identity).expect("kept");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!((second.bytes(), cache.held_bytes()), (&[1; 1000][..], 1000));
    }

    #[test]
    fn a_file_that_has_changed_leaves_the_cache() {
        let place = Place::new("changed");
        let cache = Cache::new(1 << 20);
        let (file, identity) = place.file("a", 1000, 1);
        drop(put(&cache, &file, &identity));
        let changed = Identity { modified: (identity.modified.0, identity.modified.1 ^ 1), ..identity };
        // It is not what `changed` says either.
        assert!(cache.get(&file, &changed).is_none());
        assert_eq!(cache.held_bytes(), 0);
    }

    #[test]
    fn a_file_that_changed_a_moment_ago_is_not_kept() {
        let place = Place::new("fresh");
        let cache = Cache::new(1 << 20);
        let (file, _) = place.file("a", 1000, 1);
        let identity = Identity::of(&fstat(&file).expect("a stat"));
        let just_changed =
            UNIX_EPOCH + Duration::new(u64::try_from(identity.changed.0).expect("after 1970"), 1);
        assert!(!has_settled(&identity, just_changed));
        assert!(has_settled(&identity, just_changed + Duration::from_secs(5)));
        assert_eq!(cache.held_bytes(), 0);
    }

    #[test]
    fn the_limit_holds_also_for_what_is_being_sent() {
        let place = Place::new("limit");
        let cache = Cache::new(4000);
        let files: Vec<_> = (0..6u8).map(|number| place.file(&format!("{number}"), 1000, number)).collect();
        let mut sending = Vec::new();
        for (file, identity) in &files[..4] {
            sending.push(put(&cache, file, identity).expect("room"));
        }
        assert!(put(&cache, &files[4].0, &files[4].1).is_none(), "all of it is being sent");
        assert_eq!(cache.held_bytes(), 4000);
        sending.clear();
        assert_eq!(cache.held_bytes(), 0, "they had left the cache");
        drop(put(&cache, &files[5].0, &files[5].1).expect("room"));
        assert_eq!(cache.held_bytes(), 1000);
    }

    #[test]
    fn the_file_not_used_for_longest_goes_first() {
        let place = Place::new("order");
        let cache = Cache::new(3000);
        let files: Vec<_> = (0..4u8).map(|number| place.file(&format!("{number}"), 700, number)).collect();
        for (file, identity) in &files {
            drop(put(&cache, file, identity));
        }
        drop(cache.get(&files[0].0, &files[0].1).expect("kept"));
        let (file, identity) = place.file("more", 700, 9);
        drop(put(&cache, &file, &identity));
        let files_kept = cache.lock();
        let kept = |at: usize| files_kept.by_inode.contains_key(&files[at].1.inode);
        assert_eq!([kept(0), kept(1), kept(2), kept(3)], [true, false, true, true]);
        assert_eq!(files_kept.by_inode.len(), files_kept.by_use.len());
    }

    #[test]
    fn files_that_are_too_long_or_empty_are_not_kept() {
        let place = Place::new("long");
        let cache = Cache::new(4000);
        for len in [0, 1001] {
            let (file, identity) = place.file("a", len, 1);
            assert!(cache.get(&file, &identity).is_none());
        }
    }
}
