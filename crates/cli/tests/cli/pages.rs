//! Help, man pages and completions.

use crate::stage::{Stage, finish};
use std::fs;
use uncopy_core::options::OPTIONS;

#[test]
fn help_names_examples_exit_statuses_and_every_option() {
    let stage = Stage::new("help");
    let whole = finish(&mut stage.uncopy(&["--help"])).text();
    for word in ["run", "doctor", "stats", "completions", "man", "Examples:", "127", "126"] {
        assert!(whole.contains(word), "{word}");
    }
    let run = finish(&mut stage.uncopy(&["run", "--help"])).text();
    for option in OPTIONS {
        assert!(
            run.contains(&format!("--{}", option.flag)) && run.contains(option.variable),
            "{}",
            option.flag
        );
    }
    for page in ["doctor", "stats", "completions", "man"] {
        let text = finish(&mut stage.uncopy(&[page, "--help"])).text();
        assert!(text.contains("Example"), "{page}");
    }
    let version = finish(&mut stage.uncopy(&["--version"])).text();
    assert_eq!(version, format!("uncopy {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_shell_has_completions_with_the_options_values() {
    let stage = Stage::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let finished = finish(&mut stage.uncopy(&["completions", shell]));
        assert_eq!((finished.code, finished.errors.as_str()), (Some(0), ""));
        let text = finished.text();
        for option in OPTIONS {
            assert!(text.contains(option.flag), "{shell}: {}", option.flag);
        }
    }
    let bash = finish(&mut stage.uncopy(&["completions", "bash"])).text();
    assert!(bash.contains("auto always never"), "the words of --policy are completed");
}

#[test]
fn man_pages_are_written_for_the_command_and_each_subcommand() {
    let stage = Stage::new("man");
    let page = finish(&mut stage.uncopy(&["man"])).text();
    assert!(page.contains(".TH uncopy 1"), "{page}");
    let directory = stage.path("pages");
    fs::create_dir(&directory).expect("directory");
    let line = ["man", "--dir", directory.to_str().expect("text")];
    assert_eq!(finish(&mut stage.uncopy(&line)).code, Some(0));
    let mut names: Vec<String> = fs::read_dir(&directory)
        .expect("directory")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let expected = [
        "-completions",
        "-doctor",
        "-log",
        "-man",
        "-metrics",
        "-net",
        "-profile",
        "-ps",
        "-release",
        "-report",
        "-run",
        "-service",
        "-stats",
        "-top",
        "",
    ];
    assert_eq!(names, expected.map(|name| format!("uncopy{name}.1")));
    let finished = finish(&mut stage.uncopy(&["man", "--dir", "/nonexistent"]));
    assert_eq!(finished.code, Some(1));
    assert!(
        finished.errors.starts_with("uncopy: cannot write \"/nonexistent/uncopy.1\": "),
        "{}",
        finished.errors
    );
}

#[test]
fn bench_names_the_program_that_has_the_experiments() {
    let stage = Stage::new("bench");
    for arguments in [&["bench"][..], &["bench", "copies", "--quick"], &["bench", "--help"]] {
        let finished = finish(&mut stage.uncopy(arguments));
        assert_eq!(finished.code, Some(2), "{arguments:?}");
        let expected = "uncopy: the experiments are in uncopy-bench; build it with: make bench\n";
        assert_eq!((finished.text().as_str(), finished.errors.as_str()), ("", expected), "{arguments:?}");
    }
}
