//! Predicted gain of eliding, the sites that would not benefit, and the command to try next.

use uncopy_profile::Profile;

use crate::markup::{Markup, shortened};
use crate::profile::{MAX_NAME_CHARS, command_line, definition_list, flow, site_name};
use crate::quantity;
use crate::table::{Cell, Column, Table};

const MAX_LOSERS: usize = 100;

#[expect(clippy::cast_precision_loss, reason = "nanoseconds, of which three digits are shown")]
pub(super) fn section(profile: &Profile) -> Markup {
    let mut section = Markup::new();
    let prediction = &profile.prediction;
    let touched = prediction.touched_share.map_or_else(|| "not known".to_owned(), quantity::percent);
    let share = format!("{} of the CPU time", quantity::percent(prediction.cpu_share));
    definition_list(
        &mut section,
        "facts",
        &[
            ("bytes not copied", quantity::bytes(prediction.bytes)),
            ("copies of this size take", share),
            ("touched afterwards", touched),
        ],
    );
    let time = |ns: f64| quantity::seconds(ns / 1e9);
    let words = format!(
        "Those copies took {}; tracking, fresh pages and touches would take {} instead: {} {} in {}. An estimate from \
         what these operations cost on this machine.",
        time(prediction.copy_ns as f64),
        time(prediction.cost_ns as f64),
        time(prediction.ns.unsigned_abs() as f64),
        if prediction.ns < 0 { "lost" } else { "saved" },
        quantity::seconds(profile.seconds),
    );
    section.element("p", &[], &words);
    if let Some(lanes) = &prediction.lanes {
        let words = format!(
            "{} of {} that went to or came from programs on this host are in parts of 32 KiB and more. With uncopy run \
             --lanes at both ends they would pass by reference, which saves both together {} of processor time or more.",
            quantity::bytes(lanes.bytes),
            quantity::bytes(lanes.of_bytes),
            time(lanes.saved_ns as f64),
        );
        section.element("p", &[], &words);
    }
    for measured in &profile.measured {
        let words = format!("Measured by the program itself: {}: {}.", measured.what, measured.text);
        section.element("p", &[], &shortened(&words, MAX_NAME_CHARS));
    }
    if !prediction.losers.is_empty() {
        section.append(losers(profile));
    }
    if prediction.copies > 0 {
        section.element("p", &[], "To try it:");
        section.element("pre", &[], &format!("uncopy run -- {}", command_line(profile)));
    }
    section
}

fn losers(profile: &Profile) -> Markup {
    let columns = [
        ("site", Column::Code),
        ("bytes", Column::Numbers),
        ("why not", Column::Text),
        ("in words", Column::Text),
    ];
    let losers = &profile.prediction.losers;
    let caption = match losers.len() {
        all if all > MAX_LOSERS => {
            format!("Copies that stay: the largest {MAX_LOSERS} of {}", quantity::count(all as u64))
        }
        _ => "Copies that stay".to_owned(),
    };
    let mut table = Table::new(caption, &columns).sortable();
    for loser in losers.iter().take(MAX_LOSERS) {
        let Some(site) = profile.sites.get(loser.site) else { continue };
        table.row(vec![
            Cell::from(site_name(site))
                .with_detail(shortened(site.line.as_deref().unwrap_or_default(), MAX_NAME_CHARS)),
            flow::bytes(site.bytes),
            Cell::from(loser.verdict.name()).with_class("bad"),
            Cell::from(shortened(&loser.why, MAX_NAME_CHARS).into_owned()),
        ]);
    }
    table.markup()
}
