//! Names of a process's call sites.

use crate::library;
use std::collections::BTreeMap;
use uncopy_core::ledger::{Entry, Field, Process};
use uncopy_profile::symbols::{CodeLocation, Symbols};

/// Call site with its name.
pub struct Site {
    /// Figures of the site.
    pub entry: Entry,
    /// File that contains the code.
    pub module: Option<String>,
    /// Location of the code in that file.
    pub location: CodeLocation,
}

/// Returns the sites of a process with their names, those with the largest effect first.
pub fn sites(process: &Process, symbols: &mut Symbols) -> Vec<Site> {
    let mut by_module: BTreeMap<Option<usize>, Vec<&Entry>> = BTreeMap::new();
    for entry in &process.entries {
        by_module.entry(entry.module).or_default().push(entry);
    }
    let mut sites = Vec::new();
    for (module, entries) in by_module {
        let path = module.and_then(|module| process.modules.get(module)).map(|module| module.path.as_slice());
        let offsets: Vec<u64> = entries.iter().map(|entry| entry.get(Field::FileOffset)).collect();
        let locations = match path {
            Some(path) => offsets.iter().map(|offset| symbols.at_file_offset(path, *offset)).collect(),
            None => vec![CodeLocation::default(); offsets.len()],
        };
        let module = path.map(|path| String::from_utf8_lossy(path).into_owned());
        sites.extend(entries.into_iter().zip(locations).map(|(entry, location)| Site {
            entry: entry.clone(),
            module: module.clone(),
            location,
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
    /// Returns `function (file:line) in module`, as far as known.
    pub fn name(&self) -> String {
        let Some(module) = &self.module else {
            return format!("code at {:#x}", self.entry.get(Field::Caller));
        };
        let file = module.rsplit('/').next().unwrap_or(module);
        if file == library::FILE_NAME {
            return "callers of calloc, realloc and similar functions, taken together".to_owned();
        }
        let function = self.location.function.as_deref().unwrap_or("?");
        match self.location.file_and_line() {
            Some(line) => format!("{function} ({line}) in {file}"),
            None => format!("{function} in {file}+{:#x}", self.entry.get(Field::FileOffset)),
        }
    }
}
