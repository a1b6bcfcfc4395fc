//! The register: the cases of the page, and the papers' measurements that have no counterpart here.
//!
//! The report runs the experiments' own entries ([`crate::kit::experiment::Experiment::ENTRIES`]), with arguments that
//! anyone can pass to `uncopy-bench`.

use crate::experiments::entries;
use crate::kit::ReportEntry;

/// A case shown on the page.
#[derive(Clone, Copy, Debug)]
pub struct Headline {
    /// The packaged program that is measured; `None` for servers of this project.
    pub program: Option<&'static str>,
    /// Name on the page.
    pub name: &'static str,
    /// The entry that measures it.
    pub entry: &'static str,
    /// Title of the case in that entry.
    pub case: &'static str,
    /// The side of uncopy that is judged.
    pub side: &'static str,
}

const fn own(name: &'static str, entry: &'static str, case: &'static str) -> Headline {
    Headline { program: None, name, entry, case, side: "uncopy" }
}

const fn packaged(
    program: &'static str,
    name: &'static str,
    entry: &'static str,
    case: &'static str,
) -> Headline {
    Headline { program: Some(program), ..own(name, entry, case) }
}

/// Returns a case of sending by reference, compared with the same server copying.
const fn twin(name: &'static str, entry: &'static str, case: &'static str) -> Headline {
    Headline { side: "twin", ..own(name, entry, case) }
}

/// Cases of the page: those of the papers, those that users are likely to run, and those that earlier versions lost.
pub const HEADLINES: [Headline; 25] = [
    own("echo 512 KiB, no copy", "copies", "echo 512 KiB, 0 copies"),
    own("echo 512 KiB, 5 copies", "copies", "echo 512 KiB, 5 copies"),
    own("echo 512 KiB, 12 copies", "copies", "echo 512 KiB, 12 copies"),
    own("echo, forwarding and reading in turn", "switching", "echo 256 KiB, 3 copies, switching every 5 s"),
    packaged("Redis", "Redis SET 256 KiB, AOF", "redis-set", "redis SET 256 KiB"),
    packaged("Redis", "Redis SET 1 MiB, AOF", "redis-set", "redis SET 1 MiB"),
    packaged("Redis", "Redis GET 64 KiB", "redis-get", "redis GET 64 KiB, no append-only file"),
    packaged("Redis", "Redis GET 256 KiB", "redis-get", "redis GET 256 KiB, no append-only file"),
    packaged("Redis", "Redis GET 1 MiB", "redis-get", "redis GET 1 MiB, no append-only file"),
    packaged("Redis", "Redis YCSB A 256 KiB", "redis-ycsb-a", "redis YCSB A 256 KiB"),
    packaged("nginx", "nginx 1 MiB, sendfile on", "apps-web", "nginx 1 MiB, sendfile on"),
    packaged("nginx", "nginx proxied 64 KiB", "apps-web", "nginx proxied 64 KiB"),
    packaged("nginx", "nginx proxied 1 MiB", "apps-web", "nginx proxied 1 MiB"),
    packaged("HAProxy", "HAProxy 1 MiB", "apps-web", "haproxy 1 MiB, buffers of 64 KiB"),
    packaged("Varnish", "Varnish 64 KiB", "apps-varnish", "varnish 64 KiB"),
    packaged("memcached", "memcached GET 100 B", "apps-memcached", "memcached GET 100 B"),
    packaged("memcached", "memcached 64 KiB, 10 % SET", "apps-memcached", "memcached 64 KiB, 10 % SET"),
    packaged("mosquitto", "mosquitto 1 MiB", "apps-others", "mosquitto 1 MiB, 4 subscribers"),
    packaged(
        "Icecast",
        "Icecast file, 64 listeners",
        "apps-icecast",
        "icecast file of 1100000 B, 64 listeners",
    ),
    packaged("PostgreSQL", "PostgreSQL COPY 1 MiB", "apps-stores", "postgresql COPY 1 MiB"),
    packaged("MariaDB", "MariaDB blob 1 MiB", "apps-stores", "mariadb 1 MiB"),
    packaged("Python", "asyncio proxy 1 MiB", "apps-others", "python asyncio proxy 1 MiB"),
    twin("memcached, twin memory, 256 KiB", "memcached", "memcached GET 256 KiB"),
    twin("memcached, twin memory, 1 MiB, MTU 1500", "memcached-veth-1500", "memcached GET 1 MiB"),
    twin("uncopy-files 1.1 MB, MTU 9000", "files-veth-9000", "GET 1100000 B, 1 thread"),
];

/// Measurements of the papers without a counterpart in this project.
pub const NOT_MEASURED: &[(&str, &str)] = &[
    ("zIO, Figure 15", "Icecast with buffers faulted in beforehand: no experiment prepares its buffers."),
    (
        "ZCopy, Figures 7 and 9, Table 1",
        "Cycles in the kernel and cache misses: the machines of this project's tests have no performance \
         counters.",
    ),
];

/// Returns the entry called `id`.
#[must_use]
pub fn find_entry(id: &str) -> Option<&'static ReportEntry> {
    entries().into_iter().find(|entry| entry.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::{CASES, Effort};
    use crate::experiments::Command;
    use crate::results::judge::is_uncopy_side;
    use clap::Parser;

    #[test]
    fn every_entry_is_a_command_and_names_are_unique() {
        let all = entries();
        for (at, entry) in all.iter().enumerate() {
            for words in [entry.full_arguments, entry.quick_arguments] {
                let words = std::iter::once("uncopy-bench").chain(words.split(' '));
                assert!(Command::try_parse_from(words).is_ok(), "{}", entry.id);
            }
            assert!(all[..at].iter().all(|other| other.id != entry.id), "{}", entry.id);
            assert!(!entry.claims.is_empty(), "{}", entry.id);
        }
        assert!(find_entry("copies").is_some() && find_entry("other").is_none());
    }

    #[test]
    fn every_headline_is_of_an_entry_and_there_once() {
        for (at, headline) in HEADLINES.iter().enumerate() {
            assert!(find_entry(headline.entry).is_some(), "{}", headline.entry);
            assert!(is_uncopy_side(headline.side), "{}", headline.name);
            let is_same = |other: &Headline| {
                other.name == headline.name || (other.entry, other.case) == (headline.entry, headline.case)
            };
            assert!(!HEADLINES[..at].iter().any(is_same), "{}", headline.name);
        }
    }

    /// Returns the titles of the application cases that an entry's words name.
    fn titles(words: &str) -> Vec<String> {
        let named = CASES.iter().filter(|case| words.split(' ').any(|word| word == case.name));
        named.flat_map(|case| (case.points)(Effort::Full)).map(|point| point.title).collect()
    }

    #[test]
    fn the_headlines_of_applications_are_among_what_their_entries_run() {
        let entries = |headline: &Headline| find_entry(headline.entry).map(|entry| (headline.case, entry));
        let of_apps = |(_, entry): &(&str, &ReportEntry)| entry.full_arguments.starts_with("apps ");
        let all: Vec<_> = HEADLINES.iter().filter_map(entries).filter(of_apps).collect();
        assert!(all.len() > 10);
        for (case, entry) in all {
            let known = titles(entry.full_arguments);
            assert!(known.iter().any(|title| title == case), "{case} is none of {known:?}");
        }
    }

    /// Results of the four documents that are measurements, by document: words that a source names.
    const RESULTS: [(&str, &[&str]); 4] = [
        (
            "zIO",
            &[
                "Figure 1",
                "Figure 4",
                "Figure 5",
                "Figure 6",
                "Figure 7",
                "Figure 8",
                "Figure 9",
                "Figure 10",
                "Figure 11",
                "Figure 12",
                "Figure 13",
                "Figure 14",
                "Figure 15",
                "Table 3",
                "§5.2.1",
                "§5.4",
            ],
        ),
        ("ZCopy", &["Figure 6", "Figure 7", "Figure 8", "Figure 9", "Figure 10", "Table 1", "Table 2"]),
        ("sendfile+zerocopy", &["2001"]),
        ("Zero-Copy lab", &["lab"]),
    ];

    /// Returns whether a source such as `zIO, Figures 6 and 8 (§4.1)` names a result such as `Figure 8`.
    fn names(source: &str, document: &str, result: &str) -> bool {
        let words = |text: &str| -> Vec<String> {
            let is_inside = |c: char| c.is_alphanumeric() || matches!(c, '§' | '.');
            text.split(|c: char| !is_inside(c)).map(str::to_owned).collect()
        };
        // "Figure 1" has the number 1, and is of figures rather than of tables.
        let (kind, number) = result.split_once(' ').unwrap_or(("", result));
        source.starts_with(document)
            && words(source).contains(&number.to_owned())
            && (kind.is_empty() || source.contains(kind))
    }

    #[test]
    fn every_result_of_the_papers_is_measured_or_else_listed_as_absent() {
        let claims: Vec<&str> =
            entries().into_iter().flat_map(|entry| entry.claims).map(|claim| claim.source).collect();
        for (document, results) in RESULTS {
            for result in results {
                let is_measured = claims.iter().any(|source| names(source, document, result));
                let is_absent = NOT_MEASURED.iter().any(|(source, _)| names(source, document, result));
                assert!(
                    is_measured != is_absent,
                    "{document}, {result}: measured {is_measured}, absent {is_absent}"
                );
            }
        }
    }
}
