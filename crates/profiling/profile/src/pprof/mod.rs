//! Profiles in pprof's format, gzip-compressed, for `go tool pprof`, Pyroscope, speedscope and others.
//!
//! [`Encoder`] takes stacks of named frames with their values, from any source. [`encode`](fn@encode) writes a
//! recording's profile with it. Locations have names instead of addresses, because uncopy looks names up while
//! the program's files are as they were.

pub mod messages;
mod recorded;

pub use recorded::encode;

use crate::format::one_line;
use crate::model::Module;
use flate2::Compression;
use flate2::write::GzEncoder;
use messages::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use prost::Message as _;
use rustc_hash::FxHashMap;
use std::io::Write as _;

/// Type and unit of a value, such as `("bytes", "bytes")` or `("cpu", "nanoseconds")`.
pub type Unit<'a> = (&'a str, &'a str);

/// Frame of a stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame<'a> {
    /// Name of the function, demangled.
    pub function: &'a str,
    /// Source file of the function.
    pub file: Option<&'a str>,
    /// Line number in the source file.
    pub line: Option<u32>,
    /// File that the code was mapped from.
    pub module: Option<&'a Module>,
    /// True if the function was inlined into that of the next frame.
    pub is_inlined: bool,
}

/// A profile under construction.
#[derive(Default)]
pub struct Encoder {
    profile: Profile,
    strings: FxHashMap<String, i64>,
    functions: FxHashMap<(i64, i64), u64>,
    locations: FxHashMap<(u64, Vec<Line>), u64>,
    mappings: FxHashMap<(i64, i64), u64>,
    samples: FxHashMap<(Vec<u64>, Vec<Label>), usize>,
}

impl Encoder {
    /// Creates a profile without samples whose samples will have values of these types. Tools show the type
    /// number `default` first.
    #[must_use]
    pub fn new(types: &[Unit<'_>], default: usize) -> Self {
        let mut encoder = Self::default();
        let _ = encoder.string("");
        for unit in types {
            let value_type = encoder.value_type(*unit);
            encoder.profile.sample_type.push(value_type);
        }
        encoder.profile.default_sample_type =
            encoder.profile.sample_type.get(default).map_or(0, |value_type| value_type.r#type);
        encoder
    }

    /// Sets the type and number of the events between two samples.
    pub fn set_period(&mut self, unit: Unit<'_>, period: u64) {
        self.profile.period_type = Some(self.value_type(unit));
        self.profile.period = clamped(period);
    }

    /// Sets the start, nanoseconds since 1970 or 0 if unknown, and the duration of the profile.
    pub fn set_time(&mut self, start_ns: u64, duration_ns: u64) {
        self.profile.time_nanos = clamped(start_ns);
        self.profile.duration_nanos = clamped(duration_ns);
    }

    /// Appends a line of free text about the profile.
    pub fn add_comment(&mut self, text: &str) {
        let text = self.string(text);
        self.profile.comment.push(text);
    }

    /// Enters a module before the samples that refer to it. Tools take the first for the main program.
    pub fn add_module(&mut self, module: &Module) {
        let _ = self.mapping(module);
    }

    /// Adds values, one for each type, to those of a stack, innermost frame first, with these labels (name and
    /// value).
    ///
    /// # Panics
    /// If the number of values is not that of the types.
    pub fn add<'a>(
        &mut self,
        stack: impl IntoIterator<Item = Frame<'a>>,
        values: &[i64],
        labels: &[(&str, &str)],
    ) {
        assert_eq!(values.len(), self.profile.sample_type.len(), "one value for each type");
        let locations = self.stack(stack);
        let labels: Vec<Label> = labels
            .iter()
            .map(|(key, value)| Label { key: self.string(key), str: self.string(value) })
            .collect();
        let samples = &mut self.profile.sample;
        let index = *self.samples.entry((locations, labels)).or_insert_with_key(|(locations, labels)| {
            let value = vec![0; values.len()];
            samples.push(Sample { location_id: locations.clone(), value, label: labels.clone() });
            samples.len() - 1
        });
        for (sum, value) in self.profile.sample[index].value.iter_mut().zip(values) {
            *sum = sum.saturating_add(*value);
        }
    }

    /// Returns the compressed profile.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
        let written = compressed.write_all(&self.profile.encode_to_vec()).and_then(|()| compressed.finish());
        written.expect("a vector takes all bytes")
    }

    /// Returns the ids of a stack's locations. Inlined frames share the location of the function that contains
    /// them.
    fn stack<'a>(&mut self, stack: impl IntoIterator<Item = Frame<'a>>) -> Vec<u64> {
        let mut locations = Vec::new();
        let mut lines = Vec::new();
        let mut mapping = 0;
        for frame in stack {
            let line = i64::from(frame.line.unwrap_or(0));
            lines.push(Line { function_id: self.function(frame.function, frame.file.unwrap_or("")), line });
            if let Some(module) = frame.module {
                mapping = self.mapping(module);
                let facts = &mut self.profile.mapping[index(mapping)];
                facts.has_filenames |= frame.file.is_some();
                facts.has_line_numbers |= frame.line.is_some();
                facts.has_inline_frames |= frame.is_inlined;
            }
            if !frame.is_inlined {
                locations.push(self.location(mapping, std::mem::take(&mut lines)));
                mapping = 0;
            }
        }
        if !lines.is_empty() {
            locations.push(self.location(mapping, lines));
        }
        locations
    }

    fn location(&mut self, mapping: u64, lines: Vec<Line>) -> u64 {
        let table = &mut self.profile.location;
        *self.locations.entry((mapping, lines)).or_insert_with_key(|(mapping_id, line)| {
            let id = next_id(table);
            table.push(Location { id, mapping_id: *mapping_id, line: line.clone() });
            id
        })
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.string(name), self.string(file));
        let table = &mut self.profile.function;
        *self.functions.entry((name, filename)).or_insert_with(|| {
            let id = next_id(table);
            table.push(Function { id, name, system_name: name, filename });
            id
        })
    }

    fn mapping(&mut self, module: &Module) -> u64 {
        let (filename, build_id) = (self.string(&module.path), self.string(&module.build_id));
        let table = &mut self.profile.mapping;
        *self.mappings.entry((filename, build_id)).or_insert_with(|| {
            let id = next_id(table);
            table.push(Mapping { id, filename, build_id, has_functions: true, ..Mapping::default() });
            id
        })
    }

    fn value_type(&mut self, (kind, unit): Unit<'_>) -> ValueType {
        ValueType { r#type: self.string(kind), unit: self.string(unit) }
    }

    /// Returns the index of a string. Names come from the program's files and go to terminals, so control
    /// characters are replaced.
    fn string(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = clamped(self.profile.string_table.len() as u64);
        self.profile.string_table.push(one_line(text));
        self.strings.insert(text.to_owned(), index);
        index
    }
}

/// Returns the id of the entry that is appended next.
fn next_id<T>(table: &[T]) -> u64 {
    table.len() as u64 + 1
}

/// Returns the index of the entry with this id.
#[allow(clippy::cast_possible_truncation, reason = "ids count entries in memory")]
const fn index(id: u64) -> usize {
    id as usize - 1
}

fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
