//! Where in the service's directory what is. Programs know the service by the path of its control socket.

use std::ffi::CString;

/// The control socket's name in the directory.
pub const CONTROL: &str = "control";
/// The folder of programs' listeners.
pub const LISTENERS: &str = "l";
/// The folder where lanes meet.
pub const LANES: &str = "lanes";
/// Bytes of the control socket's path, at most: behind it a listener's address has room.
pub const MAX_CONTROL_BYTES: usize = 56;

/// The paths of a service.
#[derive(Clone, Debug)]
pub struct Places {
    /// The control socket.
    pub control: CString,
    /// The folder of programs' listeners.
    pub listeners: Vec<u8>,
    /// The folder where lanes meet.
    pub lanes: String,
}

impl Places {
    /// Those of the service with this control socket, an absolute path; `None`: it is none, or too long.
    #[must_use]
    pub fn of_control(control: &[u8]) -> Option<Self> {
        let is_legal = control.first() == Some(&b'/') && control.len() <= MAX_CONTROL_BYTES;
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
        let places = Places::of_control(b"/dev/shm/uncopy-0/net/utun0/control").expect("a path");
        assert_eq!(places.listeners, b"/dev/shm/uncopy-0/net/utun0/l");
        assert_eq!(places.lanes, "/dev/shm/uncopy-0/net/utun0/lanes");
        assert!(Places::of_control(b"control").is_none());
        assert!(Places::of_control(b"/a\0b/control").is_none());
        assert!(Places::of_control(&[b'/'; MAX_CONTROL_BYTES + 1]).is_none());
    }
}
