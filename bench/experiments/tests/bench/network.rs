//! Experiments over a link between two network namespaces, by the built command: every byte is verified, and no
//! namespace or device is left when the command has ended in any way.
//!
//! Each experiment runs in process, mount and network namespaces of the test's own, where all leftovers are visible.

use std::process::{Command, Output};

use serde_json::Value;

use crate::command::{self, build_tmp, limited, program, scratch_in};

/// Counts network namespaces that a process is in, has a descriptor of, or has mounted, and devices. The shell itself
/// accounts for one namespace and one loopback device. Processes that were killed need some time to end.
const COUNT_LEFTOVERS: &str = "
for turn in $(seq 200); do
    namespaces=$(readlink /proc/[0-9]*/ns/net /proc/[0-9]*/fd/* | grep '^net:' | sort -u | wc -l)
    mounted=$(grep -c nsfs /proc/self/mountinfo)
    devices=$(grep -c : /proc/self/net/dev)
    [ $namespaces -gt 1 ] || [ $mounted -gt 0 ] || [ $devices -gt 1 ] || break
    sleep 0.1
done
echo left: $namespaces namespaces, $mounted mounted, $devices devices >&2
";

/// Runs `script`, where `$bench` is `uncopy-bench`, and checks the leftovers. `None` without root.
fn run(test: &str, script: &str) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network::{test}: only root can make network namespaces");
        return None;
    }
    let mut command = limited(300);
    command
        .args(["unshare", "--fork", "--pid", "--mount-proc", "--net", "sh", "-c"])
        // `uncopy run` removes files of invisible processes from /dev/shm: outside ones are not visible here.
        .arg(format!(
            "mount -t tmpfs none /dev/shm\nbench='{}'\n{script}\n{COUNT_LEFTOVERS}",
            program().display()
        ));
    let output = command::run(&mut command, &scratch_in(build_tmp()));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("left: 1 namespaces, 0 mounted, 1 devices"), "{stderr}");
    Some(output)
}

#[test]
fn bytes_across_a_veth_pair_are_verified_and_the_pair_is_removed() {
    for network in ["veth-1500", "veth-9000"] {
        let short = "echo copies --copies=1 --size=100000 --processes=1 --rounds=1 --seconds=0.01 --keep-disturbed --sides=uncopy --json";
        let script = format!("$bench {short} --network {network}");
        let Some(output) = run("link", &script) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        let json: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["machine"]["network"], network);
        let comparison = &json["comparisons"][0];
        assert_eq!(comparison["verified"], true, "{comparison:#}");
        for side in ["plain", "uncopy"] {
            assert!(comparison["sides"][side]["verified_bytes"].as_u64() > Some(100_000), "{comparison:#}");
        }
    }
}

#[test]
fn a_user_level_tcp_is_measured_beside_the_kernels_and_its_devices_are_removed() {
    let short = "net echo receive redis --quick --copies=1 --sizes=100000 --values=70000 --processes=1 --rounds=1 \
                 --seconds=0.01 --warm-up=0.4 --keep-disturbed --json";
    let Some(output) = run("net", &format!("$bench {short}")) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["machine"]["network"], "veth-9000");
    let comparisons = json["comparisons"].as_array().expect("three of them");
    assert_eq!(comparisons.len(), 3);
    for comparison in comparisons {
        assert_eq!(comparison["verified"], true, "{comparison:#}");
        for side in ["net", "net_api_copied", "net_all_copied"] {
            let side = &comparison["sides"][side];
            assert!(side["service_cpu_us_per_operation"]["median"].as_f64() > Some(0.0), "{comparison:#}");
            assert!(side["client_cpu_us_per_operation"]["median"].as_f64() > Some(0.0), "{comparison:#}");
        }
        assert!(comparison["sides"]["plain"].is_object(), "{comparison:#}");
        assert!(comparison["sides"]["plain"]["service_cpu_us_per_operation"].is_null(), "{comparison:#}");
    }
    let script = "$bench net --quick --network loopback 2>&1; echo ended with $?";
    let Some(output) = run("net-loopback", script) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("--network veth-9000") && text.ends_with("ended with 1\n"), "{text}");
}

#[test]
fn both_stacks_are_measured_together() {
    let short = "--quick --values=70000 --processes=1 --rounds=1 --seconds=0.01 --warm-up=0.4 --keep-disturbed --json";
    let Some(output) = run("net-log", &format!("$bench net redis ycsb --log --dir $TMPDIR {short}")) else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let comparisons = json["comparisons"].as_array().expect("two of them");
    assert_eq!(comparisons.len(), 2);
    for comparison in comparisons {
        assert_eq!(comparison["verified"], true, "{}; {:#}", comparison["failure"], comparison["notes"]);
    }
    for side in ["plain", "net_all_copied", "net_heap_only", "net_api_copied", "net", "net_log"] {
        let written = &comparisons[0]["sides"][side]["written_bytes_per_operation"]["median"];
        assert!(written.as_f64() >= Some(70_000.0), "{side}: {json:#}");
    }
    // A record may wait for a second until the keeper has it, so shorter slices may be without the keeper.
    let longer = short.replace("--seconds=0.01", "--slice=1.2 --seconds=12");
    let Some(output) =
        run("net-dax", &format!("$bench net redis --log --emulate-dax --dir $TMPDIR {longer}"))
    else {
        return;
    };
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let comparison = &json["comparisons"][0];
    assert_eq!(comparison["verified"], true, "{comparison:#}");
    let sides = [
        "net_only_copy_all_copied",
        "net_only_copy_heap_only",
        "net_only_copy_api_copied",
        "net_only_copy",
        "net_only_copy_received_there",
    ];
    for side in sides {
        let side = &comparison["sides"][side];
        for part in ["service_cpu_us_per_operation", "keeper_cpu_us_per_operation"] {
            assert!(side[part]["median"].as_f64() > Some(0.0), "{part}: {comparison:#}");
        }
    }
    let script = "$bench net echo --log --quick 2>&1; echo ended with $?";
    let Some(output) = run("net-log-echo", script) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("redis and ycsb, not echo") && text.ends_with("ended with 1\n"), "{text}");
}

#[test]
fn icecast_is_measured_behind_a_service_of_its_own_user() {
    let short = "--quick --processes=1 --rounds=1 --seconds=0.01 --warm-up=0.4 --keep-disturbed --json";
    let Some(output) = run("net-icecast", &format!("$bench net icecast {short}")) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let comparison = &json["comparisons"][0];
    assert_eq!(comparison["verified"], true, "{comparison:#}");
    for side in ["net", "net_api_copied", "net_all_copied"] {
        let side = &comparison["sides"][side];
        assert!(side["service_cpu_us_per_operation"]["median"].as_f64() > Some(0.0), "{comparison:#}");
    }
}

#[test]
fn a_connection_that_loses_packets_and_idle_ones_are_measured() {
    let short = "net loss idle --quick --transfers=1 --transfer-seconds=1 --idle=200 --json";
    let Some(output) = run("net-loss", &format!("$bench {short}")) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let comparisons = json["comparisons"].as_array().expect("three of them");
    let titles: Vec<&str> = comparisons.iter().filter_map(|one| one["experiment"].as_str()).collect();
    assert_eq!(titles, ["loss 1 %, 50 ms, sends", "loss 1 %, 50 ms, receives", "200 idle"]);
    for comparison in comparisons {
        assert_eq!(comparison["verified"], true, "{comparison:#}");
    }
    for comparison in &comparisons[..2] {
        for side in ["plain", "net"] {
            assert!(
                comparison["sides"][side]["megabits_per_s"]["median"].as_f64() > Some(0.0),
                "{comparison:#}"
            );
        }
    }
    let idle = json["idle"].as_array().expect("one of each side");
    let of = |side: &str| idle.iter().find(|one| one["side"] == side).expect("it was measured");
    assert!(of("net")["service_bytes_per_connection"].as_f64() > Some(0.0), "{idle:#?}");
    assert_eq!(of("plain")["service_bytes_per_connection"].as_f64(), Some(0.0), "{idle:#?}");
}

#[test]
fn an_interrupted_experiment_leaves_no_namespace_and_no_device() {
    // The server's directory exists just before the server enters its namespace.
    let script = "
$bench echo copies --copies=0 --size=100000 --rounds=1000 --seconds=60 --network veth-1500 >/dev/null 2>&1 &
for attempt in $(seq 1000); do
    ls $TMPDIR | grep -q . && break
    sleep 0.02
done
kill -INT $!
wait $!
echo ended with $?";
    let Some(output) = run("interrupted", script) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ended with 130\n");
}

#[test]
fn users_other_than_root_get_the_command_to_run() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "skipped: network::users_other_than_root_get_the_command_to_run: it needs root to become somebody else"
        );
        return;
    }
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(program())
        .args(["echo", "sizes", "--quick", "--network=veth-9000"])
        .output()
        .expect("setpriv runs");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.starts_with("uncopy: --network veth-9000 needs root") && stderr.contains("loopback"),
        "{stderr}"
    );
}
