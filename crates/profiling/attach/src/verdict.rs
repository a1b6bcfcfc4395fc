//! Verdict in one sentence: whether uncopy would help a program, and why.
//!
//! uncopy elides copies of at least 16 KiB of bytes that the program received, made by calls from outside the C
//! library to the GNU C library. A copy that is touched afterwards costs a page fault for each page. Each
//! verdict follows from one comparison of shares, in the order of [`verdict`].

use crate::classes::Class;
use crate::resolve::ProcessProfile;
use crate::summary::Summary;
use uncopy_profile::format::{bytes, percent};

/// Samples below which a verdict would be chance: shares are uncertain by 5 points.
const MIN_SAMPLES: u64 = 100;
/// Share of copies below which what could be saved is within the noise of measurements.
const MIN_COPY_SHARE: f64 = 0.05;
/// Share of large copies from which eliding them pays, without other gains: Redis with 15 to 17 % gains nothing, an
/// asyncio proxy with 34 % a fifth of its time (docs/design/attach.md).
const MIN_PAYING_SHARE: f64 = 0.2;
/// Share of the time in receiving system calls below which the program has no bytes worth eliding.
const MIN_INPUT_SHARE: f64 = 0.01;
/// Share of copies within a buffer, of the time and of all copies, that points to the algorithm. Programs that
/// move a message once within its buffer, as Redis does, have less.
const MIN_ALGORITHM_SHARE: f64 = 0.1;
const MIN_ALGORITHM_PART: f64 = 0.6;
/// Share of encryption, checksums and compression that says that the bytes are touched.
const MIN_TOUCHED_SHARE: f64 = 0.1;
/// Share of page faults, zeroing and the allocator that tuning the allocator would change.
const MIN_ALLOCATOR_SHARE: f64 = 0.15;
/// Share of the kernel's copies that is worth a word.
const MIN_KERNEL_COPY_SHARE: f64 = 0.1;

/// Kind of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    WorthTrying,
    /// The bytes are encrypted, summed or compressed.
    Touched,
    SmallCopies,
    /// Page faults and zeroing outweigh copies.
    Allocator,
    /// The program moves the rest of a buffer again and again.
    Algorithm,
    NothingToGain,
    /// There are too few samples.
    Unknown,
}

impl Kind {
    /// Returns the words in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorthTrying => "worth trying",
            Self::Touched => "touched",
            Self::SmallCopies => "small copies",
            Self::Allocator => "the allocator",
            Self::Algorithm => "an algorithm that copies",
            Self::NothingToGain => "nothing to gain",
            Self::Unknown => "not known",
        }
    }
}

/// Verdict on a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: Kind,
    /// The verdict and its reason: `KIND: REASON`.
    pub sentence: String,
    /// Command to type next.
    pub next: String,
}

/// The program that a verdict is about.
struct Program<'a> {
    summary: &'a Summary,
    first: Option<&'a ProcessProfile>,
    has_kernel_time: bool,
}

/// Returns the verdict on the program of some processes, of which `first` has the most samples.
#[must_use]
pub fn verdict(summary: &Summary, first: Option<&ProcessProfile>, has_kernel_time: bool) -> Verdict {
    let program = Program { summary, first, has_kernel_time };
    let (kind, why, next) = program.judge();
    Verdict { kind, sentence: format!("{}: {why}", kind.name()), next }
}

impl Program<'_> {
    fn judge(&self) -> (Kind, String, String) {
        let summary = self.summary;
        let copies = summary.share(&[Class::Copy]);
        let large = summary.fraction(summary.large_reachable);
        let overlapping = summary.fraction(summary.overlapping);
        let touching = summary.share(&[Class::Tls, Class::Checksum, Class::Compression]);
        let memory = summary.share(&[Class::PageFault, Class::Zeroing, Class::Allocator]);
        if summary.samples < MIN_SAMPLES {
            let why = format!("{} samples are too few; put load on it and repeat", summary.samples);
            return (Kind::Unknown, why, self.again(""));
        }
        if overlapping >= MIN_ALGORITHM_SHARE && overlapping >= MIN_ALGORITHM_PART * copies {
            let caller = summary.callers.first().map_or("it", |caller| caller.function.as_str());
            let why = format!(
                "{} of its time moves large pieces within their own buffer, most of it called by {caller}; moving \
                 them less often saves more than moving them faster",
                percent(overlapping)
            );
            return (Kind::Algorithm, why, self.again(" --folded stacks.folded"));
        }
        if touching >= MIN_TOUCHED_SHARE && touching >= copies {
            let why = format!(
                "{} of its time is spent on {}, which reads every byte, and {} on copies",
                percent(touching),
                self.transformations(),
                percent(copies)
            );
            return (Kind::Touched, why, self.record(""));
        }
        let receives = !self.has_kernel_time || summary.fraction(summary.input as f64) >= MIN_INPUT_SHARE;
        if memory >= MIN_ALLOCATOR_SHARE {
            let (name, tunable) = self.allocator();
            if large >= MIN_COPY_SHARE && receives {
                let why = format!(
                    "{} of its time copies 16K or more at a time, by calls that uncopy can elide, and {} goes to page \
                     faults, zeroing and the allocator, which uncopy's heap spares; for these alone {name} has a setting: \
                     {tunable}",
                    percent(large),
                    percent(memory)
                );
                return (Kind::WorthTrying, why, self.run());
            }
            if memory > large {
                let why = format!(
                    "{} of its time is spent on page faults, zeroing and the allocator, {} on copies; {name} can keep \
                     memory instead of returning it",
                    percent(memory),
                    percent(copies)
                );
                return (Kind::Allocator, why, tunable);
            }
        }
        if large >= MIN_PAYING_SHARE && receives {
            let why = format!(
                "{} of its time copies 16K or more at a time, by calls that uncopy can elide{}",
                percent(large),
                if self.has_kernel_time { "" } else { " (whether the bytes are received was not sampled)" }
            );
            return (Kind::WorthTrying, why, self.run());
        }
        if copies >= MIN_COPY_SHARE {
            return self.judge_other_copies(copies, large, receives);
        }
        self.nothing(copies)
    }

    /// Judges copies that uncopy would not elide.
    fn judge_other_copies(&self, copies: f64, large: f64, receives: bool) -> (Kind, String, String) {
        let summary = self.summary;
        if large >= MIN_COPY_SHARE && receives {
            let why = format!(
                "{} of its time copies 16K or more at a time; eliding them costs about as much, and pays from {} on",
                percent(large),
                percent(MIN_PAYING_SHARE)
            );
            return (Kind::NothingToGain, why, self.record(""));
        }
        if large >= MIN_COPY_SHARE {
            let why = format!(
                "{} of its time copies bytes that it made itself: it receives next to nothing",
                percent(copies)
            );
            return (Kind::NothingToGain, why, self.again(" --folded stacks.folded"));
        }
        if summary.fraction(summary.reachable as f64) >= copies / 2.0 {
            let size = summary.median_bytes.map_or_else(String::new, |size| {
                format!(", half of it in copies below {}", bytes(size.saturating_add(1)))
            });
            let why =
                format!("{} of its time is spent on copies{size}; eliding pays from 16K on", percent(copies));
            return (Kind::SmallCopies, why, self.record(""));
        }
        let by = summary.unreachable.as_ref().map_or_else(
            || "code of its own".to_owned(),
            |(function, file)| {
                if file.is_empty() || *file == *function {
                    function.clone()
                } else {
                    format!("{function} in {file}")
                }
            },
        );
        let why = format!(
            "{} of its time is spent on copies, but by {by}, which uncopy does not reach: it elides calls to the GNU C \
             library",
            percent(copies)
        );
        (Kind::NothingToGain, why, self.again(" --folded stacks.folded"))
    }

    fn nothing(&self, copies: f64) -> (Kind, String, String) {
        let kernel = self.summary.share(&[Class::KernelCopyIn, Class::KernelCopyOut]);
        if kernel >= MIN_KERNEL_COPY_SHARE {
            let why = format!(
                "{} of its time is spent on its own copies; {} on the kernel's, which lanes spare if the other end is a \
                 program on this host under uncopy too",
                percent(copies),
                percent(kernel)
            );
            return (Kind::NothingToGain, why, format!("uncopy run --lanes -- {}", self.command()));
        }
        let why = format!("{} of its time is spent on copies", percent(copies));
        (Kind::NothingToGain, why, "uncopy profile -a".to_owned())
    }

    /// Returns the command line, quoted for a shell, or the name if it is unknown or long.
    fn command(&self) -> String {
        /// Maximum length of a command line in a report, bytes.
        const MAX_BYTES: usize = 200;
        let Some(process) = self.first else { return "CMD".to_owned() };
        let words: Vec<String> = process.command.iter().map(|word| quoted(word)).collect();
        let line = words.join(" ");
        // A title in place of the command line is one word with spaces.
        let is_title = matches!(process.command.as_slice(), [title] if title.contains(' '));
        if line.is_empty() || line.len() > MAX_BYTES || is_title { quoted(&process.name) } else { line }
    }

    fn run(&self) -> String {
        format!("uncopy run -- {}", self.command())
    }

    fn record(&self, options: &str) -> String {
        format!("uncopy profile{options} -- {}", self.command())
    }

    /// Returns the command that repeats the measurement with further options.
    fn again(&self, options: &str) -> String {
        match self.first {
            Some(process) => format!("uncopy profile --pid {}{options}", process.pid),
            None => "uncopy profile -a".to_owned(),
        }
    }

    fn transformations(&self) -> String {
        let share = |class| self.summary.share(&[class]);
        let mut kinds =
            [(Class::Tls, "encryption"), (Class::Checksum, "checksums"), (Class::Compression, "compression")];
        kinds.sort_by(|one, other| share(other.0).total_cmp(&share(one.0)));
        let shown = kinds.iter().filter(|(class, _)| share(*class) >= 0.01);
        shown.map(|(_, name)| *name).collect::<Vec<_>>().join(" and ")
    }

    /// Returns the name of the program's allocator, and the command that makes it keep memory.
    fn allocator(&self) -> (&'static str, String) {
        let files = self.first.map_or(&[][..], |process| &process.files);
        let has = |name: &str| files.iter().any(|file| file.starts_with(name));
        let is_go = self.first.is_some_and(|process| {
            process
                .stacks
                .iter()
                .flat_map(|stack| &stack.frames)
                .any(|frame| frame.plain_name().starts_with("runtime."))
        });
        let (name, tunable) = if has("libjemalloc") {
            ("jemalloc", "MALLOC_CONF=dirty_decay_ms:60000,muzzy_decay_ms:60000")
        } else if has("libtcmalloc") {
            ("tcmalloc", "TCMALLOC_RELEASE_RATE=0")
        } else if has("libmimalloc") {
            ("mimalloc", "MIMALLOC_PURGE_DELAY=10000")
        } else if has("libjvm.so") {
            ("the JVM", "JAVA_TOOL_OPTIONS=-XX:+AlwaysPreTouch")
        } else if is_go {
            ("Go's collector", "GOGC=400")
        } else {
            // 32 MiB is the largest threshold that glibc accepts.
            (
                "glibc",
                "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824",
            )
        };
        (name, format!("{tunable} {}", self.command()))
    }
}

/// Quotes a word for the shell if necessary.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::CopyInProgress;
    use crate::samples::{copies, process, stack};

    fn judge(process: &ProcessProfile) -> Verdict {
        verdict(&Summary::of([process]), Some(process), true)
    }

    fn large() -> CopyInProgress {
        CopyInProgress { len_bytes: 65536, distance: 1 << 30 }
    }

    /// A server that receives for a tenth of its time, and spends the rest as `stacks` say.
    fn server(stacks: Vec<crate::resolve::NamedStack>) -> ProcessProfile {
        let mut read = stack(Class::KernelCopyIn, 100, &["rep_movs_alternative", "read", "main"]);
        read.system_call = Some("read".to_owned());
        let used: u64 = stacks.iter().map(|stack| stack.samples).sum();
        let rest = stack(Class::Other, 900 - used, &["work", "main"]);
        process(stacks.into_iter().chain([read, rest]).collect())
    }

    #[test]
    fn every_kind_has_its_reason_and_its_command() {
        let shift = CopyInProgress { len_bytes: 65536, distance: 45 };
        let small = CopyInProgress { len_bytes: 512, distance: 1 << 30 };
        let memmove = &["__memmove_avx_unaligned_erms", "store", "main"];
        let faulting = |copied| {
            vec![copies(copied, memmove, large()), stack(Class::PageFault, 300, &["clear_page_erms", "main"])]
        };
        for (stacks, kind, words, next) in [
            (
                vec![copies(300, memmove, large())],
                Kind::WorthTrying,
                "30 % of its time copies 16K",
                "uncopy run -- server -p 1",
            ),
            (
                vec![copies(200, memmove, large()), stack(Class::Tls, 300, &["aesni_gcm_encrypt", "main"])],
                Kind::Touched,
                "30 % of its time is spent on encryption, which reads every byte, and 20 % on copies",
                "uncopy profile -- server",
            ),
            (
                vec![copies(200, memmove, small)],
                Kind::SmallCopies,
                "half of it in copies below 513",
                "uncopy profile -- server",
            ),
            (faulting(40), Kind::Allocator, "30 % of its time is spent on page faults", "GLIBC_TUNABLES="),
            (
                faulting(60),
                Kind::WorthTrying,
                "and 30 % goes to page faults, zeroing and the allocator, which",
                "uncopy run -- server -p 1",
            ),
            (
                vec![copies(150, memmove, large())],
                Kind::NothingToGain,
                "15 % of its time copies 16K or more at a time; eliding them costs about as much, and pays from 20 % on",
                "uncopy profile -- server",
            ),
            (
                vec![copies(300, memmove, shift)],
                Kind::Algorithm,
                "most of it called by store",
                "uncopy profile --pid 7 --folded",
            ),
            (vec![], Kind::NothingToGain, "10 % on the kernel's", "uncopy run --lanes -- server"),
            (
                vec![stack(Class::Copy, 300, &["runtime.memmove", "main.main"])],
                Kind::NothingToGain,
                "by runtime.memmove in program, which uncopy does not reach",
                "uncopy profile --pid 7",
            ),
        ] {
            let found = judge(&server(stacks));
            assert_eq!(found.kind, kind, "{found:?}");
            assert!(found.sentence.starts_with(kind.name()) && found.sentence.contains(words), "{found:?}");
            assert!(found.next.starts_with(next), "{found:?}");
        }
    }

    #[test]
    fn bytes_that_were_not_received_and_few_samples_promise_nothing() {
        let own = process(vec![
            copies(500, &["memmove", "compute", "main"], large()),
            stack(Class::Other, 500, &["compute", "main"]),
        ]);
        let found = judge(&own);
        assert_eq!(found.kind, Kind::NothingToGain);
        assert!(found.sentence.contains("it receives next to nothing"), "{found:?}");
        let idle = judge(&process(vec![copies(99, &["memmove", "main"], large())]));
        assert_eq!(idle.kind, Kind::Unknown);
        assert!(idle.sentence.contains("99 samples are too few"), "{idle:?}");
        assert_eq!(judge(&process(Vec::new())).kind, Kind::Unknown);
    }

    #[test]
    fn tunables_are_those_of_the_allocator_in_use() {
        for (file, words) in [
            ("libjemalloc.so.2", "MALLOC_CONF="),
            ("libtcmalloc_minimal.so.4", "TCMALLOC_"),
            ("libjvm.so", "JAVA_TOOL_OPTIONS="),
            ("libc.so.6", "GLIBC_TUNABLES="),
        ] {
            let mut busy = server(vec![stack(Class::Allocator, 400, &["malloc", "main"])]);
            busy.files = vec![file.to_owned()];
            let found = judge(&busy);
            assert!(found.kind == Kind::Allocator && found.next.starts_with(words), "{found:?}");
        }
    }

    #[test]
    fn commands_can_be_pasted() {
        let mut odd = process(Vec::new());
        odd.command = vec!["./my server".to_owned(), "it's".to_owned()];
        let program = Program { summary: &Summary::default(), first: Some(&odd), has_kernel_time: true };
        assert_eq!(program.command(), r"'./my server' 'it'\''s'");
        odd.command = vec!["nginx: master process".to_owned()];
        let program = Program { summary: &Summary::default(), first: Some(&odd), has_kernel_time: true };
        assert_eq!(program.command(), "server");
    }
}
