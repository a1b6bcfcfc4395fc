//! A Sankey diagram: boxes from left to right, ribbons between them as wide as the bytes that flow.
//!
//! ```text
//!   inputs │ copies, each a column behind the last that it takes bytes from │ outputs
//! ```
//!
//! Where bytes flow in circles, the ribbon that closes the circle does not push its target further to
//! the right; it is drawn backwards. A box is as high as the larger of what it moved and what flows in
//! or out of it: bytes that are copied twice leave it twice.

use std::collections::BTreeMap;

use crate::markup::{Markup, px, shortened};
use crate::quantity;

/// Boxes that are drawn by themselves; the others share one for each kind.
const MAX_BOXES: usize = 32;
/// Columns of copies at most; deeper chains share the last.
const MAX_COLUMNS: usize = 12;
/// Width of a box, px.
const BOX: f64 = 18.0;
/// Room for two lines of a label, px.
const SLOT: f64 = 40.0;
/// Room right of the last column, for its labels, px.
const LABEL: f64 = 210.0;
/// Characters of a label.
const LABEL_CHARACTERS: usize = 28;
/// Height of the tallest column's boxes together, px.
const BODY: f64 = 300.0;
/// Width that is aimed at, and limits of the distance of columns, px.
const WIDTH: f64 = 1180.0;
const PITCH: (f64, f64) = (205.0, 420.0);
/// Above and left of everything, px.
const MARGIN: f64 = 12.0;
/// How often boxes are put in the order of their neighbours.
const SWEEPS: usize = 6;

/// What a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory that nothing recorded has written.
    Memory,
    /// An input.
    Input,
    /// A copy that would be elided.
    Elided,
    /// A copy that would not.
    Kept,
    /// An output.
    Output,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Memory, Self::Input, Self::Elided, Self::Kept, Self::Output];

    /// Its class in the style sheet.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Input => "input",
            Self::Elided => "elided",
            Self::Kept => "kept",
            Self::Output => "output",
        }
    }

    /// What the legend says.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Memory => "the program's own memory",
            Self::Input => "input",
            Self::Elided => "copy that uncopy would elide",
            Self::Kept => "copy that stays",
            Self::Output => "output",
        }
    }
}

/// A box.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its first line: what it is.
    pub label: String,
    /// What follows the bytes in its second line: where it is.
    pub detail: String,
    /// What it stands for.
    pub kind: Kind,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Part of its bytes that is touched afterwards, 0 to 1, where that is known.
    pub touched: Option<f64>,
}

/// Bytes that flow from one box to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index of the box they leave.
    pub from: usize,
    /// Index of the box they enter.
    pub to: usize,
    /// How many.
    pub bytes: u64,
}

/// What is drawn.
#[derive(Clone, Debug, Default)]
pub struct Diagram {
    /// The boxes.
    pub nodes: Vec<Node>,
    /// The ribbons. Those that lead nowhere are not drawn.
    pub links: Vec<Link>,
}

/// Where a box is, px.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Place {
    column: usize,
    x: f64,
    y: f64,
    height: f64,
}

/// Where a ribbon is, px: tops at both ends, and its width.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ribbon {
    start: (f64, f64),
    end: (f64, f64),
    width: f64,
}

struct Layout {
    places: Vec<Place>,
    ribbons: Vec<Ribbon>,
    width: f64,
    height: f64,
}

impl Diagram {
    /// The same with at most [`MAX_BOXES`] boxes: the smallest of each kind are one.
    fn bounded(&self) -> Self {
        let links = |link: &&Link| {
            let ends = link.from < self.nodes.len() && link.to < self.nodes.len();
            // What stays within a box is no flow between boxes.
            ends && link.from != link.to && link.bytes > 0
        };
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(self.nodes[*index].bytes));
        let mut place = vec![usize::MAX; self.nodes.len()];
        let mut nodes: Vec<Node> = Vec::new();
        let kept = if order.len() > MAX_BOXES { MAX_BOXES - Kind::ALL.len() } else { order.len() };
        for index in &order[..kept] {
            place[*index] = nodes.len();
            nodes.push(self.nodes[*index].clone());
        }
        for kind in Kind::ALL {
            let rest: Vec<usize> =
                order[kept..].iter().copied().filter(|index| self.nodes[*index].kind == kind).collect();
            for index in &rest {
                place[*index] = nodes.len();
            }
            if !rest.is_empty() {
                nodes.push(Node {
                    label: format!("{} others", quantity::count(rest.len() as u64)),
                    detail: kind.words().to_owned(),
                    kind,
                    bytes: rest.iter().fold(0, |sum, index| self.nodes[*index].bytes.saturating_add(sum)),
                    touched: None,
                });
            }
        }
        let mut joined: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for link in self.links.iter().filter(links) {
            let (from, to) = (place[link.from], place[link.to]);
            if from != to {
                let bytes = joined.entry((from, to)).or_default();
                *bytes = bytes.saturating_add(link.bytes);
            }
        }
        let links = joined.into_iter().map(|((from, to), bytes)| Link { from, to, bytes }).collect();
        Self { nodes, links }
    }

    /// The column of each box.
    fn columns(&self) -> Vec<usize> {
        // Depth by the longest way from a source, without the links that close circles.
        let mut depth = vec![0usize; self.nodes.len()];
        let forward = self.forward_links();
        for _ in 0..MAX_COLUMNS.min(self.nodes.len()) {
            for link in &forward {
                depth[link.to] = depth[link.to].max(depth[link.from] + 1).min(MAX_COLUMNS);
            }
        }
        let first = |node: &Node| matches!(node.kind, Kind::Input | Kind::Memory);
        for (node, depth) in self.nodes.iter().zip(&mut depth) {
            *depth = if first(node) { 0 } else { (*depth).max(1) };
        }
        let outputs = |(node, _): &(&Node, &mut usize)| node.kind == Kind::Output;
        let copies = |(node, _): &(&Node, &usize)| node.kind != Kind::Output;
        let last =
            self.nodes.iter().zip(&depth).filter(copies).map(|(_, depth)| *depth).max().unwrap_or(0) + 1;
        for (_, depth) in self.nodes.iter().zip(&mut depth).filter(outputs) {
            *depth = last;
        }
        depth
    }

    /// The links without those that close circles, found by walking from the largest boxes.
    fn forward_links(&self) -> Vec<Link> {
        const UNSEEN: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![UNSEEN; self.nodes.len()];
        let mut forward = Vec::new();
        let mut roots: Vec<usize> = (0..self.nodes.len()).collect();
        roots.sort_by_key(|index| !matches!(self.nodes[*index].kind, Kind::Input | Kind::Memory));
        for root in roots {
            if state[root] != UNSEEN {
                continue;
            }
            state[root] = OPEN;
            let mut way = vec![(root, 0)];
            while let Some((node, next)) = way.pop() {
                match self.links.iter().filter(|link| link.from == node).nth(next) {
                    None => state[node] = DONE,
                    Some(link) => {
                        way.push((node, next + 1));
                        if state[link.to] != OPEN {
                            forward.push(*link);
                        }
                        if state[link.to] == UNSEEN {
                            state[link.to] = OPEN;
                            way.push((link.to, 0));
                        }
                    }
                }
            }
        }
        forward
    }

    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    fn layout(&self) -> Layout {
        let columns = self.columns();
        let count = columns.iter().max().map_or(1, |last| last + 1);
        let flow = |index: usize, end: fn(&Link) -> usize| {
            self.links
                .iter()
                .filter(|link| end(link) == index)
                .fold(0u64, |sum, link| sum.saturating_add(link.bytes))
        };
        let value: Vec<f64> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                node.bytes.max(flow(index, |link| link.from)).max(flow(index, |link| link.to)).max(1) as f64
            })
            .collect();
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (index, column) in columns.iter().enumerate() {
            rows[*column].push(index);
        }
        let highest =
            rows.iter().map(|row| row.iter().map(|index| value[*index]).sum::<f64>()).fold(1.0, f64::max);
        let scale = BODY / highest;
        let slot = |index: usize| (value[index] * scale).max(2.0).max(SLOT - 10.0) + 10.0;
        let column_height = |row: &[usize]| row.iter().map(|index| slot(*index)).sum::<f64>();
        let body = rows.iter().map(|row| column_height(row)).fold(SLOT, f64::max);
        let between = (WIDTH - LABEL - BOX) / (count.max(2) - 1) as f64;
        let pitch = between.clamp(PITCH.0, PITCH.1);

        let mut places = vec![Place::default(); self.nodes.len()];
        let put = |rows: &[Vec<usize>], places: &mut Vec<Place>| {
            for (column, row) in rows.iter().enumerate() {
                let mut y = MARGIN + (body - column_height(row)) / 2.0;
                for index in row {
                    let height = (value[*index] * scale).max(2.0);
                    places[*index] = Place { column, x: MARGIN + pitch * column as f64, y, height };
                    y += slot(*index);
                }
            }
        };
        for row in &mut rows {
            row.sort_by(|one, other| value[*other].total_cmp(&value[*one]));
        }
        put(&rows, &mut places);
        for sweep in 0..SWEEPS {
            for at in 0..count {
                let column = if sweep % 2 == 0 { at } else { count - 1 - at };
                let middle = |index: usize| self.middle_of_neighbours(index, &places);
                let mut order: Vec<(f64, usize)> =
                    rows[column].iter().map(|index| (middle(*index), *index)).collect();
                order.sort_by(|one, other| one.0.total_cmp(&other.0));
                rows[column] = order.into_iter().map(|(_, index)| index).collect();
                put(&rows, &mut places);
            }
        }
        let ribbons = self.ribbons(&places, scale);
        let width = MARGIN + pitch * (count - 1) as f64 + BOX + LABEL;
        Layout { places, ribbons, width, height: body + 2.0 * MARGIN }
    }

    /// The mean place of the boxes that `index` has links with, weighted by bytes.
    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    fn middle_of_neighbours(&self, index: usize, places: &[Place]) -> f64 {
        let centre = |index: usize| places[index].y + places[index].height / 2.0;
        let (mut sum, mut weight) = (0.0, 0.0);
        for link in &self.links {
            let other = match (link.from == index, link.to == index) {
                (true, _) => link.to,
                (_, true) => link.from,
                _ => continue,
            };
            sum += centre(other) * link.bytes as f64;
            weight += link.bytes as f64;
        }
        if weight > 0.0 { sum / weight } else { centre(index) }
    }

    /// The ribbons: at each box in the order of the boxes at their other ends.
    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    fn ribbons(&self, places: &[Place], scale: f64) -> Vec<Ribbon> {
        let mut ribbons: Vec<Ribbon> = self
            .links
            .iter()
            .map(|link| Ribbon { width: (link.bytes as f64 * scale).max(1.0), ..Ribbon::default() })
            .collect();
        let mut order: Vec<usize> = (0..self.links.len()).collect();
        let at = |index: usize| (places[index].y, index);
        order.sort_by(|one, other| {
            let other_end = |link: usize| at(self.links[link].to);
            other_end(*one).0.total_cmp(&other_end(*other).0)
        });
        let mut used = vec![0.0; places.len()];
        for link in &order {
            let (from, ribbon) = (self.links[*link].from, &mut ribbons[*link]);
            ribbon.start = (places[from].x + BOX, places[from].y + used[from]);
            used[from] += ribbon.width;
        }
        order.sort_by(|one, other| {
            let start = |link: usize| at(self.links[link].from);
            start(*one).0.total_cmp(&start(*other).0)
        });
        used.fill(0.0);
        for link in &order {
            let (to, ribbon) = (self.links[*link].to, &mut ribbons[*link]);
            ribbon.end = (places[to].x, places[to].y + used[to]);
            used[to] += ribbon.width;
        }
        ribbons
    }

    /// The diagram, with `name` for those who do not see it.
    #[must_use]
    pub fn markup(&self, name: &str) -> Markup {
        let diagram = self.bounded();
        let layout = diagram.layout();
        let (width, height) = (px(layout.width), px(layout.height));
        let view = format!("0 0 {width} {height}");
        let mut svg = Markup::new();
        svg.open(
            "svg",
            &[
                ("class", "sankey"),
                ("viewBox", &view),
                ("width", &width),
                ("height", &height),
                ("role", "group"),
                ("aria-label", name),
            ],
        );
        svg.open("defs", &[]).open(
            "pattern",
            &[
                ("id", "hatch"),
                ("width", "6"),
                ("height", "6"),
                ("patternUnits", "userSpaceOnUse"),
                ("patternTransform", "rotate(45)"),
            ],
        );
        svg.open("path", &[("class", "hatch"), ("d", "M0 0V6")]).close().close().close();
        for (link, ribbon) in diagram.links.iter().zip(&layout.ribbons) {
            diagram.draw_ribbon(&mut svg, *link, *ribbon);
        }
        for (index, place) in layout.places.iter().enumerate() {
            diagram.draw_box(&mut svg, index, *place);
        }
        svg
    }

    fn draw_ribbon(&self, svg: &mut Markup, link: Link, ribbon: Ribbon) {
        let (from, to) = (&self.nodes[link.from], &self.nodes[link.to]);
        let (start, end) = (link.from.to_string(), link.to.to_string());
        svg.open(
            "g",
            &[("class", &format!("ribbon {}", from.kind.class())), ("data-from", &start), ("data-to", &end)],
        );
        let words = format!("{} → {}: {}", from.label, to.label, quantity::bytes(link.bytes));
        svg.element("title", &[], &words);
        svg.open("path", &[("d", &ribbon.path(0.0, ribbon.width))]).close();
        if let Some(part) = to.touched.filter(|part| *part > 0.0) {
            let touched = (ribbon.width * part.min(1.0)).max(1.5).min(ribbon.width);
            let path = ribbon.path(ribbon.width - touched, touched);
            svg.open("path", &[("class", "touched"), ("d", &path)]).close();
        }
        svg.close();
    }

    fn draw_box(&self, svg: &mut Markup, index: usize, place: Place) {
        let node = &self.nodes[index];
        let touched = node.touched.map(|part| format!(", {} touched afterwards", quantity::percent(part)));
        let second = [quantity::bytes(node.bytes), node.detail.clone()];
        let second: Vec<&str> = second.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        let second = second.join(" · ");
        let words = format!(
            "{}, {}: {}{}",
            node.label,
            node.kind.words(),
            second,
            touched.as_deref().unwrap_or_default()
        );
        let index = index.to_string();
        svg.open(
            "g",
            &[
                ("class", &format!("node {}", node.kind.class())),
                ("tabindex", "0"),
                ("role", "img"),
                ("aria-label", &words),
                ("data-node", &index),
            ],
        );
        svg.element("title", &[], &words);
        let (x, width) = (px(place.x), px(BOX));
        let rect = |svg: &mut Markup, class: &str, y: f64, height: f64| {
            let (y, height) = (px(y), px(height));
            svg.open(
                "rect",
                &[("class", class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)],
            );
            svg.close();
        };
        rect(svg, "box", place.y, place.height);
        if let Some(part) = node.touched.filter(|part| *part > 0.0) {
            let touched = (place.height * part.min(1.0)).max(1.5).min(place.height);
            rect(svg, "touched", place.y + place.height - touched, touched);
        }
        let x = px(place.x + BOX + 6.0);
        // Beside the box's middle, below the slot's top.
        let y = place.y + (place.height / 2.0).max(11.0) - 2.0;
        svg.element("text", &[("x", &x), ("y", &px(y))], &shortened(&node.label, LABEL_CHARACTERS));
        let second = shortened(&second, LABEL_CHARACTERS + 6);
        svg.element("text", &[("class", "detail"), ("x", &x), ("y", &px(y + 14.0))], &second);
        svg.close();
    }
}

impl Ribbon {
    /// The outline of the part that begins `below` its upper edge and is `width` wide.
    fn path(&self, below: f64, width: f64) -> String {
        let ((x0, y0), (x1, y1)) = (self.start, self.end);
        let (y0, y1) = (y0 + below, y1 + below);
        // Backwards: far enough out that the ribbon is seen to turn.
        let reach = if x1 > x0 { (x1 - x0) / 2.0 } else { 90.0 };
        let (c0, c1) = (px(x0 + reach), px(x1 - reach));
        let [x0, x1, top0, top1, bottom0, bottom1] = [x0, x1, y0, y1, y0 + width, y1 + width].map(px);
        format!(
            "M{x0} {top0}C{c0} {top0} {c1} {top1} {x1} {top1}V{bottom1}C{c1} {bottom1} {c0} {bottom0} {x0} {bottom0}Z"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(label: &str, kind: Kind, bytes: u64) -> Node {
        Node { label: label.to_owned(), detail: String::new(), kind, bytes, touched: None }
    }

    fn link(from: usize, to: usize, bytes: u64) -> Link {
        Link { from, to, bytes }
    }

    /// read → memmove → memcpy → write, and memory → write.
    fn chain() -> Diagram {
        Diagram {
            nodes: vec![
                node("read", Kind::Input, 1000),
                node("memmove", Kind::Elided, 1000),
                node("memcpy", Kind::Kept, 900),
                node("write", Kind::Output, 950),
                node("memory", Kind::Memory, 50),
            ],
            links: vec![link(0, 1, 1000), link(1, 2, 900), link(2, 3, 900), link(4, 3, 50)],
        }
    }

    #[test]
    fn inputs_are_left_outputs_right_and_copies_between_by_depth() {
        assert_eq!(chain().columns(), [0, 1, 2, 3, 0]);
    }

    #[test]
    fn circles_neither_hang_nor_push_boxes_away() {
        let mut diagram = chain();
        diagram.links.extend([link(2, 1, 800), link(1, 1, 5), link(3, 0, 7)]);
        let bounded = diagram.bounded();
        let columns = bounded.columns();
        for (label, column) in [("read", 0), ("memmove", 1), ("memcpy", 2), ("write", 3), ("memory", 0)] {
            let at = bounded.nodes.iter().position(|node| node.label == label);
            assert_eq!(columns[at.expect("a box")], column, "{label}");
        }
        assert_eq!(bounded.links.len(), 6, "what stays within a box is not drawn");
        assert!(diagram.markup("flow").into_string().contains("memmove"));
    }

    #[test]
    fn ribbons_are_as_wide_as_their_bytes_and_boxes_do_not_overlap() {
        let diagram = chain().bounded();
        let layout = diagram.layout();
        let place = |label: &str| {
            let at = diagram.nodes.iter().position(|node| node.label == label).expect("a box");
            layout.places[at]
        };
        assert!((place("read").height / place("write").height - 1000.0 / 950.0).abs() < 1e-9);
        let wide = |from: &str| {
            let at = diagram.links.iter().position(|link| diagram.nodes[link.from].label == from);
            layout.ribbons[at.expect("a ribbon")].width
        };
        assert!((wide("read") / wide("memcpy") - 1000.0 / 900.0).abs() < 1e-9);
        for (index, one) in layout.places.iter().enumerate() {
            assert!(one.y >= 0.0 && one.y + one.height <= layout.height);
            for other in &layout.places[..index] {
                let apart = one.y + one.height <= other.y || other.y + other.height <= one.y;
                assert!(one.column != other.column || apart, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn ribbons_stay_within_their_boxes() {
        let diagram = Diagram {
            nodes: vec![
                node("read", Kind::Input, 100),
                node("a", Kind::Elided, 100),
                node("b", Kind::Elided, 60),
                node("send", Kind::Output, 160),
            ],
            links: vec![link(0, 1, 100), link(0, 2, 60), link(1, 3, 100), link(2, 3, 60)],
        };
        let layout = diagram.layout();
        for (link, ribbon) in diagram.links.iter().zip(&layout.ribbons) {
            for (place, y) in
                [(layout.places[link.from], ribbon.start.1), (layout.places[link.to], ribbon.end.1)]
            {
                assert!(y >= place.y - 1e-9 && y + ribbon.width <= place.y + place.height + 1e-9, "{link:?}");
            }
        }
    }

    #[test]
    fn thousands_of_boxes_and_ribbons_are_bounded() {
        let kinds = [Kind::Input, Kind::Elided, Kind::Kept, Kind::Output];
        let nodes: Vec<Node> = (0..4000)
            .map(|index| node(&format!("site {index}"), kinds[index % 4], 4000 - index as u64))
            .collect();
        let links = (0..4000).map(|index| link(index, (index * 7 + 1) % 4000, 10)).collect();
        let diagram = Diagram { nodes, links };
        let bounded = diagram.bounded();
        assert!(bounded.nodes.len() <= MAX_BOXES, "{}", bounded.nodes.len());
        assert_eq!(
            bounded.nodes.iter().map(|node| node.bytes).sum::<u64>(),
            diagram.nodes.iter().map(|node| node.bytes).sum::<u64>()
        );
        assert!(diagram.markup("flow").into_string().len() < 400_000);
    }

    #[test]
    fn labels_are_text_and_touched_parts_are_hatched() {
        let mut diagram = chain();
        diagram.nodes[1].label = "<img src=x onerror=a>".to_owned();
        diagram.nodes[1].touched = Some(0.04);
        let svg = diagram.markup("flow").into_string();
        assert!(!svg.contains("<img") && svg.contains("&lt;img src=x onerror=a&gt;"), "{svg}");
        assert_eq!(svg.matches("class=\"touched\"").count(), 2, "the box and the ribbon into it");
        assert!(svg.contains("4.0 % touched afterwards"));
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_as_well() {
        let one = node("alone", Kind::Kept, u64::MAX);
        for diagram in [
            Diagram::default(),
            Diagram { nodes: vec![one.clone()], links: vec![link(0, 9, 1), link(9, 0, 1)] },
            Diagram {
                nodes: vec![one.clone(), one],
                links: vec![link(0, 1, u64::MAX), link(1, 0, u64::MAX)],
            },
        ] {
            let svg = diagram.markup("flow").into_string();
            assert!(svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
