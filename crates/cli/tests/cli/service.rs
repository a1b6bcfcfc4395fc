//! `uncopy service`, on units below a root of the test's own.

use crate::stage::{Finished, Stage, finish};
use std::fs;
use std::path::{Path, PathBuf};

/// Creates a root with a program that can be preloaded into.
fn root(stage: &Stage) -> PathBuf {
    let root = stage.path("root");
    for directory in ["usr/sbin", "lib/systemd/system", "etc/systemd/system", "home/.config/systemd/user"] {
        fs::create_dir_all(root.join(directory)).expect("made");
    }
    fs::copy("/bin/sh", root.join("usr/sbin/server")).expect("copied");
    root
}

fn unit(root: &Path, name: &str, text: &str) {
    fs::write(root.join("lib/systemd/system").join(name), text).expect("written");
}

fn service(stage: &Stage, root: &Path, words: &[&str]) -> Finished {
    let root = root.to_str().expect("UTF-8");
    finish(&mut stage.uncopy(&[&["service", "--root", root], words].concat()))
}

/// Returns the lines of the drop-in without comments.
fn settings(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

const HARDENED: &str = "[Service]\nType=notify\nUser=someone\nExecStart=-/usr/sbin/server --x \\\n  $OPTS\nPrivateDevices=true\n\
    SystemCallFilter=@system-service\nNoExecPaths=/\nExecPaths=/usr/sbin/server\nRestrictAddressFamilies=AF_INET\n";

#[test]
fn a_hardened_unit_gets_what_it_lacks_and_gives_it_back() {
    let Some(stage) = Stage::with_library("service-hardened") else { return };
    let root = root(&stage);
    unit(&root, "redis.service", HARDENED);
    let printed = service(&stage, &root, &["--print", "redis"]);
    assert_eq!((printed.code, printed.errors.as_str()), (Some(0), ""));
    let command = stage.path("uncopy").canonicalize().expect("there").display().to_string();
    let library = stage.path("libuncopy.so").canonicalize().expect("there").display().to_string();
    let expected = [
        "[Service]".to_owned(),
        "ExecStart=".to_owned(),
        format!("ExecStart=-{command} run -- /usr/sbin/server --x  $OPTS"),
        "SupplementaryGroups=uncopy".to_owned(),
        "BindPaths=/dev/userfaultfd".to_owned(),
        "DeviceAllow=/dev/userfaultfd rw".to_owned(),
        format!("ExecPaths={command} {library}"),
    ];
    assert_eq!(settings(&printed.text()), expected);
    let path = root.join("etc/systemd/system/redis.service.d/90-uncopy.conf");
    assert!(!path.exists(), "--print wrote");

    // The second run must not wrap the wrapped command.
    for _ in 0..2 {
        let done = service(&stage, &root, &["redis.service"]);
        assert_eq!((done.code, done.errors.as_str()), (Some(0), ""), "{}", done.text());
        assert!(done.text().contains("systemctl restart redis"), "{}", done.text());
        assert_eq!(fs::read_to_string(&path).expect("written"), printed.text());
    }
    let with_options = service(&stage, &root, &["redis", "--", "--lanes", "--min-size", "64K"]);
    assert_eq!(with_options.code, Some(0), "{}", with_options.errors);
    let text = fs::read_to_string(&path).expect("written");
    assert!(text.contains(" run --lanes --min-size 64K -- /usr/sbin/server"), "{text}");
    assert!(text.contains("RestrictAddressFamilies=AF_UNIX AF_NETLINK"), "{text}");

    let removed = service(&stage, &root, &["--remove", "redis"]);
    assert_eq!((removed.code, removed.errors.as_str()), (Some(0), ""));
    assert!(!path.exists() && !path.parent().expect("one").exists());
    assert_eq!(service(&stage, &root, &["--remove", "redis"]).code, Some(0), "nothing is there any more");
}

#[test]
fn a_plain_unit_gets_no_more_than_the_command() {
    let Some(stage) = Stage::with_library("service-plain") else { return };
    let root = root(&stage);
    unit(
        &root,
        "one@.service",
        "[Service]\nType=oneshot\nExecStart=/usr/sbin/server a\nExecStart=/usr/sbin/server %i\n",
    );
    for (name, directory) in [("one@", "one@.service.d"), ("one@b", "one@b.service.d")] {
        let done = service(&stage, &root, &[name]);
        assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
        let text = fs::read_to_string(root.join("etc/systemd/system").join(directory).join("90-uncopy.conf"));
        let lines = settings(&text.expect("written"));
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(
            lines[2].ends_with(" run -- /usr/sbin/server a") && lines[3].ends_with("/usr/sbin/server %i")
        );
    }
    // A user's service manager can give neither devices nor groups.
    let home = root.join("home");
    fs::write(home.join(".config/systemd/user/mine.service"), HARDENED).expect("written");
    let root = root.to_str().expect("UTF-8");
    let done = finish(stage.uncopy(&["service", "--root", root, "--user", "mine"]).env("HOME", &home));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    let text =
        fs::read_to_string(home.join(".config/systemd/user/mine.service.d/90-uncopy.conf")).expect("written");
    assert_eq!(settings(&text).len(), 3, "{text}");
}

#[test]
fn aliases_and_other_drop_ins_are_followed() {
    let Some(stage) = Stage::with_library("service-alias") else { return };
    let root = root(&stage);
    unit(&root, "real.service", "[Service]\nExecStart=/usr/sbin/server old\n");
    std::os::unix::fs::symlink(
        "/lib/systemd/system/real.service",
        root.join("etc/systemd/system/alias.service"),
    )
    .expect("linked");
    let others = root.join("etc/systemd/system/real.service.d");
    fs::create_dir_all(&others).expect("made");
    fs::write(others.join("10-local.conf"), "[Service]\nExecStart=\nExecStart=/usr/sbin/server new\n")
        .expect("written");
    let done = service(&stage, &root, &["alias"]);
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    let text = fs::read_to_string(others.join("90-uncopy.conf")).expect("written");
    assert!(text.contains("server new") && !text.contains("server old"), "{text}");
    assert_eq!(service(&stage, &root, &["--remove", "real"]).code, Some(0));
    assert!(others.join("10-local.conf").exists());
}

#[test]
fn what_cannot_work_is_refused_and_nothing_is_written() {
    let Some(stage) = Stage::with_library("service-refused") else { return };
    let root = root(&stage);
    unit(&root, "empty.service", "[Unit]\nDescription=x\n");
    unit(&root, "cleared.service", "[Service]\nExecStart=/usr/sbin/server\nExecStart=\n");
    unit(&root, "gone.service", "[Service]\nExecStart=/usr/sbin/gone\n");
    unit(&root, "named.service", "[Service]\nExecStart=@/usr/sbin/server other\n");
    unit(&root, "twice.service", "[Service]\nExecStart=/usr/bin/uncopy run -- /usr/sbin/server\n");
    std::os::unix::fs::symlink("/dev/null", root.join("etc/systemd/system/masked.service")).expect("linked");
    unit(&root, "masked.service", "[Service]\nExecStart=/usr/sbin/server\n");
    unit(&root, "setuid.service", "[Service]\nExecStart=/usr/sbin/setuid\n");
    fs::copy("/bin/sh", root.join("usr/sbin/setuid")).expect("copied");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(root.join("usr/sbin/setuid"), mode).expect("set");
    for (name, message) in [
        ("nothing", "there is no unit nothing.service"),
        ("../x", "is not the name of a service"),
        ("nginx.socket", "is not the name of a service"),
        ("empty", "empty.service has no ExecStart="),
        ("cleared", "cleared.service has no ExecStart="),
        ("gone", "gone.service starts /usr/sbin/gone, which does not exist"),
        ("named", "another name"),
        ("twice", "already"),
        ("masked", "masked.service is masked"),
        ("setuid", "which is set-user-ID"),
    ] {
        let refused = service(&stage, &root, &[name]);
        assert_eq!((refused.code, refused.text().as_str()), (Some(1), ""), "{name}");
        assert!(
            refused.errors.contains(message) && refused.errors.lines().count() == 1,
            "{}",
            refused.errors
        );
    }
    let refused = service(&stage, &root, &["gone", "--", "--bogus"]);
    assert_eq!(refused.code, Some(2), "{}", refused.errors);
    let written = fs::read_dir(root.join("etc/systemd/system")).expect("there").count();
    assert_eq!(written, 1, "only the link of masked.service");
}

#[test]
fn a_drop_in_that_somebody_changed_stays() {
    let Some(stage) = Stage::with_library("service-edited") else { return };
    let root = root(&stage);
    unit(&root, "web.service", "[Service]\nExecStart=/usr/sbin/server\n");
    assert_eq!(service(&stage, &root, &["web"]).code, Some(0));
    let path = root.join("etc/systemd/system/web.service.d/90-uncopy.conf");
    let edited = fs::read_to_string(&path).expect("written") + "Nice=5\n";
    fs::write(&path, &edited).expect("edited");
    for words in [&["web"][..], &["--remove", "web"]] {
        let refused = service(&stage, &root, words);
        assert_eq!(refused.code, Some(1), "{words:?}");
        assert!(refused.errors.contains("was changed by hand"), "{}", refused.errors);
        assert_eq!(fs::read_to_string(&path).expect("there"), edited);
    }
}
