//! The folder where programs find the service: made, and emptied when the service ends. Nobody but its user can enter it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use uncopy_net::places::{self, Places};
use uncopy_sys::errno::Errno;
use uncopy_sys::{link, mem};

/// The control socket of a service, which stops listening when this is dropped.
pub struct Directory {
    path: PathBuf,
    /// Where what is.
    pub places: Places,
    /// The control socket.
    pub control: i32,
}

fn name(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

impl Directory {
    /// Makes the sockets. The folder of the control socket, which is made if it is not there, must be one that only its owner can enter.
    ///
    /// # Errors
    /// EINVAL: the path is relative or too long. EADDRINUSE: there is a service. EPERM: others can enter the folder. Else what making
    /// sockets and folders says.
    pub fn make(control: &Path) -> Result<Self, Errno> {
        let places = Places::of_control(control.as_os_str().as_bytes()).ok_or(Errno::EINVAL)?;
        let path = control.parent().ok_or(Errno::EINVAL)?.to_owned();
        mem::make_private_directory(&name(&path)?)?;
        if let Ok(other) = link::connect(&places.control) {
            link::end(other);
            return Err(Errno(libc::EADDRINUSE));
        }
        empty(&path);
        for folder in [places::LISTENERS, places::LANES] {
            mem::make_private_directory(&name(&path.join(folder))?)?;
        }
        let control = link::listen(&places.control)?;
        Ok(Self { path, places, control })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        link::end(self.control);
        empty(&self.path);
        // If something of somebody else's is in it, it stays.
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Removes what a service has made.
fn empty(path: &Path) {
    let remove_all = |folder: &Path| -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            std::fs::remove_file(entry?.path())?;
        }
        std::fs::remove_dir(folder)
    };
    for folder in [places::LISTENERS, places::LANES] {
        let _ = remove_all(&path.join(folder));
    }
    for socket in [places::CONTROL, "control~"] {
        let _ = std::fs::remove_file(path.join(socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_service_and_nothing_is_left_of_it() {
        let path = std::env::temp_dir().join(format!("uncopy-netd-{}", std::process::id()));
        let control = path.join("control");
        let directory = Directory::make(&control).expect("made");
        assert_eq!(Directory::make(&control).err(), Some(Errno(libc::EADDRINUSE)));
        std::fs::write(path.join("l/0.0.0.0:80-00000001"), "").expect("written");
        drop(directory);
        assert!(!path.exists());
        std::fs::create_dir(&path).expect("made");
        assert_eq!(Directory::make(&control).err(), Some(Errno::EPERM), "others can enter it");
        std::fs::remove_dir(&path).expect("removed");
        assert_eq!(Directory::make(Path::new("control")).err(), Some(Errno::EINVAL));
    }
}
