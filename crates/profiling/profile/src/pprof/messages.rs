//! Messages of pprof's profile.proto (package `perftools.profiles`, <https://github.com/google/pprof>). Fields
//! that uncopy does not write are left out; readers of protocol buffers treat them as absent.
//!
//! Strings are indices into [`Profile::string_table`], whose first entry is empty. Ids begin with 1.

use prost::Message;

/// Profile: samples, and the tables to which they refer.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// Types of the values of each sample.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// Samples, one for each combination of stack and labels.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Files that code was mapped from. Tools take the first for the main program.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Code locations of the stacks.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions of the locations.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// Strings, the empty one first.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// Start of the profile, nanoseconds since 1970; 0 if unknown.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// Duration of the profile, nanoseconds.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// Type of the events between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// Number of events between two samples.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Free text, shown by `pprof -comments`.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// Type of the value that tools show first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// Type and unit of a value.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ValueType {
    /// Kind of value: `bytes`, `samples`.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Unit of the value: `bytes`, `count`, `nanoseconds`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// Values of one stack.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// Ids of the stack's locations, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value for each of the profile's types.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Labels, by which tools select samples.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// Label of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Label {
    /// Name of the label.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Value of the label.
    #[prost(int64, tag = "2")]
    pub str: i64,
}

/// File that code was mapped from.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Mapping {
    /// Id of the mapping.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Path of the file.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build id in hexadecimal.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// True if locations have functions, so that tools do not look them up by address.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// True if functions have files.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// True if lines have numbers.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// True if inlined functions have lines of their own.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// Code location, named by its lines rather than by its address.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// Id of the location.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Id of the mapping; 0 if unknown.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Lines, innermost first: inlined functions, then the function that contains them.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// Source line in a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Line {
    /// Id of the function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Line number in the function's file; 0 if unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// Function of the program.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Function {
    /// Id of the function.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name for people, demangled.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Name in the file; here the same as `name`.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Source file of the function.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
