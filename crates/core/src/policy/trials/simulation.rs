//! The decision in programs whose costs scatter as they do on real machines: how often it is wrong, and how many pairs it takes.

use super::{Finding, Trials};
use crate::random::{STEP, splitmix64};

/// Simulated programs of each kind.
const PROGRAMS: u64 = 4_000;
/// Pairs of slices after which a program ends.
const MAX_TRIED: u32 = 5_000;
/// Costs of slices of a plain Redis server, one after the other, ns of processor time for each KiB: see the head of the file.
const RECORDED: &str = include_str!("recorded.txt");

struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(STEP);
        (splitmix64(self.0) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller's.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (core::f64::consts::TAU * self.unit()).cos()
    }
}

/// How the costs of slices scatter.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// Log-normal, by this much.
    Even(f64),
    /// The same, and one slice in so many costs this many times as much: the processor was stolen meanwhile.
    Stolen(f64, u32, f64),
    /// The same, and for some seconds now and then everything costs this many times as much.
    Bursts(f64, f64),
    /// A walk by this much from slice to slice: a machine that gets slower and faster.
    Drift(f64, f64),
    /// Slices of a real server.
    Recorded,
}

const NOISES: [Noise; 9] = [
    Noise::Even(0.02),
    Noise::Even(0.1),
    Noise::Even(0.3),
    Noise::Even(1.0),
    Noise::Stolen(0.1, 10, 3.0),
    Noise::Stolen(0.2, 4, 10.0),
    Noise::Bursts(0.1, 2.5),
    Noise::Drift(0.05, 0.1),
    Noise::Recorded,
];

/// The costs of one slice after the other, without any difference.
fn costs(noise: Noise, seed: u64) -> impl FnMut() -> f64 {
    let mut random = Random(seed);
    let recorded: Vec<f64> = RECORDED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert!(recorded.len() >= 1_000);
    let (mut level, mut burst) = (0.0, 0u32);
    let mut at = (random.unit() * recorded.len() as f64) as usize;
    move || match noise {
        Noise::Even(scatter) => (scatter * random.normal()).exp(),
        Noise::Stolen(scatter, one_in, times) => {
            let is_stolen = random.unit() < 1.0 / f64::from(one_in);
            (scatter * random.normal()).exp() * if is_stolen { times * (0.5 + random.unit()) } else { 1.0 }
        }
        Noise::Bursts(scatter, times) => {
            burst = match burst {
                0 if random.unit() < 0.005 => 1 + (random.unit() * 100.0) as u32,
                left => left.saturating_sub(1),
            };
            (scatter * random.normal()).exp() * if burst > 0 { times } else { 1.0 }
        }
        Noise::Drift(scatter, step) => {
            level += step * random.normal();
            (level + scatter * random.normal()).exp()
        }
        Noise::Recorded => {
            at = (at + 1) % recorded.len();
            recorded[at]
        }
    }
}

/// What was found in a program in which the factor changes costs by this ratio, and after how many pairs; nothing after [`MAX_TRIED`].
fn run(noise: Noise, ratio: f64, seed: u64) -> Option<(Finding, u32)> {
    let mut next = costs(noise, seed);
    let mut trials = Trials::new(seed.wrapping_mul(77));
    for pair in 0..MAX_TRIED {
        if trials.begin_pair(1) {
            let cost = [0, 1].map(|slice| next() * if trials.arm(slice) & 1 != 0 { ratio } else { 1.0 });
            trials.end_pair(cost, 1);
        } else {
            let _ = (next(), next());
        }
        let finding = trials.standing(0).finding;
        if finding != Finding::Unknown {
            return Some((finding, pair + 1));
        }
    }
    None
}

fn is_wrong(finding: Finding, ratio: f64) -> bool {
    match finding {
        Finding::Unknown => false,
        Finding::Saves => ratio > 1.0,
        Finding::Costs => ratio < 1.0,
        Finding::Equal => ratio != 1.0,
    }
}

#[test]
fn at_most_one_decision_in_a_thousand_is_wrong_where_the_difference_is_five_percent_or_more() {
    println!(
        "{:24} {:>6} {:>7} {:>7} {:>9}  {:>9} {:>9}",
        "noise", "ratio", "wrong", "none", "programs", "pairs p50", "p90"
    );
    let mut wrong_in_all = 0;
    for noise in NOISES {
        for ratio in [0.7, 0.95, 1.05, 1.4] {
            let mut found: Vec<(Finding, u32)> = (0..PROGRAMS)
                .filter_map(|seed| run(noise, ratio, seed.wrapping_mul(STEP) ^ ratio.to_bits()))
                .collect();
            found.sort_by_key(|(_, pairs)| *pairs);
            let wrong = found.iter().filter(|(finding, _)| is_wrong(*finding, ratio)).count();
            let at = |part: usize| found.get(found.len() * part / 10).map_or(0, |(_, pairs)| *pairs);
            let none = PROGRAMS as usize - found.len();
            println!(
                "{:24} {ratio:>6} {wrong:>7} {none:>7} {PROGRAMS:>9}  {:>9} {:>9}",
                format!("{noise:?}"),
                at(5),
                at(9)
            );
            let is_plain = matches!(noise, Noise::Even(scatter) if scatter <= 0.1);
            assert!(
                !is_plain || (ratio - 1.0f64).abs() < 0.1 || none == 0,
                "{noise:?} {ratio}: {none} undecided"
            );
            assert!(wrong <= PROGRAMS as usize / 1_000, "{noise:?} {ratio}: {wrong} wrong decisions");
            wrong_in_all += wrong;
        }
    }
    // Of 144,000 programs.
    assert!(wrong_in_all <= 16, "{wrong_in_all}");
}
