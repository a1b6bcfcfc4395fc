//! Images: the files that sampled processes execute, each read once, when its first sample comes.

use crate::image::{Found, Tables};
use crate::maps::{FileId, Mapping};
use crate::target;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::rc::Rc;
use uncopy_unwind::tables::Context;

/// Number of an image. Images are per process where no file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(u32);

impl ImageId {
    /// Code of the kernel.
    pub const KERNEL: Self = Self(0);
    /// Memory that no file is behind, or whose file cannot be read. Addresses are the process's own.
    pub const UNKNOWN: Self = Self(1);
    const FIRST_FILE: u32 = 2;
}

/// Code location: an address in the address space of an image, or of the process where there is no image. In
/// a caller's frame it is the last byte of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    pub image: ImageId,
    pub address: u64,
}

/// An image that has been read.
pub struct Image {
    /// Path as the process sees it.
    pub name: Rc<[u8]>,
    pub tables: Tables,
    /// The file, for reading its symbols later; `None` for the vDSO.
    pub file: Option<File>,
}

/// All images, by file.
#[derive(Default)]
pub struct Images {
    list: Vec<Image>,
    ids: FxHashMap<(FileId, Rc<[u8]>), ImageId>,
    /// Processes that have the mapping that is being looked up.
    pids: [u32; MAX_ANCESTORS],
    /// Failed attempts to open a file.
    failures: FxHashMap<FileId, u32>,
}

/// Processes through which a file is opened: one with the mapping, and those that it inherited it from.
pub const MAX_ANCESTORS: usize = 4;
/// Attempts to open a file: the process may have ended, while the next with the file lives.
const MAX_ATTEMPTS: u32 = 8;

/// Maximum number of images; code of further files is unknown.
const MAX_IMAGES: usize = 4096;

impl Images {
    /// Sets the processes whose mappings are looked up next.
    pub fn set_processes(&mut self, pids: [u32; MAX_ANCESTORS]) {
        self.pids = pids;
    }

    /// Returns the image of a mapping, and reads it on first use.
    pub fn of(&mut self, mapping: &Mapping) -> ImageId {
        let is_vdso = &*mapping.name == b"[vdso]";
        if mapping.file.inode == 0 && !is_vdso {
            return ImageId::UNKNOWN;
        }
        let key = (mapping.file, mapping.name.clone());
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        if self.list.len() >= MAX_IMAGES {
            return ImageId::UNKNOWN;
        }
        let image = if is_vdso {
            Some(Image { name: mapping.name.clone(), tables: Tables::read_vdso(), file: None })
        } else {
            let opened = self.pids.iter().find_map(|pid| target::open_mapped(*pid, mapping));
            opened.and_then(|file| {
                let tables = Tables::read(file.try_clone().ok()?);
                Some(Image { name: mapping.name.clone(), tables, file: Some(file) })
            })
        };
        let id = match image {
            Some(image) => {
                self.list.push(image);
                u32::try_from(self.list.len() - 1)
                    .map_or(ImageId::UNKNOWN, |at| ImageId(at + ImageId::FIRST_FILE))
            }
            None => {
                let failures = self.failures.entry(mapping.file).or_default();
                *failures += 1;
                if *failures < MAX_ATTEMPTS {
                    return ImageId::UNKNOWN;
                }
                ImageId::UNKNOWN
            }
        };
        self.ids.insert(key, id);
        id
    }

    /// Returns an image that has been read; `None` for the kernel and unknown code.
    pub fn get(&self, id: ImageId) -> Option<&Image> {
        self.list.get(id.0.checked_sub(ImageId::FIRST_FILE)? as usize)
    }

    /// Returns the frame for an address in a mapping of an image.
    pub fn frame(&self, image: ImageId, mapping: &Mapping, address: u64) -> Frame {
        let in_image = self.get(image).and_then(|found| {
            let offset = (address - mapping.start).checked_add(mapping.offset)?;
            found.tables.address(offset)
        });
        match in_image {
            Some(address) => Frame { image, address },
            None => Frame { image: ImageId::UNKNOWN, address },
        }
    }

    /// Returns the rule for unwinding from code of an image.
    pub fn rule(&self, image: ImageId, ip: u64, is_exact: bool, context: &mut Context) -> Found {
        self.get(image).map_or(Found::Nothing, |image| image.tables.rule(ip, is_exact, context))
    }

    /// Returns the image of a mapping if it has been read.
    pub fn known(&self, mapping: &Mapping) -> Option<ImageId> {
        self.ids.get(&(mapping.file, mapping.name.clone())).copied()
    }
}
