//! Sankey diagram: boxes from left to right, connected by ribbons whose width is the number of bytes.
//!
//! ```text
//!   inputs │ copies, each right of the last copy that it takes bytes from │ outputs
//! ```
//!
//! In a cycle, the ribbon that closes the cycle does not push its target further right, but is drawn
//! backwards. A box is as high as the larger of the bytes it moved and the bytes that flow in or out: bytes
//! that are copied twice leave a box twice.

mod diagram;
mod layout;

pub use diagram::{Diagram, Edge, Kind, Node};

use crate::markup::{Markup, px, shortened};
use crate::quantity;
use layout::{BOX_WIDTH, BoxRect, Ribbon};

const MAX_LABEL_CHARS: usize = 28;

impl Diagram {
    /// Draws the diagram as SVG, with `name` as its label for screen readers.
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
        for (edge, ribbon) in diagram.edges.iter().zip(&layout.ribbons) {
            diagram.draw_ribbon(&mut svg, *edge, *ribbon);
        }
        for (index, place) in layout.boxes.iter().enumerate() {
            diagram.draw_box(&mut svg, index, *place);
        }
        svg
    }

    fn draw_ribbon(&self, svg: &mut Markup, edge: Edge, ribbon: Ribbon) {
        let (from, to) = (&self.nodes[edge.from], &self.nodes[edge.to]);
        let (start, end) = (edge.from.to_string(), edge.to.to_string());
        svg.open(
            "g",
            &[("class", &format!("ribbon {}", from.kind.class())), ("data-from", &start), ("data-to", &end)],
        );
        let words = format!("{} → {}: {}", from.label, to.label, quantity::bytes(edge.bytes));
        svg.element("title", &[], &words);
        svg.open("path", &[("d", &ribbon.path(0.0, ribbon.width))]).close();
        if let Some(part) = to.touched_fraction.filter(|part| *part > 0.0) {
            let touched = (ribbon.width * part.min(1.0)).max(1.5).min(ribbon.width);
            let path = ribbon.path(ribbon.width - touched, touched);
            svg.open("path", &[("class", "touched"), ("d", &path)]).close();
        }
        svg.close();
    }

    fn draw_box(&self, svg: &mut Markup, index: usize, place: BoxRect) {
        let node = &self.nodes[index];
        let touched =
            node.touched_fraction.map(|part| format!(", {} touched afterwards", quantity::percent(part)));
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
        let (x, width) = (px(place.x), px(BOX_WIDTH));
        let rect = |svg: &mut Markup, class: &str, y: f64, height: f64| {
            let (y, height) = (px(y), px(height));
            svg.open(
                "rect",
                &[("class", class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)],
            );
            svg.close();
        };
        rect(svg, "box", place.y, place.height);
        if let Some(part) = node.touched_fraction.filter(|part| *part > 0.0) {
            let touched = (place.height * part.min(1.0)).max(1.5).min(place.height);
            rect(svg, "touched", place.y + place.height - touched, touched);
        }
        let x = px(place.x + BOX_WIDTH + 6.0);
        // Vertically centred beside the box, but not above the slot's top.
        let y = place.y + (place.height / 2.0).max(11.0) - 2.0;
        svg.element("text", &[("x", &x), ("y", &px(y))], &shortened(&node.label, MAX_LABEL_CHARS));
        let second = shortened(&second, MAX_LABEL_CHARS + 6);
        svg.element("text", &[("class", "detail"), ("x", &x), ("y", &px(y + 14.0))], &second);
        svg.close();
    }
}

impl Ribbon {
    /// Returns the outline of a strip of the ribbon, `below` its upper edge and `width` wide.
    fn path(&self, below: f64, width: f64) -> String {
        let ((x0, y0), (x1, y1)) = (self.start, self.end);
        let (y0, y1) = (y0 + below, y1 + below);
        // A backward ribbon needs room to turn visibly.
        let reach = if x1 > x0 { (x1 - x0) / 2.0 } else { 90.0 };
        let (c0, c1) = (px(x0 + reach), px(x1 - reach));
        let [x0, x1, top0, top1, bottom0, bottom1] = [x0, x1, y0, y1, y0 + width, y1 + width].map(px);
        format!(
            "M{x0} {top0}C{c0} {top0} {c1} {top1} {x1} {top1}V{bottom1}C{c1} {bottom1} {c0} {bottom0} {x0} {bottom0}Z"
        )
    }
}

#[cfg(test)]
mod tests;
