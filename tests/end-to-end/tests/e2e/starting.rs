//! Program start: constructors of other libraries in any order, the loader called by hand, the state that
//! `main` finds, and programs that cannot load this library but are started by one that has it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use uncopy_tests::artifacts::{self, packaged};
use uncopy_tests::programs::{LIBRARY_DIR, compile};
use uncopy_tests::{Mode, Program, Scratch};

/// Compiles a library from `starting.c` with a definition.
fn compile_library(scratch: &Scratch, definition: &str) -> PathBuf {
    let path = scratch.join(&format!("lib{}.so", &definition[2..].to_lowercase()));
    std::fs::rename(compile(scratch, "starting", &["-shared", "-fPIC", definition]), &path).expect("moved");
    path
}

/// Runs a program plain and in both modes, and expects the same output and status.
fn compare_with_plain(program: &Program, scratch: &Scratch) {
    let plain = program.clone().run(scratch, "plain");
    assert!(plain.status.success(), "{}", plain.text());
    for mode in Mode::FOR_APPLICATIONS {
        let done = program.clone().mode(mode).run(scratch, "preloaded").expect_success();
        assert_eq!(done.text(), plain.text(), "mode {mode:?}");
    }
}

/// Other libraries before and after ours: constructors run in either order.
#[test]
fn constructors_run_in_any_order() {
    let scratch = Scratch::new("constructors");
    let program = compile(&scratch, "starting", &[]);
    let program = move_in_scratch(&scratch, &program, "program");
    let libraries = [
        compile_library(&scratch, "-DCONSTRUCTOR"),
        compile_library(&scratch, "-DLOCALE"),
        compile_library(&scratch, "-DWRAPPER"),
        compile_library(&scratch, "-DODD"),
        packaged(&format!("{LIBRARY_DIR}/faketime/libfaketime.so.1"), "libfaketime"),
    ];
    for (index, one) in libraries.iter().enumerate() {
        compare_with_plain(&Program::new(&program).preload_before(one), &scratch);
        compare_with_plain(&Program::new(&program).preload_after(one), &scratch);
        for other in &libraries[index + 1..] {
            compare_with_plain(&Program::new(&program).preload_before(one).preload_after(other), &scratch);
            compare_with_plain(&Program::new(&program).preload_before(other).preload_after(one), &scratch);
        }
    }
    // Alone, the library leaves nothing in the program's heap.
    compare_with_plain(&Program::new(&program).args(["heap"]), &scratch);
}

fn move_in_scratch(scratch: &Scratch, from: &Path, name: &str) -> PathBuf {
    let to = scratch.join(name);
    std::fs::rename(from, &to).expect("moved");
    to
}

/// Runs `ld-linux-x86-64.so.2 PROGRAM`, as bundles do; the kernel then knows no other loader.
#[test]
fn the_loader_is_called_by_hand() {
    let scratch = Scratch::new("by-hand");
    let program = compile(&scratch, "starting", &[]);
    let program = program.to_str().expect("UTF-8");
    let loader = Program::new("/lib64/ld-linux-x86-64.so.2");
    compare_with_plain(&loader.clone().args([program]), &scratch);
    let fixed = move_in_scratch(&scratch, &compile(&scratch, "starting", &["-no-pie"]), "fixed");
    compare_with_plain(&loader.args([fixed]), &scratch);
}

/// Executes a program of another C library in every way: it runs as when plain, without this library.
#[test]
fn programs_of_another_loader_are_started_without_the_library() {
    let scratch = Scratch::new("musl");
    let starter = compile(&scratch, "starting", &[]);
    let musl = scratch.join("musl");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/executed.c");
    let _ = Program::new(packaged("/usr/bin/musl-gcc", "musl-tools"))
        .args(["-O1".as_ref(), "-o".as_ref(), musl.as_os_str(), source.as_os_str()])
        .run(&scratch, "compile-musl")
        .expect_success();
    let script = scratch.join("script");
    std::fs::write(&script, format!("#!{} option\n", musl.display())).expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let search = format!("/nowhere:{}:/usr/bin:/bin", scratch.path().display());
    let path = |file: &Path| file.to_str().expect("UTF-8").to_owned();
    let methods = "execve execv execvp execvpe execl execlp execle fexecve execveat empty_execveat syscall vfork posix_spawn \
                   posix_spawnp";
    let named =
        methods.split_whitespace().flat_map(|method| [(method, path(&musl)), (method, path(&script))]);
    let searched = ["execvp", "execvpe", "execlp", "posix_spawnp"].map(|method| (method, "musl".to_owned()));
    let shell = [("execv", "/bin/sh".to_owned())];
    for (method, file) in named.chain(searched).chain(shell) {
        // The interpreter cannot open a script through a descriptor that is already closed.
        if file.ends_with("script") && ["fexecve", "empty_execveat"].contains(&method) {
            continue;
        }
        let arguments: &[&str] = if file == "/bin/sh" { &["-c", "musl 1"] } else { &["1"] };
        let program = Program::new(&starter)
            .args([method, &file])
            .args(arguments)
            .env("OTHER", "kept")
            .env("PATH", &search);
        let plain = program.clone().run(&scratch, "plain");
        assert_eq!(plain.status.code(), Some(7), "{method} {file}: {}", plain.text());
        for mode in Mode::FOR_APPLICATIONS {
            let done = program.clone().mode(mode).run(&scratch, "preloaded");
            assert_eq!(done.status.code(), Some(7), "{method} {file}: {}", done.text());
            assert_eq!(done.text(), plain.text(), "{method} {file}, mode {mode:?}");
        }
    }
}

/// A program of glibc's loader keeps the library. Where ours is removed, other preloads stay.
#[test]
fn other_preloads_are_kept() {
    let scratch = Scratch::new("kept");
    let starter = move_in_scratch(&scratch, &compile(&scratch, "starting", &[]), "starter");
    let ordinary = compile(&scratch, "executed", &[]);
    let other = packaged(&format!("{LIBRARY_DIR}/libm.so.6"), "libc6");
    for (method, file) in [("execv", &ordinary), ("execl", &ordinary), ("posix_spawn", &ordinary)] {
        let program =
            Program::new(&starter).args([method, file.to_str().expect("UTF-8"), "1"]).preload_after(&other);
        let done = program.mode(Mode::Auto).run(&scratch, "preloaded");
        let text = String::from_utf8_lossy(&done.output).into_owned();
        let preload = format!("LD_PRELOAD={}:{}", artifacts::library().display(), other.display());
        assert!(text.contains(&preload) && !text.contains(" 0 of UNCOPY_"), "{method}: {}", done.text());
    }
    // A program of glibc's loader that cannot run with this library.
    let sanitized =
        move_in_scratch(&scratch, &compile(&scratch, "executed", &["-fsanitize=address"]), "sanitized");
    let program = Program::new(&starter)
        .args(["execv", sanitized.to_str().expect("UTF-8"), "1"])
        .preload_after(&other)
        .env("ASAN_OPTIONS", "verify_asan_link_order=0");
    let done = program.mode(Mode::Auto).run(&scratch, "preloaded");
    let text = String::from_utf8_lossy(&done.output).into_owned();
    assert!(text.contains(&format!("LD_PRELOAD={}, 0 of", other.display())), "{}", done.text());
}

/// Programs built with a sanitizer, whose runtime must be loaded first.
#[test]
fn programs_of_a_sanitizer_are_started_without_the_library() {
    let scratch = Scratch::new("sanitized");
    for sanitizer in ["address", "thread", "leak", "undefined"] {
        let option = format!("-fsanitize={sanitizer}");
        let program = compile(&scratch, "executed", &[&option]);
        let program = Program::shell(&format!("{} 1; exit $?", program.display()));
        let plain = program.clone().run(&scratch, "plain");
        let done = program.mode(Mode::Auto).run(&scratch, "preloaded");
        assert_eq!(
            (plain.status.code(), done.status.code()),
            (Some(7), Some(7)),
            "{sanitizer}: {}",
            done.text()
        );
        if sanitizer != "undefined" {
            assert_eq!(done.text(), plain.text(), "{sanitizer}");
        }
    }
}

/// An object whose calls go directly to libc resizes and frees memory of the program's.
#[test]
fn a_deeply_bound_object_frees_the_programs_memory() {
    let scratch = Scratch::new("deep");
    let plugin = compile_library(&scratch, "-DPLUGIN");
    let program = compile(&scratch, "starting", &[]);
    let program = Program::new(program).args(["plugin", plugin.to_str().expect("UTF-8")]);
    compare_with_plain(&program, &scratch);
}
