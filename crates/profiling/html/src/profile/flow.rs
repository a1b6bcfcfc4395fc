//! Flow of bytes as a Sankey diagram and as a table, and the flame graph of copied bytes.

use uncopy_profile::Profile;
use uncopy_profile::model::{Call, Site, Verdict};

use crate::flame::{Frame, Graph};
use crate::markup::{Markup, shortened};
use crate::profile::{MAX_NAME_CHARS, call_name, site_name, touched_fraction};
use crate::quantity;
use crate::sankey::{Diagram, Edge, Kind, Node};
use crate::table::{Cell, Column, Table};

/// Maximum sites in the diagrams, largest first; the Sankey diagram merges the smallest of these into one box
/// per kind.
const MAX_SITES: usize = 2000;
const MAX_FLOWS: usize = 100;
/// Maximum modules in the flame graph's legend.
const MAX_MODULES: usize = 6;

/// Returns the Sankey diagram with its legend, and the same data as a table.
pub(super) fn section(profile: &Profile) -> Markup {
    let mut section = Markup::new();
    if profile.flows.is_empty() {
        section.element("p", &[], "No bytes flowed between recorded calls.");
        return section;
    }
    let diagram = diagram(profile);
    section.element(
        "p",
        &[],
        "From inputs on the left through the program's copies to outputs on the right; as wide as the bytes. \
         Hatched: the part that the program touches afterwards.",
    );
    legend(&mut section, &diagram);
    let scroll = [
        ("class", "scroll"),
        ("tabindex", "0"),
        ("role", "region"),
        ("aria-label", "Flow of bytes, diagram"),
    ];
    section.open("div", &scroll).append(diagram.markup("Flow of bytes between the sites")).close();
    section.open("p", &[("class", "quiet keys")]);
    section
        .element("kbd", &[], "Tab")
        .text(" goes from box to box and shows what flows in and out of each.")
        .close();
    section.open("details", &[]).element("summary", &[], "The same as a table");
    section.append(table(profile)).close();
    section
}

/// Returns the Sankey diagram: a box per site, and one for memory that no recorded call has written.
fn diagram(profile: &Profile) -> Diagram {
    let kind = |site: &Site| match (site.call, site.verdict) {
        (Call::Input, _) => Kind::Input,
        (Call::Output, _) => Kind::Output,
        (Call::Copy, Verdict::Elide) => Kind::Elided,
        (Call::Copy, _) => Kind::NotElided,
    };
    let mut flows = vec![false; profile.sites.len()];
    for site in profile.flows.iter().flat_map(|flow| flow.from.into_iter().chain([flow.to])) {
        if let Some(flows) = flows.get_mut(site) {
            *flows = true;
        }
    }
    let mut place = vec![usize::MAX; profile.sites.len()];
    let mut nodes: Vec<Node> = Vec::new();
    for site in profile.sites.iter().take(MAX_SITES).filter(|site| flows[site.id]) {
        place[site.id] = nodes.len();
        let object =
            if site.call == Call::Copy { String::new() } else { format!(" ({})", site.object.name()) };
        nodes.push(Node {
            label: format!("{}{object}", shortened(&site.name, 60)),
            detail: shortened(&site.place, MAX_NAME_CHARS).into_owned(),
            kind: kind(site),
            bytes: site.bytes,
            touched_fraction: touched_fraction(site),
        });
    }
    let memory = nodes.len();
    let own: u64 = profile
        .flows
        .iter()
        .filter(|flow| flow.from.is_none())
        .fold(0, |sum, flow| sum.saturating_add(flow.bytes));
    if own > 0 {
        nodes.push(Node {
            label: "memory".to_owned(),
            detail: "not received".to_owned(),
            kind: Kind::Memory,
            bytes: own,
            touched_fraction: None,
        });
    }
    let end = |site: usize| place.get(site).copied().unwrap_or(usize::MAX);
    let edges = profile.flows.iter().map(|flow| Edge {
        from: flow.from.map_or(memory, end),
        to: end(flow.to),
        bytes: flow.bytes,
    });
    Diagram { edges: edges.collect(), nodes }
}

fn legend(section: &mut Markup, diagram: &Diagram) {
    section.open("ul", &[("class", "legend")]);
    for kind in [Kind::Input, Kind::Elided, Kind::NotElided, Kind::Output, Kind::Memory] {
        if diagram.nodes.iter().any(|node| node.kind == kind) {
            legend_entry(section, kind.class(), kind.words());
        }
    }
    section.close();
}

/// Writes a legend entry: a square in the colour of `class`, then `words`.
fn legend_entry(section: &mut Markup, class: &str, words: &str) {
    section.open("li", &[]);
    section.open("svg", &[("width", "14"), ("height", "14"), ("aria-hidden", "true"), ("class", class)]);
    section.open("rect", &[("width", "14"), ("height", "14")]).close().close().text(words).close();
}

fn table(profile: &Profile) -> Markup {
    let mut flows: Vec<_> = profile.flows.iter().collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes));
    let columns = [
        ("from", Column::Code),
        ("to", Column::Code),
        ("bytes", Column::Numbers),
        ("calls", Column::Numbers),
    ];
    let caption = if flows.len() > MAX_FLOWS {
        format!("The largest {MAX_FLOWS} of {} flows", quantity::count(flows.len() as u64))
    } else {
        "Flows between sites".to_owned()
    };
    let mut table = Table::new(caption, &columns).sortable();
    let name = |index: usize| {
        let site = profile.sites.get(index);
        site.map_or_else(Cell::default, |site| Cell::from(site_name(site)).with_detail(call_name(site.call)))
    };
    for flow in flows.into_iter().take(MAX_FLOWS) {
        let from = flow.from.map_or_else(|| Cell::from("memory, not received"), name);
        table.row(vec![from, name(flow.to), bytes(flow.bytes), count(flow.events)]);
    }
    table.markup()
}

#[expect(clippy::cast_precision_loss, reason = "to sort by")]
pub(crate) fn bytes(bytes: u64) -> Cell {
    Cell::number(quantity::bytes(bytes), bytes as f64)
}

#[expect(clippy::cast_precision_loss, reason = "to sort by")]
pub(crate) fn count(value: u64) -> Cell {
    Cell::number(quantity::count(value), value as f64)
}

pub(super) fn flame(profile: &Profile) -> Markup {
    let mut section = Markup::new();
    let mut graph = Graph::new("all copied bytes");
    let mut modules: Vec<usize> = Vec::new();
    let copies = || profile.sites.iter().filter(|site| site.call == Call::Copy);
    for site in copies().take(MAX_SITES) {
        let Some(stack) = profile.stacks.get(site.stack) else { continue };
        let mut frames: Vec<Frame> = Vec::new();
        for frame in stack.iter().rev().filter_map(|index| profile.frames.get(*index)) {
            if let Some(module) = frame.module.filter(|module| !modules.contains(module)) {
                modules.push(module);
            }
            let module = frame.module.and_then(|module| profile.modules.get(module));
            let mut place = module.map_or("", |module| base_name(&module.path)).to_owned();
            if let Some(file) = &frame.file {
                let line = frame.line.map_or_else(String::new, |line| format!(":{line}"));
                place = format!("{place}, {file}{line}");
            }
            let colour = frame.module.and_then(|module| modules.iter().position(|known| *known == module));
            let (name, place) =
                (shortened(&frame.function, MAX_NAME_CHARS).into(), shortened(&place, MAX_NAME_CHARS).into());
            frames.push(Frame { name, place, colour: colour.unwrap_or(5) });
        }
        let copy = Frame {
            name: shortened(&site.name, MAX_NAME_CHARS).into(),
            place: site.verdict.name().to_owned(),
            colour: 4,
        };
        graph.add(frames.into_iter().chain([copy]), site.bytes);
    }
    let rest = copies().skip(MAX_SITES).fold(0u64, |sum, site| sum.saturating_add(site.bytes));
    if rest > 0 {
        graph.add([Frame { name: "smaller sites".to_owned(), colour: 5, ..Frame::default() }], rest);
    }
    if graph.is_empty() {
        section.element("p", &[], "No copies were recorded.");
        return section;
    }
    section.element(
        "p",
        &[],
        "As wide as the bytes that are copied below each function; callers above. Inputs and outputs are not in it.",
    );
    section.open("ul", &[("class", "legend")]);
    for (colour, module) in modules.iter().take(MAX_MODULES).enumerate() {
        let Some(module) = profile.modules.get(*module) else { continue };
        legend_entry(
            &mut section,
            &format!("c{colour}"),
            &shortened(base_name(&module.path), MAX_NAME_CHARS),
        );
    }
    section.close();
    section.append(graph.markup("Copied bytes by call stack"));
    section.open("p", &[("class", "quiet keys")]);
    for (key, words) in [
        ("arrows", " move between frames, "),
        ("Enter", " or a click zooms in, "),
        ("Escape", " shows everything again."),
    ] {
        section.element("kbd", &[], key).text(words);
    }
    section.close();
    section
}

/// Returns the last component of a path.
fn base_name(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}
