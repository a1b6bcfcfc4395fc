//! Paths in the service's directory. Programs know the service by the path of its control socket.

use std::ffi::CString;

/// Name of the control socket.
pub const CONTROL: &str = "control";
/// Folder of programs' bound sockets.
pub const LISTENERS: &str = "l";
/// Folder of the lanes' sockets.
pub const LANES: &str = "lanes";
/// Maximum length of the control socket's path, bytes, which leaves room for a listener's address.
pub const MAX_CONTROL_PATH_BYTES: usize = 56;

/// Paths of a service.
#[derive(Clone, Debug)]
pub struct ServicePaths {
    /// Path of the control socket.
    pub control: CString,
    /// Folder of programs' bound sockets.
    pub listeners: Vec<u8>,
    /// Folder of the lanes' sockets.
    pub lanes: String,
}

impl ServicePaths {
    /// Returns the paths of the service with this control socket; `None`: the path is not absolute or too long.
    #[must_use]
    pub fn of_control(control: &[u8]) -> Option<Self> {
        let is_legal = control.first() == Some(&b'/') && control.len() <= MAX_CONTROL_PATH_BYTES;
        let text = std::str::from_utf8(control).ok().filter(|_| is_legal)?;
        let (directory, _) = text.rsplit_once('/')?;
        Some(Self {
            control: CString::new(control).ok()?,
            listeners: format!("{directory}/{LISTENERS}").into_bytes(),
            lanes: format!("{directory}/{LANES}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_beside_the_control_socket() {
        let paths = ServicePaths::of_control(b"/dev/shm/uncopy-0/net/utun0/control").expect("a path");
        assert_eq!(paths.listeners, b"/dev/shm/uncopy-0/net/utun0/l");
        assert_eq!(paths.lanes, "/dev/shm/uncopy-0/net/utun0/lanes");
        assert!(ServicePaths::of_control(b"control").is_none());
        assert!(ServicePaths::of_control(b"/a\0b/control").is_none());
        assert!(ServicePaths::of_control(&[b'/'; MAX_CONTROL_PATH_BYTES + 1]).is_none());
    }
}
