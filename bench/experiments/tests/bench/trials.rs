//! Savings that a program under uncopy claims. The test needs an otherwise idle machine (`make test-all`).

use crate::command::{limited, program};
use serde_json::Value;

/// Maximum part of a twelve-second run in which a program tries itself without the elisions that pay.
const MAX_TRIED: f64 = 0.15;

/// Savings that processes claim match those that two processes show: the same server with eliding, and with the block
/// heap alone. The average of five is compared, because each process has its own luck (with its page placement it
/// saves a half or a quarter), which may change during the run, and one interval in twenty is wrong.
#[test]
#[ignore = "compares times: for a machine with nothing else to do, by make test-all"]
fn what_uncopy_says_it_saves_is_what_two_processes_show() {
    let words = [
        "echo",
        "copies",
        "--copies=12",
        "--sides=uncopy,heap-only",
        "--processes=5",
        "--rounds=12",
        "--seconds=20",
        "--json",
    ];
    let output = limited(240).arg(program()).args(words).output().expect("timeout runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (mut saving, mut logarithms) = (0, [0.0; 3]);
    let processes = json["comparisons"][0]["samples"].as_array().expect("processes");
    for process in processes {
        let list = |side: &str, name: &str| {
            let values = process["sides"][side][name].as_array().expect("a figure of each round");
            values.iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect::<Vec<_>>()
        };
        let cost = |side: &str| {
            let costs = list(side, "cpu_ns").into_iter().zip(list(side, "operations"));
            costs.map(|(ns, operations)| ns / operations).collect::<Vec<_>>()
        };
        let ratios = cost("uncopy").into_iter().zip(cost("heap_only")).map(|(one, other)| one / other);
        let mut ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        let claims = process["trials"]["uncopy"].as_array().expect("what it measured");
        // Lending is tried beside eliding; the other process lacks everything that is on.
        let claimed = |end: &str| -> f64 {
            let on = claims.iter().filter(|claim| claim["on"] == true);
            on.map(|claim| claim[end].as_f64().expect("an end of its interval")).product()
        };
        saving += usize::from(claims.iter().any(|claim| claim["finding"] == "saves"));
        let found = ratios[ratios.len() / 2];
        let (low, high) = (claimed("low"), claimed("high") + (1.0 - claimed("high")) * MAX_TRIED);
        println!("claimed {low:.3} to {high:.3}, found {found:.3}");
        for (sum, value) in logarithms.iter_mut().zip([low, found, high]) {
            *sum += f64::ln(value);
        }
    }
    assert!(saving > 0, "none could tell that it saves");
    let [low, found, high] = logarithms.map(|sum| (sum / processes.len() as f64).exp());
    assert!((low..=high).contains(&found), "claimed {low:.3} to {high:.3}, found {found:.3} on average");
}
