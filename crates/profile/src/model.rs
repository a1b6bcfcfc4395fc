//! The result of a recording: what `uncopy profile` writes, and everything that shows it reads.
//!
//! One JSON object; `docs/profile.schema.json` describes it for other programs. All references are indices
//! into the arrays beside them ([`Profile::check`] sees to it that they lead somewhere): a site names a
//! stack, a stack its frames, innermost first, a frame its module. Lengths are in bytes and times in nanoseconds unless the name says
//! otherwise.

use serde::{Deserialize, Serialize};
use uncopy_core::policy::trials::Standing;
use uncopy_core::policy::trials::catalogue::Name;

/// What [`Profile::format`] says.
pub const FORMAT: &str = "uncopy-profile";
/// What [`Profile::version`] says; raised when a reader of the old one would go wrong.
pub const VERSION: u32 = uncopy_core::schema::PROFILE;

/// A whole recording, put together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The version of uncopy that wrote it.
    pub uncopy: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How the recording ended, in words.
    pub ending: String,
    /// Where it ran.
    pub machine: Machine,
    /// How long the recording took, seconds.
    pub seconds: f64,
    /// Calls that moved fewer bytes were not recorded.
    pub min_size_bytes: u64,
    /// Processor time of the recorded processes, user and system, seconds.
    pub cpu_seconds: f64,
    /// Of it, the time inside recorded copies (not inputs and outputs), measured, seconds.
    pub copy_seconds: f64,
    /// The processes that were recorded.
    pub processes: Vec<Process>,
    /// Files that code was mapped from.
    pub modules: Vec<Module>,
    /// Places in the code.
    pub frames: Vec<Frame>,
    /// Call stacks: indices of frames, innermost first. A frame that was inlined stands before its caller.
    pub stacks: Vec<Vec<usize>>,
    /// Where bytes were moved, the most bytes first.
    pub sites: Vec<Site>,
    /// How many bytes went from where to where.
    pub flows: Vec<Flow>,
    /// Classes of operations, the most bytes first.
    pub operations: Vec<Operation>,
    /// What eliding would give.
    pub prediction: Prediction,
    /// What the program had measured by itself until the recording began; empty for one that was started to be recorded,
    /// because nothing is elided meanwhile.
    #[serde(default)]
    pub measured: Vec<Measurement>,
    /// Events that were lost because the command did not keep up.
    pub dropped_events: u64,
    /// What a reader should know before believing the figures, each a sentence.
    pub warnings: Vec<String>,
}

/// What a program under uncopy has measured of itself, by trials: processor time per byte with something, as a part of
/// that without.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What was tried.
    pub what: String,
    /// Pairs of slices that it rests on.
    pub pairs: u32,
    /// The ratio, and the ends of its 95 % interval; none where there is too little to tell.
    pub ratio: Option<f64>,
    /// The lower end.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// All of it in words.
    pub text: String,
}

impl Measurement {
    /// What `standing` says of `factor`.
    #[must_use]
    pub fn of(factor: usize, standing: &Standing) -> Self {
        let told = |value: f64| Some(value).filter(|value| value.is_finite() && standing.radius.is_finite());
        Self {
            what: Name(factor).to_string(),
            pairs: standing.pairs,
            ratio: told(standing.ratio),
            low: told(standing.ratio - standing.radius),
            high: told(standing.ratio + standing.radius),
            text: standing.to_string(),
        }
    }
}

/// Where a recording was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's release.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// Processors that could be used.
    pub processors: u32,
}

/// One recorded process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Its program's name.
    pub name: String,
    /// Processor time while it was recorded, seconds.
    pub cpu_seconds: f64,
    /// Events that were recorded.
    pub events: u64,
    /// Events that were lost.
    pub dropped_events: u64,
}

/// A file that code was mapped from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Its path.
    pub path: String,
    /// Its build id, hexadecimal; empty if it has none.
    pub build_id: String,
}

/// A place in the code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Index of its module; absent if the address lay in none.
    pub module: Option<usize>,
    /// The function, demangled, or `FILE+0xOFFSET` of its start where nothing names it.
    pub function: String,
    /// The source file, if debug information tells.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// Whether it was inlined into the next frame of the stack.
    pub inlined: bool,
}

/// What a site does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// From the kernel into memory.
    Input,
    /// From memory to memory.
    #[default]
    Copy,
    /// From memory to the kernel.
    Output,
}

/// What is at the other end of an input or output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Object {
    /// A stream socket.
    Socket,
    /// A datagram socket.
    Datagram,
    /// A file.
    File,
    /// A pipe.
    Pipe,
    /// A terminal.
    Terminal,
    /// Something else.
    Other,
    /// Nothing: a copy in memory.
    #[default]
    Memory,
}

impl Object {
    /// The word in tables.
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

/// What uncopy would do at a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Its copies would be elided, or it receives or sends what is elided.
    Elide,
    /// Too much of what it copies is touched afterwards.
    Touched,
    /// Too little whole pages in each call to pay for the tracking.
    TooSmall,
    /// Its bytes were never received: the program made them, or received them in small pieces.
    OwnBytes,
    /// Source or destination is memory outside the block heap that can hold no views.
    Foreign,
    /// Source or destination is a shared or file-backed mapping.
    Shared,
    /// An input or output that takes no part in any elided copy.
    #[default]
    Plain,
}

impl Verdict {
    /// The words in tables.
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

/// Where bytes are moved: a call in the program with the stack that led there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Its index.
    pub id: usize,
    /// What it does.
    pub call: Call,
    /// The function that was called, as far as it is known: `memcpy`, `read`.
    pub name: String,
    /// What is at the other end; `memory` for a copy.
    pub object: Object,
    /// Index of its stack.
    pub stack: usize,
    /// The function that made the call, the first one in the program, not libc: `FUNCTION`, or `FILE+0xSTART < CALLER`
    /// if nothing names it.
    pub place: String,
    /// `FILE:LINE` of it, if debug information tells.
    pub line: Option<String>,
    /// Calls.
    pub events: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Time that they took.
    pub ns: u64,
    /// Bytes that were looked at for what is touched afterwards; absent if none were.
    pub sampled_bytes: Option<u64>,
    /// Of them, bytes on pages that were touched.
    pub touched_bytes: Option<u64>,
    /// What uncopy would do.
    pub verdict: Verdict,
    /// Time that it would save over the recording; below 0: cost.
    pub saved_ns: i64,
    /// Why, as part of a sentence.
    pub why: String,
}

/// Bytes that went from one site to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Where they were put last; absent: the program's own memory, written by nothing that was recorded.
    pub from: Option<usize>,
    /// Where they went.
    pub to: usize,
    /// How many.
    pub bytes: u64,
    /// By how many calls.
    pub events: u64,
}

/// A class of operations: the same inputs, copies and outputs in the same order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// `socket → file`.
    pub name: String,
    /// Where its bytes came from; `memory`: no recorded input.
    pub from: Object,
    /// Where they went; several if they went several ways; empty if nowhere that was recorded.
    pub to: Vec<Object>,
    /// How many were seen.
    pub count: u64,
    /// Bytes that one received, on average.
    pub bytes_each: f64,
    /// What happens to the bytes, in order.
    pub steps: Vec<Step>,
    /// Copies that the program makes in one (zIO, Table 1).
    pub copies_in_application: u32,
    /// Copies at the I/O stack's interface in one (zIO, Table 1).
    pub copies_at_io_stack: u32,
    /// Of the copies in the application, those that uncopy would elide.
    pub elidable_copies: u32,
    /// Bytes that the program copies in one over the bytes it receives, on average: how often a byte is moved.
    pub moves_each: f64,
    /// One of them, call by call.
    pub example: Vec<ExampleStep>,
}

/// A line of a chain, as in zIO's Table 2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// `IO1`, `A1`, …
    pub label: String,
    /// Index of the site.
    pub site: usize,
    /// `socket`, `buffer 1`, …
    pub source: String,
    /// `buffer 2`, `file`, …
    pub destination: String,
    /// Indices of the steps, in this chain, that its bytes come from; empty: the program's own, or an input.
    pub after: Vec<usize>,
    /// For a copy within one buffer: how far the bytes move; below 0: towards its start.
    pub shift: Option<i64>,
    /// Calls in one operation, on average.
    pub calls_each: f64,
    /// Bytes in one operation, on average.
    pub bytes: f64,
    /// Its share of the time that all steps of the class take, 0 to 1. Inputs that wait count with the wait.
    pub share: f64,
    /// Whether uncopy would elide it.
    pub elidable: bool,
}

/// One call of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleStep {
    /// Index of the line of the chain that it belongs to.
    pub step: usize,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Of them, bytes of this operation.
    pub own_bytes: u64,
    /// Destination minus source, for a copy whose source and destination are one buffer or overlap.
    pub shift: Option<i64>,
    /// The thread that made it.
    pub thread: u32,
}

/// What eliding would give.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Copies that would be elided over the recording.
    pub copies: u64,
    /// Of so many that were recorded.
    pub of_copies: u64,
    /// Bytes that would not be copied.
    pub bytes: u64,
    /// What those copies took, measured.
    pub copy_ns: u64,
    /// What tracking, fresh pages and touches would cost instead.
    pub cost_ns: u64,
    /// What is left: saved.
    pub ns: i64,
    /// Share of the processor time that copies took, 0 to 1: all recorded copies.
    pub cpu_share: f64,
    /// Predicted processor time for the same work over that without uncopy.
    pub cpu_ratio: f64,
    /// Predicted throughput over that without uncopy, where the processor is what limits it.
    pub ratio: f64,
    /// Bytes touched afterwards over bytes that were sampled; absent: not known.
    pub touched_share: Option<f64>,
    /// Sites that would lose or that nothing can be done for, the most bytes first.
    pub losers: Vec<Loser>,
    /// What lanes would give besides; absent: no stream to a program on this host was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<LanePrediction>,
}

/// What `uncopy run --lanes` at both ends of the streams to programs on the same host would give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanePrediction {
    /// Bytes that would pass by reference.
    pub bytes: u64,
    /// Of so many that were recorded on such streams.
    pub of_bytes: u64,
    /// Processor time that both ends together would save at least.
    pub saved_ns: u64,
}

/// A site whose copies would not be elided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loser {
    /// Index of the site.
    pub site: usize,
    /// What uncopy would do.
    pub verdict: Verdict,
    /// Why, as part of a sentence.
    pub why: String,
}

/// Why a file is not read. `Display` is part of a sentence ("is not …").
#[derive(Debug)]
pub enum ParseError {
    /// Not JSON, or not of a profile's shape.
    NotAProfile(serde_json::Error),
    /// It says that it is something else.
    OtherFormat,
    /// It is of another version, which it names.
    OtherVersion(u32),
    /// A part refers to one that is not there.
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
    /// Reads a file that [`Profile::to_json`] wrote. Whatever the bytes are, this returns.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// The file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        // The version under the name that it has in every document. Strings and numbers only: nothing in it cannot be
        // written.
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

    /// Whether every reference leads somewhere and every number is one.
    ///
    /// # Errors
    /// Which one does not.
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
