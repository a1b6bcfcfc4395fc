//! Tables with aligned columns.

use std::fmt::Write as _;

/// Formats rows in columns two spaces apart. Columns for which `is_text` holds are left-aligned,
/// others right-aligned.
pub fn align_columns<const COLUMNS: usize>(
    rows: &[[String; COLUMNS]],
    is_text: impl Fn(usize) -> bool,
) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if is_text(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// Formats a number of bytes with a unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_with_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["PID", "NAME", ""], ["7", "a", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(align_columns(&rows, |column| column > 0), "PID  NAME\n  7  a     x\n");
    }
}
