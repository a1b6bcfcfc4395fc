//! Programs that refuse to run as root: setpriv(1) runs them as the user nobody, with the given
//! capabilities only.

use crate::package::Package;

/// The program that changes the user.
pub const SETPRIV: Package = Package::new("setpriv", "util-linux", &[]);
/// User and group number of nobody and nogroup, the same in every distribution.
pub const NOBODY: u32 = 65_534;
/// The capability that serving page faults from inside system calls needs.
pub const FAULTS: &str = "+sys_ptrace";

/// Returns the arguments of [`SETPRIV`] in front of a program that is to have `capabilities`.
#[must_use]
pub fn arguments(capabilities: &str) -> Vec<String> {
    let mut words = vec![format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    words.extend(["inh-caps", "bounding-set"].map(|set| format!("--{set}=-all,{capabilities}")));
    // The kernel clears the parent-death signal when the user changes (prctl(2)).
    words.extend([
        format!("--ambient-caps={capabilities}"),
        "--clear-groups".into(),
        "--pdeathsig=KILL".into(),
    ]);
    words
}
