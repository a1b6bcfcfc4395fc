//! The page of one profile.

mod chains;
pub(crate) mod flow;
mod gain;
mod sites;

use uncopy_profile::Profile;
use uncopy_profile::model::{Call, Site};
use uncopy_profile::text::{sentence, shell_quote};
use uncopy_profile::verdict::{Benefit, cpu_ratio, verdict};

use crate::markup::{Markup, shortened};
use crate::{quantity, shell};

pub(crate) const MAX_NAME_CHARS: usize = 200;
const MAX_COMMAND_CHARS: usize = 400;
/// Maximum characters of the verdict, which contains a name from the program. Leaves room for the figures
/// below on a small screen.
const MAX_VERDICT_CHARS: usize = 300;
/// Maximum characters of the sentence about what the program does, which contains names from the program.
const MAX_SENTENCE_CHARS: usize = 800;
const MAX_WARNINGS: usize = 40;

/// Sections in order: anchor and heading.
const SECTIONS: [(&str, &str); 6] = [
    ("flow", "Flow of bytes"),
    ("chains", "Chains of copies"),
    ("gain", "What eliding would give"),
    ("flame", "Copied bytes by call stack"),
    ("sites", "Sites"),
    ("recording", "Recording and machine"),
];

/// Returns the complete page of `profile`.
#[must_use]
pub fn profile_page(profile: &Profile) -> String {
    let mut page = Markup::new();
    page.element("a", &[("class", "skip"), ("href", "#flow")], "Skip to the flow of bytes");
    page.open("header", &[]);
    verdict_header(profile, &mut page);
    page.open("p", &[("class", "of")])
        .text("Copies of ")
        .element("code", &[], &command_line(profile))
        .close();
    page.element("p", &[], &shortened(&sentence(profile), MAX_SENTENCE_CHARS));
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
    shell::page(&format!("uncopy profile: {}", shortened(program, MAX_NAME_CHARS)), page)
}

/// Writes the verdict and its three figures, which come first.
fn verdict_header(profile: &Profile, page: &mut Markup) {
    let verdict = verdict(profile);
    let class = match verdict.benefit {
        Benefit::Saves => "verdict good",
        Benefit::Little => "verdict bad",
        Benefit::Unknown => "verdict noisy",
    };
    page.element("h1", &[("class", class)], &shortened(&verdict.sentence, MAX_VERDICT_CHARS));
    if verdict.benefit == Benefit::Unknown {
        return;
    }
    let prediction = &profile.prediction;
    let (ratio, is_measured) = cpu_ratio(profile);
    let how = if is_measured { "measured" } else { "estimated" };
    definition_list(
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

/// Returns the command, quoted for a shell.
fn command_line(profile: &Profile) -> String {
    let words: Vec<String> = profile.command.iter().map(|word| shell_quote(word)).collect();
    shortened(&words.join(" "), MAX_COMMAND_CHARS).into_owned()
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
    definition_list(
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

pub(crate) fn definition_list(markup: &mut Markup, class: &str, entries: &[(&str, String)]) {
    markup.open("dl", &[("class", class)]);
    for (name, value) in entries {
        markup.open("div", &[]).element("dt", &[], name);
        markup.element("dd", &[], &shortened(value, MAX_NAME_CHARS)).close();
    }
    markup.close();
}

/// Returns a site's name, such as `memcpy in sdscatlen`.
fn site_name(site: &Site) -> String {
    format!("{} in {}", shortened(&site.name, 40), shortened(&site.place, MAX_NAME_CHARS))
}

fn call_name(call: Call) -> &'static str {
    match call {
        Call::Input => "input",
        Call::Copy => "copy",
        Call::Output => "output",
    }
}

/// Returns the fraction of a site's bytes that is touched afterwards, if known.
#[expect(clippy::cast_precision_loss, reason = "a ratio of which two digits are shown")]
fn touched_fraction(site: &Site) -> Option<f64> {
    let (sampled, touched) = site.sampled_bytes.zip(site.touched_bytes)?;
    (sampled > 0).then(|| (touched as f64 / sampled as f64).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
