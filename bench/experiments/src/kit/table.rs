//! Plain-text tables: columns as wide as their widest cell, numbers right-aligned.

use std::fmt::Write as _;

/// Alignment of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left-aligned, as words are.
    Left,
    /// Right-aligned, as numbers are.
    Right,
}

/// Rows of cells under a heading.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table with these columns.
    #[must_use]
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are blank, cells beyond the last column are dropped.
    pub fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.columns.len(), String::new());
        // Control characters that a server wrote must not break the layout or command the terminal.
        for cell in &mut cells {
            if cell.chars().any(char::is_control) {
                *cell = cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            }
        }
        self.rows.push(cells);
    }

    /// Returns the table as text that ends with a newline.
    #[must_use]
    pub fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
                cells.max(width(self.columns[column].0))
            })
            .collect();
        let mut text = String::new();
        let heading: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        self.line(&mut text, &widths, &heading);
        let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        self.line(&mut text, &widths, &rules.iter().map(String::as_str).collect::<Vec<_>>());
        for row in &self.rows {
            self.line(&mut text, &widths, &row.iter().map(String::as_str).collect::<Vec<_>>());
        }
        text
    }

    fn line(&self, text: &mut String, widths: &[usize], cells: &[&str]) {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(widths[column].saturating_sub(width(cell)));
            let separator = if column == 0 { "" } else { "  " };
            // Writing to a String cannot fail.
            let _ = match self.columns[column].1 {
                Align::Left => write!(line, "{separator}{cell}{padding}"),
                Align::Right => write!(line, "{separator}{padding}{cell}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// Returns the width of `text` in columns; every character used here is one column wide.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// Formats a number with three to four significant digits and thousands separators.
#[must_use]
pub fn format_number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let magnitude = value.abs();
    let decimals = match magnitude {
        m if m < 9.995 => 2,
        m if m < 99.95 => 1,
        _ => 0,
    };
    let plain = format!("{value:.decimals$}");
    if magnitude < 999.5 {
        return plain;
    }
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |digits| ("-", digits));
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a figure; a dash for `None`.
#[must_use]
pub fn format_figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), format_number)
}

/// Formats a size exactly: in KiB, MiB or GiB if it is a whole number of them, otherwise in bytes.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// Formats an amount of data, rounded, in a suitable unit.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn format_amount(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift {
            return format!("{} {unit}", format_number(bytes as f64 / f64::from(1 << shift)));
        }
    }
    format!("{bytes} B")
}

/// Formats a count with its noun: `1 copy`, `5 copies`.
#[must_use]
pub fn format_count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("name", Align::Left), ("op/s", Align::Right)]);
        table.row(vec!["echo µs".into(), "7".into()]);
        table.row(vec!["x".into(), "12,345".into()]);
        table.row(vec!["alone".into()]);
        assert_eq!(
            table.render(),
            "name       op/s\n-------  ------\necho µs       7\nx        12,345\nalone\n"
        );
    }

    #[test]
    fn cells_from_outside_cannot_break_the_layout() {
        let mut table = Table::new(&[("note", Align::Left)]);
        table.row(vec!["a\x1b[31m\nb".into(), "extra".into()]);
        assert_eq!(table.render().lines().count(), 3);
        assert!(!table.render().contains('\x1b'));
    }

    #[test]
    fn numbers_show_three_digits_and_group_thousands() {
        for (value, text) in [
            (0.0, "0.00"),
            (1.234, "1.23"),
            (9.999, "10.0"),
            (99.96, "100"),
            (999.6, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }

    #[test]
    fn sizes_are_exact_and_amounts_rounded() {
        assert_eq!(format_size(64), "64 B");
        assert_eq!(format_size(524_288), "512 KiB");
        assert_eq!(format_size(1 << 20), "1 MiB");
        assert_eq!(format_size(65_537), "65537 B");
        assert_eq!(format_amount(65_537), "64.0 KiB");
        assert_eq!(format_amount(3 << 30), "3.00 GiB");
        assert_eq!(format_amount(5), "5 B");
    }
}
