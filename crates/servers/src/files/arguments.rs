//! The command line of `uncopy-files`; the manual page is made from it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use clap_mangen::roff::{Roff, roman};
use uncopy_core::size;

use crate::command_line;
use crate::files::ways::Way;

/// Most connections at a time where nothing else is said.
pub const CONNECTIONS: usize = 16_384;
/// Longest time that can be set, seconds.
const SECONDS_LIMIT: u64 = 86_400;

fn count_parser(limit: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=limit)
}

fn seconds_parser() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=SECONDS_LIMIT)
}

/// `PORT` on the loopback address, or `ADDRESS:PORT`.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Err(_) => text.parse().map_err(|_| {
            "it must be a port from 0 to 65535, or an address and a port: 0.0.0.0:8080, [::]:8080".to_owned()
        }),
    }
}

/// A name without slashes.
fn file_name(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains('/') || text == "." || text == ".." {
        return Err("it must be the name of a file, without slashes".to_owned());
    }
    Ok(PathBuf::from(text))
}

/// Serve the files below a directory over HTTP/1.1, each by the way that is chosen
#[derive(Clone, Debug, Parser)]
#[command(name = "uncopy-files", version, after_long_help = after_long_help())]
pub struct Arguments {
    /// The directory; nothing outside it is served, whatever links in it say
    #[arg(value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
    /// Where to listen: a port of 127.0.0.1 (0: any free one), or an address and a port
    #[arg(long, short, value_name = "[ADDRESS:]PORT", default_value = "8080", value_parser = listen_address)]
    pub listen: SocketAddr,
    /// How files are sent
    #[arg(long, short, value_enum, default_value = "sendfile")]
    pub way: Way,
    /// Threads, each with connections of its own [default: one for each processor]
    #[arg(long, short, value_name = "N", value_parser = count_parser(1024))]
    pub threads: Option<usize>,
    /// Most connections at a time; one more gets 503 [default: as many as descriptors allow, up to 16384]
    #[arg(long, value_name = "N", value_parser = count_parser(1 << 24))]
    pub connections: Option<usize>,
    /// Most memory for files with --way twin, in MiB; files longer than a quarter of it are sent by sendfile
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 20))]
    pub cache: u64,
    /// With --way twin, send from this length on by reference, and copy below [default: where that is measured to pay]
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| size::parse_within::<usize>(text, 1..=1 << 40))]
    pub reference_from: Option<usize>,
    /// Length of a buffer with --way read-send, in KiB
    #[arg(long, value_name = "KIB", default_value = "64", value_parser = count_parser(1 << 16))]
    pub buffer: usize,
    /// File that is served for a directory
    #[arg(long, value_name = "NAME", default_value = "index.html", value_parser = file_name)]
    pub index: PathBuf,
    /// Also serve what has a name that begins with a dot
    #[arg(long)]
    pub hidden: bool,
    /// How long a request's head may take to arrive
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds_parser())]
    pub head_timeout: u64,
    /// How long a connection may wait for its next request
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds_parser())]
    pub idle_timeout: u64,
    /// How long a client may take for each 64 KiB of an answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds_parser())]
    pub send_timeout: u64,
    /// How long answers may still take after SIGTERM or SIGINT
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds_parser())]
    pub grace: u64,
    /// Write what was served to standard error at the end, as one line of JSON
    #[arg(long)]
    pub stats: bool,
    /// Print the manual page and exit
    #[arg(long, hide = true)]
    pub man: bool,
}

/// What the manual page and the long help say besides: titles and paragraphs.
const SECTIONS: [(&str, &[&str]); 4] = [
    (
        "Ways",
        &[
            "mmap-sendfile and read-sendfile look at a file's first bytes before they send it by sendfile, and tell \
             by them what a file is whose name does not say. The others call it application/octet-stream.",
            "With sendfile, splice and zerocopy nothing is copied, and a file that is changed in place shows in \
             answers that are under way. With twin an answer is what the file was when it was read: every request \
             compares length, inode and times, and reads the file again if one of them differs.",
            "zerocopy sends from a mapping with MSG_ZEROCOPY until the kernel says that it copies all the same; it \
             always does on the loopback device.",
        ],
    ),
    (
        "Answers",
        &[
            "GET and HEAD; 405 for other methods, 501 for unknown ones. Up to 16 ranges are answered as \
             multipart/byteranges; more, or more bytes than the file has, get the whole file. Nothing outside DIR is \
             served, whatever the target or a symbolic link says.",
            "A request's head may have 16 KiB and 100 fields (431), its first line 8 KiB (414), its body, which is \
             thrown away, 64 KiB (413). A body in chunks gets 411. If a file becomes shorter while it is sent, the \
             connection is closed.",
        ],
    ),
    (
        "Signals",
        &[
            "After SIGTERM or SIGINT clients are refused, idle connections closed, and answers under way completed, \
           for as long as --grace says.",
        ],
    ),
    ("Exit status", &["0 after a signal, 1 for an error, 2 for a wrong command line."]),
];

fn after_long_help() -> String {
    let section = |(title, paragraphs): &(&str, &[&str])| format!("{title}:\n  {}", paragraphs.join("\n  "));
    SECTIONS.iter().map(section).collect::<Vec<_>>().join("\n\n")
}

/// The manual page.
///
/// # Errors
/// None: it is written into memory.
pub fn manual() -> std::io::Result<Vec<u8>> {
    let command = <Arguments as clap::CommandFactory>::command().after_long_help("");
    let sections = SECTIONS.map(|(title, paragraphs)| {
        let mut roff = Roff::new();
        roff.control("SH", [title.to_uppercase().as_str()]);
        for paragraph in paragraphs {
            roff.control("PP", []).text([roman(*paragraph)]);
        }
        roff
    });
    command_line::page(&clap_mangen::Man::new(command), sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(words: &str) -> Result<Arguments, String> {
        Arguments::try_parse_from(["uncopy-files"].into_iter().chain(words.split_whitespace()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_consistent_and_ascii() {
        Arguments::command().debug_assert();
        let page = manual().expect("rendered");
        assert!(page.is_ascii());
        let text = String::from_utf8(page).expect("ASCII");
        for word in ["mmap\\-sendfile", "\\-\\-grace", ".SH WAYS", ".SH \"EXIT STATUS\""] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn every_way_has_its_name() {
        for name in [
            "read-send",
            "mmap-send",
            "mmap-sendfile",
            "read-sendfile",
            "sendfile",
            "splice",
            "zerocopy",
            "twin",
        ] {
            assert_eq!(command_line::word(parsed(&format!("--way {name}")).expect("a way").way), name);
        }
    }

    #[test]
    fn bad_values_are_refused_with_the_legal_ones() {
        for (words, legal) in [
            ("--way copy", "read-send"),
            ("--listen 70000", "65535"),
            ("--threads 0", "1..=1024"),
            ("--index a/b", "without slashes"),
            ("--grace 0", "1..=86400"),
        ] {
            let message = parsed(words).expect_err(words);
            assert!(message.contains(legal), "{words}: {message}");
        }
    }
}
