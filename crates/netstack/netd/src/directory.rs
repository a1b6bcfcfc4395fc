//! The private directory where programs find the service; created by the service and removed when it ends.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use uncopy_net::paths::{self, ServicePaths};
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::{mem, seqpacket};

/// The service's directory and its control socket, both removed when dropped.
pub struct Directory {
    path: PathBuf,
    /// Paths of the sockets.
    pub paths: ServicePaths,
    /// The listening control socket.
    pub control: OwnFd,
}

/// Returns a path for system calls.
pub(crate) fn name(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

impl Directory {
    /// Creates the sockets, and the directory if missing, which must be private to its owner.
    ///
    /// # Errors
    /// EINVAL: the path is relative or too long. EADDRINUSE: a service is running. EPERM: others
    /// can enter the directory. Else the errors of socket(2), bind(2) and mkdir(2).
    pub fn make(control: &Path) -> Result<Self, Errno> {
        let paths = ServicePaths::of_control(control.as_os_str().as_bytes()).ok_or(Errno::EINVAL)?;
        let path = control.parent().ok_or(Errno::EINVAL)?.to_owned();
        mem::make_private_directory(&name(&path)?)?;
        if seqpacket::connect(&paths.control).is_ok() {
            return Err(Errno(libc::EADDRINUSE));
        }
        remove_files(&path);
        for folder in [paths::LISTENERS, paths::LANES] {
            mem::make_private_directory(&name(&path.join(folder))?)?;
        }
        let control = seqpacket::listen(&paths.control)?;
        Ok(Self { path, paths, control })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // No client can connect from here on; the descriptor is closed last.
        seqpacket::shut_down(&self.control);
        remove_files(&self.path);
        // Fails, as it should, if the directory has files of others.
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn remove_files(path: &Path) {
    let remove_all = |folder: &Path| -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            std::fs::remove_file(entry?.path())?;
        }
        std::fs::remove_dir(folder)
    };
    for folder in [paths::LISTENERS, paths::LANES] {
        let _ = remove_all(&path.join(folder));
    }
    for socket in [paths::CONTROL, "control~"] {
        let _ = std::fs::remove_file(path.join(socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_service_is_refused_and_directory_is_removed() {
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
