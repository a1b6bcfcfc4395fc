//! Generates self-contained HTML pages. They open from a file, without network, in light and dark mode, work
//! with the keyboard and, except for sorting and zooming, without JavaScript.
//!
//! | module | contents |
//! |---|---|
//! | [`profile`] | page of a profile, for `uncopy report --html` |
//! | [`diff`] | page that compares two profiles, for `uncopy report --diff --html` |
//! | [`sankey`] | flow of bytes as a Sankey diagram |
//! | [`flame`] | flame graph of bytes by call stack |
//! | [`table`] | sortable tables |
//! | [`shell`] | head, style sheet, script and content security policy |
//! | [`markup`] | elements and escaped text |
//! | [`quantity`] | numbers with units |
//!
//! Invariants: strings from a program are text, never markup; the size of every page is bounded; no page
//! loads or sends anything.
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
