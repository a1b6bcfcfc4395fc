//! Markup built from parts that cannot be confused: names of elements and attributes are literals of
//! this program, everything else is text and is escaped.
//!
//! Invariant: whatever text comes in, the parser of a browser sees the elements and attributes that
//! were opened here, and no others.

use std::borrow::Cow;

/// Attributes of an element: name and text.
pub type Attributes<'a> = &'a [(&'static str, &'a str)];

/// Elements that have no end tag.
const VOID: [&str; 4] = ["br", "link", "meta", "col"];

/// HTML or SVG that is being written.
#[derive(Clone, Debug, Default)]
pub struct Markup {
    text: String,
    open: Vec<&'static str>,
}

impl Markup {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens an element; [`Markup::close`] ends it.
    pub fn open(&mut self, name: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.text.push('<');
        self.text.push_str(name);
        for (name, value) in attributes {
            debug_assert!(is_harmless(name), "{name}");
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape_into(&mut self.text, value);
            self.text.push('"');
        }
        self.text.push('>');
        if !VOID.contains(&name) {
            self.open.push(name);
        }
        self
    }

    /// Ends the element that was opened last.
    pub fn close(&mut self) -> &mut Self {
        if let Some(name) = self.open.pop() {
            self.text.push_str("</");
            self.text.push_str(name);
            self.text.push('>');
            if matches!(name, "tr" | "p" | "table" | "svg" | "section" | "li" | "g" | "h2") {
                self.text.push('\n');
            }
        }
        self
    }

    /// Adds text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        escape_into(&mut self.text, text);
        self
    }

    /// Adds an element that holds nothing but text.
    pub fn element(&mut self, name: &'static str, attributes: Attributes<'_>, text: &str) -> &mut Self {
        self.open(name, attributes).text(text);
        if VOID.contains(&name) { self } else { self.close() }
    }

    /// Adds markup that is complete.
    pub fn append(&mut self, other: Self) -> &mut Self {
        self.text.push_str(&other.into_string());
        self
    }

    /// Adds markup that is part of this program: a style sheet, a script.
    pub fn literal(&mut self, markup: &'static str) -> &mut Self {
        self.text.push_str(markup);
        self
    }

    /// Adds an SVG image that a library of ours drew: it escapes what it is given, and the page's
    /// policy keeps anything in it from being run or fetched.
    pub fn drawn(&mut self, svg: &str) -> &mut Self {
        self.text.push_str(svg);
        self
    }

    /// The markup; what is still open is closed.
    #[must_use]
    pub fn into_string(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }
}

/// Whether an attribute cannot hold code or fetch anything.
fn is_harmless(name: &str) -> bool {
    !name.starts_with("on") && !matches!(name, "style" | "src" | "srcdoc" | "action" | "formaction")
}

/// `text` so that it is text in elements and in quoted attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    escape_into(&mut escaped, text);
    escaped
}

fn escape_into(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '`' => out.push_str("&#96;"),
            '\n' | '\t' => out.push(c),
            c if is_disguise(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

/// Characters that show nothing and change how others look or are parsed: controls, changes of
/// direction, noncharacters.
fn is_disguise(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// `text` cut to `most` characters, the last of them … if something was cut.
#[must_use]
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some(_) => {
            let kept: String = text.chars().take(most.saturating_sub(1)).collect();
            Cow::Owned(kept + "…")
        }
    }
}

/// A length or place in an image, with one decimal.
#[must_use]
pub fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut markup = Markup::new();
        let hostile = "<img src=x onerror=\"a('b')\">&lt;`\u{202e}\0\x1b";
        markup.open("p", &[("title", hostile)]).text(hostile);
        let text = markup.into_string();
        let escaped =
            "&lt;img src=x onerror=&quot;a(&#39;b&#39;)&quot;&gt;&amp;lt;&#96;\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(text, format!("<p title=\"{escaped}\">{escaped}</p>\n"));
    }

    #[test]
    fn elements_are_closed_in_order_even_if_forgotten() {
        let mut markup = Markup::new();
        markup.open("div", &[]).open("b", &[]).open("br", &[]);
        assert_eq!(markup.into_string(), "<div><b><br></b></div>");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shortened("añb", 3), "añb");
        assert_eq!(shortened("añbc", 3), "añ…");
        assert_eq!(shortened("", 0), "");
    }

    #[test]
    fn places_have_no_useless_decimals() {
        assert_eq!([px(1.0), px(1.26), px(-0.5)], ["1", "1.3", "-0.5"]);
    }
}
