//! Chains of copies, like Table 2 of the zIO paper, and counts per class of operations, like its Table 1.

use uncopy_profile::Profile;
use uncopy_profile::model::{OperationClass, Verdict};

use crate::markup::{Markup, shortened};
use crate::profile::flow::count;
use crate::profile::{MAX_NAME_CHARS, flow};
use crate::quantity;
use crate::table::{Cell, Column, Table};

const MAX_CHAINS: usize = 8;
const MAX_STEPS: usize = 40;
const MAX_OPERATIONS: usize = 40;

/// Returns the counts per class of operations, then each chain.
pub(super) fn section(profile: &Profile) -> Markup {
    let mut section = Markup::new();
    if profile.operations.is_empty() {
        section.element("p", &[], "No bytes were followed from an input to a copy or an output.");
        return section;
    }
    section.append(counts(profile));
    for (index, operation) in profile.operations.iter().take(MAX_CHAINS).enumerate() {
        let name = shortened(&operation.name, MAX_NAME_CHARS);
        let number = index + 1;
        section.element("h3", &[], &format!("{number}. {name}"));
        section.append(chain(profile, operation, &format!("Chain {number}: {name}")));
        if !operation.example.is_empty() {
            section.open("details", &[]).element("summary", &[], "One of them, call by call");
            section.append(example(profile, operation, &format!("One operation {name}"))).close();
        }
    }
    if let Some(more) = profile.operations.len().checked_sub(MAX_CHAINS).filter(|more| *more > 0) {
        section.element("p", &[("class", "quiet")], &format!("{more} more classes are in the file."));
    }
    section
}

fn counts(profile: &Profile) -> Markup {
    let columns = [
        ("operation", Column::Text),
        ("seen", Column::Numbers),
        ("bytes each", Column::Numbers),
        ("moved", Column::Numbers),
        ("copies in the application", Column::Numbers),
        ("elidable", Column::Numbers),
        ("at the I/O stack", Column::Numbers),
    ];
    let mut table = Table::new("Copies in each class of operations (as zIO, Table 1)", &columns).sortable();
    for operation in profile.operations.iter().take(MAX_OPERATIONS) {
        let elidable = Cell::number(operation.elidable_copies.to_string(), operation.elidable_copies.into());
        let all =
            operation.elidable_copies > 0 && operation.elidable_copies == operation.copies_in_application;
        table.row(vec![
            Cell::from(shortened(&operation.name, MAX_NAME_CHARS).into_owned()),
            count(operation.count),
            amount(operation.bytes_each),
            Cell::number(format!("{:.1} ×", operation.moves_each), operation.moves_each),
            count(operation.copies_in_application.into()),
            if all { elidable.with_class("good") } else { elidable },
            count(operation.copies_at_io_stack.into()),
        ]);
    }
    table.markup()
}

fn chain(profile: &Profile, operation: &OperationClass, caption: &str) -> Markup {
    let columns = [
        ("#", Column::Text),
        ("source → destination", Column::Text),
        ("call site", Column::Code),
        ("calls each", Column::Numbers),
        ("bytes each", Column::Numbers),
        ("share of time", Column::Numbers),
        ("uncopy", Column::Text),
    ];
    let mut table = Table::new(caption, &columns);
    for step in operation.steps.iter().take(MAX_STEPS) {
        let site = profile.sites.get(step.site);
        let (name, line) = site.map_or_else(Default::default, |site| {
            (super::site_name(site), site.line.clone().unwrap_or_default())
        });
        let ends = format!("{} → {}", shortened(&step.source, 60), shortened(&step.destination, 60));
        let shift = match step.shift {
            Some(shift) if shift != 0 => {
                format!(
                    "moved by {} bytes towards its {}",
                    quantity::count(shift.unsigned_abs()),
                    if shift < 0 { "start" } else { "end" }
                )
            }
            _ => String::new(),
        };
        let verdict = match site {
            _ if step.elidable => Cell::from("elides it").with_class("good"),
            // This copy stays, although the site's other copies are elided.
            Some(site) if step.label.starts_with('A') && site.verdict == Verdict::Elide => {
                Cell::from("stays").with_class("bad")
            }
            Some(site) if step.label.starts_with('A') => {
                Cell::from(format!("stays: {}", site.verdict.name())).with_class("bad")
            }
            _ => Cell::default(),
        };
        table.row(vec![
            Cell::from(shortened(&step.label, 12).into_owned()),
            Cell::from(ends).with_detail(shift),
            Cell::from(name).with_detail(shortened(&line, MAX_NAME_CHARS)),
            Cell::number(quantity::digits(step.calls_each), step.calls_each),
            amount(step.bytes),
            Cell::number(quantity::percent(step.share), step.share),
            verdict,
        ]);
    }
    table.markup()
}

fn example(profile: &Profile, operation: &OperationClass, caption: &str) -> Markup {
    let columns = [
        ("#", Column::Text),
        ("call", Column::Code),
        ("bytes", Column::Numbers),
        ("of this operation", Column::Numbers),
        ("moved by", Column::Numbers),
        ("thread", Column::Numbers),
    ];
    let mut table = Table::new(caption, &columns);
    for call in operation.example.iter().take(MAX_STEPS) {
        let Some(step) = operation.steps.get(call.step) else { continue };
        let site = profile.sites.get(step.site).map_or_else(String::new, super::site_name);
        let shift = call.shift.map_or_else(String::new, |shift| shift.to_string());
        table.row(vec![
            Cell::from(shortened(&step.label, 12).into_owned()),
            site.into(),
            count(call.bytes),
            count(call.own_bytes),
            shift.into(),
            call.thread.to_string().into(),
        ]);
    }
    table.markup()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and is shown rounded"
)]
fn amount(bytes: f64) -> Cell {
    Cell { value: Some(bytes), ..flow::bytes(bytes.round() as u64) }
}
