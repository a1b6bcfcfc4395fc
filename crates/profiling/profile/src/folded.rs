//! Moved bytes by call stack in the folded format of flame graph tools (flamegraph.pl, inferno, speedscope):
//! one line `outermost;…;innermost;CALL BYTES` per stack.

use crate::model::Profile;
use std::collections::BTreeMap;

/// Returns the lines, sorted.
#[must_use]
pub fn folded(profile: &Profile) -> String {
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    for site in &profile.sites {
        let frames = profile.stacks[site.stack].iter().rev().map(|frame| &profile.frames[*frame].function);
        let mut stack = String::new();
        for frame in frames {
            stack.push_str(&name(frame));
            stack.push(';');
        }
        stack.push_str(&name(&site.name));
        let bytes = stacks.entry(stack).or_default();
        *bytes = bytes.saturating_add(site.bytes);
    }
    stacks.into_iter().map(|(stack, bytes)| format!("{stack} {bytes}\n")).collect()
}

/// Replaces characters that separate names and lines.
fn name(name: &str) -> String {
    let plain = |character: char| match character {
        ';' => ':',
        character if character.is_control() => ' ',
        character => character,
    };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_stack_and_its_bytes() {
        let mut profile = Profile::parse(include_bytes!("../samples/redis-set.json")).expect("well-formed");
        profile.frames[0].function = "a;b\nc".to_owned();
        let text = folded(&profile);
        let bytes: u64 = profile.sites.iter().map(|site| site.bytes).sum();
        let mut sum = 0;
        for line in text.lines() {
            let (stack, bytes) = line.rsplit_once(' ').expect("two parts");
            assert!(stack.starts_with("__libc_start_call_main;main;"), "{line}");
            sum += bytes.parse::<u64>().expect("a number");
        }
        assert_eq!((text.lines().count(), sum), (6, bytes));
        assert!(text.contains(";a:b c;read "), "{text}");
    }
}
