//! The page that compares two profiles.

use uncopy_profile::diff::{Amount, Diff, Entry, percentage_points};

use crate::markup::{Markup, shortened};
use crate::profile::{MAX_NAME_CHARS, definition_list, flow};
use crate::table::{Cell, Column, Table};
use crate::{quantity, shell};

const MAX_LINES: usize = 300;
/// Maximum characters of the first sentence, which contains a name from the program.
const MAX_SENTENCE_CHARS: usize = 300;

/// Returns the complete page of `diff`.
#[must_use]
pub fn diff_page(diff: &Diff) -> String {
    let mut page = Markup::new();
    page.open("header", &[]).element(
        "h1",
        &[("class", "verdict")],
        &shortened(&diff.sentence(), MAX_SENTENCE_CHARS),
    );
    for (name, side) in [("A", &diff.a), ("B", &diff.b)] {
        page.open("p", &[("class", "of")])
            .text(&format!("{name}: "))
            .element("code", &[], &shortened(&side.file, MAX_NAME_CHARS))
            .close();
        definition_list(
            &mut page,
            "facts small",
            &[
                ("recorded", quantity::seconds(side.seconds)),
                ("CPU time", quantity::seconds(side.cpu_seconds)),
                ("bytes copied", quantity::bytes(side.copied.bytes)),
                ("copies", quantity::count(side.copied.calls)),
                ("copies take of the CPU time", quantity::percent(side.copied.cpu_share)),
                ("CPU time with uncopy, estimated", format!("{} of now", quantity::percent(side.cpu_ratio))),
            ],
        );
    }
    page.close().open("main", &[]);
    if !diff.notes.is_empty() {
        page.open("ul", &[("class", "warnings"), ("aria-label", "Notes")]);
        for note in &diff.notes {
            page.element("li", &[], &format!("Note: {note}"));
        }
        page.close();
    }
    page.append(table("Copies by site, the largest change first", "calls", &diff.sites));
    page.append(table("Copies by chain, the largest change first", "operations", &diff.chains));
    shell::page("uncopy profiles beside each other", page)
}

fn table(caption: &str, calls: &str, entries: &[Entry]) -> Markup {
    let (calls_a, calls_b) = (format!("{calls} A"), format!("{calls} B"));
    let columns = [
        ("what", Column::Code),
        ("points", Column::Numbers),
        ("CPU A", Column::Numbers),
        ("CPU B", Column::Numbers),
        ("bytes A", Column::Numbers),
        ("bytes B", Column::Numbers),
        (calls_a.as_str(), Column::Numbers),
        (calls_b.as_str(), Column::Numbers),
    ];
    let caption = match entries.len().checked_sub(MAX_LINES) {
        Some(more) if more > 0 => format!("{caption}; {more} more are in --json"),
        _ => caption.to_owned(),
    };
    let mut table = Table::new(caption, &columns).sortable();
    for entry in entries.iter().take(MAX_LINES) {
        let cell = |amount: Option<Amount>, show: fn(Amount) -> Cell| {
            amount.map_or_else(|| Cell::number("–", -1.0), show)
        };
        let share = |amount: Amount| Cell::number(quantity::percent(amount.cpu_share), amount.cpu_share);
        let change = Cell::number(percentage_points(entry.change()), entry.change());
        let change = match entry.change() {
            change_by if change_by > 0.0005 => change.with_class("bad"),
            change_by if change_by < -0.0005 => change.with_class("good"),
            _ => change,
        };
        table.row(vec![
            Cell::from(shortened(&entry.name, MAX_NAME_CHARS).into_owned())
                .with_detail(shortened(entry.line.as_deref().unwrap_or_default(), MAX_NAME_CHARS)),
            change,
            cell(entry.a, share),
            cell(entry.b, share),
            cell(entry.a, |amount| flow::bytes(amount.bytes)),
            cell(entry.b, |amount| flow::bytes(amount.bytes)),
            cell(entry.a, |amount| flow::count(amount.calls)),
            cell(entry.b, |amount| flow::count(amount.calls)),
        ]);
    }
    table.markup()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_profile::Profile;

    fn sample() -> Profile {
        Profile::parse(include_bytes!("../../profile/samples/redis-set.json")).expect("a profile")
    }

    #[test]
    fn the_page_has_both_sides_and_what_is_in_one_only() {
        let mut other = sample();
        other.sites[1].place = "<b>elsewhere".to_owned();
        let diff = Diff::between((&sample(), "a.json"), (&other, "<i>b.json")).expect("alike");
        let page = diff_page(&diff);
        for part in [
            "a.json",
            "&lt;i&gt;b.json",
            "memmove in &lt;b&gt;elsewhere",
            "data-value=\"-1\">–<",
            "operations A",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<b>") && !page.contains("NaN"));
    }
}
