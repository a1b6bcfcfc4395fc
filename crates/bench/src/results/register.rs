//! The register of experiments: what each shows of the papers, how it is run, and how it is judged.
//!
//! An experiment that is not in it is not in the report. Each is run with the words that anyone can type
//! behind `uncopy bench`.

use crate::results::judge::Judge;

/// What a paper says.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The paper, and its figure, table or section.
    pub figure: &'static str,
    /// What was found there.
    pub says: &'static str,
}

/// An experiment of the report.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name here, in files and anchors.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What the papers say about it.
    pub claims: &'static [Claim],
    /// The words behind `uncopy bench`, separated by spaces.
    pub full: &'static str,
    /// The same for `--quick`.
    pub quick: &'static str,
    /// How it is judged.
    pub judge: Judge,
    /// Whether the report measures it twice by itself, where it has the time.
    pub repeated: bool,
    /// What lies between clients and servers, if not the loopback device.
    pub network: Option<&'static str>,
}

const fn claim(figure: &'static str, says: &'static str) -> Claim {
    Claim { figure, says }
}

/// An entry judged by speed, measured once, over the loopback device.
const fn entry(
    id: &'static str,
    title: &'static str,
    claims: &'static [Claim],
    full: &'static str,
    quick: &'static str,
) -> Entry {
    Entry { id, title, claims, full, quick, judge: Judge::Speed, repeated: false, network: None }
}

/// The experiments, in the order in which they are run and shown.
pub const ENTRIES: &[Entry] = &[
    Entry {
        repeated: true,
        ..entry(
            "copies",
            "Echo server, number of copies",
            &[claim(
                "zIO, Figure 4 (§5.1.1)",
                "512 KiB, one thread: with 12 copies zIO has 3.8 times the throughput of Linux, and stays close to the rate without copies.",
            )],
            "copies --rounds 11..25 --seconds 0.12",
            "copies --quick",
        )
    },
    entry(
        "sizes",
        "Echo server, length of messages",
        &[claim(
            "zIO, Figure 6 (§5.1.2)",
            "5 copies: up to 2.9 times Linux, and the rate without copies from 512 KiB on. Below 16 KiB up to 30 % slower (size threshold switched off).",
        )],
        "sizes --sides uncopy,limit --rounds 9..25 --seconds 0.12",
        "sizes --quick --sides uncopy,limit",
    ),
    entry(
        "threads",
        "Echo server, threads",
        &[claim(
            "zIO, Figure 8 (§5.1.3)",
            "One copy of 512 KiB: throughput scales up to 19 % better than that of Linux.",
        )],
        "threads --sides uncopy --rounds 11..31 --seconds 0.2",
        "threads --quick --sides uncopy",
    ),
    entry(
        "faults",
        "Echo server, pages touched",
        &[claim(
            "zIO, Figure 9 (§5.1.3)",
            "Up to 2 page faults for each message of 512 KiB throughput still scales well; more of them limit it (TLB shootdowns).",
        )],
        "faults --threads 1 --rounds 7..11 --seconds 0.12",
        "faults --quick --orders random",
    ),
    entry(
        "touched",
        "Echo server, bytes touched",
        &[claim(
            "zIO, Figure 10 (§5.1.4)",
            "zIO gains as long as the bytes touched are less than 6 % of the bytes elided; beyond, it loses.",
        )],
        "touched --sides uncopy --rounds 7..11 --seconds 0.12",
        "touched --quick --sides uncopy",
    ),
    entry(
        "checksum",
        "A store that checksums all it keeps",
        &[claim(
            "zIO, §5.4 (MongoDB)",
            "MongoDB reads every value for its checksum: 191 requests/s with zIO, 194 without. With the checksum taken out: 222 against 209.",
        )],
        "checksum --sides uncopy --rounds 11..31 --seconds 0.15",
        "checksum --quick --sides uncopy",
    ),
    Entry {
        judge: Judge::Cost,
        ..entry(
            "tracking",
            "What keeping track of a copy costs",
            &[claim(
                "zIO, §5.2.1",
                "190 ns for a lookup and an insertion in the skiplist, at most 640 entries; that is the skiplist alone.",
            )],
            "tracking --rounds 5",
            "tracking --quick",
        )
    },
    Entry {
        repeated: true,
        ..entry(
            "redis-set",
            "Redis, SET, append-only file on",
            &[
                claim("zIO, Figure 11 (§5.2)", "Up to 1.8 times Linux, above all for larger values."),
                claim(
                    "zIO, §5.2.1",
                    "256 KiB, without application copies: 1.7 times (kernel bypass). 8 KiB: 2 % slower with the size policy, 40 % without.",
                ),
            ],
            "redis --workload set --sizes 8192,65536,262144,1048576 --sides uncopy,heap-only --rounds 9..15",
            "redis --quick --workload set --sizes 65536,262144,1048576 --sides uncopy --seconds 0.2",
        )
    },
    entry(
        "redis-get",
        "Redis, GET",
        &[claim(
            "zIO, Table 1",
            "A GET makes fewer copies in the application than a SET; not measured by itself.",
        )],
        "redis --workload get --sizes 65536,262144,1048576 --sides uncopy --rounds 7..15",
        "redis --quick --workload get --sizes 262144 --sides uncopy",
    ),
    entry(
        "redis-ycsb-a",
        "Redis, YCSB workload A",
        &[claim("zIO, Figure 12 (§5.2)", "Half SET, half GET: up to 1.3 times Linux.")],
        "redis --workload ycsb-a --sizes 262144,1048576 --sides uncopy --rounds 7..15",
        "redis --quick --workload ycsb-a --sizes 262144 --sides uncopy",
    ),
    entry(
        "small",
        "Where there is nothing to gain",
        &[claim("zIO, §5.2.1", "SET of 8 KiB under the 16 KiB policy: 2 % slower.")],
        "small --rounds 7..11 --seconds 0.5",
        "small --quick",
    ),
    Entry {
        judge: Judge::Memory,
        ..entry(
            "memory",
            "Memory of Redis with mixed values",
            &[claim(
                "not measured in the papers",
                "This project allows itself 1.15 times plain's memory and 64 MiB.",
            )],
            "memory --minutes 1",
            "memory --quick",
        )
    },
    Entry {
        repeated: true,
        ..entry(
            "cache",
            "A cache whose values are sent by reference",
            &[
                claim(
                    "ZCopy, Figure 8 (§4.1)",
                    "Memcached by TCP: slightly slower below 256 bytes, 1.408 times at 512 bytes, 1.308 times at 1 KiB; then the network is the limit.",
                ),
                claim(
                    "ZCopy, Figure 6 (§4.1)",
                    "Memcached by UDP: 1.287 times at 512 bytes, 1.411 times at 768 bytes.",
                ),
            ],
            "cache --threads 1 --rounds 7..11 --seconds 0.4",
            "cache --quick",
        )
    },
    entry(
        "files",
        "Ways to serve a file",
        &[
            claim(
                "zIO, Table 3 (§5.3)",
                "Icecast, 1.1 MB file in pieces of 64 KiB: 1.25 times, with a kernel-bypass stack.",
            ),
            claim(
                "zIO, Figure 14 (§5.3.1)",
                "mmap and send: up to 17 % slower than zIO; read and sendfile up to 7 %, mmap and sendfile up to 30 %.",
            ),
        ],
        "files --sizes 16384,65536,350000,1100000 --rounds 5..7",
        "files --quick",
    ),
    entry(
        "transmit",
        "Ways to transmit, and a write to what is in flight",
        &[claim(
            "ZCopy, Table 2 (§4.3)",
            "A write-protection fault takes 2,803 cycles, a native page fault 6,247, a getpid 1,150.",
        )],
        "transmit --sizes 4096,16384,61440,262144,1048576 --rounds 5..7",
        "transmit --quick",
    ),
    entry(
        "lab",
        "The lab: read and send against sendfile",
        &[claim("Zero-Copy lab", "A file by read and send: 7.18 s; by sendfile: 3.71 s.")],
        "lab --rounds 3",
        "lab --quick",
    ),
    entry(
        "load",
        "What sending takes of the machine",
        &[claim(
            "sendfile+zerocopy, 2001",
            "11.5 MB/s, two processors of 500 MHz: sendfile 17.1 %, send 21.1 %, write 21.1 % of the machine; with the zerocopy patch and a card for it 9.6 %, 24.1 % and 24.2 %.",
        )],
        "load --rounds 5 --seconds 0.8",
        "load --quick",
    ),
    entry(
        "apps-web",
        "nginx and HAProxy",
        &[claim(
            "zIO, §5.3.1",
            "A web server made from Icecast, see Figure 14; nginx and HAProxy are not in the papers.",
        )],
        "apps nginx-static nginx-proxied haproxy --sides uncopy",
        "apps --quick --sides uncopy nginx-static nginx-proxied haproxy",
    ),
    entry(
        "apps-icecast",
        "Icecast: a file, and a live stream",
        &[
            claim(
                "zIO, Table 3 (§5.3)",
                "A file of 1.1 MB: 0.89 GB/s, with zIO 1.08 (1.25 times), on a kernel-bypass stack.",
            ),
            claim("zIO, Table 3 (§5.3)", "A relayed stream: 812 listeners, with zIO 944 (1.16 times)."),
        ],
        "apps icecast-file icecast-relay --sides uncopy --rounds 3",
        "apps --quick --sides uncopy --rounds 1 icecast-file icecast-relay",
    ),
    entry(
        "apps-varnish",
        "Varnish under ab",
        &[claim(
            "ZCopy, Figure 10 (§4.2)",
            "Slightly slower at 1 KiB; 1.007 to 1.079 times from 2 to 8 KiB, with ZCopy's allocator.",
        )],
        "apps varnish --sides uncopy --rounds 5..7",
        "apps --quick --sides uncopy varnish",
    ),
    entry(
        "apps-memcached",
        "memcached as packaged",
        &[claim(
            "ZCopy, Figures 6 and 8 (§4.1)",
            "With ZCopy's allocator 1.408 times by TCP at 512 bytes, 1.411 times by UDP at 768 bytes. Here it is unchanged, under uncopy run.",
        )],
        "apps memcached-tcp memcached-udp memcached --sides uncopy",
        "apps --quick --sides uncopy memcached-tcp memcached-udp memcached",
    ),
    entry(
        "apps-stores",
        "Databases with large values",
        &[claim(
            "zIO, §5.4",
            "MongoDB, 1 MB values: 191 requests/s with zIO, 194 without; without its checksum 222 against 209.",
        )],
        "apps postgresql-copy postgresql-object mariadb-blob mongodb --sides uncopy --rounds 3..5",
        "apps --quick --sides uncopy postgresql-copy mariadb-blob mongodb",
    ),
    entry(
        "apps-others",
        "mosquitto and Python",
        &[claim("not in the papers", "A broker, a file server and a proxy that copy what they pass on.")],
        "apps mosquitto python-http python-proxy --sides uncopy --rounds 3..5",
        "apps --quick --sides uncopy mosquitto python-http python-proxy",
    ),
    Entry {
        network: Some("veth-1500"),
        ..entry(
            "redis-set-veth-1500",
            "Redis, SET, over a link with MTU 1500",
            &[claim("zIO, Figure 11 (§5.2)", "There over a network of 100 Gbit/s.")],
            "redis --workload set --sizes 262144,1048576 --sides uncopy --rounds 7..11 --seconds 0.4",
            "redis --quick --workload set --sizes 262144 --sides uncopy",
        )
    },
    Entry {
        network: Some("veth-9000"),
        ..entry(
            "redis-set-veth-9000",
            "Redis, SET, over a link with MTU 9000",
            &[claim("zIO, Figure 11 (§5.2)", "There over a network of 100 Gbit/s.")],
            "redis --workload set --sizes 262144,1048576 --sides uncopy --rounds 7..11 --seconds 0.4",
            "redis --quick --workload set --sizes 262144 --sides uncopy",
        )
    },
    Entry {
        network: Some("veth-1500"),
        ..entry(
            "cache-veth-1500",
            "The cache, over a link with MTU 1500",
            &[claim("ZCopy, Figure 8 (§4.1)", "There over a network of 1 Gbit/s.")],
            "cache --only get --threads 1 --sizes 16384,65536,524288 --rounds 7..11 --seconds 0.4",
            "cache --quick --only get --sizes 65536",
        )
    },
    Entry {
        network: Some("veth-9000"),
        ..entry(
            "files-veth-9000",
            "Ways to serve a file, over a link with MTU 9000",
            &[claim("zIO, Table 3 (§5.3)", "There over a network of 100 Gbit/s.")],
            "files --sizes 65536,1100000 --rounds 5..7 --seconds 0.4",
            "files --quick --sizes 65536",
        )
    },
];

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
    ENTRIES.iter().find(|entry| entry.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::arguments::Arguments;
    use clap::Parser;

    #[test]
    fn every_entry_is_a_command_and_names_are_unique() {
        for (at, entry) in ENTRIES.iter().enumerate() {
            for words in [entry.full, entry.quick] {
                let words = std::iter::once("uncopy bench").chain(words.split(' '));
                assert!(Arguments::try_parse_from(words).is_ok(), "{}", entry.id);
            }
            assert!(ENTRIES[..at].iter().all(|other| other.id != entry.id), "{}", entry.id);
            assert!(!entry.claims.is_empty(), "{}", entry.id);
        }
        assert!(find("copies").is_some() && find("other").is_none());
    }

    #[test]
    fn every_figure_of_the_papers_is_measured_or_said_to_be_absent() {
        let claims = ENTRIES.iter().flat_map(|entry| entry.claims).map(|claim| claim.figure);
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
