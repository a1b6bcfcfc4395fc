//! Hand-made, damaged and random ELF files.

use super::*;
use object::elf::{
    DT_NEEDED, DT_STRSZ, DT_STRTAB, PT_DYNAMIC, PT_INTERP, PT_LOAD, PT_NOTE, SHT_DYNSYM, SHT_PROGBITS,
    SHT_STRTAB,
};
use proptest::prelude::*;
use std::fs::File;
use std::io::Cursor;

/// Builder of a 64-bit file of this machine; parts are laid out one after the other.
#[derive(Default)]
struct Builder {
    segments: Vec<(u32, Vec<u8>)>,
    needed: Vec<&'static str>,
    sections: Vec<(&'static str, u32, Vec<u8>)>,
}

const DATA_AT: usize = 4096;
const SECTION_HEADER_BYTES: usize = size_of::<elf::SectionHeader64<NativeEndian>>();
const SYMBOL_BYTES: usize = size_of::<elf::Sym64<NativeEndian>>();

fn image(bytes: &[u8]) -> Image<Cursor<&[u8]>> {
    Image::read(Cursor::new(bytes))
}

impl Builder {
    fn segment(mut self, kind: u32, content: &[u8]) -> Self {
        self.segments.push((kind, content.to_vec()));
        self
    }

    fn needs(mut self, library: &'static str) -> Self {
        self.needed.push(library);
        self
    }

    fn section(mut self, name: &'static str, kind: u32, content: Vec<u8>) -> Self {
        self.sections.push((name, kind, content));
        self
    }

    fn build(mut self) -> Vec<u8> {
        let mut data: Vec<u8> = Vec::new();
        let mut headers: Vec<[u64; 4]> = Vec::new();
        if !self.needed.is_empty() {
            let mut names = vec![0];
            let mut dynamic = Vec::new();
            let mut entry = |tag: u32, value: u64| {
                dynamic.extend(u64::from(tag).to_ne_bytes());
                dynamic.extend(value.to_ne_bytes());
            };
            for library in &self.needed {
                entry(DT_NEEDED, names.len() as u64);
                names.extend(library.bytes().chain([0]));
            }
            // The load segment maps the file at 0x400000.
            entry(DT_STRTAB, 0x0040_0000 + DATA_AT as u64);
            entry(DT_STRSZ, names.len() as u64);
            entry(0, 0);
            data.extend(&names);
            headers.push([u64::from(PT_LOAD), 0, 0x0040_0000, (DATA_AT + names.len()) as u64]);
            self.segments.push((PT_DYNAMIC, dynamic));
        }
        for (kind, content) in &self.segments {
            headers.push([u64::from(*kind), (DATA_AT + data.len()) as u64, 0, content.len() as u64]);
            data.extend(content);
        }
        let mut section_names = vec![0];
        let mut section_headers = vec![[0u64; 5]];
        // Section 1 is the dynamic symbols' name table, which their header links to.
        for (name, kind, content) in &self.sections {
            let at = section_names.len() as u64;
            section_names.extend(name.bytes().chain([0]));
            section_headers.push([
                at,
                u64::from(*kind),
                (DATA_AT + data.len()) as u64,
                content.len() as u64,
                1,
            ]);
            data.extend(content);
        }
        let at = section_names.len() as u64;
        section_names.extend(b".shstrtab\0");
        section_headers.push([
            at,
            u64::from(SHT_STRTAB),
            (DATA_AT + data.len()) as u64,
            section_names.len() as u64,
            0,
        ]);
        data.extend(&section_names);
        let sections_at = DATA_AT + data.len();

        let mut file = vec![0; DATA_AT];
        file[..4].copy_from_slice(b"\x7fELF");
        file[4] = 2;
        file[5] = if cfg!(target_endian = "little") { 1 } else { 2 };
        let mut put = |at: usize, value: &[u8]| file[at..at + value.len()].copy_from_slice(value);
        put(18, &THIS_MACHINE.unwrap_or(0).to_ne_bytes());
        put(32, &64u64.to_ne_bytes());
        put(40, &(sections_at as u64).to_ne_bytes());
        put(54, &56u16.to_ne_bytes());
        put(56, &u16::try_from(headers.len()).expect("few").to_ne_bytes());
        put(58, &64u16.to_ne_bytes());
        put(60, &u16::try_from(section_headers.len()).expect("few").to_ne_bytes());
        put(62, &u16::try_from(section_headers.len() - 1).expect("few").to_ne_bytes());
        for (index, [kind, offset, address, len_bytes]) in headers.into_iter().enumerate() {
            let at = 64 + 56 * index;
            put(at, &u32::try_from(kind).expect("small").to_ne_bytes());
            put(at + 8, &offset.to_ne_bytes());
            put(at + 16, &address.to_ne_bytes());
            put(at + 32, &len_bytes.to_ne_bytes());
        }
        file.extend(data);
        for [name, kind, offset, len_bytes, link] in section_headers {
            let mut header = [0; SECTION_HEADER_BYTES];
            header[..4].copy_from_slice(&u32::try_from(name).expect("small").to_ne_bytes());
            header[4..8].copy_from_slice(&u32::try_from(kind).expect("small").to_ne_bytes());
            header[24..32].copy_from_slice(&offset.to_ne_bytes());
            header[32..40].copy_from_slice(&len_bytes.to_ne_bytes());
            header[40..44].copy_from_slice(&u32::try_from(link).expect("small").to_ne_bytes());
            file.extend(header);
        }
        file
    }
}

fn go_note() -> Vec<u8> {
    let mut note = Vec::new();
    for (name, kind, content) in [(b"GNU\0", 3u32, [7u8; 20].as_slice()), (b"Go\0\0", 4, b"abcd")] {
        note.extend(4u32.to_ne_bytes());
        note.extend(u32::try_from(content.len()).expect("small").to_ne_bytes());
        note.extend(kind.to_ne_bytes());
        note.extend(name);
        note.extend(content);
    }
    note
}

fn dynamic_file() -> Vec<u8> {
    let mut symbols = vec![0; SYMBOL_BYTES];
    // "malloc" is defined (in section 7), "free" is only needed.
    for (name_at, section) in [(1u32, 7u16), (8, 0)] {
        let mut symbol = [0; SYMBOL_BYTES];
        symbol[..4].copy_from_slice(&name_at.to_ne_bytes());
        symbol[6..8].copy_from_slice(&section.to_ne_bytes());
        symbols.extend(symbol);
    }
    Builder::default()
        .segment(PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0")
        .segment(PT_NOTE, &go_note())
        .needs("libjemalloc.so.2")
        .needs("libc.so.6")
        .section(".dynstr", SHT_STRTAB, b"\0malloc\0free\0".to_vec())
        .section(".dynsym", SHT_DYNSYM, symbols)
        .build()
}

/// Calls every function that reads the file.
fn read_all(bytes: &[u8]) {
    let image = image(bytes);
    let _ = image.kind();
    let _ = image.loader();
    let _ = image.needed();
    let _ = image.is_go();
    let _ = image.symbols(&["malloc"]);
}

#[test]
fn dynamic_program_names_its_loader_and_libraries() {
    let bytes = dynamic_file();
    let image = image(&bytes);
    assert_eq!(image.kind(), Kind::Native);
    assert_eq!(image.loader().as_deref(), Some(b"/lib64/ld-linux-x86-64.so.2".as_slice()));
    assert_eq!(image.needed(), [b"libjemalloc.so.2".to_vec(), b"libc.so.6".to_vec()]);
}

#[test]
fn program_without_interp_segment_is_static() {
    let bytes = Builder::default().segment(PT_NOTE, b"").build();
    let image = image(&bytes);
    assert_eq!(image.kind(), Kind::Native);
    assert_eq!((image.loader(), image.needed(), image.is_go()), (None, Vec::new(), false));
}

#[test]
fn go_is_known_by_its_section_or_its_note() {
    let section = Builder::default().section(".go.buildinfo", SHT_PROGBITS, vec![1]).build();
    assert!(image(&section).is_go());
    let note = Builder::default().segment(PT_NOTE, &go_note()).build();
    assert!(image(&note).is_go());
    let neither = Builder::default().section(".go.buildinf", SHT_PROGBITS, vec![1]).build();
    assert!(!image(&neither).is_go());
}

#[test]
fn defined_symbols_are_told_from_those_of_others() {
    let bytes = dynamic_file();
    let found = image(&bytes).symbols(&["malloc", "free", "calloc"]).expect("a table");
    assert_eq!(found, Symbols { defined: vec!["malloc"], imported: vec!["free"] });
    assert_eq!(image(b"#!/bin/sh\n").symbols(&["malloc"]), None);
}

#[test]
fn other_classes_and_machines_are_told_apart() {
    let mut bytes = dynamic_file();
    bytes[18..20].copy_from_slice(&243u16.to_ne_bytes());
    assert_eq!(image(&bytes).kind(), Kind::OtherMachine(243));
    // The other byte order: machine 0x16 (S/390) as that machine writes it.
    bytes[5] = 3 - bytes[5];
    bytes[18..20].copy_from_slice(&0x16u16.swap_bytes().to_ne_bytes());
    assert_eq!(image(&bytes).kind(), Kind::OtherMachine(0x16));
    bytes[4] = 1;
    assert_eq!(image(&bytes).kind(), Kind::Bits32);
    bytes[4] = 9;
    assert_eq!(image(&bytes).kind(), Kind::Other);
}

#[test]
fn script_lines_are_split_as_the_kernel_splits_them() {
    let kind = |line: &[u8]| image(line).kind();
    let script = |interpreter: &[u8], argument: Option<&[u8]>| Kind::Script {
        interpreter: interpreter.to_vec(),
        argument: argument.map(<[u8]>::to_vec),
    };
    assert_eq!(kind(b"#!/bin/sh\necho"), script(b"/bin/sh", None));
    assert_eq!(kind(b"#! /bin/sh -e -u \nx"), script(b"/bin/sh", Some(b"-e -u")));
    assert_eq!(kind(b"#!/usr/bin/env\tpython3"), script(b"/usr/bin/env", Some(b"python3")));
    assert_eq!(kind(b"#!\n"), Kind::Other);
    assert_eq!(kind(b"#!"), Kind::Other);
    assert_eq!(kind(b""), Kind::Other);
    assert_eq!(kind(b"\x7fELF"), Kind::Other);
}

#[test]
fn every_truncation_is_read_without_panic() {
    let bytes = dynamic_file();
    for end in (0..bytes.len()).filter(|end| *end < 320 || *end >= DATA_AT) {
        read_all(&bytes[..end]);
    }
}

#[test]
fn absurd_sizes_and_offsets_read_as_absent() {
    for (at, width) in [(32, 8), (40, 8), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2)] {
        let mut bytes = dynamic_file();
        bytes[at..at + width].fill(0xff);
        read_all(&bytes);
    }
    for header in 0..4 {
        for field in [8, 16, 32] {
            let mut bytes = dynamic_file();
            bytes[64 + 56 * header + field..][..8].fill(0xff);
            read_all(&bytes);
        }
    }
}

#[test]
fn tables_as_long_as_a_sparse_file_read_as_absent() {
    const FILE_BYTES: u64 = 1 << 40;
    let path = std::env::temp_dir().join(format!("uncopy-elf-test-{}", std::process::id()));
    // Program headers of the loader's name, the notes and the dynamic section.
    for header in 1..4 {
        let mut bytes = dynamic_file();
        bytes[64 + 56 * header + 32..][..8].copy_from_slice(&(FILE_BYTES / 2).to_ne_bytes());
        std::fs::write(&path, &bytes).expect("written");
        let file = File::options().read(true).write(true).open(&path).expect("opened");
        file.set_len(FILE_BYTES).expect("sparse");
        let image = Image::read(&file);
        let found = (image.loader().is_some(), image.needed().is_empty(), image.is_go());
        assert_ne!(found, (true, false, true), "header {header}");
    }
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn this_test_itself_is_a_dynamic_native_program() {
    let file = File::open("/proc/self/exe").expect("own program");
    let image = Image::read(&file);
    assert_eq!(image.kind(), Kind::Native);
    assert!(image.loader().is_some());
    assert!(image.needed().iter().any(|name| name.starts_with(b"libc.so")), "{:?}", image.needed());
    assert!(!image.is_go());
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
        read_all(&bytes);
    }

    #[test]
    fn random_bytes_after_a_good_start_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..6000),
        order in 0u8..4,
    ) {
        let mut file = b"\x7fELF\x02".to_vec();
        file.push(order);
        file.extend(bytes);
        if let Some(machine) = file.get_mut(18..20) {
            machine.copy_from_slice(&THIS_MACHINE.unwrap_or(0).to_ne_bytes());
        }
        read_all(&file);
    }

    #[test]
    fn damaged_files_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
    ) {
        let mut bytes = dynamic_file();
        for (offset, value) in damage {
            // Most of the first page is padding: damage the bytes that are read.
            let offset = offset.index(bytes.len() - DATA_AT + 512);
            let offset = if offset < 512 { offset } else { offset - 512 + DATA_AT };
            bytes[offset] = value;
        }
        read_all(&bytes);
    }
}
