//! Where the boxes and the ribbons of a diagram lie.

use super::diagram::{Diagram, Kind, Link, Node};
use crate::quantity;
use std::collections::BTreeMap;

/// Boxes that are drawn by themselves; the others share one for each kind.
pub(super) const MAX_BOXES: usize = 32;
/// Columns of copies at most; deeper chains share the last.
const MAX_COLUMNS: usize = 12;
/// Width of a box, px.
pub(super) const BOX: f64 = 18.0;
/// Room for two lines of a label, px.
const SLOT: f64 = 40.0;
/// Room right of the last column, for its labels, px.
const LABEL: f64 = 210.0;
/// Height of the tallest column's boxes together, px.
const BODY: f64 = 300.0;
/// Width that is aimed at, and limits of the distance of columns, px.
const WIDTH: f64 = 1180.0;
const PITCH: (f64, f64) = (205.0, 420.0);
/// Above and left of everything, px.
const MARGIN: f64 = 12.0;
/// How often boxes are put in the order of their neighbours.
const SWEEPS: usize = 6;

/// Where a box is, px.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Place {
    pub column: usize,
    pub x: f64,
    pub y: f64,
    pub height: f64,
}

/// Where a ribbon is, px: tops at both ends, and its width.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Ribbon {
    pub start: (f64, f64),
    pub end: (f64, f64),
    pub width: f64,
}

pub(super) struct Layout {
    pub places: Vec<Place>,
    pub ribbons: Vec<Ribbon>,
    pub width: f64,
    pub height: f64,
}

impl Diagram {
    /// The same with at most [`MAX_BOXES`] boxes: the smallest of each kind are one.
    pub(super) fn bounded(&self) -> Self {
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
    pub(super) fn columns(&self) -> Vec<usize> {
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

    /// Where everything lies: the columns, then each column's boxes in the order of their neighbours.
    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    pub(super) fn layout(&self) -> Layout {
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
}
