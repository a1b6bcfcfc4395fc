//! A flame graph: for each call stack, frames one below the other, as wide as the bytes that were
//! moved below them.
//!
//! Each frame is an SVG of its own inside the graph's, placed in percent: it cuts its own text off, the
//! graph is as wide as the window, and zooming only changes places and widths. Without the page's script
//! it is a picture whose frames tell what they are.

use std::collections::HashMap;

use crate::markup::{Markup, shortened};
use crate::quantity;

/// Height of a frame with the gap below it, px.
const LINE: usize = 21;
/// Frames narrower than this part of the whole are left out: nobody could see them.
const MIN: f64 = 0.0008;
/// Frames at most.
const MAX_FRAMES: usize = 3000;
/// Levels at most.
const MAX_LEVELS: usize = 80;
/// Characters of a name.
const NAME_CHARACTERS: usize = 160;
/// Colours in the style sheet.
const COLOURS: usize = 6;

/// A frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub name: String,
    /// Where it is: library, file and line.
    pub place: String,
    /// Its colour: frames of one module have one.
    pub colour: usize,
}

#[derive(Clone, Debug, Default)]
struct Node {
    frame: Frame,
    bytes: u64,
    children: Vec<usize>,
}

/// What is drawn: stacks that share their outer frames.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The first is the root, which is everything.
    nodes: Vec<Node>,
    /// Nodes by their parent and frame.
    known: HashMap<(usize, Frame), usize>,
}

impl Graph {
    /// A graph without stacks whose root is called `all`.
    #[must_use]
    pub fn new(all: &str) -> Self {
        let frame = Frame { name: all.to_owned(), ..Frame::default() };
        Self { nodes: vec![Node { frame, ..Node::default() }], known: HashMap::new() }
    }

    /// Adds `bytes` that were moved below `stack`, outermost frame first.
    pub fn add(&mut self, stack: impl IntoIterator<Item = Frame>, bytes: u64) {
        let mut at = 0;
        self.nodes[0].bytes = self.nodes[0].bytes.saturating_add(bytes);
        for frame in stack.into_iter().take(MAX_LEVELS) {
            let (parent, next) = (at, self.nodes.len());
            at = *self.known.entry((parent, frame.clone())).or_insert(next);
            if at == next {
                self.nodes.push(Node { frame, ..Node::default() });
                self.nodes[parent].children.push(next);
            }
            self.nodes[at].bytes = self.nodes[at].bytes.saturating_add(bytes);
        }
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes[0].bytes == 0
    }

    /// The frames to draw, parents before their children: node, level, left edge and width as parts of the
    /// whole, parent's place in this list.
    #[expect(clippy::cast_precision_loss, reason = "parts of the graph's width")]
    fn placed(&self) -> Vec<(usize, usize, f64, f64, usize)> {
        let whole = self.nodes[0].bytes.max(1) as f64;
        let mut placed: Vec<(usize, usize, f64, f64, usize)> = vec![(0, 0, 0.0, 1.0, 0)];
        let mut next = 0;
        // Level by level, so that what is cut off at the end is what lies deepest.
        while next < placed.len() {
            let (node, level, mut left, _, _) = placed[next];
            let mut children = self.nodes[node].children.clone();
            children.sort_by(|one, other| {
                let (one, other) = (&self.nodes[*one], &self.nodes[*other]);
                other.bytes.cmp(&one.bytes).then_with(|| one.frame.name.cmp(&other.frame.name))
            });
            for child in children {
                let width = self.nodes[child].bytes as f64 / whole;
                if width >= MIN && placed.len() < MAX_FRAMES {
                    placed.push((child, level + 1, left, width, next));
                }
                left += width;
            }
            next += 1;
        }
        placed
    }

    /// The graph, with `name` for those who do not see it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "parts of the graph's width")]
    pub fn markup(&self, name: &str) -> Markup {
        let placed = self.placed();
        let levels = placed.iter().map(|(_, level, ..)| level + 1).max().unwrap_or(1);
        let whole = self.nodes[0].bytes.max(1) as f64;
        let mut markup = Markup::new();
        markup.open("div", &[("class", "flame-box")]);
        let height = (levels * LINE).to_string();
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
        for (at, (node, level, left, width, parent)) in placed.iter().enumerate() {
            let node = &self.nodes[*node];
            let part = quantity::percent(node.bytes as f64 / whole);
            let place = if node.frame.place.is_empty() { "" } else { ", " };
            let words = format!(
                "{}{place}{}: {}, {part}",
                shortened(&node.frame.name, NAME_CHARACTERS),
                shortened(&node.frame.place, NAME_CHARACTERS),
                quantity::bytes(node.bytes)
            );
            let colour = if at == 0 {
                "frame root".to_owned()
            } else {
                format!("frame c{}", node.frame.colour % COLOURS)
            };
            let percent = |part: f64| format!("{:.3}%", part * 100.0);
            let (x, width, y) = (percent(*left), percent(*width), (level * LINE).to_string());
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
            markup.element("text", &[("x", "4"), ("y", "14")], &shortened(&node.frame.name, NAME_CHARACTERS));
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
        let placed = graph.placed();
        let names: Vec<&str> =
            placed.iter().map(|(node, ..)| graph.nodes[*node].frame.name.as_str()).collect();
        assert_eq!(names, ["all", "main", "serve", "log", "memmove", "memcpy"]);
        let close = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(close(placed[4].3, 0.5) && close(placed[5].2, 0.5) && close(placed[5].3, 0.3));
        assert_eq!(placed[5].4, 2, "memcpy lies below serve");
    }

    #[test]
    fn frames_that_nobody_could_see_are_left_out() {
        let mut graph = graph();
        for index in 0..100_000 {
            graph.add(frames(&format!("main;f{}", index % 5000)), 1);
        }
        for index in 0..9 {
            let deep: Vec<String> = (0..400).map(|level| format!("r{index}_{level}")).collect();
            graph.add(frames(&deep.join(";")), 100_000);
        }
        let placed = graph.placed();
        assert!(placed.len() <= MAX_FRAMES);
        assert!(placed.iter().all(|(_, level, ..)| *level <= MAX_LEVELS));
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
