//! Who the process is.

/// The effective user id.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no requirements.
    unsafe { libc::geteuid() }
}

/// Whether the program gained privileges when it was started (set-user-ID, set-group-ID, file
/// capabilities): the environment must then not be believed.
#[must_use]
pub fn is_privileged_start() -> bool {
    // SAFETY: getauxval has no requirements.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
