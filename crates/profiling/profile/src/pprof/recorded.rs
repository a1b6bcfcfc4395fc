//! The profile of a recording in pprof's format.

use super::{Encoder, Frame, clamped};
use crate::model::{Call, Profile, Site};
use crate::symbols::file_name;
use crate::verdict::verdict;

/// Types of the values. Times of inputs and outputs include waiting for data, and `saved` is negative where eliding
/// would cost time.
const TYPES: [(&str, &str); 4] =
    [("calls", "count"), ("bytes", "bytes"), ("time", "nanoseconds"), ("saved", "nanoseconds")];
/// Index of the type that tools show first: bytes.
const DEFAULT: usize = 1;

/// Returns the calls, bytes, time and predicted saving of all sites by call stack, compressed. The innermost frame
/// is the function called, such as memcpy. Labels: `call`, `object` and `verdict`.
#[must_use]
pub fn encode(profile: &Profile) -> Vec<u8> {
    let mut encoder = Encoder::new(&TYPES, DEFAULT);
    // Every call is recorded.
    encoder.set_period(TYPES[0], 1);
    // The file may be damaged: a negative, infinite or undefined duration is unknown.
    let duration = std::time::Duration::try_from_secs_f64(profile.seconds).unwrap_or_default();
    encoder.set_time(0, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    encoder.add_comment(&format!("uncopy {}: {}", profile.uncopy, profile.command.join(" ")));
    encoder.add_comment(&verdict(profile).sentence);
    profile.warnings.iter().for_each(|warning| encoder.add_comment(warning));
    let program = profile.command.first().map(|name| file_name(name.as_bytes()));
    let is_program = |path: &str| Some(file_name(path.as_bytes())) == program;
    if let Some(main) = profile.modules.iter().find(|module| is_program(&module.path)) {
        encoder.add_module(main);
    }
    for site in &profile.sites {
        let values = [clamped(site.events), clamped(site.bytes), clamped(site.ns), site.saved_ns];
        let labels = [
            ("call", call_name(site.call)),
            ("object", site.object.name()),
            ("verdict", site.verdict.name()),
        ];
        encoder.add(stack(profile, site), &values, &labels);
    }
    encoder.finish()
}

fn stack<'a>(profile: &'a Profile, site: &'a Site) -> impl Iterator<Item = Frame<'a>> {
    let called = Frame { function: &site.name, ..Frame::default() };
    let callers = profile.stacks[site.stack].iter().map(|frame| {
        let frame = &profile.frames[*frame];
        Frame {
            function: &frame.function,
            file: frame.file.as_deref(),
            line: frame.line,
            module: frame.module.and_then(|module| profile.modules.get(module)),
            is_inlined: frame.inlined,
        }
    });
    std::iter::once(called).chain(callers)
}

const fn call_name(call: Call) -> &'static str {
    match call {
        Call::Input => "input",
        Call::Copy => "copy",
        Call::Output => "output",
    }
}
