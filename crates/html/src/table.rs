//! Tables with a caption, whose columns can be sorted where the page's script runs.

use crate::markup::Markup;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Words.
    Words,
    /// Numbers, set to the right.
    Numbers,
    /// Names of functions and files.
    Code,
}

/// A cell: what is shown, and by what it is sorted if not by that.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What is shown.
    pub text: String,
    /// What a number is sorted by.
    pub value: Option<f64>,
    /// A class of the style sheet: a verdict's colour.
    pub class: Option<&'static str>,
    /// What is shown small below the text.
    pub detail: Option<String>,
}

impl Cell {
    /// A number as it is shown, and its value.
    #[must_use]
    pub fn number(text: impl Into<String>, value: f64) -> Self {
        Self { text: text.into(), value: Some(value), ..Self::default() }
    }

    /// The same cell in the colour of a verdict.
    #[must_use]
    pub fn with_class(self, class: &'static str) -> Self {
        Self { class: Some(class), ..self }
    }

    /// The same cell with small text below it.
    #[must_use]
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()).filter(|detail| !detail.is_empty()), ..self }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    caption: String,
    columns: Vec<(String, Column)>,
    rows: Vec<Vec<Cell>>,
    sortable: bool,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(caption: impl Into<String>, columns: &[(&str, Column)]) -> Self {
        let columns = columns.iter().map(|(name, column)| ((*name).to_owned(), *column)).collect();
        Self { caption: caption.into(), columns, rows: Vec::new(), sortable: false }
    }

    /// The same table, whose rows the reader may sort.
    #[must_use]
    pub fn sortable(self) -> Self {
        Self { sortable: true, ..self }
    }

    /// Adds a row; missing cells are blank, cells beyond the last column are dropped.
    pub fn row(&mut self, mut cells: Vec<Cell>) {
        cells.resize(self.columns.len(), Cell::default());
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table in a box that scrolls sideways where the window is narrow.
    #[must_use]
    pub fn markup(&self) -> Markup {
        let mut markup = Markup::new();
        let scroll = [
            ("class", "scroll"),
            ("tabindex", "0"),
            ("role", "region"),
            ("aria-label", self.caption.as_str()),
        ];
        markup.open("div", &scroll);
        let class = if self.sortable && self.rows.len() > 1 { "sortable" } else { "" };
        markup.open("table", &[("class", class)]).element("caption", &[], &self.caption);
        markup.open("thead", &[]).open("tr", &[]);
        for (name, column) in &self.columns {
            markup.element("th", &[("scope", "col"), ("class", class_of(*column))], name);
        }
        markup.close().close().open("tbody", &[]);
        for row in &self.rows {
            markup.open("tr", &[]);
            for (at, (cell, (_, column))) in row.iter().zip(&self.columns).enumerate() {
                let class = [class_of(*column), cell.class.unwrap_or("")].join(" ");
                let value = cell.value.map(|value| value.to_string());
                let mut attributes = vec![("class", class.trim())];
                if let Some(value) = &value {
                    attributes.push(("data-value", value));
                }
                let name = if at == 0 { "th" } else { "td" };
                if at == 0 {
                    attributes.push(("scope", "row"));
                }
                markup.open(name, &attributes).text(&cell.text);
                if let Some(detail) = &cell.detail {
                    markup.element("small", &[], detail);
                }
                markup.close();
            }
            markup.close();
        }
        markup.close().close().close();
        markup
    }
}

fn class_of(column: Column) -> &'static str {
    match column {
        Column::Words => "words",
        Column::Numbers => "number",
        Column::Code => "code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_caption_headings_and_values_to_sort_by() {
        let mut table =
            Table::new("Sites <1>", &[("site", Column::Code), ("bytes", Column::Numbers)]).sortable();
        table.row(vec!["memcpy<T>".into(), Cell::number("1 KiB", 1024.0).with_class("good"), "extra".into()]);
        table.row(vec![Cell::from("read").with_detail("a.c:1")]);
        let html = table.markup().into_string();
        assert!(html.contains("<caption>Sites &lt;1&gt;</caption>"), "{html}");
        assert!(html.contains("<th class=\"code\" scope=\"row\">memcpy&lt;T&gt;</th>"), "{html}");
        assert!(html.contains("<td class=\"number good\" data-value=\"1024\">1 KiB</td>"), "{html}");
        assert!(html.contains("read<small>a.c:1</small></th><td class=\"number\"></td>"), "{html}");
        assert!(html.contains("class=\"sortable\"") && !html.contains("extra"), "{html}");
    }
}
