//! The mapping at an address from the text of `/proc/self/maps` (proc_pid_maps(5)), for kernels
//! without PROCMAP_QUERY. Takes some 20 ns for each mapping before it.

use crate::call::{kernel, syscall};
use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};

/// Bytes read at a time, few because the stack may be small.
const BUFFER_BYTES: usize = 1024;

/// One line of the file: a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Offset in the file of the mapping's first byte.
    pub(crate) offset: u64,
    /// Inode of the file; 0 if none is mapped.
    pub(crate) inode: u64,
}

/// Returns the line for `address`, read from the start of `fd`, an open `/proc/self/maps`; `None`
/// if nothing is mapped there. `name` receives the mapping's name, cut or padded with zeroes.
///
/// # Errors
/// Errors of pread(2).
pub(crate) fn find(fd: impl Descriptor, address: usize, name: &mut [u8]) -> Result<Option<Line>, Errno> {
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut line = Parser::default();
    let mut at = 0usize;
    name.fill(0);
    loop {
        // SAFETY: pread(2) writes at most `BUFFER_BYTES` bytes, the length of `buffer`.
        let got = check(unsafe {
            kernel!(Read, syscall!(libc::SYS_pread64, fd, buffer.as_mut_ptr(), BUFFER_BYTES, at))
        })?;
        if got == 0 {
            return Ok(None);
        }
        at += got as usize;
        for byte in &buffer[..got as usize] {
            if *byte != b'\n' {
                line.take(*byte, name);
                continue;
            }
            if (line.found.start..line.found.end).contains(&address) {
                return Ok(Some(line.found));
            }
            let used = line.name_len.min(name.len());
            name[..used].fill(0);
            line = Parser::default();
        }
    }
}

/// Parser of lines `start-end rights offset major:minor inode   name`.
#[derive(Default)]
struct Parser {
    found: Line,
    /// Index of the field of the last byte, from 0; all after the fifth are the name.
    field: u32,
    is_between: bool,
    name_len: usize,
}

impl Parser {
    fn take(&mut self, byte: u8, name: &mut [u8]) {
        const RANGE: u32 = 0;
        const OFFSET: u32 = 2;
        const INODE: u32 = 4;
        const NAME: u32 = 5;
        if byte == b' ' && self.field < NAME {
            self.is_between = true;
            return;
        }
        if core::mem::take(&mut self.is_between) {
            self.field += 1;
        }
        let digit = |radix| u64::from((byte as char).to_digit(radix).unwrap_or(0));
        match self.field {
            RANGE if byte == b'-' => self.found.start = core::mem::take(&mut self.found.end),
            RANGE => self.found.end = self.found.end.wrapping_mul(16).wrapping_add(digit(16) as usize),
            OFFSET => self.found.offset = self.found.offset.wrapping_mul(16).wrapping_add(digit(16)),
            INODE => self.found.inode = self.found.inode.wrapping_mul(10).wrapping_add(digit(10)),
            NAME.. => {
                if let Some(place) = name.get_mut(self.name_len) {
                    *place = byte;
                }
                self.name_len += 1;
            }
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    fn found(text: &str, address: usize) -> Option<(Line, String)> {
        let path = std::env::temp_dir().join(format!("uncopy-maps-{}-{address}", std::process::id()));
        std::fs::write(&path, text).expect("written");
        let file = std::fs::File::open(&path).expect("open");
        std::fs::remove_file(&path).expect("removed");
        let mut name = [7u8; 32];
        let line = find(file.as_fd(), address, &mut name).expect("read")?;
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Some((line, String::from_utf8_lossy(&name[..len]).into_owned()))
    }

    #[test]
    fn a_line_is_found_with_its_file() {
        let long = format!("3000-4000 r--p 00000000 00:00 7 /{}\n", "x".repeat(5000));
        let text = format!(
            "1000-2000 r-xp 0000a000 fd:01 1234                       /a b (deleted)\n{long}\
             7ffe0000-7fff0000 rw-p 00000000 00:00 0                          [stack]\n"
        );
        let line = Line { start: 0x1000, end: 0x2000, offset: 0xa000, inode: 1234 };
        assert_eq!(found(&text, 0x1fff), Some((line, "/a b (deleted)".to_owned())));
        assert_eq!(found(&text, 0x2000), None);
        assert_eq!(found(&text, 0x3000).expect("mapped").1.len(), 32, "cut to what fits");
        let stack = Line { start: 0x7ffe_0000, end: 0x7fff_0000, offset: 0, inode: 0 };
        assert_eq!(found(&text, 0x7ffe_1000), Some((stack, "[stack]".to_owned())));
        assert_eq!(found("", 1), None);
    }

    #[test]
    fn it_agrees_with_what_the_kernel_answers() {
        let maps = std::fs::File::open("/proc/self/maps").expect("open");
        let mut name = [0u8; 4200];
        let mut line = |address| find(maps.as_fd(), address, &mut name).expect("read");
        let code = Parser::take as *const () as usize;
        let of_code = line(code).expect("mapped");
        let mut path = [0u8; 4096];
        let place = crate::procmap::file_at(code, &mut path).expect("asked").expect("a file");
        assert_eq!(
            (of_code.inode, of_code.offset + (code - of_code.start) as u64),
            (place.inode, place.offset)
        );
        assert_eq!(line(8), None);
    }
}
