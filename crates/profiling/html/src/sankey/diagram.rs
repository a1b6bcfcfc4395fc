//! Input data of a Sankey diagram: boxes, and the bytes that flow between them.

/// Kind of calls that a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory that no recorded call has written.
    Memory,
    /// Calls that receive bytes.
    Input,
    /// Copies that would be elided.
    Elided,
    /// Copies that would not be elided.
    NotElided,
    /// Calls that send bytes.
    Output,
}

impl Kind {
    pub(super) const ALL: [Self; 5] =
        [Self::Memory, Self::Input, Self::Elided, Self::NotElided, Self::Output];

    /// Returns the kind's class in the style sheet.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Input => "input",
            Self::Elided => "elided",
            Self::NotElided => "kept",
            Self::Output => "output",
        }
    }

    /// Returns the kind's description in the legend.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Memory => "the program's own memory",
            Self::Input => "input",
            Self::Elided => "copy that uncopy would elide",
            Self::NotElided => "copy that stays",
            Self::Output => "output",
        }
    }
}

/// One box of the diagram.
#[derive(Clone, Debug)]
pub struct Node {
    /// First line of the label: the name.
    pub label: String,
    /// Text after the bytes in the second line of the label: the location.
    pub detail: String,
    /// Kind of calls that the box stands for.
    pub kind: Kind,
    /// Bytes that the calls moved.
    pub bytes: u64,
    /// Fraction of the bytes that is touched afterwards, 0 to 1, if known.
    pub touched_fraction: Option<f64>,
}

/// Bytes that flow from one box to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Index of the box that the bytes leave.
    pub from: usize,
    /// Index of the box that the bytes enter.
    pub to: usize,
    /// Number of bytes that flow.
    pub bytes: u64,
}

/// Boxes and ribbons of a Sankey diagram.
#[derive(Clone, Debug, Default)]
pub struct Diagram {
    /// The boxes, to which ribbons refer by index.
    pub nodes: Vec<Node>,
    /// The ribbons. A ribbon to or from a nonexistent box is not drawn.
    pub edges: Vec<Edge>,
}
