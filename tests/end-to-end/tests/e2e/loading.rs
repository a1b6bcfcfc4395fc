//! Code that runs before uncopy is set up, after it has finished, and past its hooks.

use uncopy_core::stats::Counter;
use uncopy_tests::programs::compile;
use uncopy_tests::{Mode, Program, Scratch};

#[test]
fn early_late_and_deeply_bound_code() {
    let scratch = Scratch::new("loading");
    let (early, plugin) = (scratch.directory("early"), scratch.directory("plugin"));
    let library = |directory: &std::path::Path, definition: &str| {
        let path = directory.join("libloading.so");
        let built = compile(&scratch, "loading", &["-shared", "-fPIC", definition]);
        std::fs::rename(built, &path).expect("moved");
        path.to_str().expect("UTF-8").to_owned()
    };
    let early = library(&early, "-DEARLY");
    let plugin = library(&plugin, "-DPLUGIN");
    let program = compile(&scratch, "loading", &[&early]);
    let program = Program::new(program).args([&plugin]).directory(scratch.path());
    let plain = program.clone().run(&scratch, "plain").expect_success();
    assert!(plain.output.ends_with(b"done\nended\n"), "{}", plain.text());
    for mode in Mode::FOR_APPLICATIONS {
        let done = program.clone().mode(mode).run(&scratch, "preloaded").expect_success();
        assert!(done.output == plain.output, "mode {mode:?} printed\n{}", done.text());
        let _ = done.expect_counters(&[Counter::ElidedBytes, Counter::InputBytes]);
    }
}
