//! Steps of the simulated program, and of another one that changes its files.

use uncopy_mapped::chunks::Pins;
use uncopy_mapped::log::Log;
use uncopy_mapped::overlay::Overlay;
use uncopy_mapped::parts::Part;
use uncopy_mapped::record::Reference;
use uncopy_mapped::table::{FileId, Identity};

use crate::files::{Operation, Promise};
use crate::memory::{Mutation, Region};
use crate::system::{CHUNKS, FILES, MAX_FILE_BYTES, Machine, ORIGINS};

/// State of the program.
pub struct Writer {
    pub log: Log<Region>,
    pub pins: Pins,
    pub files: Vec<Tracked>,
}

/// Bytes of a part of a write, and where they lie in a chunk.
type OwnedPart = (Vec<u8>, Option<Reference>);

pub struct Tracked {
    pub id: Option<FileId>,
    pub overlay: Overlay,
}

impl Writer {
    pub fn new(log: Log<Region>) -> Self {
        let files = (0..FILES).map(|_| Tracked { id: None, overlay: Overlay::new(0) }).collect();
        Self { log, pins: Pins::new(), files }
    }
}

fn identity(file: usize) -> Identity {
    Identity { device: 1, inode: file as u64, generation: 7, path: vec![b'a' + file as u8; 10 + 60 * file] }
}

impl Machine {
    pub fn writer_step(&self) {
        let Ok(mut writer) = self.writer.try_borrow_mut() else { return };
        let Some(writer) = writer.as_mut() else { return };
        let number = self.search.below(FILES);
        if self.leaving.get() == Some(number) {
            return;
        }
        let Some(id) = writer.files[number].id else {
            if let Ok(id) = writer.log.register(&identity(number)) {
                let size = self.promises.borrow()[number].content().len() as u64 + ORIGINS[number];
                writer.files[number] = Tracked { id: Some(id), overlay: Overlay::new(size) };
            }
            return;
        };
        match self.search.below(10) {
            0..=5 => self.append(writer, number, id),
            6 => self.resize(writer, number, id),
            7 | 8 => {
                if writer.log.sync(id).is_err() {
                    self.fail("a sync".into());
                }
                self.promises.borrow_mut()[number].settle();
            }
            _ => {
                writer.log.commit();
                self.promises.borrow_mut().iter_mut().for_each(Promise::settle);
            }
        }
        let tail = writer.log.release();
        while writer.pins.release(tail).is_some() {}
        writer.files.iter_mut().for_each(|file| file.overlay.retire(tail));
        self.check_overlay(&writer.files[number].overlay, number);
    }

    /// Checks that the program sees its file's size, and knows which bytes the kernel does not have.
    fn check_overlay(&self, overlay: &Overlay, number: usize) {
        let content = self.promises.borrow()[number].content();
        if overlay.size() != ORIGINS[number] + content.len() as u64 {
            self.fail(format!("file {number} has {} bytes, not {}", content.len(), overlay.size()));
        }
        let file = &self.files.borrow()[number].cached;
        let wrong = content.iter().zip(file).position(|(wanted, found)| wanted != found);
        let differs = wrong.or_else(|| (content.len() != file.len()).then(|| content.len().min(file.len())));
        if differs.is_some_and(|at| !overlay.overlaps(ORIGINS[number] + at as u64, 1)) {
            self.fail(format!("byte {differs:?} of file {number} is neither in the file nor in the overlay"));
        }
    }

    /// Begins an operation: it may be found after a crash from now on.
    fn begin(&self, number: usize, operation: Operation) {
        self.promises.borrow_mut()[number].operations.push(operation);
    }

    /// Ends an operation that returned, or one that failed and must have no effect.
    fn end(&self, number: usize, is_done: bool) {
        let promise = &mut self.promises.borrow_mut()[number];
        if is_done {
            promise.returned += 1;
        } else {
            promise.operations.pop();
        }
    }

    /// Returns the parts of the next write.
    fn parts(&self, writer: &Writer) -> Vec<OwnedPart> {
        if self.search.is_uniform {
            // Records of 256 bytes begin where older ones did.
            return vec![(self.search.bytes(192), None)];
        }
        let mut parts = Vec::new();
        for _ in 0..if self.search.one_in(8) { 6 } else { 1 + self.search.below(2) } {
            let part = if self.search.one_in(3) { self.fill_chunk(writer, &parts) } else { None };
            parts.push(part.unwrap_or_else(|| {
                let len = self.search.below(if self.search.one_in(4) { 700 } else { 120 });
                (self.search.bytes(len), None)
            }));
        }
        parts
    }

    fn append(&self, writer: &mut Writer, number: usize, id: FileId) {
        let size = (writer.files[number].overlay.size() - ORIGINS[number]) as usize;
        let at = if self.search.one_in(3) { self.search.below(size + 100) } else { size };
        let owned = self.parts(writer);
        let written: Vec<u8> = owned.iter().flat_map(|(bytes, _)| bytes).copied().collect();
        if at + written.len() > MAX_FILE_BYTES {
            return self.resize(writer, number, id);
        }
        let mut parts = Vec::new();
        for (bytes, reference) in &owned {
            parts.push(reference.map_or(Part::Bytes(bytes), Part::Reference));
        }
        let (offset, len) = (ORIGINS[number] + at as u64, written.len() as u64);
        if written.is_empty() {
            return;
        }
        self.begin(number, Operation::Write(at, written));
        let end = writer.log.append(&self.chunks[..], id, offset, &parts);
        self.end(number, end.is_ok());
        if let Ok(end) = end {
            writer.files[number].overlay.write(offset, len, end);
            writer.pins.pin(end, owned.iter().filter_map(|(_, reference)| *reference));
        }
    }

    /// Fills a chunk that neither a record nor `parts` refer to, and refers to a part of it.
    fn fill_chunk(&self, writer: &Writer, parts: &[OwnedPart]) -> Option<OwnedPart> {
        let chunk = self.search.below(CHUNKS);
        let reuses = self.search.mutation == Some(Mutation::ReuseChunks);
        let is_part = |(_, part): &OwnedPart| part.is_some_and(|part| part.chunk == chunk as u32);
        if (writer.pins.is_pinned(chunk as u32) && !reuses) || parts.iter().any(is_part) {
            return None;
        }
        let (at, len) = (self.search.below(300), 1 + self.search.below(200));
        let bytes = self.search.bytes(len);
        // The bytes were received into the chunk: by a copy of the kernel, which flushes nothing.
        self.memory.sim.cells.borrow_mut().receive(self.chunks[chunk].base + at, &bytes);
        Some((bytes, Some(Reference { chunk: chunk as u32, at: at as u64, len_bytes: len as u32 })))
    }

    fn resize(&self, writer: &mut Writer, number: usize, id: FileId) {
        let len = self.search.below(if self.search.one_in(2) { 200 } else { 2000 });
        let size = ORIGINS[number] + len as u64;
        self.begin(number, Operation::Resize(len));
        let end = writer.log.resize(id, size);
        self.end(number, end.is_ok());
        if let Ok(end) = end {
            writer.files[number].overlay.resize(size, end);
        }
    }

    /// Digests one file. It leaves the log and another program changes it, or it continues under a new registration.
    pub fn digest_file(&self) {
        let (old, number, leaves) = {
            let mut writer = self.writer.borrow_mut();
            let Some(writer) = writer.as_mut() else { return };
            let number = self.search.below(FILES);
            let leaves = self.search.one_in(2);
            let Some(old) = writer.files[number].id else { return };
            writer.files[number].id = None;
            writer.log.commit();
            self.promises.borrow_mut().iter_mut().for_each(Promise::settle);
            if !leaves {
                let Ok(new) = writer.log.register(&identity(number)) else {
                    writer.files[number].id = Some(old);
                    return;
                };
                writer.files[number].id = Some(new);
            }
            (old, number, leaves)
        };
        let mut digester = self.digester.borrow_mut();
        let Some(digester) = digester.as_mut() else { return };
        self.leaving.set(leaves.then_some(number));
        let mut from = None;
        loop {
            let batch = match digester.plan_file(&self.chunks[..], old, from, self.limits()) {
                Ok(batch) => batch,
                Err(why) => return self.fail(why.to_string()),
            };
            self.note(self.carry_out(batch.plan.as_slice()));
            from = Some(batch.through);
            if batch.is_last || self.failed() {
                break;
            }
        }
        if !digester.forget(old) {
            return self.fail("the file was not forgotten".into());
        }
        if let Some(writer) = self.writer.borrow_mut().as_mut() {
            writer.log.leave(old);
        }
        if leaves {
            let found = self.files.borrow()[number].cached.clone();
            self.note(self.promises.borrow()[number].check(&found, 0));
            self.change_outside(number);
            self.leaving.set(None);
        }
    }

    /// Lets another program change a file that has no records.
    pub fn change_outside(&self, number: usize) {
        let bytes = self.search.bytes(self.search.below(600));
        self.promises.borrow_mut()[number] = Promise { base: bytes.clone(), ..Promise::default() };
        self.files.borrow_mut()[number].set(bytes);
        self.memory.sim.step();
    }
}
