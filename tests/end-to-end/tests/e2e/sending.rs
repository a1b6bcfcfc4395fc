//! `libuncopy_send` and the C interface, in C programs: sent bytes are those at the time of the
//! call, and results and `errno` are libc's.

use std::path::{Path, PathBuf};

use uncopy_tests::artifacts::{bin_dir, packaged};
use uncopy_tests::programs::compile;
use uncopy_tests::running::Finished;
use uncopy_tests::{Mode, Program, Scratch};

const SCENARIOS: [&str; 5] = ["overwrite", "errors", "allocator", "threads", "cancel"];

fn built_library(name: &str) -> String {
    let path = bin_dir().join(name);
    let path = path
        .canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}; build it with: make build", path.display()));
    path.to_str().expect("UTF-8").to_owned()
}

fn include_flag() -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/sending/capi/include");
    format!("-I{}", directory.to_str().expect("UTF-8"))
}

/// How a program is linked with the library.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Linkage {
    Shared,
    Archive,
    Statically,
}

/// Compiles a program that includes `uncopy.h`, with every warning an error.
fn compile_program(scratch: &Scratch, name: &str, linkage: Linkage, more: &[&str]) -> PathBuf {
    let include_flag = include_flag();
    let (shared, archive) = (built_library("libuncopy_send.so"), built_library("libuncopy_send.a"));
    let mut arguments = vec!["-std=c11", "-D_GNU_SOURCE", "-pedantic", include_flag.as_str()];
    arguments.extend_from_slice(more);
    let path = format!("-Wl,-rpath,{}", scratch.path().to_str().expect("UTF-8"));
    match linkage {
        Linkage::Shared => {
            // The soname, by which the program loads the library.
            let name = scratch.join("libuncopy_send.so.0");
            if !name.exists() {
                std::os::unix::fs::symlink(&shared, name).expect("link");
            }
            arguments.extend([path.as_str(), shared.as_str()]);
        }
        Linkage::Archive => arguments.extend([archive.as_str(), "-ldl", "-lm"]),
        Linkage::Statically => arguments.extend(["-static", archive.as_str(), "-ldl", "-lm"]),
    }
    compile(scratch, name, &arguments)
}

/// Expects every scenario to have run, and `uncopy_status` to agree with `works`.
fn expect_done(done: Finished, scenarios: &[&str], works: bool) -> Finished {
    let done = done.expect_success();
    let text = String::from_utf8_lossy(&done.output).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(&lines[..scenarios.len()], scenarios, "{}", done.text());
    let status = lines[scenarios.len()];
    assert!(status.starts_with(if works { "1: " } else { "0: " }), "uncopy_status: {status}");
    assert_eq!(lines.last(), Some(&"done"));
    done
}

/// Runs every scenario, some in a process of their own because they must come first or last.
fn run_scenarios(program: &Program, scratch: &Scratch) {
    let done = program.clone().args(SCENARIOS).run(scratch, "sending");
    let _ = expect_done(done, &SCENARIOS, true);
    for alone in ["options", "ends"] {
        let done = program.clone().args([alone]).run(scratch, alone);
        let _ = expect_done(done, &[alone], true);
    }
    // Again with references forced, which the program otherwise uses only where they pay.
    let all = program.clone().env("UNCOPY_POLICY", "always").args(SCENARIOS).run(scratch, "always");
    let _ = expect_done(all, &SCENARIOS, true);
}

fn check_linked(linkage: Linkage) {
    let scratch = Scratch::new("sending");
    let program = compile_program(&scratch, "sending", linkage, &[]);
    run_scenarios(&Program::new(program), &scratch);
}

#[test]
fn linked_with_the_shared_library() {
    check_linked(Linkage::Shared);
}

#[test]
fn linked_with_the_archive() {
    check_linked(Linkage::Archive);
}

#[test]
fn linked_statically() {
    check_linked(Linkage::Statically);
}

/// The preloaded `libuncopy.so` precedes the linked library, and provides all names.
#[test]
fn preloaded_library_provides_all_names() {
    let scratch = Scratch::new("sending");
    let program = compile_program(&scratch, "sending", Linkage::Shared, &[]);
    for mode in Mode::FOR_APPLICATIONS {
        run_scenarios(&Program::new(&program).mode(mode), &scratch);
    }
}

#[test]
fn other_allocators_beside_it() {
    let scratch = Scratch::new("sending");
    let program = compile_program(&scratch, "sending", Linkage::Shared, &[]);
    let library = packaged("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2");
    run_scenarios(&Program::new(&program).preload_before(&library), &scratch);
    let send = built_library("libuncopy_send.so");
    run_scenarios(&Program::new(&program).preload_before(&send).preload_after(&library), &scratch);
}

#[test]
fn turned_off_by_the_environment() {
    let scratch = Scratch::new("sending");
    let program = compile_program(&scratch, "sending", Linkage::Shared, &[]);
    let done = Program::new(program).env("UNCOPY_OFF", "1").args(SCENARIOS).run(&scratch, "off");
    let _ = expect_done(done, &SCENARIOS, false);
}

/// A program that gains privileges ignores its environment.
#[test]
fn set_user_id_programs_ignore_the_environment() {
    use std::os::unix::fs::PermissionsExt;
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: set_user_id_programs_ignore_the_environment: only root can make such a program");
        return;
    }
    let scratch = Scratch::new("sending");
    let program = compile_program(&scratch, "sending", Linkage::Archive, &[]);
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).expect("directory");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).expect("program");
    let setpriv = Program::new(packaged("/usr/bin/setpriv", "util-linux"))
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args([&program])
        .args(["allocator"])
        .env("UNCOPY_OFF", "1");
    let _ = expect_done(setpriv.run(&scratch, "privileged"), &["allocator"], true);
}

/// `uncopy.h` compiles as old and new C and C++, with every warning an error.
#[test]
fn header_in_every_dialect() {
    let scratch = Scratch::new("header");
    let source = "#include <uncopy.h>\n\
        int main(void) {\n\
        struct uncopy_settings settings;\n\
        const char *why;\n\
        settings.pageblock_pages = 1;\n\
        uncopy_free(uncopy_realloc(uncopy_calloc(1, settings.pageblock_pages), 2));\n\
        return uncopy_status(&why) < 0;\n}\n";
    let library = built_library("libuncopy_send.a");
    for (compiler, package, suffix, dialects) in [
        ("/usr/bin/cc", "gcc", "c", ["c90", "c99", "c17"]),
        ("/usr/bin/g++", "g++", "cc", ["c++98", "c++11", "c++20"]),
    ] {
        let file = scratch.write(&format!("program.{suffix}"), source);
        for dialect in dialects {
            let _ = Program::new(packaged(compiler, package))
                .args([
                    &format!("-std={dialect}"),
                    "-Wall",
                    "-Wextra",
                    "-pedantic",
                    "-Werror",
                    &include_flag(),
                ])
                .args(["-o".as_ref(), scratch.join("program").as_path(), file.as_path()])
                .args([&library, "-lpthread", "-ldl", "-lm"])
                .run(&scratch, dialect)
                .expect_success();
            let _ = Program::new(scratch.join("program")).run(&scratch, "program").expect_success();
        }
    }
}
