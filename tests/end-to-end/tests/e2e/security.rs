//! Files planted by another user cannot make root's commands and programs do anything. Each line of
//! SECURITY.md about files has its test here; lanes, logs and the network have theirs elsewhere.
//!
//! User 65534 acts as the attacker, in a mount namespace with its own `/dev/shm` if that is attacked.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use uncopy_tests::artifacts::{bin_dir, packaged, skipped};
use uncopy_tests::counters::stats_name;
use uncopy_tests::running::Finished;
use uncopy_tests::{Program, Scratch};

const NOBODY: u32 = 65_534;
const PROFILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/profiling/profile/samples/redis-set.json");

fn skip(test: &str, why: &str) {
    // Written directly, since the test harness would capture the line.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// Whether the tests run as root, which may become another user; if not, prints that the test is skipped.
fn is_root(test: &str) -> bool {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        skip(test, "only root can become another user");
    }
    is_root
}

/// Whether a mount namespace can be created; if not, prints that the test is skipped.
fn can_unshare(test: &str) -> bool {
    let unshare = packaged("/usr/bin/unshare", "util-linux");
    let can =
        Command::new(unshare).args(["--mount", "true"]).output().is_ok_and(|probe| probe.status.success());
    if !can {
        skip(test, "no mount namespace can be made here");
    }
    can
}

fn uncopy() -> PathBuf {
    bin_dir().join("uncopy").canonicalize().expect("make build")
}

/// Definitions for every script: `$uncopy`, and `$as_nobody` to prefix a command.
fn script_prelude() -> String {
    let setpriv = packaged("/usr/bin/setpriv", "util-linux");
    format!(
        "unset $(env | sed -n 's/^\\(UNCOPY_[A-Z_]*\\)=.*/\\1/p')\n\
         uncopy={}; as_nobody='{} --reuid={NOBODY} --regid={NOBODY} --clear-groups'\n",
        uncopy().display(),
        setpriv.display()
    )
}

/// Expects success, whatever the commands print to standard error.
fn expect_success(done: Finished) -> Finished {
    assert!(done.status.success(), "{}: {}\n{}", done.status, done.text(), done.errors);
    done
}

/// Runs a shell script in `scratch`, which the other user may enter.
fn run(scratch: &Scratch, script: &str) -> Finished {
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    expect_success(
        Program::shell(&(script_prelude() + script)).directory(scratch.path()).run(scratch, "script"),
    )
}

/// Runs a shell script in a mount namespace with an empty `/dev/shm`.
fn run_in_mount_namespace(scratch: &Scratch, script: &str) -> Finished {
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let inside = scratch.write(
        "inside.sh",
        format!("{}mount -t tmpfs -o mode=1777 tmpfs /dev/shm\n{script}", script_prelude()),
    );
    let unshare = packaged("/usr/bin/unshare", "util-linux");
    let program = Program::new(unshare).args(["--mount", "sh", "-e"]).args([inside]);
    expect_success(program.directory(scratch.path()).run(scratch, "apart"))
}

/// Creates a directory of root's, with files named like those of ended processes.
fn make_precious_dir(scratch: &Scratch) -> PathBuf {
    let directory = scratch.directory("precious");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("ours");
    for name in ["4194801", "4194802", "4194803.control", "log-4194804", "name"] {
        fs::write(directory.join(name), "row").expect("written");
    }
    directory
}

fn file_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("readable");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// Creates a world-writable directory like /tmp, owned by the other user.
fn make_shared_dir(scratch: &Scratch) -> PathBuf {
    let directory = scratch.directory("shared");
    std::os::unix::fs::chown(&directory, Some(NOBODY), Some(NOBODY)).expect("root");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).expect("root");
    directory
}

/// Every command that cleans up after ended processes, or lists the live directory.
const LIVE_DIR_COMMANDS: [&str; 5] = [
    "$uncopy ps",
    "$uncopy run -- true",
    "$uncopy metrics --textfile metrics.prom",
    "$uncopy stats $$ || :",
    "$uncopy profile --duration 0.001 -o p.json -- true || :",
];

#[test]
fn a_link_planted_for_the_live_directory_leads_nowhere() {
    const TEST: &str = "a_link_planted_for_the_live_directory_leads_nowhere";
    if !is_root(TEST) || !can_unshare(TEST) {
        return;
    }
    let scratch = Scratch::new("planted");
    let directory = make_precious_dir(&scratch);
    let before = file_names(&directory);
    for command in LIVE_DIR_COMMANDS {
        let path = directory.display();
        run_in_mount_namespace(
            &scratch,
            &format!("$as_nobody ln -s {path} /dev/shm/uncopy-0\n{command} > out 2> err"),
        );
        assert_eq!(file_names(&directory), before, "{command}");
    }
}

#[test]
fn a_live_directory_of_another_owner_or_mode_is_not_used() {
    const TEST: &str = "a_live_directory_of_another_owner_or_mode_is_not_used";
    if !is_root(TEST) || !can_unshare(TEST) {
        return;
    }
    let scratch = Scratch::new("owner");
    let make =
        format!("mkdir -m 700 /dev/shm/uncopy-0; echo x > /dev/shm/uncopy-0/{}", stats_name(4_194_801));
    for (title, spoil, remains) in [
        ("as it should be", ":", false),
        ("another user's", "chown -R 65534:65534 /dev/shm/uncopy-0", true),
        ("open to others", "chmod 711 /dev/shm/uncopy-0", true),
        ("open to a group", "chmod 770 /dev/shm/uncopy-0", true),
    ] {
        let script = format!("{make}\n{spoil}\n$uncopy ps > out\nls /dev/shm/uncopy-0");
        let listed = run_in_mount_namespace(&scratch, &script).text();
        assert_eq!(listed.contains("4194801"), remains, "{title}: {listed}");
    }
}

/// The other user swaps a directory for a link (`RENAME_EXCHANGE`) while root's commands list it.
#[test]
fn a_directory_that_is_swapped_while_it_is_listed_leads_nowhere() {
    const TEST: &str = "a_directory_that_is_swapped_while_it_is_listed_leads_nowhere";
    if !is_root(TEST) || !can_unshare(TEST) {
        return;
    }
    let scratch = Scratch::new("swapped");
    let directory = make_precious_dir(&scratch);
    let before = file_names(&directory);
    let swap = "import ctypes, os, sys\n\
        libc = ctypes.CDLL(None)\n\
        os.mkdir('/dev/shm/uncopy-0', 0o700)\n\
        for number in range(2000): open('/dev/shm/uncopy-0/%d' % (4190000 + number), 'w').close()\n\
        os.symlink(sys.argv[1], '/dev/shm/link')\n\
        print('ready', flush=True)\n\
        parent = os.getppid()\n\
        while os.getppid() == parent: libc.renameat2(-100, b'/dev/shm/uncopy-0', -100, b'/dev/shm/link', 2)\n";
    scratch.write("swap.py", swap);
    let python = packaged("/usr/bin/python3", "python3");
    let script = format!(
        "mkfifo ready\n$as_nobody {} swap.py {} > ready &\nattacker=$!\nread line < ready\n\
         for turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do $uncopy ps > out; done\nkill $attacker",
        python.display(),
        directory.display()
    );
    run_in_mount_namespace(&scratch, &script);
    assert_eq!(file_names(&directory), before);
}

#[test]
fn links_planted_beside_the_counters_are_not_written_through() {
    const TEST: &str = "links_planted_beside_the_counters_are_not_written_through";
    if !is_root(TEST) || skipped() {
        return;
    }
    let scratch = Scratch::new("stats");
    let (shared, victim) = (make_shared_dir(&scratch), scratch.write("victim", "precious"));
    for (planted, is_written) in [("s.json.$$.part", true), ("s.json", false)] {
        // `exec` keeps the process number, which an attacker could guess.
        let script = format!(
            "$as_nobody ln -s {} {}/{planted}\nexec $uncopy run --stats {1}/s.json -- sh -c :",
            victim.display(),
            shared.display()
        );
        let done = run(&scratch, &script);
        assert_eq!(fs::read_to_string(&victim).expect("there"), "precious", "{planted}");
        let written = fs::symlink_metadata(shared.join("s.json")).expect("there");
        assert_eq!(written.is_file() && written.uid() == 0, is_written, "{planted}: {}", done.errors);
        let refused = done.errors.contains("another user's symbolic link");
        assert_eq!(refused, !is_written, "{planted}: {}", done.errors);
        fs::remove_file(shared.join("s.json")).expect("root");
    }
}

/// The command writes the counters itself if the library is not in the program.
#[test]
fn counters_without_the_library_are_not_written_through_links() {
    const TEST: &str = "counters_without_the_library_are_not_written_through_links";
    if !is_root(TEST) {
        return;
    }
    let scratch = Scratch::new("plain-stats");
    let (shared, victim) = (make_shared_dir(&scratch), scratch.write("victim", "precious"));
    fs::copy("/bin/true", scratch.join("program")).expect("copied");
    let script = format!(
        "chmod 4755 program\n$as_nobody ln -s {} {}/s.json\n$uncopy run --stats {1}/s.json -- ./program",
        victim.display(),
        shared.display()
    );
    let done = run(&scratch, &script);
    assert_eq!(fs::read_to_string(&victim).expect("there"), "precious");
    assert!(done.errors.contains("another user's symbolic link"), "{}", done.errors);
}

#[test]
fn nobody_waits_for_a_planted_pipe() {
    const TEST: &str = "nobody_waits_for_a_planted_pipe";
    if !is_root(TEST) {
        return;
    }
    let scratch = Scratch::new("pipes");
    let shared = make_shared_dir(&scratch);
    fs::copy(PROFILE, scratch.join("p.json")).expect("copied");
    let at = shared.display();
    let plant = |name: &str| format!("$as_nobody mkfifo -m 666 {at}/{name}\n");
    let refused = |title: &str, script: &str| {
        let done = run(&scratch, script);
        assert!(done.errors.contains("another user's pipe"), "{title}: {}", done.errors);
    };
    if !skipped() {
        refused("--stats", &(plant("s") + &format!("$uncopy run --stats {at}/s -- sh -c :")));
    }
    refused("--html", &(plant("h") + &format!("! $uncopy report --html {at}/h p.json")));
    refused("--explain", &(plant("e") + &format!("$uncopy run --explain {at}/e -- sh -c :")));
    // An invalid log, and an invalid profile.
    let ended = run(
        &scratch,
        &format!(
            "{}{}cd {at}\n$uncopy log ls {at}\n! $uncopy log check {at}\n$uncopy doctor true || :",
            plant("0123456789abcdef.log"),
            plant("true.profile.json")
        ),
    );
    assert!(ended.text().contains("0123456789abcdef  unreadable"), "{}\n{}", ended.text(), ended.errors);
    run(&scratch, &format!("! $uncopy log sync {at}/0123456789abcdef.log"));
}

#[test]
fn unread_pipe_of_ones_own_is_not_waited_for() {
    let scratch = Scratch::new("own-pipe");
    fs::copy(PROFILE, scratch.join("p.json")).expect("copied");
    let done = run(&scratch, "mkfifo h\n! $uncopy report --html h p.json");
    assert!(done.errors.contains("nobody reads from this pipe"), "{}", done.errors);
    // With a reader, the page is written to the pipe.
    let done = run(&scratch, "cat < h > page &\nexec 3> h\n$uncopy report --html h p.json\nexec 3>&-\nwait");
    assert_eq!(done.errors, "");
    assert!(fs::read_to_string(scratch.join("page")).expect("there").contains("</html>"));
    // Standard output, by another name.
    let done = run(&scratch, "$uncopy report --html /dev/stdout p.json");
    assert!(String::from_utf8_lossy(&done.output).contains("</html>"), "{}", done.errors);
}

#[test]
fn a_page_is_not_written_through_a_planted_link() {
    const TEST: &str = "a_page_is_not_written_through_a_planted_link";
    if !is_root(TEST) {
        return;
    }
    let scratch = Scratch::new("page");
    let (shared, victim) = (make_shared_dir(&scratch), scratch.write("victim", "precious"));
    fs::copy(PROFILE, scratch.join("p.json")).expect("copied");
    let at = shared.display();
    for (name, command) in [
        ("h", "report --html PLACE/h p.json"),
        ("f", "report --flamegraph PLACE/f p.json"),
        ("e", "run --explain PLACE/e -- sh -c :"),
    ] {
        let command = command.replace("PLACE", &at.to_string());
        let script = format!("$as_nobody ln -s {} {at}/{name}\n$uncopy {command} || :", victim.display());
        let done = run(&scratch, &script);
        assert!(done.errors.contains("another user's symbolic link"), "{command}: {}", done.errors);
        assert_eq!(fs::read_to_string(&victim).expect("there"), "precious", "{command}");
    }
    // A file that is replaced in any case takes the link's place.
    let script = format!("$as_nobody ln -s {} {at}/m\n$uncopy metrics --textfile {at}/m", victim.display());
    run(&scratch, &script);
    assert_eq!(fs::read_to_string(&victim).expect("there"), "precious");
    assert!(fs::symlink_metadata(shared.join("m")).expect("there").is_file());
}

/// `service --root` neither reads nor writes the host's files.
#[test]
fn links_in_an_image_do_not_lead_out_of_it() {
    let scratch = Scratch::new("image");
    let root = scratch.directory("root");
    for directory in ["usr/sbin", "lib/systemd/system", "etc/systemd"] {
        fs::create_dir_all(root.join(directory)).expect("made");
    }
    fs::copy("/bin/sh", root.join("usr/sbin/server")).expect("copied");
    let outside = scratch.directory("outside");
    let unit = "[Service]\nExecStart=/usr/sbin/server outside\n";
    fs::write(outside.join("web.service"), unit).expect("written");
    std::os::unix::fs::symlink(&outside, root.join("etc/systemd/system")).expect("planted");
    let done = run(&scratch, "! $uncopy service --root root web");
    assert!(done.errors.contains("there is no unit web.service"), "{}", done.errors);
    fs::write(root.join("lib/systemd/system/web.service"), unit.replace("outside", "inside"))
        .expect("written");
    let done = run(&scratch, "$uncopy service --root root --print web; ! $uncopy service --root root web");
    assert!(done.text().contains("server inside"), "{}", done.text());
    assert_eq!(file_names(&outside), ["web.service"], "{}", done.errors);
    // A program that is a link out of the image counts as missing.
    fs::remove_file(root.join("usr/sbin/server")).expect("removed");
    std::os::unix::fs::symlink("../../../../../../../../bin/sh", root.join("usr/sbin/server"))
        .expect("planted");
    let done = run(&scratch, "! $uncopy service --root root --print web");
    assert!(done.errors.contains("which does not exist"), "{}", done.errors);
}

#[test]
fn an_option_with_a_line_break_becomes_no_line_of_a_unit() {
    let scratch = Scratch::new("line");
    let root = scratch.directory("root");
    fs::create_dir_all(root.join("lib/systemd/system")).expect("made");
    fs::create_dir_all(root.join("usr/sbin")).expect("made");
    fs::copy("/bin/sh", root.join("usr/sbin/server")).expect("copied");
    fs::write(root.join("lib/systemd/system/web.service"), "[Service]\nExecStart=/usr/sbin/server\n")
        .expect("written");
    for option in ["/run/s\nUser=root\nExecStartPre=/bin/evil", "/run/s\rUser=root", "/run/s\x1b[2J"] {
        let program = Program::new(uncopy()).args(["service", "--root"]).args([&root]);
        let done = program.args(["web", "--", "--stats", option]).run(&scratch, "service");
        assert_eq!(done.status.code(), Some(2), "{option:?}: {}", done.errors);
        assert!(done.errors.contains("without control characters"), "{}", done.errors);
        assert_eq!(done.errors.lines().count(), 1, "{}", done.errors);
    }
    assert!(!root.join("etc").exists(), "something was written");
    let done = run(&scratch, "! $uncopy service --root root --print web -- --lanes -- /bin/evil");
    assert!(done.errors.contains("no command"), "{}", done.errors);
}

const DEVICE: &str = "/dev/userfaultfd";

/// Returns the number of device descriptors in programs started under `run_by`, also as another user.
fn device_count(scratch: &Scratch, run_by: &str) -> usize {
    // A script of its own, so that `ls` is two programs down.
    scratch.write("show.sh", "ls -l /proc/self/fd\n");
    let setpriv = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let command = format!("{run_by} sh -c 'sh show.sh; {setpriv} ls -l /proc/self/fd; :'");
    run(scratch, &command).text().matches(DEVICE).count()
}

#[test]
fn programs_that_are_not_followed_have_no_device() {
    const TEST: &str = "programs_that_are_not_followed_have_no_device";
    if !is_root(TEST) || skipped() {
        return;
    }
    let scratch = Scratch::new("device");
    if device_count(&scratch, "$uncopy run --") == 0 {
        return skip(TEST, "the device cannot be used here");
    }
    assert_eq!(device_count(&scratch, "$uncopy run --no-follow --"), 0);
    assert_eq!(device_count(&scratch, "$uncopy run -- $uncopy run --no-follow --"), 0, "an outer run's");
    assert_eq!(device_count(&scratch, "$uncopy run -- $uncopy run --off --no-follow --"), 0, "switched off");
    // The program itself has the device, and uncopy works.
    let policy = "UNCOPY_POLICY=always UNCOPY_BEGIN_AFTER=0";
    let script = format!(
        "{policy} $uncopy run --no-follow --stats s.json -- dd if=/dev/zero of=out bs=1M count=8 status=none"
    );
    run(&scratch, &script);
    let counters: serde_json::Value =
        serde_json::from_slice(&fs::read(scratch.join("s.json")).expect("written")).expect("JSON");
    assert!(counters["input_bytes"].as_u64() >= Some(8 << 20), "{counters}");
}

/// Two containers share neither `/dev/shm` nor processes: neither can see or end the other's.
#[test]
fn a_neighbour_with_another_shared_memory_finds_nothing() {
    const TEST: &str = "a_neighbour_with_another_shared_memory_finds_nothing";
    if !is_root(TEST) || !can_unshare(TEST) || skipped() {
        return;
    }
    let scratch = Scratch::new("neighbour");
    let unshare = packaged("/usr/bin/unshare", "util-linux");
    let script = format!(
        "mkfifo go up\n$uncopy run -- sh -c 'echo up > up; read line < go' &\nvictim=$!\nread line < up\n\
         $uncopy ps > seen\n\
         {} --mount --pid --fork --mount-proc sh -ec \"mount -t tmpfs none /dev/shm; $uncopy ps; ! $uncopy stats $victim\" > apart 2>&1\n\
         echo > go\nwait $victim",
        unshare.display()
    );
    run(&scratch, &script);
    let text = |name: &str| fs::read_to_string(scratch.join(name)).expect("written");
    assert!(text("seen").contains("sh"), "{}", text("seen"));
    let apart = text("apart");
    assert!(apart.contains("there is no process") || apart.contains("does not run under uncopy"), "{apart}");
    assert!(!apart.lines().any(|line| line.ends_with(" sh")), "{apart}");
}
