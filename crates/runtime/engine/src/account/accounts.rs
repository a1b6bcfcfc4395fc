//! The accounts of copy and input sites: what eliding saved there, and what it cost. The ledger has
//! allocation sites and the figures of `--explain` ([`crate::state::ledger`]).

use crate::account::plan_result::PlanResult;
use crate::state::ledger::entry;
use crate::state::policy::POLICY;
use crate::state::recording;
use uncopy_core::ledger::Field;
use uncopy_core::page_map::SiteId;

/// Credits a copy or an input site with the time that eliding saved.
#[inline]
pub fn credit(site: SiteId, ns: i64) {
    if recording::is_on() || recording::is_row(site) {
        return;
    }
    POLICY.sites.credit(site, ns);
    if let Some(entry) = entry(site) {
        entry.add(Field::SavedNs, ns.max(0).cast_unsigned());
        entry.publish_standing(site);
    }
}

/// Charges a copy or an input site with the time that eliding cost.
#[inline]
pub fn debit(site: SiteId, ns: i64) {
    if recording::is_on() || recording::is_row(site) {
        // All engine work during a recording is done for samples.
        return recording::spend(ns);
    }
    let is_off = POLICY.sites.debit(site, ns);
    if let Some(entry) = entry(site) {
        entry.add(Field::SpentNs, ns.max(0).cast_unsigned());
        entry.add(Field::SwitchedOff, u64::from(is_off));
        entry.publish_standing(site);
    }
}

/// Enters the outcome of a call in the ledger.
#[inline]
pub fn record_elision(site: SiteId, done: &PlanResult) {
    if let Some(entry) = entry(site) {
        entry.add(Field::Elided, u64::from(done.elided_bytes > 0));
        entry.add(Field::ElidedBytes, done.elided_bytes as u64);
        entry.add(Field::CopiedBytes, done.copied_bytes as u64);
        entry.add(Field::LearnedBytes, done.learned_bytes as u64);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::state::ledger::{end, open, record_call, set_reason};
    use std::os::unix::fs::OpenOptionsExt as _;
    use uncopy_core::ledger::{LEDGER_BYTES, Ledger, MAGIC};
    use uncopy_core::policy::SiteKind;

    #[test]
    fn sites_are_entered_with_the_file_and_the_offset_of_their_caller() {
        let name = std::env::temp_dir().join(format!("uncopy-ledger-test-{}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&name).expect("made");
        file.set_len(LEDGER_BYTES as u64).expect("room");
        std::os::unix::fs::FileExt::write_all_at(&file, &MAGIC, 0).expect("written");
        let path = std::ffi::CString::new(name.as_os_str().as_encoded_bytes()).expect("no NUL");
        let site = POLICY.sites.site(SiteKind::Copy, 0x77, 1 << 20);
        assert!(entry(site).is_none());
        open(&path);
        std::fs::remove_file(&name).expect("removed");
        let caller = open as *const () as usize;
        record_call(site, SiteKind::Copy, caller, 1 << 20);
        record_call(site, SiteKind::Copy, caller, 1 << 20);
        credit(site, 5_000);
        debit(site, 1_000);
        set_reason("because");
        let mut bytes = vec![0; LEDGER_BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("read");
        let ledger = Ledger::parse(&bytes).expect("well-formed");
        let process = &ledger.processes[0];
        assert_eq!((process.pid, process.reason.as_deref()), (std::process::id(), Some("because")));
        let found = &process.entries[0];
        assert_eq!((found.get(Field::Calls), found.get(Field::Bytes)), (2, 2 << 20));
        assert_eq!(
            (found.get(Field::SavedNs), found.get(Field::SpentNs), found.balance()),
            (5_000, 1_000, 4_000)
        );
        if let Some(module) = found.module {
            let own = std::env::current_exe().expect("a path");
            assert_eq!(process.modules[module].path, own.as_os_str().as_encoded_bytes());
        } else {
            eprintln!("skipped: PROCMAP_QUERY needs Linux 6.11");
        }
        assert!(!process.is_ended);
        end();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("read");
        assert!(Ledger::parse(&bytes).expect("well-formed").processes[0].is_ended);
    }
}
