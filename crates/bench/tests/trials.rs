//! What a program under uncopy says that it saves. In a test program of its own, which cargo runs alone: with others on
//! the same processors there would be little that it could tell.

mod command;

use command::{limited, uncopy};
use serde_json::Value;

/// Part of its time in which a program of twelve seconds tries itself without what pays.
const MAX_TRIED: f64 = 0.15;

/// What processes say of themselves is what two processes show: the same server with eliding, and with the block heap
/// alone. Of three processes the middle one counts: 95 % intervals are wrong one time in twenty.
#[test]
fn what_uncopy_says_it_saves_is_what_two_processes_show() {
    let words = [
        "copies",
        "--copies=12",
        "--sides=uncopy,heap-only",
        "--processes=3",
        "--rounds=12",
        "--seconds=12",
        "--json",
    ];
    let output = limited(240).arg(uncopy()).arg("bench").args(words).output().expect("timeout runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut ends: [Vec<f64>; 4] = Default::default();
    let mut saving = 0;
    for process in json["comparisons"][0]["samples"].as_array().expect("processes") {
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
        let quartiles = (ratios[ratios.len() / 4], ratios[ratios.len() * 3 / 4]);
        println!("claimed {:.3} to {:.3}, found {quartiles:.3?}", claimed("low"), claimed("high"));
        for (all, end) in ends.iter_mut().zip([claimed("low"), claimed("high"), quartiles.0, quartiles.1]) {
            all.push(end);
        }
    }
    let [low, high, found_low, found_high] = ends.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    let high = high + (1.0 - high) * MAX_TRIED;
    println!("claimed {low:.3} to {high:.3}, found {found_low:.3} to {found_high:.3}");
    assert!(saving > 0, "none could tell that it saves");
    assert!(low <= found_high && found_low <= high, "found {found_low} to {found_high}");
}
