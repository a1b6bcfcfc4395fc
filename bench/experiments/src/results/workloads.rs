//! The table of packaged programs that must never be slower: each workload's worst case, its worst process, and
//! whether what uncopy's own trials found is the truth.

use std::collections::BTreeMap;

use serde_json::Value;
use uncopy_core::policy::trials::catalogue::{ELISION, FactorName};

use crate::apps::{CASES, Effort};
use crate::kit::{Criterion, Interval, Side};
use crate::results::judge::{self, Judgement};
use crate::results::markdown::table_row;
use crate::results::model::{Quantity, Results};
use crate::results::pool::PooledCase;

/// Entries of the report that are workloads of a packaged program without being cases of `apps`.
const REDIS: [&str; 3] = ["redis-set", "redis-get", "redis-ycsb-a"];

const TEXT: &str = "\
Packaged programs by workload (`uncopy-bench apps NAME`; `uncopy-bench redis`), each with the case in which uncopy takes the most processor time, and the worst process of that case. *Trials* counts processes of all cases by what uncopy itself had found about eliding when it was measured: a finding is wrong if the ratio of that case over uncopy's heap alone says the opposite, with its whole interval.";

/// Findings of trials, as numbers of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Findings {
    saves: usize,
    costs: usize,
    unknown: usize,
    wrong: usize,
}

impl Findings {
    fn add(&mut self, finding: &str, truth: Option<Interval>) {
        let (is_below, is_above) = truth.map_or((false, false), |ratio| (ratio.high < 1.0, ratio.low > 1.0));
        match finding {
            "saves" => (self.saves, self.wrong) = (self.saves + 1, self.wrong + usize::from(is_above)),
            "costs" => (self.costs, self.wrong) = (self.costs + 1, self.wrong + usize::from(is_below)),
            _ => self.unknown += 1,
        }
    }

    fn text(self) -> String {
        let Self { saves, costs, unknown, wrong } = self;
        match (saves + costs + unknown, wrong) {
            (0, _) => String::new(),
            (_, 0) => format!("saves {saves}, costs {costs}, undecided {unknown}"),
            _ => format!("saves {saves}, costs {costs}, undecided {unknown}\n{wrong} wrong"),
        }
    }
}

/// One workload over its cases.
struct Workload<'a> {
    name: &'static str,
    worst: (&'a str, Judgement),
    worst_process: Option<Interval>,
    cases: usize,
    findings: Findings,
}

/// Returns the workload of each packaged program's case, by title.
fn names_by_title() -> BTreeMap<String, &'static str> {
    let titles = |case: &'static crate::apps::Case| {
        (case.points)(Effort::Full).into_iter().map(move |point| (point.title, case.name))
    };
    CASES.iter().filter(|case| !case.packages.is_empty()).flat_map(titles).collect()
}

/// Counts what the trials of a case's processes found.
fn findings(case: &PooledCase<'_>, into: &mut Findings) {
    // Eliding is the factor whose truth is uncopy over its heap alone.
    let name = FactorName(ELISION).to_string();
    let truth = case.ratio(Side::Uncopy.name(), Quantity::Cpu, Side::HeapOnly.name());
    for process in case.samples().filter_map(Value::as_array).flatten() {
        let Some(trials) = process.pointer("/trials/uncopy").and_then(Value::as_array) else { continue };
        let of_eliding = |trial: &&Value| trial.get("what").and_then(Value::as_str) == Some(&*name);
        let found = trials.iter().find(of_eliding).and_then(|trial| trial.get("finding")?.as_str());
        into.add(found.unwrap_or_default(), truth);
    }
}

/// Returns every workload that was measured, the costliest first.
fn workloads(results: &Results) -> Vec<Workload<'_>> {
    let names = names_by_title();
    let mut all: BTreeMap<&'static str, Workload<'_>> = BTreeMap::new();
    for (id, title) in results.cases() {
        let redis = REDIS.into_iter().find(|entry| *entry == id);
        let of_apps = id.starts_with("apps-").then(|| names.get(title).copied()).flatten();
        let Some(name) = redis.or(of_apps) else { continue };
        let Some(case) = PooledCase::find(results, id, title) else { continue };
        let Some(judgement) = judge::judge(&case, Side::Uncopy.name(), Criterion::Speed) else { continue };
        let processes = case.by_process(Side::Uncopy.name(), judgement.of, judgement.over);
        let worst_process = processes.max_by(|one, other| one.median.total_cmp(&other.median));
        let workload = all.entry(name).or_insert(Workload {
            name,
            worst: (title, judgement),
            worst_process,
            cases: 0,
            findings: Findings::default(),
        });
        workload.cases += 1;
        findings(&case, &mut workload.findings);
        if judgement.ratio.median > workload.worst.1.ratio.median {
            (workload.worst, workload.worst_process) = ((title, judgement), worst_process);
        }
    }
    let mut all: Vec<Workload<'_>> = all.into_values().collect();
    all.sort_by(|one, other| other.worst.1.ratio.median.total_cmp(&one.worst.1.ratio.median));
    all
}

/// Returns the section of the page; `None` if no packaged program was measured.
#[must_use]
pub fn section(results: &Results) -> Option<String> {
    let all = workloads(results);
    let row = |workload: &Workload<'_>| {
        let (title, Judgement { ratio, over, .. }) = workload.worst;
        let cases = if workload.cases == 1 { String::new() } else { format!(", {} cases", workload.cases) };
        table_row(&[
            format!("{}{cases}\n{title}", workload.name),
            format!("{ratio}\n{over}"),
            workload.worst_process.map_or_else(String::new, |worst| worst.to_string()),
            workload.findings.text(),
        ])
    };
    let sums = all.iter().fold(Findings::default(), |sum, workload| Findings {
        saves: sum.saves + workload.findings.saves,
        costs: sum.costs + workload.findings.costs,
        unknown: sum.unknown + workload.findings.unknown,
        wrong: sum.wrong + workload.findings.wrong,
    });
    let head = "| workload, worst case | CPU over the best | worst process | trials |\n|---|---|---|---|";
    let rows: Vec<String> = all.iter().map(row).collect();
    (!rows.is_empty()).then(|| {
        format!(
            "## Never slower\n\n{TEXT}\n\n{head}\n{}\n\nOf {} processes, trials decided {}, {} of them wrongly.",
            rows.join("\n"),
            sums.saves + sums.costs + sums.unknown,
            sums.saves + sums.costs,
            sums.wrong
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::model::Case;
    use crate::results::pool::tests::{case, results};
    use serde_json::json;

    fn with_trials(title: &str, costs: &[f64], findings: &[&str]) -> Case {
        let process = |found: &&str| json!({"trials": {"uncopy": [{"what": "other", "finding": "costs"}, {"what": "eliding inputs and copies", "finding": found}]}});
        Case { samples: Value::Array(findings.iter().map(process).collect()), ..case(title, "uncopy", costs) }
    }

    #[test]
    fn the_worst_case_of_a_workload_stands_for_it() {
        let cases = vec![
            with_trials("nginx proxied 64 KiB", &[0.9; 5], &["saves", "costs", "unknown"]),
            with_trials("nginx proxied 1 MiB", &[0.8, 0.82, 0.81, 0.83, 0.79], &["saves"]),
            with_trials("no such case", &[2.0; 5], &[]),
        ];
        let section = section(&results("apps-web", &[cases])).expect("a section");
        assert!(section.contains("| nginx-proxied, 2 cases<br>nginx proxied 64 KiB | 1.12 ["), "{section}");
        assert!(section.contains("saves 2, costs 1, undecided 1 |"), "{section}");
        assert!(section.contains("Of 4 processes, trials decided 3, 0 of them wrongly."), "{section}");
        assert!(!section.contains("no such case"), "{section}");
    }

    #[test]
    fn a_finding_is_wrong_if_the_whole_interval_says_the_opposite() {
        let ratio = |median: f64| Some(Interval { median, low: median - 0.02, high: median + 0.02 });
        let mut found = Findings::default();
        for (finding, truth) in
            [("saves", ratio(1.05)), ("saves", ratio(1.01)), ("costs", ratio(0.9)), ("costs", None)]
        {
            found.add(finding, truth);
        }
        assert_eq!(found, Findings { saves: 2, costs: 2, unknown: 0, wrong: 2 });
        assert_eq!(found.text(), "saves 2, costs 2, undecided 0\n2 wrong");
    }

    #[test]
    fn without_programs_there_is_no_table() {
        assert_eq!(section(&results("copies", &[vec![case("x", "uncopy", &[1.0])]])), None);
    }
}
