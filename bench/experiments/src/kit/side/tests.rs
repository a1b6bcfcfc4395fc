//! Tests of the sides' command lines.

use super::*;

fn words(command: &Command) -> Vec<String> {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

#[test]
fn each_side_has_its_command_line() {
    let launcher = Launcher::of("/opt/uncopy-bench");
    let line = |side| words(&launcher.command(side, OsStr::new("redis-server"), &["--port", "7"]));
    assert_eq!(line(Side::Plain), ["redis-server", "--port", "7"]);
    assert_eq!(line(Side::Uncopy), ["/opt/uncopy", "run", "--", "redis-server", "--port", "7"]);
    assert_eq!(line(Side::HeapOnly)[1..6], ["run", "--heap", "on", "--policy", "never"]);
    assert_eq!(line(Side::Lanes)[1..4], ["run", "--lanes", "--"]);
    let logging = launcher.with_log_in(Path::new("/srv")).command(Side::Log, OsStr::new("x"), &["y"]);
    let log = ["run", "--log-size", "268435456", "--log", "/srv/uncopy-log", "--", "x", "y"];
    assert_eq!(words(&logging)[1..], log);
    let both = launcher.with_log_in(Path::new("/srv")).with_service(Path::new("/net/control"));
    let both = words(&both.command(Side::NetLog, OsStr::new("x"), &["y"]));
    assert_eq!(both[1..], [&log[..5], &["--net", "/net/control"], &log[5..]].concat());
    let both = words(&launcher.command(Side::NetOnlyCopying, OsStr::new("x"), &["y"]));
    assert_eq!(both[1..8], ["run", "--heap", "off", "--policy", "never", "--log-mode", "only"]);
    let only =
        launcher.with_logged_files(Path::new("/srv")).command(Side::OnlyApiCopying, OsStr::new("x"), &["y"]);
    let only = words(&only);
    assert_eq!(only[1..6], ["run", "--api-copies", "make", "--log-mode", "only"]);
    assert_eq!(only[11..], ["--log-files", "/srv/*:/srv/*/*", "--", "x", "y"]);
    let in_memory = [Side::Log, Side::Net, Side::LogInMemory, Side::NetOnly].map(Side::logs_in_memory);
    assert_eq!(in_memory, [false, false, true, true]);
    assert_eq!(line(Side::Limit), line(Side::Plain));
    assert_eq!(line(Side::PlainAgain), line(Side::Plain));
    let tuned = launcher.command(Side::TunedGlibc, OsStr::new("redis-server"), &["--port", "7"]);
    assert_eq!(words(&tuned), line(Side::Plain));
    assert!(tuned.get_envs().any(|(name, value)| name == "GLIBC_TUNABLES" && value.is_some()));
    assert_eq!(line(Side::UncopyMimalloc), line(Side::Uncopy));
    assert_eq!(line(Side::Always)[1..6], ["run", "--policy", "always", "--min-size", "4096"]);
    let own = words(&launcher.bench_command(Side::Uncopy, &["echo-server".into()]));
    assert_eq!(own, ["/opt/uncopy", "run", "--", "/opt/uncopy-bench", "echo-server"]);
}

#[test]
fn counters_are_read_from_what_stats_prints() {
    let mut snapshot = uncopy_core::stats::Snapshot::empty(5, None);
    snapshot.values[Counter::ElidedBytes as usize] = 77;
    snapshot.values[Counter::Faults as usize] = 3;
    let active = Activity::parse(&snapshot.to_json()).expect("well-formed");
    assert_eq!((active.elided_bytes, active.faults, active.views_peak), (77, 3, 0));
    assert_eq!(active.inactive_reason, None);
    let inactive = uncopy_core::stats::Snapshot::empty(5, Some("no \"permission\"".into()));
    let activity = Activity::parse(&inactive.to_json()).expect("well-formed");
    assert_eq!(activity.inactive_reason.as_deref(), Some("no \"permission\""));
}

#[test]
fn anything_else_from_stats_is_a_failure() {
    for text in ["", "null", "[]", "{\"elided_bytes\": -1}", "{\"reason\": null}", "{"] {
        assert!(Activity::parse(text).is_err(), "{text}");
    }
}
