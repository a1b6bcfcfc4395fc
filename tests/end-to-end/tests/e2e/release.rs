//! `uncopy release PID` and `uncopy stats PID`, on programs in every state.

use uncopy_core::stats::{Counter, REASON_RELEASED};
use uncopy_tests::artifacts::{bin_dir, skipped};
use uncopy_tests::stepped::SteppedProgram;
use uncopy_tests::{Mode, Program, Scratch};

const FOREIGN: &str = env!("CARGO_BIN_EXE_foreign");

/// Runs `uncopy SUBCOMMAND PID` and returns exit status, output and errors.
fn uncopy(scratch: &Scratch, subcommand: &str, pid: u32) -> (Option<i32>, String, String) {
    let program = Program::new(bin_dir().join("uncopy")).args([subcommand, &pid.to_string()]);
    let done = program.run(scratch, subcommand);
    (done.status.code(), String::from_utf8_lossy(&done.output).into_owned(), done.errors)
}

fn release_and_check(scratch: &Scratch, stepped: &SteppedProgram) {
    let (pid, views) = (stepped.running.pid(), stepped.counter(Counter::Views));
    assert!(views > 0, "there are views to release");
    let (status, output, errors) = uncopy(scratch, "release", pid);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{output}");
    let text = format!("process {pid} is released: ");
    assert!(output.starts_with(&text), "{output}");
    assert!(output.ends_with(" bytes written\n") && output.lines().count() == 1, "{output}");
    expect_no_views(scratch, stepped);
}

/// Expects `uncopy stats` to show that the process was released and has no views.
fn expect_no_views(scratch: &Scratch, stepped: &SteppedProgram) {
    let (status, output, errors) = uncopy(scratch, "stats", stepped.running.pid());
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{output}");
    let json: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(json[Counter::Views.name()].as_u64(), Some(0), "{output}");
    assert_eq!(json["reason"].as_str(), Some(REASON_RELEASED), "{output}");
}

#[test]
fn a_process_that_holds_views() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("release");
    let mut stepped = SteppedProgram::start(&scratch, FOREIGN, "step_on_input", Mode::Always);
    assert!(stepped.counter(Counter::ForeignRanges) > 0, "ranges of the program's own memory");
    release_and_check(&scratch, &stepped);
    let before = stepped.counter(Counter::ElidedBytes);
    stepped.step();
    stepped.step();
    expect_no_views(&scratch, &stepped);
    assert_eq!(stepped.counter(Counter::ElidedBytes), before, "copies that were elided once it was released");
    // A second release has nothing to do.
    let (pid, before) = (stepped.running.pid(), stepped.counter(Counter::MaterializedBytes));
    let again = uncopy(&scratch, "release", pid);
    assert_eq!(again, (Some(0), format!("process {pid} holds no views: {REASON_RELEASED}\n"), String::new()));
    assert_eq!(stepped.counter(Counter::MaterializedBytes), before);
    stepped.step();
    let _ = stepped.finish_successfully();
}

/// Releases a process while three of its threads receive and copy.
#[test]
fn a_process_that_is_at_work() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("release");
    let mut stepped = SteppedProgram::start(&scratch, FOREIGN, "busy_step_on_input", Mode::Always);
    release_and_check(&scratch, &stepped);
    stepped.step();
    stepped.step();
    expect_no_views(&scratch, &stepped);
    let _ = stepped.finish_successfully();
}

#[test]
fn a_process_that_has_made_no_views() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("release");
    let stepped = SteppedProgram::start(&scratch, FOREIGN, "idle_until_input", Mode::Auto);
    let pid = stepped.running.pid();
    for _ in 0..2 {
        let text = format!("process {pid} has elided nothing yet; release it again once it has\n");
        assert_eq!(uncopy(&scratch, "release", pid), (Some(0), text, String::new()));
    }
    let _ = stepped.finish_successfully();
}

#[test]
fn a_process_that_is_not_under_uncopy() {
    let scratch = Scratch::new("release");
    let mut stepped = SteppedProgram::start(&scratch, FOREIGN, "step_on_input", Mode::Plain);
    let pid = stepped.running.pid();
    let (status, output, errors) = uncopy(&scratch, "release", pid);
    assert_eq!((status, output.as_str()), (Some(1), ""), "{errors}");
    assert!(errors.starts_with(&format!("uncopy: process {pid} does not run under uncopy")), "{errors}");
    stepped.step();
    let _ = stepped.finish_successfully();
}

#[test]
fn a_process_that_does_not_exist() {
    let scratch = Scratch::new("release");
    // Process numbers on Linux are below this one.
    let (status, output, errors) = uncopy(&scratch, "release", 1 << 22);
    let text = format!("uncopy: there is no process {}\n", 1 << 22);
    assert_eq!((status, output.as_str(), errors), (Some(1), "", text));
}

/// Returns the first process of the pid namespace that `unshare` created.
fn first_process(unshare: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
    children.expect("alive").trim().parse().expect("one child")
}

/// Two pid namespaces with one /dev/shm, as in containers with `--ipc=host` or those of a pod.
#[test]
fn pid_namespaces_sharing_dev_shm_do_not_interfere() {
    const TEST: &str = "pid_namespaces_sharing_dev_shm_do_not_interfere";
    let in_namespace = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let probe = std::process::Command::new("/usr/bin/unshare").args(in_namespace).arg("true").output();
    if skipped() || !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("skipped: {TEST}: no pid namespace can be made here");
        return;
    }
    let scratches = ["outer", "one", "other"].map(Scratch::new);
    let outer = SteppedProgram::start(&scratches[0], FOREIGN, "step_on_input", Mode::Always);
    // Both programs are process 1 of their namespace.
    let contained = [1, 2].map(|number| {
        let program =
            Program::new("/usr/bin/unshare").args(in_namespace).args([FOREIGN, "step_on_input", "1"]);
        SteppedProgram::start_program(&scratches[number], program.mode(Mode::Always), "contained")
    });
    let first = contained.each_ref().map(|stepped| first_process(stepped.running.pid()));
    let look =
        Program::new("/usr/bin/unshare").args(in_namespace).args([bin_dir().join("uncopy"), "ps".into()]);
    let _ = look.run(&scratches[0], "looked-from-inside").expect_success();
    let _ = Program::new(bin_dir().join("uncopy")).args(["ps"]).run(&scratches[0], "looked").expect_success();
    assert!(outer.counter(Counter::Views) > 0, "the stats file is gone");
    for pid in first {
        let (status, output, errors) = uncopy(&scratches[0], "stats", pid);
        let json: serde_json::Value = serde_json::from_str(&output).unwrap_or_default();
        assert!(json[Counter::Views.name()].as_u64() > Some(0), "{status:?} {output} {errors}");
    }
    let (status, output, errors) = uncopy(&scratches[0], "release", first[0]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{output}");
    let views = |pid| {
        let json: serde_json::Value =
            serde_json::from_str(&uncopy(&scratches[0], "stats", pid).1).expect("JSON");
        json[Counter::Views.name()].as_u64()
    };
    assert_eq!(views(first[0]), Some(0));
    assert!(views(first[1]) > Some(0), "the other process 1 was released");
    contained.into_iter().chain([outer]).for_each(|stepped| drop(stepped.finish_successfully()));
}
