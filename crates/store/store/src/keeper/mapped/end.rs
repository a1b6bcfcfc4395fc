//! The end of the service of a program: all files are settled, and the log is left without records.

use super::{Client, Stage};
use crate::log_files::boot;
use crate::mapped::digest::{DigestError, forget_all};
use crate::mapped::service_memory::remove_names;
use uncopy_mapped::digest::Limits;
use uncopy_mapped::reader::Damage;
use uncopy_mapped::recovery::Recovery;
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file_lock};

/// Number of attempts to settle a file, before it is left to a recovery.
const LAST_ATTEMPTS: usize = 3;
/// Number of [dozes](clock::sleep_10_ms) for which an append of a living program is waited for. Exec leaves one
/// unfinished.
const LAST_APPEND_DOZES: usize = 100;

impl Client<'_> {
    /// Ends the service: the files leave the log, and the log is emptied.
    pub(super) fn end(mut self, is_dead: &dyn Fn() -> bool) {
        self.is_ending = true;
        // Other processes may wait for the locks.
        for (_, held) in self.held() {
            file_lock::release_locks(&held.fd);
        }
        let logged = self.slots(|held| held.stage == Stage::Logged);
        self.stop(&logged);
        let is_appending = |client: &Self| client.held().any(|(slot, _)| client.known(slot).is_appending());
        for _ in 0..LAST_APPEND_DOZES {
            if is_dead() || !is_appending(&self) {
                break;
            }
            clock::sleep_10_ms();
        }
        match self.seal() {
            // All files at once; what fails is tried again for each file.
            Ok(()) => drop(self.digest_all()),
            Err(error) => self.abandon_log(error.errno(), None),
        }
        self.settle_all();
        if self.kept.is_none() {
            // A log that is not empty is left to `uncopy log recover`.
            let _ = self.empty_log();
        }
    }

    /// Commits the records that the program has written: they are acknowledged.
    fn seal(&self) -> Result<(), DigestError> {
        if !self.log.is_whole() {
            return Err(DigestError::Truncated);
        }
        let recovery = Recovery::open(self.log.memory(), &self.memory, boot());
        let mut recovery = recovery.map_err(|_| Errno(libc::EUCLEAN))?;
        recovery.plan(&self.memory, Limits { extents: 1, ..Limits::default() })?;
        Ok(())
    }

    /// Settles all files, with several attempts if necessary.
    fn settle_all(&mut self) {
        self.files.iter_mut().flatten().for_each(|held| held.is_closed = true);
        let mut failed = Vec::new();
        for attempt in 1..=LAST_ATTEMPTS {
            failed.clear();
            for slot in self.slots(|_| true) {
                let stage = self.files[slot].as_ref().map(|held| held.stage);
                let is_held = matches!(stage, Some(Stage::Logged | Stage::Stopped));
                match if is_held { self.settle(slot) } else { Ok(()) } {
                    Ok(()) => self.release(slot),
                    Err(error) => failed.push((slot, error.errno())),
                }
            }
            if failed.is_empty() {
                return;
            }
            if attempt < LAST_ATTEMPTS {
                (0..10 * attempt).for_each(|_| clock::sleep_10_ms());
            }
        }
        if let Some((_, errno)) = failed.first().copied() {
            self.give_up(errno, failed);
        }
    }

    /// Retires what is left in the log, which is void, and takes the log from the program.
    fn empty_log(&self) -> Result<(), Damage> {
        if !self.log.is_whole() {
            return Ok(());
        }
        let Ok(mut recovery) = Recovery::open(self.log.memory(), &self.memory, boot()) else { return Ok(()) };
        while let Some(batch) = recovery.plan(&self.memory, Limits::default())? {
            // Records of files that are not held remain for a recovery.
            if !batch.files.is_empty() || !recovery.retire(&batch) {
                return Ok(());
            }
        }
        forget_all(self.log.memory());
        // Not reached otherwise: all records are retired, and damage was found before.
        if recovery.finish().is_ok() {
            remove_names(self.log.directory(), self.owner.log);
        }
        Ok(())
    }
}
