//! Flame graph: a row of frames per call depth, each as wide as the bytes moved below it.
//!
//! Each frame is a nested SVG with its position in percent. So a frame clips its own label, the graph fills
//! the window, and zooming only changes positions and widths. Without JavaScript the graph is static, with
//! tooltips.

use std::collections::HashMap;

use crate::markup::{Markup, shortened};
use crate::quantity;

/// Height of a frame including the gap below, in px.
const ROW_HEIGHT: usize = 21;
/// Minimum width of a frame as a fraction of the graph; narrower ones would be invisible and are omitted.
const MIN_WIDTH: f64 = 0.0008;
const MAX_FRAMES: usize = 3000;
const MAX_LEVELS: usize = 80;
const MAX_NAME_CHARS: usize = 160;
/// Number of frame colours in the style sheet.
const COLOURS: usize = 6;

/// A function in a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Name of the function.
    pub name: String,
    /// Location of the function: library, file and line.
    pub place: String,
    /// Index of the colour, the same for all functions of a module.
    pub colour: usize,
}

#[derive(Clone, Debug, Default)]
struct Node {
    frame: Frame,
    bytes: u64,
    children: Vec<usize>,
}

/// Call tree of the stacks added: stacks share their outer frames.
#[derive(Clone, Debug)]
pub struct Graph {
    /// All nodes. The first is the root, which stands for all stacks.
    nodes: Vec<Node>,
    /// Index of a node, by its parent and frame.
    index_of: HashMap<(usize, Frame), usize>,
}

impl Graph {
    /// Creates a graph without stacks, whose root is labelled `all`.
    #[must_use]
    pub fn new(all: &str) -> Self {
        let frame = Frame { name: all.to_owned(), ..Frame::default() };
        Self { nodes: vec![Node { frame, ..Node::default() }], index_of: HashMap::new() }
    }

    /// Adds `bytes` bytes moved by `stack`, given from the outermost frame inwards.
    pub fn add(&mut self, stack: impl IntoIterator<Item = Frame>, bytes: u64) {
        let mut at = 0;
        self.nodes[0].bytes = self.nodes[0].bytes.saturating_add(bytes);
        for frame in stack.into_iter().take(MAX_LEVELS) {
            let (parent, next) = (at, self.nodes.len());
            at = *self.index_of.entry((parent, frame.clone())).or_insert(next);
            if at == next {
                self.nodes.push(Node { frame, ..Node::default() });
                self.nodes[parent].children.push(next);
            }
            self.nodes[at].bytes = self.nodes[at].bytes.saturating_add(bytes);
        }
    }

    /// True if no bytes were added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes[0].bytes == 0
    }

    /// Returns the frames to draw, parents before children: node, depth, left edge and width as fractions of
    /// the graph, and the index of the parent in the result.
    #[expect(clippy::cast_precision_loss, reason = "parts of the graph's width")]
    fn visible_frames(&self) -> Vec<(usize, usize, f64, f64, usize)> {
        let whole = self.nodes[0].bytes.max(1) as f64;
        let mut visible_frames: Vec<(usize, usize, f64, f64, usize)> = vec![(0, 0, 0.0, 1.0, 0)];
        let mut next = 0;
        // Breadth first, so that the deepest frames are omitted beyond [`MAX_FRAMES`].
        while next < visible_frames.len() {
            let (node, level, mut left, _, _) = visible_frames[next];
            let mut children = self.nodes[node].children.clone();
            children.sort_by(|one, other| {
                let (one, other) = (&self.nodes[*one], &self.nodes[*other]);
                other.bytes.cmp(&one.bytes).then_with(|| one.frame.name.cmp(&other.frame.name))
            });
            for child in children {
                let width = self.nodes[child].bytes as f64 / whole;
                if width >= MIN_WIDTH && visible_frames.len() < MAX_FRAMES {
                    visible_frames.push((child, level + 1, left, width, next));
                }
                left += width;
            }
            next += 1;
        }
        visible_frames
    }

    /// Draws the graph as SVG, with `name` as its label for screen readers.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "parts of the graph's width")]
    pub fn markup(&self, name: &str) -> Markup {
        let visible_frames = self.visible_frames();
        let levels = visible_frames.iter().map(|(_, level, ..)| level + 1).max().unwrap_or(1);
        let whole = self.nodes[0].bytes.max(1) as f64;
        let mut markup = Markup::new();
        markup.open("div", &[("class", "flame-box")]);
        let height = (levels * ROW_HEIGHT).to_string();
        markup.open(
            "svg",
            &[
                ("class", "flame"),
                ("width", "100%"),
                ("height", &height),
                ("role", "tree"),
                ("aria-label", name),
            ],
        );
        for (at, (node, level, left, width, parent)) in visible_frames.iter().enumerate() {
            let node = &self.nodes[*node];
            let part = quantity::percent(node.bytes as f64 / whole);
            let place = if node.frame.place.is_empty() { "" } else { ", " };
            let words = format!(
                "{}{place}{}: {}, {part}",
                shortened(&node.frame.name, MAX_NAME_CHARS),
                shortened(&node.frame.place, MAX_NAME_CHARS),
                quantity::bytes(node.bytes)
            );
            let colour = if at == 0 {
                "frame root".to_owned()
            } else {
                format!("frame c{}", node.frame.colour % COLOURS)
            };
            let percent = |part: f64| format!("{:.3}%", part * 100.0);
            let (x, width, y) = (percent(*left), percent(*width), (level * ROW_HEIGHT).to_string());
            let parent = if at == 0 { String::new() } else { parent.to_string() };
            markup.open(
                "svg",
                &[
                    ("class", &colour),
                    ("x", &x),
                    ("y", &y),
                    ("width", &width),
                    ("height", "20"),
                    ("role", "treeitem"),
                    ("aria-level", &(level + 1).to_string()),
                    ("aria-label", &words),
                    ("data-parent", &parent),
                ],
            );
            markup.element("title", &[], &words);
            markup.open("rect", &[("width", "100%"), ("height", "20")]).close();
            markup.element("text", &[("x", "4"), ("y", "14")], &shortened(&node.frame.name, MAX_NAME_CHARS));
            markup.close();
        }
        markup.close();
        markup.element("p", &[("class", "flame-detail"), ("aria-live", "polite")], "");
        markup
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(names: &str) -> Vec<Frame> {
        let frame = |name: &str| Frame { name: name.to_owned(), ..Frame::default() };
        names.split(';').map(frame).collect()
    }

    fn graph() -> Graph {
        let mut graph = Graph::new("all");
        graph.add(frames("main;serve;memcpy"), 300);
        graph.add(frames("main;serve;memmove"), 500);
        graph.add(frames("main;log"), 200);
        graph
    }

    #[test]
    fn stacks_share_their_outer_frames_and_children_fill_their_parents() {
        let graph = graph();
        let visible_frames = graph.visible_frames();
        let names: Vec<&str> =
            visible_frames.iter().map(|(node, ..)| graph.nodes[*node].frame.name.as_str()).collect();
        assert_eq!(names, ["all", "main", "serve", "log", "memmove", "memcpy"]);
        let close = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(
            close(visible_frames[4].3, 0.5)
                && close(visible_frames[5].2, 0.5)
                && close(visible_frames[5].3, 0.3)
        );
        assert_eq!(visible_frames[5].4, 2, "memcpy lies below serve");
    }

    #[test]
    fn invisible_frames_are_omitted() {
        let mut graph = graph();
        for index in 0..100_000 {
            graph.add(frames(&format!("main;f{}", index % 5000)), 1);
        }
        for index in 0..9 {
            let deep: Vec<String> = (0..400).map(|level| format!("r{index}_{level}")).collect();
            graph.add(frames(&deep.join(";")), 100_000);
        }
        let visible_frames = graph.visible_frames();
        assert!(visible_frames.len() <= MAX_FRAMES);
        assert!(visible_frames.iter().all(|(_, level, ..)| *level <= MAX_LEVELS));
        assert!(graph.markup("bytes").into_string().len() < 2_000_000);
    }

    #[test]
    fn names_are_text() {
        let mut graph = Graph::new("all");
        graph.add(frames("<img src=x onerror=a>;\"onload=\"b"), 7);
        let html = graph.markup("by <stack>").into_string();
        assert!(!html.contains("<img") && !html.contains("\"onload"), "{html}");
        assert!(html.contains("aria-label=\"by &lt;stack&gt;\"") && html.contains("role=\"tree\""), "{html}");
    }

    #[test]
    fn a_graph_without_stacks_is_its_root() {
        let graph = Graph::new("all");
        assert!(graph.is_empty());
        assert!(!graph.markup("bytes").into_string().contains("NaN"));
    }
}
