//! The results as a page of Markdown, with plots beside it.

use uncopy_html::quantity;

use crate::kit::{Judge, number};
use crate::results::PLOTS;
use crate::results::judge::Verdict;
use crate::results::model::{Results, Row};
use crate::results::page::{
    HOW_TO_READ, Shown, is_cpu_noisy, judged_ratio, machine_facts, not_helped, ratio_text, shown, summary,
};
use crate::results::register::ABSENT;

/// The page.
#[must_use]
pub(super) fn render(results: &Results) -> String {
    let mut page = String::from("# Results\n\n");
    let mut line = |text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    line("<!-- Made by uncopy bench report; not to be edited by hand. -->\n");
    line(&summary(results));
    if results.quick {
        line("\n**Measured with `--quick`: too short and too little for conclusions.**");
    }
    line("");
    let facts: Vec<String> =
        machine_facts(results).iter().map(|(name, value)| format!("{name} {value}")).collect();
    line(&format!("{}.\n", text(&facts.join(" · "))));
    for words in HOW_TO_READ {
        line(&format!("- {words}"));
    }
    line("\n## Where it does not help\n");
    let worst = not_helped(results);
    if worst.is_empty() {
        line("There is no such case in these results.");
    } else {
        line("| experiment | case | side | verdict | ratio to plain (spread) | CPU ratio (spread) |");
        line("|---|---|---|---|---:|---:|");
        for (shown, row, verdict) in worst {
            line(&cells(&[
                shown.title,
                &row.case,
                &row.side,
                verdict.words(),
                &judged_ratio(&shown, row),
                &ratio_text(row.cpu_ratio, is_cpu_noisy(row)),
            ]));
        }
    }
    for shown in shown(results) {
        line(&experiment(&shown));
    }
    line("\n## What the papers measured and this cannot\n\n| figure | why |\n|---|---|");
    for (figure, why) in ABSENT {
        line(&cells(&[figure, why]));
    }
    page
}

fn experiment(shown: &Shown<'_>) -> String {
    let measured = shown.measured;
    let mut lines = vec![format!("\n## {}\n", text(shown.title))];
    for claim in shown.claims {
        lines.push(format!("- **{}**: {}", claim.figure, claim.says));
    }
    lines.push(format!("\n{}: `{}`.", text(&shown.facts().join(" · ")), shown.command()));
    if let Some(failure) = &measured.failure {
        lines.push(format!("\n**No figures**: {}", text(failure)));
        return lines.join("\n");
    }
    for told in measured.warning.iter().cloned().chain(shown.noise()) {
        lines.push(format!("\n*{}*", text(&told)));
    }
    lines.push(String::new());
    lines.push(rows(shown));
    if measured.plot.as_ref().is_some_and(|plot| plot.to_svg().is_ok()) {
        lines.push(format!("\n![{}]({PLOTS}/{}.svg)", text(shown.title), measured.id));
    }
    lines.push(format!("\n<!-- table: {} -->", measured.id));
    lines.push(format!("```text\n{}\n```", measured.text.trim_end().replace("```", "'''")));
    if !measured.notes.is_empty() {
        lines.push(String::new());
        lines.extend(measured.notes.iter().map(|note| format!("- {}", text(note))));
    }
    lines.join("\n")
}

fn rows(shown: &Shown<'_>) -> String {
    let repeated = shown.measured.repeated;
    let of_memory = shown.judge == Judge::Memory;
    let ratio = if of_memory { "memory ratio (spread)" } else { "ratio to plain (spread)" };
    let mut heading = vec!["case", "side", "op/s", ratio];
    heading.extend(repeated.then_some("second run"));
    heading.extend(["CPU ratio (spread)", "two runs differ by", "uncopy"]);
    let rule: Vec<&str> = heading
        .iter()
        .map(|name| if matches!(*name, "case" | "side" | "uncopy") { "---" } else { "---:" })
        .collect();
    let mut lines = vec![format!("| {} |", heading.join(" | ")), format!("|{}|", rule.join("|"))];
    lines.extend(shown.measured.rows.iter().map(|row| cells(&row_cells(shown, row))));
    lines.join("\n")
}

fn row_cells(shown: &Shown<'_>, row: &Row) -> Vec<String> {
    let rate = row.rate.map_or_else(String::new, |rate| number(rate.median));
    let mut cells = vec![row.case.clone(), row.side.clone(), rate, judged_ratio(shown, row)];
    if shown.measured.repeated {
        cells.push(row.second_ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
    }
    let verdict = shown.verdict(row).map_or("", Verdict::words);
    cells.extend([
        ratio_text(row.cpu_ratio, is_cpu_noisy(row)),
        row.main_ratio().and_then(|(_, part)| part).map_or_else(String::new, quantity::percent),
        match &row.obstacle {
            Some(why) => format!("{verdict}: {why}"),
            None => verdict.to_owned(),
        },
    ]);
    cells
}

/// A row of a table.
fn cells<T: AsRef<str>>(cells: &[T]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| text(cell.as_ref()).replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | "))
}

/// `text` on one line, and none of it markup.
fn text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '&' => safe.push_str("&amp;"),
            '`' | '*' | '[' | '\\' => safe.extend(['\\', c]),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::page::tests::sample;

    #[test]
    fn the_page_has_a_section_for_each_experiment_after_what_does_not_help() {
        let page = render(&sample());
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} in {page}"));
        assert!(place("## Where it does not help") < place("## Echo server, number of copies"));
        assert!(page.contains("| echo &lt;512 KiB> | uncopy |"), "{page}");
        assert!(page.contains("](results/copies.svg)") && page.contains("`uncopy bench copies --quick`"));
        assert!(page.contains("**No figures**: redis-server is not installed"));
        assert!(page.contains("abc123") && page.contains("the <table>"), "what was printed is not changed");
    }

    #[test]
    fn cells_stay_on_their_line_and_in_their_column() {
        assert_eq!(cells(&["a|b", "c\nd", "<i>*"]), "| a\\|b | c d | &lt;i>\\* |");
    }
}
