//! The page of details: every experiment with its command and its table, in Markdown.

use uncopy_html::quantity;

use crate::results::goals::{self, PROJECT_GOALS};
use crate::results::headline::readme_table;
use crate::results::markdown::{escape, table_row};
use crate::results::model::{ExperimentResult, Results};
use crate::results::register::{NOT_MEASURED, find_entry};

/// Renders each experiment, from the last run that has it, in the order of the register.
#[must_use]
pub fn render(results: &Results) -> String {
    let mut page = String::from(
        "# Every experiment\n\n<!-- Made by uncopy-bench report; not to be edited by hand. -->\n\n\
         The tables of the last run, as the commands print them. [results.md](../results.md) explains them.\n",
    );
    if let Some(table) = readme_table(results) {
        page.push_str(
            "\n## Five programs\n\nOne case of each of five packaged programs: the two with the largest gain, the two \
             with the largest cost, and the one closest to no difference.\n",
        );
        page.push_str(&fenced_table("five", &table));
    }
    for entry in crate::experiments::entries() {
        let experiments = results.runs.iter().rev().flat_map(|run| &run.experiments);
        let mut of_entry = experiments.filter(|measured| measured.id == entry.id);
        let first = of_entry.next();
        let measured = first.filter(|measured| measured.failure.is_none());
        if let Some(measured) =
            measured.or_else(|| of_entry.find(|measured| measured.failure.is_none())).or(first)
        {
            page.push_str(&render_experiment(measured));
        }
    }
    page.push_str(&format!("\n## Goals of this project\n\n{}\n", goals::table(PROJECT_GOALS, results)));
    page.push_str(
        "\n## Measurements of the papers that are not made here\n\n| measurement | reason |\n|---|---|\n",
    );
    for (figure, why) in NOT_MEASURED {
        page.push_str(&(table_row(&[figure, why]) + "\n"));
    }
    page
}

fn render_experiment(measured: &ExperimentResult) -> String {
    let entry = find_entry(&measured.id);
    let mut lines = vec![format!("\n## {}\n", entry.map_or(measured.id.as_str(), |entry| entry.title))];
    for claim in entry.map_or(&[][..], |entry| entry.claims) {
        lines.push(format!("- **{}**: {}", claim.source, claim.result));
    }
    let versions = measured.versions.iter().map(|(key, version)| format!(" · {key} {version}"));
    let facts: String = versions.collect();
    let elapsed = quantity::seconds(measured.seconds);
    lines.push(format!(
        "\nMeasured in {elapsed} over {}{}: `{}`.",
        measured.network,
        escape(&facts),
        command_line(measured)
    ));
    if let Some(failure) = &measured.failure {
        lines.push(format!("\n**No results**: {}\n", escape(failure)));
        return lines.join("\n");
    }
    lines.extend(measured.warning.iter().map(|warning| format!("\n*{}*", escape(warning))));
    lines.push(fenced_table(&measured.id, &measured.text));
    lines.extend(measured.notes.iter().map(|note| format!("- {}", escape(note))));
    lines.join("\n") + "\n"
}

/// Returns the command that measures the experiment by itself.
fn command_line(measured: &ExperimentResult) -> String {
    let words = measured.words.join(" ");
    match measured.network.as_str() {
        "" | "loopback" => format!("uncopy-bench {words}"),
        network => format!("uncopy-bench --network {network} {words}"),
    }
}

/// Returns a table as it was printed, between marks by which `scripts/check-figures` finds `id`.
fn fenced_table(id: &str, table: &str) -> String {
    format!("\n<!-- table: {id} -->\n```text\n{}\n```\n", table.trim_end().replace("```", "'''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::pool::tests::{case, results};

    #[test]
    fn each_experiment_has_its_command_and_its_table_as_printed() {
        let mut results =
            results("redis-get", &[vec![case("redis GET 64 KiB, no append-only file", "uncopy", &[0.9; 5])]]);
        let failed = ExperimentResult {
            id: "copies".into(),
            failure: Some("no <room>".into()),
            ..ExperimentResult::default()
        };
        results.runs[0].experiments.push(failed);
        let page = render(&results);
        assert!(page.contains("<!-- table: redis-get -->\n```text\nthe <table>\n```\n"), "{page}");
        assert!(page.contains("`uncopy-bench redis-get`") && page.contains("<!-- table: five -->"), "{page}");
        assert!(page.contains("**No results**: no &lt;room>") && page.contains("zIO, Figure 15"), "{page}");
    }

    #[test]
    fn an_experiment_that_failed_at_last_is_shown_as_it_was_before() {
        let mut results = results(
            "redis-get",
            &[vec![case("redis GET 64 KiB, no append-only file", "uncopy", &[0.9; 5])], vec![]],
        );
        results.runs[1].experiments[0].failure = Some("busy".into());
        assert!(render(&results).contains("the <table>"));
    }
}
