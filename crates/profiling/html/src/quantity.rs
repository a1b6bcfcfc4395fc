//! Formats numbers for people: three digits and a unit.

/// Formats a number of bytes, exactly if it is a whole number of units. KiB is 1,024 bytes.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn bytes(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift {
            let whole = bytes >> shift;
            if bytes.is_multiple_of(1 << shift) && whole < 1024 {
                return format!("{whole} {unit}");
            }
            return format!("{} {unit}", digits(bytes as f64 / (1u64 << shift) as f64));
        }
    }
    format!("{bytes} B")
}

/// Formats a count with thousands separators.
#[must_use]
pub fn count(value: u64) -> String {
    let plain = value.to_string();
    let mut grouped = String::new();
    for (index, digit) in plain.chars().enumerate() {
        if index > 0 && (plain.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a time given in seconds.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "–".to_owned();
    }
    for (unit, factor) in [("s", 1.0), ("ms", 1e3), ("µs", 1e6)] {
        if seconds.abs() * factor >= 0.9995 {
            return format!("{} {unit}", digits(seconds * factor));
        }
    }
    format!("{:.0} ns", seconds * 1e9)
}

/// Formats a ratio, 0 to 1, as a percentage.
#[must_use]
pub fn percent(part: f64) -> String {
    if !part.is_finite() {
        return "–".to_owned();
    }
    let percent = part * 100.0;
    if percent != 0.0 && percent.abs() < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Formats a number with three digits, or with all its integer digits if there are more.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude < 9.995 => format!("{value:.2}"),
        magnitude if magnitude < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits_and_the_unit_that_suits() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (65_536, "64 KiB"),
            (65_537, "64.0 KiB"),
            (1 << 40, "1 TiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn times_parts_and_counts_are_rounded() {
        assert_eq!([seconds(2.0), seconds(0.0123), seconds(4.5e-6)], ["2.00 s", "12.3 ms", "4.50 µs"]);
        assert_eq!([seconds(0.0), seconds(25e-9), seconds(f64::NAN)], ["0 ns", "25 ns", "–"]);
        assert_eq!(
            [percent(0.041), percent(0.61), percent(0.0), percent(f64::INFINITY)],
            ["4.1 %", "61 %", "0 %", "–"]
        );
        assert_eq!([count(999), count(1_234_567)], ["999", "1,234,567"]);
    }
}
