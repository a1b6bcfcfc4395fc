//! What a program under uncopy says that it saves. In a test program of its own, which cargo runs alone: with others on
//! the same processors there would be little that it could tell.

mod command;

use command::{limited, uncopy};
use serde_json::Value;

/// Part of its time in which a program of twelve seconds tries itself without what pays.
const MAX_TRIED: f64 = 0.15;

/// What processes say of themselves is what two processes show: the same server with eliding, and with the block heap
/// alone. On average of five: each process has its own luck (where its pages lie: here they save a half or a quarter), which
/// may change while it runs, and an interval is wrong one time in twenty.
#[test]
#[ignore = "compares times: for a machine with nothing else to do, by make test-all"]
fn what_uncopy_says_it_saves_is_what_two_processes_show() {
    let words = [
        "copies",
        "--copies=12",
        "--sides=uncopy,heap-only",
        "--processes=5",
        "--rounds=12",
        "--seconds=20",
        "--json",
    ];
    let output = limited(240).arg(uncopy()).arg("bench").args(words).output().expect("timeout runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
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
        // Lending is tried beside eliding; what is on is what the other process lacks.
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
