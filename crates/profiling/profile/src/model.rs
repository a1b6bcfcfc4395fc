//! The data model of a profile, as `uncopy profile` writes and all reports read it.
//!
//! A profile is one JSON object, described by `docs/profile.schema.json`. All references are indices into
//! sibling arrays, which [`Profile::check`] verifies: a site refers to a stack, a stack to its frames
//! (innermost first), a frame to its module. Lengths are in bytes and times in nanoseconds unless the name
//! says otherwise.

use serde::{Deserialize, Serialize};
use uncopy_core::policy::trials::FactorReport;
use uncopy_core::policy::trials::catalogue::FactorName;

/// Value of the field [`Profile::format`].
pub const FORMAT: &str = "uncopy-profile";
/// Value of [`Profile::version`], incremented by incompatible changes.
pub const VERSION: u32 = uncopy_core::schema::PROFILE;

/// A complete profile of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Format of the document, always [`FORMAT`].
    pub format: String,
    /// Version of the format, [`VERSION`].
    pub version: u32,
    /// Version of uncopy that wrote the profile.
    pub uncopy: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How the recording ended, in words.
    pub ending: String,
    /// Machine that the program ran on.
    pub machine: Machine,
    /// Duration of the recording in seconds.
    pub seconds: f64,
    /// Minimum bytes of a recorded call.
    pub min_size_bytes: u64,
    /// User and system CPU time of the recorded processes, in seconds.
    pub cpu_seconds: f64,
    /// CPU time spent in recorded copies (without inputs and outputs), measured, in seconds.
    pub copy_seconds: f64,
    /// Processes that were recorded.
    pub processes: Vec<Process>,
    /// Files that code was mapped from.
    pub modules: Vec<Module>,
    /// Code locations to which stacks refer.
    pub frames: Vec<Frame>,
    /// Call stacks: indices of frames, innermost first. An inlined frame precedes its caller.
    pub stacks: Vec<Vec<usize>>,
    /// Call sites that moved bytes, most bytes first.
    pub sites: Vec<Site>,
    /// Bytes that flowed between sites.
    pub flows: Vec<Flow>,
    /// Classes of operations, most bytes first.
    pub operations: Vec<OperationClass>,
    /// Predicted effect of eliding.
    pub prediction: Prediction,
    /// Measurements that the program made itself before the recording began. Empty if the program was started
    /// for the recording, because nothing is elided while recording.
    #[serde(default)]
    pub measured: Vec<Measurement>,
    /// Events lost because the command could not keep up.
    pub dropped_events: u64,
    /// Caveats about the figures, each a sentence.
    pub warnings: Vec<String>,
}

/// A measurement by trials inside the program: CPU time per byte with some factor, as a fraction of that
/// without.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The factor that was tried.
    pub what: String,
    /// Pairs of slices that the measurement is based on.
    pub pairs: u32,
    /// Ratio of the CPU times, or none if there is too little data.
    pub ratio: Option<f64>,
    /// Lower end of the 95 % confidence interval.
    pub low: Option<f64>,
    /// Upper end of the 95 % confidence interval.
    pub high: Option<f64>,
    /// The measurement in words.
    pub text: String,
}

impl Measurement {
    /// Converts the standing of `factor`.
    #[must_use]
    pub fn of(factor: usize, standing: &FactorReport) -> Self {
        let finite =
            |value: f64| Some(value).filter(|value| value.is_finite() && standing.radius.is_finite());
        Self {
            what: FactorName(factor).to_string(),
            pairs: standing.pairs,
            ratio: finite(standing.ratio),
            low: finite(standing.ratio - standing.radius),
            high: finite(standing.ratio + standing.radius),
            text: standing.to_string(),
        }
    }
}

/// Machine that a recording was made on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Release of the kernel (`uname -r`).
    pub kernel: String,
    /// Model name of the processor.
    pub processor: String,
    /// Number of usable processors.
    pub processors: u32,
}

/// One of the recorded processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Process id of the process.
    pub pid: u32,
    /// Name of the process's program.
    pub name: String,
    /// CPU time while recorded, in seconds.
    pub cpu_seconds: f64,
    /// Number of recorded events.
    pub events: u64,
    /// Number of lost events.
    pub dropped_events: u64,
}

/// A file that code was mapped from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Path of the file.
    pub path: String,
    /// Build id in hexadecimal; empty if the file has none.
    pub build_id: String,
}

/// A location in the program's code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Index of the module; absent if the address lies in none.
    pub module: Option<usize>,
    /// Function name, demangled, or `FILE+0xOFFSET` of the function's start if unnamed.
    pub function: String,
    /// Source file, if debug information is available.
    pub file: Option<String>,
    /// Line number in the source file.
    pub line: Option<u32>,
    /// True if the function was inlined into that of the next frame.
    pub inlined: bool,
}

/// Kind of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// From the kernel to memory.
    Input,
    /// From memory to memory.
    #[default]
    Copy,
    /// From memory to the kernel.
    Output,
}

/// Kind of object that an input or output refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Object {
    /// A stream socket, such as TCP.
    Socket,
    /// A datagram socket, which preserves boundaries.
    Datagram,
    /// A regular file on any file system.
    File,
    /// A pipe or a named FIFO.
    Pipe,
    /// A terminal or pseudoterminal device.
    Terminal,
    /// Any other kind of object.
    Other,
    /// No object: a copy in memory.
    #[default]
    Memory,
}

impl Object {
    /// Returns the name shown in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Datagram => "datagram",
            Self::File => "file",
            Self::Pipe => "pipe",
            Self::Terminal => "terminal",
            Self::Other => "other",
            Self::Memory => "memory",
        }
    }
}

/// Effect of uncopy on a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The site's copies would be elided, or the site receives or sends elided bytes.
    Elide,
    /// Too much of the copied data is touched afterwards.
    Touched,
    /// Calls have too few whole pages to pay for the tracking.
    TooSmall,
    /// The bytes were never received: the program produced them, or received them in small pieces.
    OwnBytes,
    /// Source or destination is memory outside the block heap that cannot hold views.
    Foreign,
    /// Source or destination is a shared or file-backed mapping.
    Shared,
    /// An input or output that is not part of any elided copy.
    #[default]
    Plain,
}

impl Verdict {
    /// Returns the name shown in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Elide => "elide",
            Self::Touched => "touched",
            Self::TooSmall => "too small",
            Self::OwnBytes => "own bytes",
            Self::Foreign => "foreign memory",
            Self::Shared => "shared memory",
            Self::Plain => "plain",
        }
    }
}

/// A call site: a call in the program, with the stack that leads to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Index of this site.
    pub id: usize,
    /// Kind of call made at the site.
    pub call: Call,
    /// Function called, as far as known: `memcpy`, `read`.
    pub name: String,
    /// Object read or written; `memory` for a copy.
    pub object: Object,
    /// Index of the call stack.
    pub stack: usize,
    /// Calling function, the innermost outside libc: `FUNCTION`, or `FILE+0xSTART < CALLER` if unnamed.
    pub place: String,
    /// `FILE:LINE` of the call, if debug information is available.
    pub line: Option<String>,
    /// Number of calls made at the site.
    pub events: u64,
    /// Bytes that these calls moved.
    pub bytes: u64,
    /// Time taken, in nanoseconds.
    pub ns: u64,
    /// Bytes sampled for later touches; absent if none were.
    pub sampled_bytes: Option<u64>,
    /// Sampled bytes on pages that were touched.
    pub touched_bytes: Option<u64>,
    /// Effect of uncopy on the site.
    pub verdict: Verdict,
    /// Predicted time saved over the recording, in nanoseconds; negative for a cost.
    pub saved_ns: i64,
    /// Reason of the verdict, as part of a sentence.
    pub why: String,
}

/// Bytes that flowed from one site to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Site that wrote the bytes last; absent for memory that no recorded call has written.
    pub from: Option<usize>,
    /// Site that read the bytes.
    pub to: usize,
    /// Number of bytes that flowed.
    pub bytes: u64,
    /// Number of calls that moved them.
    pub events: u64,
}

/// A class of operations: the same inputs, copies and outputs in the same order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationClass {
    /// Name such as `socket → file`.
    pub name: String,
    /// Origin of the bytes; `memory` if no input was recorded.
    pub from: Object,
    /// Destinations of the bytes; empty if no output was recorded.
    pub to: Vec<Object>,
    /// Number of operations in the class.
    pub count: u64,
    /// Mean bytes received per operation.
    pub bytes_each: f64,
    /// Steps of an operation, in order.
    pub steps: Vec<Step>,
    /// Copies made by the program per operation (zIO, Table 1).
    pub copies_in_application: u32,
    /// Copies at the I/O stack's interface per operation (zIO, Table 1).
    pub copies_at_io_stack: u32,
    /// Copies in the application that uncopy would elide.
    pub elidable_copies: u32,
    /// Mean number of times that the program copies each received byte.
    pub moves_each: f64,
    /// One operation, call by call.
    pub example: Vec<ExampleStep>,
}

/// A step of a chain, as in zIO's Table 2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Label: `IO1`, `A1`, …
    pub label: String,
    /// Index of the site.
    pub site: usize,
    /// Source: `socket`, `buffer 1`, …
    pub source: String,
    /// Destination: `buffer 2`, `file`, …
    pub destination: String,
    /// Indices of earlier steps of this chain that the bytes come from; empty for an input or the program's
    /// own bytes.
    pub after: Vec<usize>,
    /// Distance that a copy within one buffer moves the bytes; negative towards the buffer's start.
    pub shift: Option<i64>,
    /// Mean calls per operation.
    pub calls_each: f64,
    /// Mean bytes of the step per operation.
    pub bytes: f64,
    /// Fraction of the time of all steps of the class, 0 to 1. Inputs include waiting time.
    pub share: f64,
    /// True if uncopy would elide the step.
    pub elidable: bool,
}

/// One call of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleStep {
    /// Index of the step that the call belongs to.
    pub step: usize,
    /// Bytes that the call moved.
    pub bytes: u64,
    /// Bytes of this operation among them.
    pub own_bytes: u64,
    /// Destination minus source, for a copy within one buffer or between overlapping ranges.
    pub shift: Option<i64>,
    /// Thread that made the call.
    pub thread: u32,
}

/// Predicted effect of eliding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Number of copies that would be elided.
    pub copies: u64,
    /// Number of recorded copies.
    pub of_copies: u64,
    /// Bytes that would not be copied.
    pub bytes: u64,
    /// Measured time of the elided copies, in nanoseconds.
    pub copy_ns: u64,
    /// Time for tracking, fresh pages and touches instead, in nanoseconds.
    pub cost_ns: u64,
    /// Net time saved, in nanoseconds.
    pub ns: i64,
    /// Fraction of the CPU time spent in recorded copies, 0 to 1.
    pub cpu_share: f64,
    /// Predicted CPU time for the same work, relative to that without uncopy.
    pub cpu_ratio: f64,
    /// Predicted throughput relative to that without uncopy, if CPU-bound.
    pub ratio: f64,
    /// Fraction of the sampled bytes that was touched afterwards; absent if unknown.
    pub touched_share: Option<f64>,
    /// Sites that would lose or cannot be helped, most bytes first.
    pub losers: Vec<Loser>,
    /// Additional effect of lanes; absent if no stream to a program on this host was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<LanePrediction>,
}

/// Predicted effect of `uncopy run --lanes` at both ends of streams to programs on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanePrediction {
    /// Bytes that would pass by reference.
    pub bytes: u64,
    /// Bytes recorded on such streams.
    pub of_bytes: u64,
    /// Minimum CPU time saved at both ends together, in nanoseconds.
    pub saved_ns: u64,
}

/// A site whose copies would not be elided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loser {
    /// Index of the site.
    pub site: usize,
    /// Effect of uncopy on the site.
    pub verdict: Verdict,
    /// Reason, as part of a sentence.
    pub why: String,
}

/// Reason why a file is not accepted. `Display` gives part of a sentence ("is not …").
#[derive(Debug)]
pub enum ParseError {
    /// The file is not JSON, or not structured like a profile.
    NotAProfile(serde_json::Error),
    /// The file has another format.
    OtherFormat,
    /// The file has this unsupported version.
    OtherVersion(u32),
    /// A reference in the file is invalid.
    Damaged(&'static str),
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotAProfile(error) => write!(f, "is not a profile: {error}"),
            Self::OtherFormat => f.write_str("is not a profile: its format is another"),
            Self::OtherVersion(version) => {
                write!(f, "has version {version}; this uncopy reads version {VERSION}")
            }
            Self::Damaged(why) => write!(f, "is damaged: {why}"),
        }
    }
}

impl std::error::Error for ParseError {}

impl From<serde_json::Error> for ParseError {
    fn from(error: serde_json::Error) -> Self {
        Self::NotAProfile(error)
    }
}

impl Profile {
    /// Parses a file written by [`Profile::to_json`]. Accepts arbitrary bytes.
    ///
    /// # Errors
    /// Returns the reason why the file is not a valid profile.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let head: Head = serde_json::from_slice(bytes)?;
        if head.format != FORMAT {
            return Err(ParseError::OtherFormat);
        }
        if head.version != VERSION {
            return Err(ParseError::OtherVersion(head.version));
        }
        let profile: Self = serde_json::from_slice(bytes)?;
        profile.check().map_err(ParseError::Damaged)?;
        Ok(profile)
    }

    /// Serialises the profile to JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Adds the version as `schema`, the name that it has in every document. Serialising strings and
        // numbers never fails.
        #[derive(Serialize)]
        struct Document<'a> {
            schema: u32,
            #[serde(flatten)]
            profile: &'a Profile,
        }
        serde_json::to_string_pretty(&Document { schema: self.version, profile: self })
            .map(|text| text + "\n")
            .unwrap_or_default()
    }

    /// Checks that all references are valid.
    ///
    /// # Errors
    /// Returns a description of an invalid reference.
    pub fn check(&self) -> Result<(), &'static str> {
        let within = |index: usize, len: usize, what| if index < len { Ok(()) } else { Err(what) };
        for frame in &self.frames {
            within(frame.module.unwrap_or(0), self.modules.len().max(1), "a frame without its module")?;
        }
        for frame in self.stacks.iter().flatten() {
            within(*frame, self.frames.len(), "a stack without its frame")?;
        }
        for (index, site) in self.sites.iter().enumerate() {
            within(site.stack, self.stacks.len(), "a site without its stack")?;
            if site.id != index {
                return Err("a site out of order");
            }
        }
        for flow in &self.flows {
            within(flow.to, self.sites.len(), "a flow without its end")?;
            within(flow.from.unwrap_or(flow.to), self.sites.len(), "a flow without its start")?;
        }
        for operation in &self.operations {
            for (index, step) in operation.steps.iter().enumerate() {
                within(step.site, self.sites.len(), "a step without its site")?;
                step.after.iter().try_for_each(|after| within(*after, index, "a step before its source"))?;
            }
            let mut calls = operation.example.iter();
            calls.try_for_each(|call| within(call.step, operation.steps.len(), "a call without its step"))?;
        }
        let losers = &self.prediction.losers;
        losers.iter().try_for_each(|loser| within(loser.site, self.sites.len(), "a loser without its site"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../samples/redis-set.json");

    #[test]
    fn a_file_reads_back() {
        let profile = Profile::parse(SAMPLE.as_bytes()).expect("well-formed");
        assert_eq!(profile.operations[0].steps.len(), 5);
        assert_eq!(Profile::parse(profile.to_json().as_bytes()).expect("its own text"), profile);
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let refused = |text: &str| Profile::parse(text.as_bytes()).expect_err("not a profile").to_string();
        for text in ["", "{}", "[]", "\0", "{\"format\": \"x\"}"] {
            assert!(refused(text).starts_with("is not a profile: "), "{text}");
        }
        assert!(refused(&SAMPLE.replacen("uncopy-profile", "profile", 1)).contains("format is another"));
        assert_eq!(
            refused(&SAMPLE.replacen("\"version\": 1", "\"version\": 7", 1)),
            "has version 7; this uncopy reads version 1"
        );
        for (from, to, why) in [
            ("\"stack\": 2", "\"stack\": 999", "a site without its stack"),
            ("\"module\": 1", "\"module\": 2", "a frame without its module"),
            ("\"id\": 0", "\"id\": 1", "a site out of order"),
            ("\"to\": 1,", "\"to\": 77,", "a flow without its end"),
        ] {
            assert_eq!(refused(&SAMPLE.replacen(from, to, 1)), format!("is damaged: {why}"));
        }
        assert!(refused(&SAMPLE[..SAMPLE.len() / 2]).starts_with("is not a profile: EOF"));
    }
}
