//! What the tests of packaged applications have in common.

#![allow(dead_code, reason = "not every test program needs all of it")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::command::{limited, uncopy};

/// A directory for all temporary files of one test. It is not in the build's: other users' processes must reach it,
/// because some servers refuse root.
pub fn scratch(name: &str) -> PathBuf {
    let scratch = std::env::temp_dir().join(format!("uncopy-{name}-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("a directory");
    std::fs::set_permissions(&scratch, std::fs::Permissions::from_mode(0o711)).expect("permissions");
    scratch
}

/// Runs `cases` and compares what is told of each.
pub fn verified(cases: &[&str]) {
    let scratch = scratch(cases[0]);
    let output = limited(300)
        .arg(uncopy())
        .args(["bench", "apps", "--quick", "--processes=1", "--rounds=1", "--seconds=0.01", "--slice=0.01"])
        .arg("--warm-up=0.4")
        .args(["--keep-disturbed", "--no-idle-loops", "--json"])
        .arg("--sides=uncopy,always")
        .args(cases)
        .env("TMPDIR", &scratch)
        .output()
        .expect("timeout runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}{}", String::from_utf8_lossy(&output.stdout));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let comparisons = json["comparisons"].as_array().expect("comparisons");
    assert!(comparisons.len() >= cases.len(), "{json:#}");
    for comparison in comparisons {
        assert_eq!(comparison["verified"], true, "{comparison:#}");
        for side in ["plain", "uncopy", "always"] {
            let figures = &comparison["sides"][side];
            assert!(figures["verified_bytes"].as_u64() > Some(0), "{side}: {comparison:#}");
            for key in ["operations_per_s", "server_cpu_us_per_operation", "server_resident_bytes"] {
                assert!(figures[key]["median"].as_f64() > Some(0.0), "{side}, {key}: {comparison:#}");
            }
        }
        let inactive = comparison["notes"]
            .as_array()
            .expect("notes")
            .iter()
            .find(|note| note.as_str().is_some_and(|note| note.contains("inactive")));
        assert_eq!(inactive, None, "{comparison:#}");
    }
    let left: Vec<_> = std::fs::read_dir(&scratch).expect("the directory").flatten().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    std::fs::remove_dir(&scratch).expect("empty");
}
