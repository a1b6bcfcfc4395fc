//! Call sites of a process, named.

use crate::library;
use std::collections::BTreeMap;
use uncopy_core::ledger::{Entry, Field, Process};
use uncopy_profile::symbols::{Place, Symbols};

/// One site, named.
pub struct Site {
    /// What it did.
    pub entry: Entry,
    /// The file that its code is in.
    pub module: Option<String>,
    /// Where in that.
    pub place: Place,
}

/// The sites of a process, named, the ones that mattered most first.
pub fn sites(process: &Process, symbols: &mut Symbols) -> Vec<Site> {
    let mut by_module: BTreeMap<Option<usize>, Vec<&Entry>> = BTreeMap::new();
    for entry in &process.entries {
        by_module.entry(entry.module).or_default().push(entry);
    }
    let mut sites = Vec::new();
    for (module, entries) in by_module {
        let path = module.and_then(|module| process.modules.get(module)).map(|module| module.path.as_slice());
        let offsets: Vec<u64> = entries.iter().map(|entry| entry.get(Field::FileOffset)).collect();
        let places = match path {
            Some(path) => offsets.iter().map(|offset| symbols.at_file_offset(path, *offset)).collect(),
            None => vec![Place::default(); offsets.len()],
        };
        let module = path.map(|path| String::from_utf8_lossy(path).into_owned());
        sites.extend(entries.into_iter().zip(places).map(|(entry, place)| Site {
            entry: entry.clone(),
            module: module.clone(),
            place,
        }));
    }
    let weight = |site: &Site| {
        let get = |field| site.entry.get(field);
        (get(Field::SavedNs).max(get(Field::SpentNs)), get(Field::Bytes))
    };
    sites.sort_by_key(|site| core::cmp::Reverse(weight(site)));
    sites
}

impl Site {
    /// `function (file:line) in module`, as far as it is known.
    pub fn name(&self) -> String {
        let Some(module) = &self.module else {
            return format!("code at {:#x}", self.entry.get(Field::Caller));
        };
        let file = module.rsplit('/').next().unwrap_or(module);
        if file == library::FILE_NAME {
            return "callers of calloc, realloc and their like, which are not told apart".to_owned();
        }
        let function = self.place.function.as_deref().unwrap_or("?");
        match self.place.file_and_line() {
            Some(line) => format!("{function} ({line}) in {file}"),
            None => format!("{function} in {file}+{:#x}", self.entry.get(Field::FileOffset)),
        }
    }
}
