//! Positions of a diagram's boxes and ribbons.

use super::diagram::{Diagram, Edge, Kind, Node};
use crate::quantity;
use std::collections::BTreeMap;

/// Maximum boxes drawn; the smallest of each kind are merged beyond that.
pub(super) const MAX_BOXES: usize = 32;
/// Maximum columns of copies; deeper copies are drawn in the last one.
const MAX_COLUMNS: usize = 12;
/// Width of a box in px.
pub(super) const BOX_WIDTH: f64 = 18.0;
/// Minimum height for the two lines of a label, in px.
const SLOT_HEIGHT: f64 = 40.0;
/// Space for labels right of the last column, in px.
const LABEL_WIDTH: f64 = 210.0;
/// Total height of the boxes of the highest column, in px.
const BODY_HEIGHT: f64 = 300.0;
/// Desired width, and limits of the distance between columns, in px.
const TARGET_WIDTH: f64 = 1180.0;
const COLUMN_DISTANCE: (f64, f64) = (205.0, 420.0);
/// Margin at the top and on the left, in px.
const MARGIN: f64 = 12.0;
/// Number of passes that sort each column by its neighbours.
const PASSES: usize = 6;

/// Position of a box in px.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BoxRect {
    pub column: usize,
    pub x: f64,
    pub y: f64,
    pub height: f64,
}

/// Position of a ribbon in px: upper corners at both ends, and width.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Ribbon {
    pub start: (f64, f64),
    pub end: (f64, f64),
    pub width: f64,
}

pub(super) struct Layout {
    pub boxes: Vec<BoxRect>,
    pub ribbons: Vec<Ribbon>,
    pub width: f64,
    pub height: f64,
}

impl Diagram {
    /// Returns the diagram with at most [`MAX_BOXES`] boxes, merging the smallest boxes of each kind.
    pub(super) fn bounded(&self) -> Self {
        let edges = |edge: &&Edge| {
            let ends = edge.from < self.nodes.len() && edge.to < self.nodes.len();
            ends && edge.from != edge.to && edge.bytes > 0
        };
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(self.nodes[*index].bytes));
        let mut new_index = vec![usize::MAX; self.nodes.len()];
        let mut nodes: Vec<Node> = Vec::new();
        let kept = if order.len() > MAX_BOXES { MAX_BOXES - Kind::ALL.len() } else { order.len() };
        for index in &order[..kept] {
            new_index[*index] = nodes.len();
            nodes.push(self.nodes[*index].clone());
        }
        for kind in Kind::ALL {
            let rest: Vec<usize> =
                order[kept..].iter().copied().filter(|index| self.nodes[*index].kind == kind).collect();
            for index in &rest {
                new_index[*index] = nodes.len();
            }
            if !rest.is_empty() {
                nodes.push(Node {
                    label: format!("{} others", quantity::count(rest.len() as u64)),
                    detail: kind.words().to_owned(),
                    kind,
                    bytes: rest.iter().fold(0, |sum, index| self.nodes[*index].bytes.saturating_add(sum)),
                    touched_fraction: None,
                });
            }
        }
        let mut merged: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for edge in self.edges.iter().filter(edges) {
            let (from, to) = (new_index[edge.from], new_index[edge.to]);
            if from != to {
                let bytes = merged.entry((from, to)).or_default();
                *bytes = bytes.saturating_add(edge.bytes);
            }
        }
        let edges = merged.into_iter().map(|((from, to), bytes)| Edge { from, to, bytes }).collect();
        Self { nodes, edges }
    }

    pub(super) fn columns(&self) -> Vec<usize> {
        // Depth is the length of the longest path from a source, without the links that close cycles.
        let mut depth = vec![0usize; self.nodes.len()];
        let forward = self.forward_edges();
        for _ in 0..MAX_COLUMNS.min(self.nodes.len()) {
            for edge in &forward {
                depth[edge.to] = depth[edge.to].max(depth[edge.from] + 1).min(MAX_COLUMNS);
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

    /// Returns the links without those that close cycles, found by depth-first search from the sources.
    fn forward_edges(&self) -> Vec<Edge> {
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
            let mut path = vec![(root, 0)];
            while let Some((node, next)) = path.pop() {
                match self.edges.iter().filter(|edge| edge.from == node).nth(next) {
                    None => state[node] = DONE,
                    Some(edge) => {
                        path.push((node, next + 1));
                        if state[edge.to] != OPEN {
                            forward.push(*edge);
                        }
                        if state[edge.to] == UNSEEN {
                            state[edge.to] = OPEN;
                            path.push((edge.to, 0));
                        }
                    }
                }
            }
        }
        forward
    }

    /// Computes the layout: columns first, then the order of the boxes in each column.
    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    pub(super) fn layout(&self) -> Layout {
        let columns = self.columns();
        let count = columns.iter().max().map_or(1, |last| last + 1);
        let flow = |index: usize, end: fn(&Edge) -> usize| {
            self.edges
                .iter()
                .filter(|edge| end(edge) == index)
                .fold(0u64, |sum, edge| sum.saturating_add(edge.bytes))
        };
        let value: Vec<f64> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                node.bytes.max(flow(index, |edge| edge.from)).max(flow(index, |edge| edge.to)).max(1) as f64
            })
            .collect();
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (index, column) in columns.iter().enumerate() {
            rows[*column].push(index);
        }
        let highest =
            rows.iter().map(|row| row.iter().map(|index| value[*index]).sum::<f64>()).fold(1.0, f64::max);
        let scale = BODY_HEIGHT / highest;
        let slot = |index: usize| (value[index] * scale).max(2.0).max(SLOT_HEIGHT - 10.0) + 10.0;
        let column_height = |row: &[usize]| row.iter().map(|index| slot(*index)).sum::<f64>();
        let body = rows.iter().map(|row| column_height(row)).fold(SLOT_HEIGHT, f64::max);
        let between = (TARGET_WIDTH - LABEL_WIDTH - BOX_WIDTH) / (count.max(2) - 1) as f64;
        let column_distance = between.clamp(COLUMN_DISTANCE.0, COLUMN_DISTANCE.1);

        let mut boxes = vec![BoxRect::default(); self.nodes.len()];
        let position_boxes = |rows: &[Vec<usize>], boxes: &mut Vec<BoxRect>| {
            for (column, row) in rows.iter().enumerate() {
                let mut y = MARGIN + (body - column_height(row)) / 2.0;
                for index in row {
                    let height = (value[*index] * scale).max(2.0);
                    boxes[*index] =
                        BoxRect { column, x: MARGIN + column_distance * column as f64, y, height };
                    y += slot(*index);
                }
            }
        };
        for row in &mut rows {
            row.sort_by(|one, other| value[*other].total_cmp(&value[*one]));
        }
        position_boxes(&rows, &mut boxes);
        for pass in 0..PASSES {
            for at in 0..count {
                let column = if pass % 2 == 0 { at } else { count - 1 - at };
                let middle = |index: usize| self.middle_of_neighbours(index, &boxes);
                let mut order: Vec<(f64, usize)> =
                    rows[column].iter().map(|index| (middle(*index), *index)).collect();
                order.sort_by(|one, other| one.0.total_cmp(&other.0));
                rows[column] = order.into_iter().map(|(_, index)| index).collect();
                position_boxes(&rows, &mut boxes);
            }
        }
        let ribbons = self.ribbons(&boxes, scale);
        let width = MARGIN + column_distance * (count - 1) as f64 + BOX_WIDTH + LABEL_WIDTH;
        Layout { boxes, ribbons, width, height: body + 2.0 * MARGIN }
    }

    /// Returns the mean height of the boxes linked to `index`, weighted by bytes.
    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    fn middle_of_neighbours(&self, index: usize, boxes: &[BoxRect]) -> f64 {
        let centre = |index: usize| boxes[index].y + boxes[index].height / 2.0;
        let (mut sum, mut weight) = (0.0, 0.0);
        for edge in &self.edges {
            let other = match (edge.from == index, edge.to == index) {
                (true, _) => edge.to,
                (_, true) => edge.from,
                _ => continue,
            };
            sum += centre(other) * edge.bytes as f64;
            weight += edge.bytes as f64;
        }
        if weight > 0.0 { sum / weight } else { centre(index) }
    }

    /// Positions the ribbons. At each box they are sorted by the height of their other ends.
    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    fn ribbons(&self, boxes: &[BoxRect], scale: f64) -> Vec<Ribbon> {
        let mut ribbons: Vec<Ribbon> = self
            .edges
            .iter()
            .map(|edge| Ribbon { width: (edge.bytes as f64 * scale).max(1.0), ..Ribbon::default() })
            .collect();
        let mut order: Vec<usize> = (0..self.edges.len()).collect();
        let at = |index: usize| (boxes[index].y, index);
        order.sort_by(|one, other| {
            let other_end = |edge: usize| at(self.edges[edge].to);
            other_end(*one).0.total_cmp(&other_end(*other).0)
        });
        let mut used = vec![0.0; boxes.len()];
        for edge in &order {
            let (from, ribbon) = (self.edges[*edge].from, &mut ribbons[*edge]);
            ribbon.start = (boxes[from].x + BOX_WIDTH, boxes[from].y + used[from]);
            used[from] += ribbon.width;
        }
        order.sort_by(|one, other| {
            let start = |edge: usize| at(self.edges[edge].from);
            start(*one).0.total_cmp(&start(*other).0)
        });
        used.fill(0.0);
        for edge in &order {
            let (to, ribbon) = (self.edges[*edge].to, &mut ribbons[*edge]);
            ribbon.end = (boxes[to].x, boxes[to].y + used[to]);
            used[to] += ribbon.width;
        }
        ribbons
    }
}
