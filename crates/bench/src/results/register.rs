//! The register: what the report shows, in the order in which it is run and shown, and what it has no counterpart of.
//!
//! The entries are the experiments' own ([`crate::kit::experiment::Experiment::ENTRIES`]). Each is run with the words
//! that anyone can type behind `uncopy bench`.

use crate::experiments::entries;
use crate::kit::Entry;

/// What the papers measured and this project has no counterpart of.
pub const ABSENT: &[(&str, &str)] = &[
    (
        "zIO, Figures 5 and 7",
        "The echo server on a kernel-bypass TCP stack (TAS), which uncopy does not have.",
    ),
    (
        "zIO, Figure 13",
        "Redis on kernel-bypass stacks, mechanism by mechanism; optimistic receiver persistence needs such a stack.",
    ),
    ("zIO, Figure 15", "Icecast with buffers faulted in beforehand, on the kernel-bypass stack."),
    (
        "ZCopy, Figures 7 and 9, Table 1",
        "Cycles inside the kernel and cache misses: no performance counters on the machines that this project is tested on.",
    ),
];

/// The entry with this name.
#[must_use]
pub fn find(id: &str) -> Option<&'static Entry> {
    entries().into_iter().find(|entry| entry.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Command;
    use clap::Parser;

    #[test]
    fn every_entry_is_a_command_and_names_are_unique() {
        let all = entries();
        for (at, entry) in all.iter().enumerate() {
            for words in [entry.full, entry.quick] {
                let words = std::iter::once("uncopy bench").chain(words.split(' '));
                assert!(Command::try_parse_from(words).is_ok(), "{}", entry.id);
            }
            assert!(all[..at].iter().all(|other| other.id != entry.id), "{}", entry.id);
            assert!(!entry.claims.is_empty(), "{}", entry.id);
        }
        assert!(find("copies").is_some() && find("other").is_none());
    }

    #[test]
    fn every_figure_of_the_papers_is_measured_or_said_to_be_absent() {
        let claims = entries().into_iter().flat_map(|entry| entry.claims).map(|claim| claim.figure);
        let named: Vec<&str> = claims.chain(ABSENT.iter().map(|(figure, _)| *figure)).collect();
        let numbers = |text: &str| -> Vec<String> {
            text.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_owned).collect()
        };
        let named = |paper: &str, number: &str| {
            named.iter().any(|name| name.starts_with(paper) && numbers(name).contains(&number.to_owned()))
        };
        for figure in 4..=15 {
            assert!(named("zIO", &figure.to_string()), "zIO, Figure {figure}");
        }
        for figure in 6..=9 {
            assert!(named("ZCopy", &figure.to_string()), "ZCopy, Figure {figure}");
        }
    }
}
