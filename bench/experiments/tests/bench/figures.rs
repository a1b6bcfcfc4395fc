//! scripts/check-figures finds figures of documents that are marked as measured but missing in
//! docs/results/details.md.

use std::path::{Path, PathBuf};
use std::process::Command;

const TREE: &str = "0123456789abcdef0123456789abcdef01234567";
const DETAILS: &str = "# Details\n\n## Echo\n\n\
    | echo 512 KiB | uncopy | 1,234 | ~1.94 (1.65–2.37) | 0.48 (0.46–0.50) | 3.1 % |\n\n\
    <!-- table: copies -->\n```text\necho  plain   3,651\necho  uncopy  7,369\n```\n\
    ## Files\n\n<!-- table: files -->\n```text\nGET  twin  0.77\n```\n";
const GOOD: &str = "Limits are 64 KiB and 5 s.\n\n<!-- measured:begin copies -->\n<!-- table: copies -->\n```text\n\
    echo  uncopy  7,369\n```\nWith `--seconds 0.7` it is 1.94 times plain, spread 1.65 to 2.37, CPU 3.1 % less, 12 copies.\n\
    <!-- measured:end -->\n\n<!-- quoted:begin -->\nThe paper has 3.8 times and 190 ns.\n<!-- quoted:end -->\n";

/// A project that consists of documents only.
struct Project(PathBuf);

impl Project {
    fn new(name: &str, readme: &str) -> Self {
        let root = std::env::temp_dir().join(format!("uncopy-figures-{name}-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs/results")).expect("a directory");
        std::fs::write(root.join("docs/results.md"), format!("# Results\n\nMade from tree {TREE}.\n"))
            .expect("the page");
        std::fs::write(root.join("docs/results/details.md"), DETAILS).expect("the details");
        std::fs::write(root.join("README.md"), readme).expect("a document");
        Self(root)
    }

    /// Runs the check, and returns whether it passed and its output.
    fn check(&self, words: &[&str]) -> (bool, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/check-figures");
        let output = Command::new("python3").arg(script).args(words).arg(&self.0).output().expect("python3");
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
    }

    fn readme(&self) -> String {
        std::fs::read_to_string(self.0.join("README.md")).expect("the document")
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn documents_that_agree_with_the_results_pass() {
    let (good, printed) = Project::new("good", GOOD).check(&[]);
    assert!(good, "{printed}");
}

#[test]
fn each_figure_missing_from_the_named_results_is_reported() {
    for (name, from, to, expected) in [
        (
            "other",
            "it is 1.94 times",
            "it is 1.95 times",
            "README.md:8: 1.95 is not in docs/results/details.md under copies",
        ),
        ("part", "1.65", "1.6", "1.6 is not in"),
        ("unit", "3.1 %", "9 %", "9 is not in"),
        ("section", "it is 1.94", "it is 0.77", "0.77 is not in"),
        ("line", "7,369\n```", "7,370\n```", "README.md:6: this line is not in the table of copies"),
        ("table", "table: copies", "table: others", "has no table others"),
        ("unknown", "begin copies", "begin others", "has no table others"),
        ("nameless", "begin copies", "begin", "does not name the experiments"),
        ("unmarked", "Limits", "It is 1.3 times as fast. Limits", "'1.3 times' looks measured"),
        ("time", "Limits", "A fault takes 12 µs. Limits", "'12 µs' looks measured"),
        ("open", "<!-- measured:end -->\n", "", "has no end"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{name}");
        let (good, printed) = Project::new(name, &text).check(&[]);
        assert!(!good && printed.contains(expected), "{name}: {printed}");
    }
}

#[test]
fn the_tree_of_the_results_is_that_of_a_commit() {
    let project = Project::new("tree", GOOD);
    let git = |words: &[&str]| {
        let identity =
            ["-c", "user.name=Nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false"];
        let mut command = Command::new("git");
        command.arg("-C").arg(&project.0).args(identity).args(words).env("GIT_CONFIG_GLOBAL", "/dev/null");
        let output = command.output().expect("git");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    git(&["init", "-q"]);
    std::fs::create_dir_all(project.0.join("crates")).expect("a directory");
    std::fs::write(project.0.join("crates/source"), "of the figures").expect("a source");
    git(&["add", "crates"]);
    git(&["commit", "-q", "-m", "Sources"]);
    let (good, printed) = project.check(&[]);
    assert!(!good && printed.contains(&format!("no commit of HEAD's has the tree {TREE}")), "{printed}");
    let tree = git(&["rev-parse", "HEAD:crates"]);
    std::fs::write(project.0.join("docs/results.md"), format!("Made from tree {tree}.\n")).expect("the page");
    git(&["commit", "-q", "--allow-empty", "-m", "Something else"]);
    let (good, printed) = project.check(&[]);
    assert!(good, "{printed}");
}

#[test]
fn results_without_a_tree_or_with_changes_on_top_of_one_are_refused() {
    for (name, page, expected) in [
        ("none", "Made by hand.\n".to_owned(), "does not name the one tree"),
        ("changed", format!("Made from tree {TREE}+.\n"), "with changes that are in no commit"),
    ] {
        let project = Project::new(name, GOOD);
        std::fs::write(project.0.join("docs/results.md"), page).expect("the page");
        let (good, printed) = project.check(&[]);
        assert!(!good && printed.contains(expected), "{printed}");
    }
}

#[test]
fn tables_are_put_where_they_are_named() {
    let project = Project::new("fill", &GOOD.replacen("echo  uncopy  7,369", "old", 1));
    assert!(!project.check(&[]).0);
    assert!(project.check(&["--fill"]).0);
    assert!(project.readme().contains("```text\necho  plain   3,651\necho  uncopy  7,369\n```\n"));
    assert!(project.check(&[]).0, "{}", project.readme());
}
