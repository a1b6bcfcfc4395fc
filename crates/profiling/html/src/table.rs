//! Tables with a caption and sortable columns (if JavaScript runs).

use crate::markup::Markup;

/// Type of a column's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Plain text, aligned left.
    Text,
    /// Numbers, which are aligned right.
    Numbers,
    /// Names of functions and files.
    Code,
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Text of the cell.
    pub text: String,
    /// Sort key of a number; without one, the text is the key.
    pub value: Option<f64>,
    /// Class in the style sheet, for the colour of a verdict.
    pub class: Option<&'static str>,
    /// Additional small text below the text.
    pub detail: Option<String>,
}

impl Cell {
    /// Creates a cell with a number as text, and its value as the sort key.
    #[must_use]
    pub fn number(text: impl Into<String>, value: f64) -> Self {
        Self { text: text.into(), value: Some(value), ..Self::default() }
    }

    /// Sets the class that colours the cell.
    #[must_use]
    pub fn with_class(self, class: &'static str) -> Self {
        Self { class: Some(class), ..self }
    }

    /// Sets the small text below the cell's text.
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

/// A table with a caption, columns and rows.
#[derive(Clone, Debug)]
pub struct Table {
    caption: String,
    columns: Vec<(String, Column)>,
    rows: Vec<Vec<Cell>>,
    sortable: bool,
}

impl Table {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(caption: impl Into<String>, columns: &[(&str, Column)]) -> Self {
        let columns = columns.iter().map(|(name, column)| ((*name).to_owned(), *column)).collect();
        Self { caption: caption.into(), columns, rows: Vec::new(), sortable: false }
    }

    /// Makes the rows sortable by the reader.
    #[must_use]
    pub fn sortable(self) -> Self {
        Self { sortable: true, ..self }
    }

    /// Appends a row. Missing cells are blank, surplus cells are dropped.
    pub fn row(&mut self, mut cells: Vec<Cell>) {
        cells.resize(self.columns.len(), Cell::default());
        self.rows.push(cells);
    }

    /// True if the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the table, in a box that scrolls horizontally if the window is narrow.
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
        Column::Text => "words",
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
