//! Tables of sites and of recorded processes.

use uncopy_profile::Profile;
use uncopy_profile::model::{Call, Verdict};

use crate::markup::{Markup, shortened};
use crate::profile::{MAX_NAME_CHARS, call_name, flow, site_name, touched_fraction};
use crate::quantity;
use crate::table::{Cell, Column, Table};

const MAX_SITES: usize = 300;
const MAX_PROCESSES: usize = 100;

#[expect(clippy::cast_precision_loss, reason = "nanoseconds, of which three digits are shown")]
pub(super) fn section(profile: &Profile) -> Markup {
    let mut section = Markup::new();
    let columns = [
        ("site", Column::Code),
        ("what", Column::Text),
        ("calls", Column::Numbers),
        ("bytes", Column::Numbers),
        ("time", Column::Numbers),
        ("touched", Column::Numbers),
        ("saved", Column::Numbers),
        ("uncopy", Column::Text),
    ];
    let all = profile.sites.len();
    let caption = if all > MAX_SITES {
        let all = quantity::count(all as u64);
        format!("The {MAX_SITES} sites that move the most bytes, of {all}; the others are in the file")
    } else {
        "Where bytes are moved; the headings sort".to_owned()
    };
    let mut table = Table::new(caption, &columns).sortable();
    for site in profile.sites.iter().take(MAX_SITES) {
        let what = match site.call {
            Call::Copy => call_name(site.call).to_owned(),
            call => format!("{}, {}", call_name(call), site.object.name()),
        };
        let touched = touched_fraction(site);
        let class = match (site.call, site.verdict) {
            (_, Verdict::Elide) => "good",
            (Call::Copy, _) => "bad",
            _ => "quiet",
        };
        let time = |ns: f64| Cell::number(quantity::seconds(ns / 1e9), ns);
        let saved = if site.saved_ns == 0 { Cell::number("–", 0.0) } else { time(site.saved_ns as f64) };
        table.row(vec![
            Cell::from(site_name(site))
                .with_detail(shortened(site.line.as_deref().unwrap_or_default(), MAX_NAME_CHARS)),
            what.into(),
            flow::count(site.events),
            flow::bytes(site.bytes),
            time(site.ns as f64),
            touched.map_or_else(Cell::default, |part| Cell::number(quantity::percent(part), part)),
            saved,
            Cell::from(site.verdict.name())
                .with_class(class)
                .with_detail(shortened(&site.why, MAX_NAME_CHARS)),
        ]);
    }
    section.append(table.markup());
    section
}

pub(super) fn processes(profile: &Profile) -> Markup {
    let columns = [
        ("process", Column::Code),
        ("pid", Column::Numbers),
        ("CPU time", Column::Numbers),
        ("events", Column::Numbers),
        ("lost", Column::Numbers),
    ];
    let mut table = Table::new("Processes", &columns).sortable();
    for process in profile.processes.iter().take(MAX_PROCESSES) {
        table.row(vec![
            Cell::from(shortened(&process.name, MAX_NAME_CHARS).into_owned()),
            Cell::number(process.pid.to_string(), process.pid.into()),
            Cell::number(quantity::seconds(process.cpu_seconds), process.cpu_seconds),
            flow::count(process.events),
            flow::count(process.dropped_events),
        ]);
    }
    table.markup()
}
