//! Checks limits of memory and mappings, and transparent huge pages.

use super::Check;
use crate::os;
use std::fs;
use std::path::Path;

/// Kernel's default of `vm.max_map_count`. Lower values get a warning.
const MAPS_DEFAULT: u64 = 65530;
/// Memory limits below this leave little room for segments and the reservoir, bytes.
const MEMORY_LOW_BYTES: u64 = 512 << 20;
/// Minimum address space that the library reserves, bytes.
const MIN_RESERVED_BYTES: usize = 64 << 20;
/// Value from which a memory limit means "no limit", bytes. Version 1 of control groups reports a
/// number near the largest instead.
const NO_LIMIT_BYTES: u64 = 1 << 60;

pub fn checks() -> Vec<Check> {
    vec![resources(), overcommit(), control_group(), mappings(), huge_pages()]
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// Formats bytes in the largest unit that keeps enough digits.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

fn limit(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unlimited".to_string(), size)
}

fn resources() -> Check {
    resource_check(os::memory_limits(), os::can_reserve(MIN_RESERVED_BYTES))
}

fn resource_check([address_space, data, locked]: [Option<u64>; 3], can_reserve: bool) -> Check {
    const NAME: &str = "resource limits";
    let found = format!(
        "address space {}, data {}, locked memory {}",
        limit(address_space),
        limit(data),
        limit(locked)
    );
    if !can_reserve {
        let found = format!("{found}: cannot reserve {} of addresses", size(MIN_RESERVED_BYTES as u64));
        return Check::missing(NAME, found).with_fix("ulimit -v unlimited");
    }
    match (address_space, data) {
        (None, None) => Check::ok(NAME, found),
        (Some(_), _) => Check::warning(NAME, format!("{found}: uncopy's memory counts against them"))
            .with_fix("ulimit -v unlimited"),
        (None, Some(_)) => Check::warning(NAME, format!("{found}: uncopy's memory counts against them"))
            .with_fix("ulimit -d unlimited"),
    }
}

fn overcommit() -> Check {
    const NAME: &str = "vm.overcommit_memory";
    match read("/proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => Check::warning(NAME, "2: uncopy's memory counts against the commit limit")
            .with_fix("sudo sysctl vm.overcommit_memory=0"),
        Some(value) => Check::ok(NAME, value),
        None => Check::ok(NAME, "unknown: /proc/sys is hidden"),
    }
}

fn control_group() -> Check {
    const NAME: &str = "cgroup memory limit";
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    match group_limit(Path::new("/sys/fs/cgroup"), &groups) {
        None => Check::ok(NAME, "none"),
        Some(bytes) if bytes >= MEMORY_LOW_BYTES => Check::ok(NAME, size(bytes)),
        Some(bytes) => {
            Check::warning(NAME, format!("{}: leaves little room for uncopy's memory", size(bytes)))
                .with_fix("systemd-run --scope -p MemoryMax=2G uncopy run -- CMD")
        }
    }
}

/// Returns the smallest memory limit of the control groups in `groups` (`/proc/self/cgroup`) and of
/// their ancestors.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let files = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.is_empty() {
            Some((root.to_path_buf(), group, "memory.max"))
        } else if controllers.split(',').any(|controller| controller == "memory") {
            Some((root.join("memory"), group, "memory.limit_in_bytes"))
        } else {
            None
        }
    });
    files
        .flat_map(|(base, group, file)| {
            let start = base.join(group.trim_start_matches('/'));
            let above: Vec<_> = start
                .ancestors()
                .take_while(|directory| directory.starts_with(&base))
                .map(|directory| directory.join(file))
                .collect();
            above
        })
        // "max" means no limit and does not parse.
        .filter_map(|file| read(file)?.parse::<u64>().ok())
        .filter(|bytes| *bytes < NO_LIMIT_BYTES)
        .min()
}

fn mappings() -> Check {
    const NAME: &str = "vm.max_map_count";
    match read("/proc/sys/vm/max_map_count").and_then(|text| text.parse::<u64>().ok()) {
        Some(count) if count < MAPS_DEFAULT => {
            Check::warning(NAME, format!("{count}, less than the kernel's default of {MAPS_DEFAULT}"))
                .with_fix("sudo sysctl vm.max_map_count=262144")
        }
        Some(count) => Check::ok(NAME, count.to_string()),
        None => Check::ok(NAME, "unknown: /proc/sys is hidden"),
    }
}

fn huge_pages() -> Check {
    huge_page_check(read("/sys/kernel/mm/transparent_hugepage/enabled").as_deref())
}

fn huge_page_check(setting: Option<&str>) -> Check {
    const NAME: &str = "transparent huge pages";
    let chosen = setting.and_then(|text| text.split_once('[')?.1.split_once(']')).map(|(chosen, _)| chosen);
    match chosen {
        Some("always") => Check::warning(
            NAME,
            "always: the kernel may merge pages of buffers into huge pages, which uncopy then has to split",
        )
        .with_fix("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        Some(chosen) => Check::ok(NAME, chosen),
        None => Check::ok(NAME, "none in this kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(size(100), "100 bytes");
        assert_eq!(size(65536), "64 KiB");
        assert_eq!(size(512 << 20), "512 MiB");
        assert_eq!(size(1 << 40), "1024 GiB");
    }

    #[test]
    fn address_space_that_cannot_be_reserved_is_missing() {
        assert_eq!(resource_check([None; 3], true).state, State::Ok);
        assert_eq!(resource_check([Some(1 << 30), None, None], true).state, State::Warning);
        assert_eq!(resource_check([None, Some(1 << 30), None], true).state, State::Warning);
        assert_eq!(resource_check([Some(1 << 20), None, None], false).state, State::Missing);
    }

    #[test]
    fn the_chosen_setting_of_huge_pages_is_the_one_in_brackets() {
        assert_eq!(huge_page_check(Some("always [madvise] never")).state, State::Ok);
        assert_eq!(huge_page_check(Some("[always] madvise never")).state, State::Warning);
        assert_eq!(huge_page_check(None).state, State::Ok);
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_those_above_it_counts() {
        let root = std::env::temp_dir().join(format!("uncopy-groups-{}", std::process::id()));
        let inner = root.join("outer/inner");
        fs::create_dir_all(&inner).expect("directories");
        fs::create_dir_all(root.join("memory/old")).expect("directories");
        fs::write(root.join("outer/memory.max"), "1000\n").expect("file");
        fs::write(inner.join("memory.max"), "max\n").expect("file");
        fs::write(root.join("memory/old/memory.limit_in_bytes"), "9223372036854771712\n").expect("file");
        assert_eq!(group_limit(&root, "0::/outer/inner\n"), Some(1000));
        assert_eq!(group_limit(&root, "4:cpu,memory:/old\n0::/\n"), None);
        assert_eq!(group_limit(&root, "nonsense\n0::/../../etc\n"), None);
        fs::remove_dir_all(&root).expect("removed");
    }
}
