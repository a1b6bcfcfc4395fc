//! The frame of every page: head, style sheet, script, and a content security policy that forbids loading or
//! sending anything. The policy contains the hashes of the style sheet and the script, so a browser runs
//! nothing else, whatever a page contains.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::markup::Markup;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Returns a complete page with `title` as its title and `content` as its body.
#[must_use]
pub fn page(title: &str, content: Markup) -> String {
    let mut page = Markup::new();
    page.literal("<!DOCTYPE html>\n").open("html", &[("lang", "en")]);
    page.open("head", &[]).open("meta", &[("charset", "utf-8")]);
    page.open("meta", &[("http-equiv", "Content-Security-Policy"), ("content", &policy())]);
    page.open("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    page.open("meta", &[("name", "color-scheme"), ("content", "light dark")]);
    page.open("meta", &[("name", "referrer"), ("content", "no-referrer")]);
    // Without this link, a browser may request an icon from the page's host.
    page.open("link", &[("rel", "icon"), ("href", "data:,")]);
    page.element("title", &[], title);
    page.open("style", &[]).literal(STYLE).close();
    page.close().literal("\n").open("body", &[]).append(content);
    page.open("script", &[]).literal(SCRIPT).close();
    page.into_string() + "\n"
}

/// Returns the content security policy, which allows only the page's own style sheet and script.
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
