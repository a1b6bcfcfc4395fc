//! Self-contained pages of HTML: they work from a file, without network, in light and dark, by keyboard,
//! and, but for sorting and zooming, without their script.
//!
//! | module | what it is |
//! |---|---|
//! | [`profile`] | the page of a profile: what `uncopy report --html` writes |
//! | [`diff`] | that of two profiles beside each other: what `uncopy report --diff --html` writes |
//! | [`sankey`] | the flow of bytes as ribbons |
//! | [`flame`] | bytes by call stack |
//! | [`table`] | tables that can be sorted |
//! | [`shell`] | head, style, script, and the policy that forbids everything else |
//! | [`markup`] | elements and escaped text |
//! | [`quantity`] | numbers with units |
//!
//! Invariants: what comes from a program is text, never markup; a page's size is bounded whatever it shows;
//! no page loads or sends anything.
#![forbid(unsafe_code)]

pub mod diff;
pub mod flame;
pub mod markup;
pub mod profile;
pub mod quantity;
pub mod sankey;
pub mod shell;
pub mod table;

pub use diff::diff_page;
pub use profile::profile_page;
