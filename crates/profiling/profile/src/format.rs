//! Formats numbers and names for tables.

/// Formats a number of bytes with at most four digits: `512`, `16K`, `3.1M`.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, 1024, &["", "K", "M", "G", "T", "P"])
}

/// Formats a duration: `512ns`, `16µs`, `3.1ms`.
pub fn duration(ns: u64) -> String {
    scaled(ns, 1000, &["ns", "µs", "ms", "s", "ks", "Ms"])
}

/// Formats a fraction as a percentage: `61 %`, or with one decimal below 1 %.
#[must_use]
pub fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if percent > 0.0 && percent < 0.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// Replaces control characters, which could break the line or control the terminal, in a name from a program.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

fn scaled(value: u64, step: u64, units: &[&str]) -> String {
    let mut divisor = 1;
    let mut unit = 0;
    while value / divisor >= step && unit + 1 < units.len() {
        divisor *= step;
        unit += 1;
    }
    let (whole, tenth) = (value / divisor, value % divisor * 10 / divisor);
    if divisor > 1 && whole < 10 && tenth > 0 {
        format!("{whole}.{tenth}{}", units[unit])
    } else {
        format!("{whole}{}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0, 1023, 1024, 1536, 16 << 10, (3 << 20) + 200_000].map(bytes);
        assert_eq!(shown, ["0", "1023", "1K", "1.5K", "16K", "3.1M"]);
        assert_eq!([999, 1_000, 16_500, 3_100_000].map(duration), ["999ns", "1µs", "16µs", "3.1ms"]);
        assert_eq!(bytes(u64::MAX), "16383P");
    }
}
