//! Shared parts of the tests of packaged applications.

use serde_json::Value;
use uncopy_testbed::TemporaryDirectory;

use crate::command::{limited, program, run, scratch_in};

/// Creates a test's directory for temporary files, outside the build's, which other users may not reach.
pub fn scratch() -> TemporaryDirectory {
    scratch_in(&std::env::temp_dir())
}

/// Measures `cases` as briefly as possible, and asserts that each is verified under every side.
pub fn expect_verified(cases: &[&str]) {
    let mut command = limited(300);
    command
        .arg(program())
        .args(["apps", "--quick", "--processes=1", "--rounds=1", "--seconds=0.01", "--slice=0.01"])
        .arg("--warm-up=0.4")
        .args(["--keep-disturbed", "--no-idle-loops", "--json"])
        .arg("--sides=uncopy,always")
        .args(cases);
    let output = run(&mut command, &scratch());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}{}", String::from_utf8_lossy(&output.stdout));
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
}
