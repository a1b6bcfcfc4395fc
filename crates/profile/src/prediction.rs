//! What eliding would give: the copies' measured time, less what uncopy would spend in their place.
//!
//! For each site, from the engine's own constants (`uncopy_core::policy`, calibrated on the machine of the
//! recording):
//!
//! ```text
//! saved = time of the elided bytes - tracking of each call - faults of what is touched
//! ```
//!
//! Bytes that the program has kept (a stored value that is fetched) are brought into the cache by whoever reads them first.
//! Without the copy that is the next call, mostly the output: of the time of such a copy only what copying costs from the
//! cache is saved.
//!
//! What is touched comes from the samples of the recording, where there are any: faults for the bytes that were sampled,
//! scaled to the bytes that would be elided. A site that would lose is one that the policy switches off: it saves
//! and costs nothing.

use crate::flow::Near;
use crate::model::{Call, LanePrediction, Loser, Prediction, Profile, Site, Verdict};
use crate::sites::{Seen, Wouldbe, scale};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::policy::Costs;
use uncopy_core::policy::costs::Cost;
use uncopy_core::policy::sites::INPUT_NS;

/// What a page by reference saves both ends of a stream together at least, ns: 512 KiB there and back by UNIX socket, whose
/// client copies into shared memory and out of it, the processors 50 ns apart (decision 047; 290 ns apart, and by TCP, it is more).
const LANE_PAGE_NS: u64 = 560;

/// What lanes would give to programs that moved so much between each other; `None`: nothing was recorded between them.
#[must_use]
pub fn of_lanes(near: impl Iterator<Item = Near>) -> Option<LanePrediction> {
    let mut lanes = LanePrediction::default();
    for near in near {
        lanes.bytes = lanes.bytes.saturating_add(near.large_bytes);
        lanes.of_bytes = lanes.of_bytes.saturating_add(near.bytes);
    }
    lanes.saved_ns = (lanes.bytes / PAGE_BYTES as u64).saturating_mul(LANE_PAGE_NS);
    (lanes.of_bytes > 0).then_some(lanes)
}

/// What the calls of one site would have been, in all processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteSums {
    /// Sums of its calls.
    pub would: Wouldbe,
    /// Faults in the samples.
    pub faults: u64,
    /// Pages that those put in place.
    pub touched_pages: u64,
}

impl SiteSums {
    /// Adds what one process did at the site.
    pub fn add(&mut self, seen: &Seen) {
        let (all, more) = (&mut self.would, &seen.would);
        all.elided += more.elided;
        all.elided_bytes += more.elided_bytes;
        all.timed_elided_bytes += more.timed_elided_bytes;
        // What waited for a processor is left out of these as of all the site's calls.
        let elided_ns = scale(more.elided_ns, seen.work_ns(), scale(seen.ns, seen.bytes, seen.timed_bytes));
        all.elided_ns = all.elided_ns.saturating_add(elided_ns);
        all.kept_bytes += more.kept_bytes;
        all.views += more.views;
        all.own_bytes += more.own_bytes;
        all.small_bytes += more.small_bytes;
        all.shared_bytes += more.shared_bytes;
    }
}

/// What one site would save and cost, ns.
struct Balance {
    copy_ns: u64,
    track_ns: u64,
    touch_ns: u64,
}

impl Balance {
    fn of(site: &Site, sums: &SiteSums, costs: &Costs) -> Self {
        let would = &sums.would;
        let cost = |which| u64::from(costs.get(which));
        let copy_ns = scale(would.elided_ns, would.elided_bytes, would.timed_elided_bytes);
        let kept_ns = scale(copy_ns, would.kept_bytes, would.elided_bytes);
        let near_ns = would.kept_bytes / PAGE_BYTES as u64 * cost(Cost::CopyNear);
        let sampled_bytes = site.sampled_bytes.unwrap_or(0);
        let touch_ns = sums.faults.saturating_mul(cost(Cost::Fault))
            + sums.touched_pages.saturating_mul(cost(Cost::FillPage));
        Self {
            copy_ns: copy_ns - kept_ns.saturating_sub(near_ns),
            track_ns: would.elided.saturating_mul(cost(Cost::Track)),
            touch_ns: if sampled_bytes == 0 { 0 } else { scale(touch_ns, would.elided_bytes, sampled_bytes) },
        }
    }

    fn saved_ns(&self) -> i64 {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        signed(self.copy_ns).saturating_sub(signed(self.track_ns.saturating_add(self.touch_ns)))
    }
}

/// Judges every site, and sums up.
pub fn predict(profile: &mut Profile, sums: &[SiteSums], costs: &Costs) {
    let mut prediction = Prediction::default();
    for (site, sums) in profile.sites.iter_mut().zip(sums) {
        if site.call != Call::Copy {
            continue;
        }
        prediction.of_copies += site.events;
        let balance = Balance::of(site, sums, costs);
        site.saved_ns = balance.saved_ns();
        (site.verdict, site.why) = verdict(&sums.would, &balance);
        if site.verdict == Verdict::Elide {
            prediction.copies += sums.would.elided;
            prediction.bytes += sums.would.elided_bytes;
            prediction.copy_ns += balance.copy_ns;
            prediction.cost_ns += balance.track_ns + balance.touch_ns;
        } else {
            site.saved_ns = site.saved_ns.min(0);
            prediction.losers.push(Loser { site: site.id, verdict: site.verdict, why: site.why.clone() });
        }
    }
    judge_ends(profile);
    // Receiving into a segment costs a little each time.
    let inputs =
        profile.sites.iter().filter(|site| site.call == Call::Input && site.verdict == Verdict::Elide);
    let input_ns = inputs.map(|site| site.events).sum::<u64>().saturating_mul(INPUT_NS.unsigned_abs());
    prediction.cost_ns = prediction.cost_ns.saturating_add(input_ns);
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    prediction.ns = signed(prediction.copy_ns).saturating_sub(signed(prediction.cost_ns));
    let sampled: u64 = profile.sites.iter().filter_map(|site| site.sampled_bytes).sum();
    let touched: u64 = profile.sites.iter().filter_map(|site| site.touched_bytes).sum();
    prediction.touched_share = (sampled > 0).then(|| touched as f64 / sampled as f64);
    let cpu_seconds = profile.cpu_seconds;
    if cpu_seconds > 0.0 {
        prediction.cpu_share = (profile.copy_seconds / cpu_seconds).clamp(0.0, 1.0);
        // Copies that waited for a processor count for less than they took: some work is always left.
        prediction.cpu_ratio = (1.0 - prediction.ns as f64 / 1e9 / cpu_seconds).clamp(0.02, 10.0);
    } else {
        prediction.cpu_ratio = 1.0;
    }
    prediction.ratio = 1.0 / prediction.cpu_ratio;
    let sites = &profile.sites;
    prediction.losers.sort_by_key(|loser| core::cmp::Reverse(sites[loser.site].bytes));
    profile.prediction = prediction;
}

/// What uncopy would do with a site's copies, and why.
fn verdict(would: &Wouldbe, balance: &Balance) -> (Verdict, String) {
    let left_bytes = would.small_bytes.max(would.own_bytes).max(would.shared_bytes);
    if would.elided_bytes == 0 || would.elided_bytes < left_bytes {
        return if would.shared_bytes == left_bytes && left_bytes > 0 {
            let why = "its destination is shared memory or a mapped file, which can hold no views";
            (Verdict::Shared, why.to_owned())
        } else if would.own_bytes >= would.small_bytes {
            (Verdict::OwnBytes, "its bytes are the program's own, not received in large pieces".to_owned())
        } else {
            let why = "too few whole pages in each call: copying them costs no more than tracking";
            (Verdict::TooSmall, why.to_owned())
        };
    }
    if balance.saved_ns() > 0 {
        return (Verdict::Elide, "saves more than it costs".to_owned());
    }
    if balance.touch_ns > balance.track_ns {
        (Verdict::Touched, "the program touches what it copies, and each touch costs a fault".to_owned())
    } else {
        (Verdict::TooSmall, "tracking costs more than the copies take".to_owned())
    }
}

/// Inputs and outputs take part in what is elided if bytes go from or to a copy that is.
fn judge_ends(profile: &mut Profile) {
    let is_elided: Vec<bool> =
        profile.sites.iter().map(|site| site.call == Call::Copy && site.verdict == Verdict::Elide).collect();
    for site in profile.sites.iter_mut().filter(|site| site.call != Call::Copy) {
        site.why = "no copy that would be elided has to do with it".to_owned();
    }
    for flow in &profile.flows {
        let Some(from) = flow.from else { continue };
        if is_elided[flow.to] && profile.sites[from].call == Call::Input {
            profile.sites[from].verdict = Verdict::Elide;
            profile.sites[from].why = "receives what is elided afterwards".to_owned();
        }
        if is_elided[from] && profile.sites[flow.to].call == Call::Output {
            profile.sites[flow.to].verdict = Verdict::Elide;
            profile.sites[flow.to].why = "sends what was elided".to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Site;

    fn balance(would: Wouldbe) -> Balance {
        Balance::of(&Site::default(), &SiteSums { would, ..SiteSums::default() }, &Costs::DEFAULT)
    }

    #[test]
    fn of_streams_to_programs_on_this_host_large_parts_would_save() {
        assert_eq!(of_lanes([Near::default()].into_iter()), None);
        let near = |bytes, large_bytes| Near { bytes, large_bytes };
        let lanes = of_lanes([near(100, 0), near(1 << 20, 1 << 19)].into_iter()).expect("some bytes");
        assert_eq!((lanes.bytes, lanes.of_bytes), (1 << 19, (1 << 20) + 100));
        assert_eq!(lanes.saved_ns, 128 * LANE_PAGE_NS);
    }

    #[test]
    fn of_a_copy_of_kept_bytes_what_it_costs_from_the_cache_is_saved() {
        let fresh = Wouldbe {
            elided: 10,
            elided_bytes: 1000 * PAGE_BYTES as u64,
            timed_elided_bytes: 1000 * PAGE_BYTES as u64,
            elided_ns: 1_000_000,
            ..Wouldbe::default()
        };
        assert_eq!(balance(fresh).copy_ns, 1_000_000);
        let near_ns = 1000 * u64::from(Costs::DEFAULT.get(Cost::CopyNear));
        let kept = Wouldbe { kept_bytes: fresh.elided_bytes, ..fresh };
        assert_eq!(balance(kept).copy_ns, near_ns);
        let half = Wouldbe { kept_bytes: fresh.elided_bytes / 2, ..fresh };
        assert_eq!(balance(half).copy_ns, 500_000 + near_ns / 2);
        let fast = Wouldbe { elided_ns: near_ns / 2, ..kept };
        assert_eq!(balance(fast).copy_ns, near_ns / 2, "never more than it took");
    }
}
