//! Escaping of foreign text in Markdown.

/// Returns a row of a table; lines of a cell become separate lines of the cell.
#[must_use]
pub fn table_row<T: AsRef<str>>(cells: &[T]) -> String {
    let lines = |cell: &T| cell.as_ref().split('\n').map(escape).collect::<Vec<_>>().join("<br>");
    let cells: Vec<String> = cells.iter().map(|cell| lines(cell).replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | "))
}

/// Returns `text` on one line, with all markup escaped.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '&' => safe.push_str("&amp;"),
            '`' | '*' | '\\' => safe.extend(['\\', c]),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    // An interval in brackets is a link only if an address or a reference follows.
    safe.replace("](", "]\\(").replace("][", "]\\[")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_on_their_line_and_in_their_column() {
        assert_eq!(table_row(&["a|b", "c\nd", "<i>*"]), "| a\\|b | c<br>d | &lt;i>\\* |");
        assert_eq!(escape("1.2 [1.1–1.3] [x](y)"), "1.2 [1.1–1.3] [x]\\(y)");
    }
}
