//! What is drawn: boxes and the bytes that flow between them.

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
    pub(super) const ALL: [Self; 5] = [Self::Memory, Self::Input, Self::Elided, Self::Kept, Self::Output];

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
