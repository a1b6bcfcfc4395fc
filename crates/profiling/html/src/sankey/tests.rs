//! Diagrams with a few boxes, with thousands, and with invalid data.

use super::layout::MAX_BOXES;
use super::*;

fn node(label: &str, kind: Kind, bytes: u64) -> Node {
    Node { label: label.to_owned(), detail: String::new(), kind, bytes, touched_fraction: None }
}

fn edge(from: usize, to: usize, bytes: u64) -> Edge {
    Edge { from, to, bytes }
}

/// Returns the diagram read → memmove → memcpy → write, and memory → write.
fn chain() -> Diagram {
    Diagram {
        nodes: vec![
            node("read", Kind::Input, 1000),
            node("memmove", Kind::Elided, 1000),
            node("memcpy", Kind::NotElided, 900),
            node("write", Kind::Output, 950),
            node("memory", Kind::Memory, 50),
        ],
        edges: vec![edge(0, 1, 1000), edge(1, 2, 900), edge(2, 3, 900), edge(4, 3, 50)],
    }
}

#[test]
fn inputs_are_left_outputs_right_and_copies_between_by_depth() {
    assert_eq!(chain().columns(), [0, 1, 2, 3, 0]);
}

#[test]
fn circles_neither_hang_nor_push_boxes_away() {
    let mut diagram = chain();
    diagram.edges.extend([edge(2, 1, 800), edge(1, 1, 5), edge(3, 0, 7)]);
    let bounded = diagram.bounded();
    let columns = bounded.columns();
    for (label, column) in [("read", 0), ("memmove", 1), ("memcpy", 2), ("write", 3), ("memory", 0)] {
        let at = bounded.nodes.iter().position(|node| node.label == label);
        assert_eq!(columns[at.expect("a box")], column, "{label}");
    }
    assert_eq!(bounded.edges.len(), 6, "what stays within a box is not drawn");
    assert!(diagram.markup("flow").into_string().contains("memmove"));
}

#[test]
fn ribbons_are_as_wide_as_their_bytes_and_boxes_do_not_overlap() {
    let diagram = chain().bounded();
    let layout = diagram.layout();
    let place = |label: &str| {
        let at = diagram.nodes.iter().position(|node| node.label == label).expect("a box");
        layout.boxes[at]
    };
    assert!((place("read").height / place("write").height - 1000.0 / 950.0).abs() < 1e-9);
    let wide = |from: &str| {
        let at = diagram.edges.iter().position(|edge| diagram.nodes[edge.from].label == from);
        layout.ribbons[at.expect("a ribbon")].width
    };
    assert!((wide("read") / wide("memcpy") - 1000.0 / 900.0).abs() < 1e-9);
    for (index, one) in layout.boxes.iter().enumerate() {
        assert!(one.y >= 0.0 && one.y + one.height <= layout.height);
        for other in &layout.boxes[..index] {
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
        edges: vec![edge(0, 1, 100), edge(0, 2, 60), edge(1, 3, 100), edge(2, 3, 60)],
    };
    let layout = diagram.layout();
    for (link, ribbon) in diagram.edges.iter().zip(&layout.ribbons) {
        for (place, y) in [(layout.boxes[link.from], ribbon.start.1), (layout.boxes[link.to], ribbon.end.1)] {
            assert!(y >= place.y - 1e-9 && y + ribbon.width <= place.y + place.height + 1e-9, "{link:?}");
        }
    }
}

#[test]
fn thousands_of_boxes_and_ribbons_are_bounded() {
    let kinds = [Kind::Input, Kind::Elided, Kind::NotElided, Kind::Output];
    let nodes: Vec<Node> = (0..4000)
        .map(|index| node(&format!("site {index}"), kinds[index % 4], 4000 - index as u64))
        .collect();
    let edges = (0..4000).map(|index| edge(index, (index * 7 + 1) % 4000, 10)).collect();
    let diagram = Diagram { nodes, edges };
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
    diagram.nodes[1].touched_fraction = Some(0.04);
    let svg = diagram.markup("flow").into_string();
    assert!(!svg.contains("<img") && svg.contains("&lt;img src=x onerror=a&gt;"), "{svg}");
    assert_eq!(svg.matches("class=\"touched\"").count(), 2, "the box and the ribbon into it");
    assert!(svg.contains("4.0 % touched afterwards"));
}

#[test]
fn empty_and_invalid_diagrams_are_drawn() {
    let one = node("alone", Kind::NotElided, u64::MAX);
    for diagram in [
        Diagram::default(),
        Diagram { nodes: vec![one.clone()], edges: vec![edge(0, 9, 1), edge(9, 0, 1)] },
        Diagram { nodes: vec![one.clone(), one], edges: vec![edge(0, 1, u64::MAX), edge(1, 0, u64::MAX)] },
    ] {
        let svg = diagram.markup("flow").into_string();
        assert!(svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
