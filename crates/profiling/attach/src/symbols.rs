//! Names of code: symbol tables of files, of the kernel, and of just-in-time compilers.
//!
//! Only the addresses that samples have are looked up, and only their names are read.

use crate::bounded::Bounded;
use crate::function::{Function, clean};
use crate::go::GoFunctions;
use crate::image;
use object::read::ReadCache;
use object::{Object as _, ObjectSymbol as _, SymbolKind};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Directory of separate debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug/.build-id";
/// Maximum symbols of a file; further ones are ignored.
const MAX_SYMBOLS: usize = 1 << 22;
/// Maximum pairs of a symbol and an address that are compared.
const MAX_COMPARISONS: usize = 1 << 26;
/// Length of a function whose symbol has no size, at most, bytes.
const MAX_UNSIZED_BYTES: u64 = 2048;
/// Maximum functions of a just-in-time compiler.
const MAX_COMPILED: usize = 1 << 20;

/// Returns for each address, sorted, the function in a file that contains it, if the file or its separate debug
/// file has a symbol for it.
pub fn functions_of_file(file: &File, addresses: &[u64]) -> Vec<Option<Function>> {
    let mut found = vec![None; addresses.len()];
    let Ok(copy) = file.try_clone() else { return found };
    let cache = ReadCache::new(Bounded::new(copy));
    let Some(elf) = image::parse(&cache) else { return found };
    look_up(&elf, addresses, &mut found);
    if found.iter().any(Option::is_none)
        && let Some(functions) = GoFunctions::find(&elf)
    {
        for (address, found) in addresses.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            *found = functions.function(*address);
        }
    }
    if found.iter().any(Option::is_none)
        && let Some(id) = elf.build_id().ok().flatten()
        && let Some(path) = debug_path(id)
        && let Ok(debug) = File::open(path)
    {
        let cache = ReadCache::new(Bounded::new(debug));
        if let Some(debug) = image::parse(&cache).filter(|debug| debug.build_id().ok().flatten() == Some(id))
        {
            look_up(&debug, addresses, &mut found);
        }
    }
    found
}

/// Returns the path of the separate debug file for a build id.
fn debug_path(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let name = hex(rest) + ".debug";
    Some(Path::new(DEBUG_ROOT).join(hex(&[*first])).join(name))
}

/// Fills in the functions of addresses that have none yet.
fn look_up(elf: &image::Elf<'_>, addresses: &[u64], found: &mut [Option<Function>]) {
    // The best symbol of each address so far: whether its size is known, start, and name.
    let mut best: Vec<Option<(bool, u64, &[u8])>> = vec![None; addresses.len()];
    let mut comparisons = 0;
    for symbol in elf.symbols().chain(elf.dynamic_symbols()).take(MAX_SYMBOLS) {
        if !symbol.is_definition() || symbol.kind() != SymbolKind::Text {
            continue;
        }
        let (start, len_bytes) = (symbol.address(), symbol.size());
        // Functions in assembly often have no size; they are short.
        let is_sized = len_bytes > 0;
        let end = start.saturating_add(if is_sized { len_bytes } else { MAX_UNSIZED_BYTES });
        let first = addresses.partition_point(|address| *address < start);
        let covered = addresses[first..].iter().take_while(|address| **address < end).count();
        comparisons += covered;
        if comparisons > MAX_COMPARISONS {
            break;
        }
        for at in first..first + covered {
            // The innermost function; of several names the first, so that the result does not depend on luck.
            let is_better =
                best[at].is_none_or(|(was_sized, so_far, _)| (is_sized, start) > (was_sized, so_far));
            if found[at].is_none() && is_better {
                best[at] = symbol
                    .name_bytes()
                    .ok()
                    .filter(|name| !name.is_empty())
                    .map(|name| (is_sized, start, name));
            }
        }
    }
    for (found, best) in found.iter_mut().zip(best) {
        if let Some((_, start, name)) = best {
            *found = Some(Function { name: clean(name), start });
        }
    }
}

/// Functions of the kernel, sorted by address.
#[derive(Default)]
pub struct KernelSymbols {
    text: Vec<u8>,
    /// Address, and start and end of the name in `text`.
    functions: Vec<(u64, usize, usize)>,
}

impl KernelSymbols {
    /// Reads `/proc/kallsyms`. The result is empty where the kernel hides the addresses
    /// (`kernel.kptr_restrict`).
    pub fn read() -> Self {
        std::fs::read("/proc/kallsyms").map(Self::parse).unwrap_or_default()
    }

    fn parse(text: Vec<u8>) -> Self {
        let mut functions = Vec::new();
        let mut at = 0;
        for line in text.split(|byte| *byte == b'\n') {
            let start = at;
            at += line.len() + 1;
            let Some((address, rest)) = line.split_at_checked(16) else { continue };
            let [b' ', b't' | b'T' | b'w' | b'W', b' ', name @ ..] = rest else { continue };
            let address = std::str::from_utf8(address).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let name_len = name.iter().position(|byte| *byte == b'\t').unwrap_or(name.len());
            let name_start = start + 19;
            if let Some(address) = address.filter(|address| *address != 0) {
                functions.push((address, name_start, name_start + name_len));
            }
        }
        // Modules follow the kernel itself, which is sorted.
        functions.sort_by_key(|(address, _, _)| *address);
        Self { text, functions }
    }

    /// Whether no function is known.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Returns the name of the function that contains an address of kernel code.
    pub fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, _, _)| *start <= address);
        let (_, start, end) = self.functions[..after].last()?;
        std::str::from_utf8(&self.text[*start..*end]).ok()
    }
}

/// Functions of a just-in-time compiler, sorted by address, disjoint.
#[derive(Debug, Default)]
pub struct CompiledCode {
    /// Start, end and name.
    functions: Vec<(u64, u64, String)>,
}

impl CompiledCode {
    /// Parses a file `/tmp/perf-PID.map`: lines `START SIZE NAME`, the numbers hexadecimal.
    pub fn parse(text: &[u8]) -> Self {
        let mut code = Self::default();
        for line in text.split(|byte| *byte == b'\n').take(MAX_COMPILED) {
            let mut fields = line.splitn(3, |byte| *byte == b' ');
            let mut number = || {
                let field = std::str::from_utf8(fields.next()?).ok()?;
                u64::from_str_radix(field.strip_prefix("0x").unwrap_or(field), 16).ok()
            };
            if let (Some(start), Some(len_bytes)) = (number(), number())
                && let Some(name) = fields.next()
                && let Some(end) = start.checked_add(len_bytes)
            {
                code.functions.push((start, end, clean(name)));
            }
        }
        code.functions.sort_by_key(|(start, _, _)| *start);
        code
    }

    /// Adds functions whose starts are known; each extends to the next, at most `max_bytes`.
    pub fn add_starts(&mut self, mut starts: Vec<(u64, String)>, max_bytes: u64) {
        starts.sort();
        starts.dedup_by_key(|(start, _)| *start);
        let ends: Vec<u64> = starts.iter().skip(1).map(|(start, _)| *start).chain([u64::MAX]).collect();
        for ((start, name), end) in starts.into_iter().zip(ends) {
            self.functions.push((start, end.min(start.saturating_add(max_bytes)), name));
        }
        self.functions.sort_by_key(|(start, _, _)| *start);
    }

    /// Returns the function that contains `address`.
    pub fn function(&self, address: u64) -> Option<Function> {
        let after = self.functions.partition_point(|(start, _, _)| *start <= address);
        let (start, _, name) = self.functions[..after].last().filter(|(_, end, _)| address < *end)?;
        Some(Function { name: name.clone(), start: *start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_functions_are_found_by_address() {
        let text = b"ffffffff81000000 T _text\nffffffff81000010 t copy_user\nffffffff81000020 D data\n\
            ffffffffc0000000 t in_module\t[module]\nbroken\n";
        let symbols = KernelSymbols::parse(text.to_vec());
        assert_eq!(symbols.name(0xffff_ffff_8100_0008), Some("_text"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0021), Some("copy_user"));
        assert_eq!(symbols.name(0xffff_ffff_c000_0001), Some("in_module"));
        assert_eq!(symbols.name(1), None);
        let hidden = KernelSymbols::parse(b"0000000000000000 T _text\n0000000000000000 t x\n".to_vec());
        assert!(hidden.is_empty());
    }

    #[test]
    fn compiled_functions_are_found_by_address() {
        let mut code =
            CompiledCode::parse(b"1000 20 Lx;::copy\n0x2000 10 stub name\nnonsense\nffff f\n1 2\n");
        assert_eq!(code.function(0x101f), Some(Function { name: "Lx;::copy".to_owned(), start: 0x1000 }));
        assert_eq!(code.function(0x1020), None);
        assert_eq!(code.function(0x2001).expect("found").name, "stub name");
        code.add_starts(vec![(0x3040, "b".to_owned()), (0x3000, "a".to_owned())], 0x100);
        assert_eq!(code.function(0x303f).expect("found").name, "a");
        assert_eq!(code.function(0x313f).expect("found").name, "b");
        assert_eq!(code.function(0x3140), None);
    }

    #[test]
    fn functions_of_this_program_have_their_names() {
        let program = File::open("/proc/self/exe").expect("a program");
        let maps = crate::target::read_maps(std::process::id()).expect("own maps");
        let space = crate::maps::AddressSpace::parse(&maps);
        let here = functions_of_this_program_have_their_names as fn() as usize as u64;
        let tables = image::Tables::read(program.try_clone().expect("a copy"));
        let address = here - tables.bias(space.find(here).expect("mapped")).expect("loaded");
        let found = functions_of_file(&program, &[0, address + 1, u64::MAX]);
        let [None, Some(function), None] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(function.start, address);
        assert!(function.name.ends_with("functions_of_this_program_have_their_names"), "{function:?}");
        let text = File::open("/proc/self/maps").expect("not an ELF file");
        assert_eq!(functions_of_file(&text, &[0]), [None]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in prop::collection::vec(any::<u8>(), 0..400), address in any::<u64>()) {
            KernelSymbols::parse(text.clone()).name(address);
            CompiledCode::parse(&text).function(address);
        }
    }
}
