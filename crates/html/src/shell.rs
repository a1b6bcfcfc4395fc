//! The page around everything: its head, its style sheet, its script, and the policy that forbids it
//! to load or send anything.
//!
//! The policy names the hashes of the style sheet and of the script, so that a browser runs these and
//! nothing else, whatever else a page may contain.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::markup::Markup;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A whole page with `title` in its window's bar; `content` is what its body holds.
#[must_use]
pub fn page(title: &str, content: Markup) -> String {
    let mut page = Markup::new();
    page.literal("<!DOCTYPE html>\n").open("html", &[("lang", "en")]);
    page.open("head", &[]).open("meta", &[("charset", "utf-8")]);
    page.open("meta", &[("http-equiv", "Content-Security-Policy"), ("content", &policy())]);
    page.open("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    page.open("meta", &[("name", "color-scheme"), ("content", "light dark")]);
    page.open("meta", &[("name", "referrer"), ("content", "no-referrer")]);
    // Without it, a browser may ask the page's host for one.
    page.open("link", &[("rel", "icon"), ("href", "data:,")]);
    page.element("title", &[], title);
    page.open("style", &[]).literal(STYLE).close();
    page.close().literal("\n").open("body", &[]).append(content);
    page.open("script", &[]).literal(SCRIPT).close();
    page.into_string() + "\n"
}

/// What the page may do: apply its own style sheet and run its own script.
fn policy() -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; \
         base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_escaped_and_nothing_refers_to_anything_outside() {
        let mut content = Markup::new();
        content.element("p", &[], "</script><b>");
        let page = page("</title><script>alert(1)</script>", content);
        assert_eq!(page.matches("<script>").count(), 1);
        assert!(page.contains("<p>&lt;/script&gt;&lt;b&gt;</p>"));
        for outside in ["http:", "https:", " src=", "@import", "url(", "fetch(", "XMLHttp"] {
            let found = page.find(outside).map(|at| &page[at..(at + 60).min(page.len())]);
            assert!(found.is_none_or(|found| found.starts_with("url(#")), "{outside}: {found:?}");
        }
    }

    #[test]
    fn style_and_script_hold_nothing_that_ends_them() {
        for text in [STYLE, SCRIPT] {
            assert!(!text.contains("</") && !text.contains("<!--"));
        }
    }
}
