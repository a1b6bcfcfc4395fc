//! Marks that name a log of either kind.

use crate::log_files;
use crate::mapped::file::is_mapped;
use crate::mapped::recover;
use crate::mark::Owner;

/// Returns whether a log may have records for a file that it marked: it exists and is not empty.
#[must_use]
pub fn may_have(owner: &Owner) -> bool {
    if is_mapped(&owner.path) { recover::may_have(owner) } else { log_files::may_have(owner) }
}
