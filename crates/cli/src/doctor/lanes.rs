//! Checks the directory in which programs with lanes meet; no other user may enter it.

use super::Check;
use crate::environment::Environment;
use crate::settings::is_private_or_creatable;
use crate::{live, os};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub fn check(environment: &Environment) -> Check {
    match environment.get(b"UNCOPY_LANES_DIR") {
        Some(given) => check_directory(Path::new(OsStr::from_bytes(given))),
        None => check_directory(&live::directory_of(live::shared_memory(), os::effective_user_id())),
    }
}

fn check_directory(directory: &Path) -> Check {
    const NAME: &str = "lanes";
    let shown = directory.display();
    if is_private_or_creatable(directory) {
        return Check::ok(NAME, format!("programs find each other in {shown}"));
    }
    let found = format!("{shown} is not your own directory with mode 0700: run --lanes will use no lanes");
    Check::warning(NAME, found).with_fix(format!("chmod 700 {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_others_can_enter_is_no_place_to_meet() {
        let directory = std::env::temp_dir().join(format!("uncopy-doctor-{}", std::process::id()));
        assert_eq!(check_directory(&directory).state, State::Ok, "it can be made");
        fs::create_dir(&directory).expect("a directory");
        let state = |mode| {
            fs::set_permissions(&directory, Permissions::from_mode(mode)).expect("its owner");
            check_directory(&directory).state
        };
        let states = [0o700, 0o755, 0o1777].map(state);
        fs::remove_dir(&directory).expect("empty");
        assert_eq!(states, [State::Ok, State::Warning, State::Warning]);
        assert_eq!(check_directory(Path::new("/nonexistent/room")).state, State::Warning);
    }
}
