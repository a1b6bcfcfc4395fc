//! The page of a profile.

mod chains;
pub(crate) mod flow;
mod gain;
mod sites;

use uncopy_profile::Profile;
use uncopy_profile::model::{Call, Site};
use uncopy_profile::text::{quoted, sentence};
use uncopy_profile::verdict::{Worth, cpu_ratio, verdict};

use crate::markup::{Markup, shortened};
use crate::{quantity, shell};

/// Longest name of a function or file that is shown, characters.
pub(crate) const NAME: usize = 200;
/// Longest command line that is shown, characters.
const COMMAND: usize = 400;
/// Longest verdict, characters, which leaves room for the figures below it on a small screen: the name in it is a program's.
const VERDICT: usize = 300;
/// Longest sentence about what the program does, characters: the names in it are a program's.
const SENTENCE: usize = 800;
/// Warnings that are shown.
const MAX_WARNINGS: usize = 40;

/// The sections, in order: anchor and heading.
const SECTIONS: [(&str, &str); 6] = [
    ("flow", "Flow of bytes"),
    ("chains", "Chains of copies"),
    ("gain", "What eliding would give"),
    ("flame", "Copied bytes by call stack"),
    ("sites", "Sites"),
    ("recording", "Recording and machine"),
];

/// The page of `profile`, whole.
#[must_use]
pub fn profile_page(profile: &Profile) -> String {
    let mut page = Markup::new();
    page.element("a", &[("class", "skip"), ("href", "#flow")], "Skip to the flow of bytes");
    page.open("header", &[]);
    first(profile, &mut page);
    page.open("p", &[("class", "of")])
        .text("Copies of ")
        .element("code", &[], &command_line(profile))
        .close();
    page.element("p", &[], &shortened(&sentence(profile), SENTENCE));
    page.open("nav", &[("aria-label", "Sections")]).open("ul", &[]);
    for (anchor, heading) in SECTIONS {
        page.open("li", &[]).element("a", &[("href", &format!("#{anchor}"))], heading).close();
    }
    page.close().close().close();
    page.open("main", &[]);
    warnings(profile, &mut page);
    for (anchor, heading) in SECTIONS {
        page.open("section", &[("id", anchor), ("aria-labelledby", &format!("{anchor}-heading"))]);
        page.element("h2", &[("id", &format!("{anchor}-heading"))], heading);
        let section = match anchor {
            "flow" => flow::section(profile),
            "chains" => chains::section(profile),
            "gain" => gain::section(profile),
            "flame" => flow::flame(profile),
            "sites" => sites::section(profile),
            _ => recording(profile),
        };
        page.append(section).close();
    }
    let program = profile.command.first().map_or("a program", String::as_str);
    shell::page(&format!("uncopy profile: {}", shortened(program, NAME)), page)
}

/// What uncopy would save: a sentence and three figures, before everything else.
fn first(profile: &Profile, page: &mut Markup) {
    let verdict = verdict(profile);
    let class = match verdict.worth {
        Worth::Saves => "verdict good",
        Worth::Little => "verdict bad",
        Worth::Unknown => "verdict noisy",
    };
    page.element("h1", &[("class", class)], &shortened(&verdict.sentence, VERDICT));
    if verdict.worth == Worth::Unknown {
        return;
    }
    let prediction = &profile.prediction;
    let (ratio, is_measured) = cpu_ratio(profile);
    let how = if is_measured { "measured" } else { "estimated" };
    facts(
        page,
        "facts main",
        &[
            (&format!("CPU time for the same work, {how}"), format!("{} of now", quantity::percent(ratio))),
            ("throughput, if the CPU limits it", format!("{:.2} × now", 1.0 / ratio)),
            (
                "copies elided",
                format!(
                    "{} of {}",
                    quantity::count(prediction.copies),
                    quantity::count(prediction.of_copies)
                ),
            ),
        ],
    );
}

/// The command as one would type it.
fn command_line(profile: &Profile) -> String {
    let words: Vec<String> = profile.command.iter().map(|word| quoted(word)).collect();
    shortened(&words.join(" "), COMMAND).into_owned()
}

fn warnings(profile: &Profile, page: &mut Markup) {
    let mut lines: Vec<String> = profile.warnings.iter().take(MAX_WARNINGS).cloned().collect();
    if profile.dropped_events > 0 {
        let lost = quantity::count(profile.dropped_events);
        lines.push(format!("{lost} events were lost: shares and flows are of those that were kept"));
    }
    if let Some(more) = profile.warnings.len().checked_sub(MAX_WARNINGS).filter(|more| *more > 0) {
        lines.push(format!("{more} more warnings are in the file"));
    }
    if lines.is_empty() {
        return;
    }
    page.open("ul", &[("class", "warnings"), ("aria-label", "Warnings")]);
    for line in lines {
        page.element("li", &[], &format!("Note: {line}"));
    }
    page.close();
}

fn recording(profile: &Profile) -> Markup {
    let mut section = Markup::new();
    let machine = &profile.machine;
    facts(
        &mut section,
        "facts small",
        &[
            ("recorded", quantity::seconds(profile.seconds)),
            ("how it ended", profile.ending.clone()),
            ("CPU time", quantity::seconds(profile.cpu_seconds)),
            ("time in copies", quantity::seconds(profile.copy_seconds)),
            ("smallest size", quantity::bytes(profile.min_size_bytes)),
            ("uncopy", profile.uncopy.clone()),
            ("kernel", machine.kernel.clone()),
            ("processor", format!("{} × {}", machine.processors, machine.processor)),
        ],
    );
    section.append(sites::processes(profile));
    section
}

/// A list of names and values.
pub(crate) fn facts(markup: &mut Markup, class: &str, facts: &[(&str, String)]) {
    markup.open("dl", &[("class", class)]);
    for (name, value) in facts {
        markup.open("div", &[]).element("dt", &[], name);
        markup.element("dd", &[], &shortened(value, NAME)).close();
    }
    markup.close();
}

/// `memcpy in sdscatlen`.
fn site_name(site: &Site) -> String {
    format!("{} in {}", shortened(&site.name, 40), shortened(&site.place, NAME))
}

/// What a site does, as a word.
fn call_name(call: Call) -> &'static str {
    match call {
        Call::Input => "input",
        Call::Copy => "copy",
        Call::Output => "output",
    }
}

/// The part of a site's bytes that is touched afterwards, if it is known.
#[expect(clippy::cast_precision_loss, reason = "a ratio of which two digits are shown")]
fn touched_part(site: &Site) -> Option<f64> {
    let (sampled, touched) = site.sampled_bytes.zip(site.touched_bytes)?;
    (sampled > 0).then(|| (touched as f64 / sampled as f64).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
