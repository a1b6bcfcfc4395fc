//! Description of the machine that a result was measured on.

use std::ffi::CStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::kit::network;

/// The kernel's largest page order (`MAX_PAGE_ORDER`). Where only pages of this order are reported, hardly any are.
const MAX_REPORTED_ORDER: u32 = 10;

/// The machine, the versions and the date.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Facts in the order in which they are printed: JSON key, text.
    facts: Vec<(&'static str, String)>,
    warning: Option<String>,
}

impl Machine {
    /// Collects the description of the current machine.
    #[must_use]
    pub fn describe() -> Self {
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let model = field("/proc/cpuinfo", "model name", ':').unwrap_or_else(|| "unknown processor".into());
        let memory = field("/proc/meminfo", "MemTotal", ':')
            .and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok())
            .map_or_else(|| "unknown memory".into(), |kib| format!("{} MiB", kib / 1024));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let system = field("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_else(|| "unknown system".into());
        // SAFETY: gnu_get_libc_version(3) returns a NUL-terminated string in glibc's data, which is never freed.
        let libc = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        let mut machine = Self {
            facts: vec![
                ("uncopy", env!("CARGO_PKG_VERSION").to_owned()),
                ("date", date(seconds_since_1970())),
                ("network", network::current().name().to_owned()),
                ("congestion control", network::congestion_control()),
                ("cpus", cpus.to_string()),
                ("processor", model),
                ("memory", memory),
                ("kernel", kernel.trim().to_owned()),
                ("system", system.trim_matches('"').to_owned()),
                ("glibc", libc.to_string_lossy().into_owned()),
            ],
            warning: None,
        };
        if let Some(are_reported) = reports_free_pages() {
            machine.add(
                "free memory",
                if are_reported { "goes back to the host" } else { "stays with this machine" },
            );
        }
        machine
    }

    /// Adds a fact, such as the version of a server.
    pub fn add(&mut self, key: &'static str, text: impl Into<String>) {
        self.facts.push((key, text.into()));
    }

    /// Sets the warning about the machine.
    pub fn set_warning(&mut self, warning: String) {
        self.warning = Some(warning);
    }

    /// Returns the warning about the machine.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The facts in the order in which they are printed.
    #[must_use]
    pub fn facts(&self) -> &[(&'static str, String)] {
        &self.facts
    }

    /// Formats the description as two or three lines of text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut lines = String::new();
        let mut line = String::new();
        for (key, text) in &self.facts {
            let fact = format!("{key} {text}");
            if !line.is_empty() && line.chars().count() + fact.chars().count() > 98 {
                lines.push_str(&line);
                lines.push('\n');
                line.clear();
            }
            if !line.is_empty() {
                line.push_str(" · ");
            }
            line.push_str(&fact);
        }
        let warning = self.warning.as_ref().map_or_else(String::new, |warning| format!("note: {warning}\n"));
        lines + &line + "\n" + &warning
    }

    /// Returns the facts by key.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let facts = self.facts.iter().map(|(key, text)| ((*key).to_owned(), json!(text)));
        facts.chain([("warning".to_owned(), json!(self.warning))]).collect::<serde_json::Map<_, _>>().into()
    }
}

/// True if this virtual machine reports free pages to its host (free page reporting of virtio-balloon). The host
/// takes reported pages away, so the next access to one waits for the host. `None` without page reporting or a
/// balloon device.
fn reports_free_pages() -> Option<bool> {
    let order = std::fs::read_to_string("/sys/module/page_reporting/parameters/page_reporting_order").ok()?;
    let mut devices = std::fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon").ok()?.flatten();
    let is_there = devices.any(|device| device.file_name().to_string_lossy().starts_with("virtio"));
    is_there.then(|| order.trim().parse().is_ok_and(|order: u32| order < MAX_REPORTED_ORDER))
}

/// Returns the first value of `name` in a file of lines `name SEPARATOR value`.
fn field(path: &str, name: &str, separator: char) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns date and time in UTC (`civil_from_days` of Howard Hinnant).
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days_and_centuries() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn the_description_names_this_machine_on_short_lines() {
        let mut machine = Machine::describe();
        machine.add("redis", "7.0.15");
        let text = machine.render();
        assert!(text.contains("kernel") && text.contains("redis 7.0.15"), "{text}");
        assert!(text.lines().count() >= 2);
        assert_eq!(machine.to_json()["redis"], "7.0.15");
        machine.set_warning("busy".into());
        assert!(machine.render().ends_with("note: busy\n"));
    }
}
