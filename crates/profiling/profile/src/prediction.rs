//! Predicts the effect of eliding: the measured time of the copies minus the time that uncopy would spend
//! instead. Computed per site from the engine's constants (`uncopy_core::policy`), calibrated on the
//! recording's machine:
//!
//! ```text
//! saved = time of the elided bytes - tracking of each call - faults of what is touched
//! ```
//!
//! Stored bytes that are used again are brought into the cache by their first reader. Without the copy, that
//! is the next call, usually the output, so eliding such a copy saves only the time of a copy within the
//! cache.
//!
//! The cost of touches comes from the recording's samples, if any: faults on the sampled bytes, scaled to the
//! elided bytes. A site that would lose is one that the policy would switch off, so it neither saves nor
//! costs anything.

use crate::flow::LocalStreams;
use crate::model::{Call, LanePrediction, Loser, Prediction, Profile, Site, Verdict};
use crate::sites::{EffectSums, SiteStats, scale};
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::policy::Costs;
use uncopy_core::policy::costs::Cost;
use uncopy_core::policy::sites::INPUT_NS;

/// Minimum time that a page passed by reference saves at both ends of a stream together, in nanoseconds.
/// Measured with 512 KiB back and forth over a UNIX socket, with a client that copies into and out of shared
/// memory, on processors 50 ns apart; with 290 ns, and over TCP, more is saved
/// (docs/design/lanes.md#references-beside-the-stream).
const LANE_PAGE_NS: u64 = 560;

/// Predicts the effect of lanes from the bytes streamed between programs on this host; `None` if there were
/// none.
#[must_use]
pub fn predict_lanes(local_streams: impl Iterator<Item = LocalStreams>) -> Option<LanePrediction> {
    let mut lanes = LanePrediction::default();
    for local_streams in local_streams {
        lanes.bytes = lanes.bytes.saturating_add(local_streams.large_bytes);
        lanes.of_bytes = lanes.of_bytes.saturating_add(local_streams.bytes);
    }
    lanes.saved_ns = (lanes.bytes / PAGE_BYTES as u64).saturating_mul(LANE_PAGE_NS);
    (lanes.of_bytes > 0).then_some(lanes)
}

/// Sums of one site over all processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteSums {
    /// Effect that uncopy would have had on the site's calls.
    pub effect: EffectSums,
    /// Number of sampled page faults.
    pub faults: u64,
    /// Pages filled by the sampled faults.
    pub touched_pages: u64,
}

impl SiteSums {
    /// Adds one process's sums of the site.
    pub fn add(&mut self, stats: &SiteStats) {
        let (all, added) = (&mut self.effect, &stats.effect);
        all.elided += added.elided;
        all.elided_bytes += added.elided_bytes;
        all.timed_elided_bytes += added.timed_elided_bytes;
        // Exclude time spent waiting for a processor, as for the site's other calls.
        let elided_ns =
            scale(added.elided_ns, stats.work_ns(), scale(stats.ns, stats.bytes, stats.timed_bytes));
        all.elided_ns = all.elided_ns.saturating_add(elided_ns);
        all.stored_bytes += added.stored_bytes;
        all.views += added.views;
        all.own_bytes += added.own_bytes;
        all.small_bytes += added.small_bytes;
        all.shared_bytes += added.shared_bytes;
    }
}

/// Predicted savings and costs of one site, in nanoseconds.
struct Balance {
    copy_ns: u64,
    track_ns: u64,
    touch_ns: u64,
}

impl Balance {
    fn of(site: &Site, sums: &SiteSums, costs: &Costs) -> Self {
        let effect = &sums.effect;
        let cost = |which| u64::from(costs.get(which));
        let copy_ns = scale(effect.elided_ns, effect.elided_bytes, effect.timed_elided_bytes);
        let stored_ns = scale(copy_ns, effect.stored_bytes, effect.elided_bytes);
        let cached_copy_ns = effect.stored_bytes / PAGE_BYTES as u64 * cost(Cost::CopyNear);
        let sampled_bytes = site.sampled_bytes.unwrap_or(0);
        let touch_ns = sums.faults.saturating_mul(cost(Cost::Fault))
            + sums.touched_pages.saturating_mul(cost(Cost::FillPage));
        Self {
            copy_ns: copy_ns - stored_ns.saturating_sub(cached_copy_ns),
            track_ns: effect.elided.saturating_mul(cost(Cost::Track)),
            touch_ns: if sampled_bytes == 0 {
                0
            } else {
                scale(touch_ns, effect.elided_bytes, sampled_bytes)
            },
        }
    }

    fn saved_ns(&self) -> i64 {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        signed(self.copy_ns).saturating_sub(signed(self.track_ns.saturating_add(self.touch_ns)))
    }
}

/// Sets the verdict of every site and the profile's prediction.
pub fn predict(profile: &mut Profile, sums: &[SiteSums], costs: &Costs) {
    let mut prediction = Prediction::default();
    for (site, sums) in profile.sites.iter_mut().zip(sums) {
        if site.call != Call::Copy {
            continue;
        }
        prediction.of_copies += site.events;
        let balance = Balance::of(site, sums, costs);
        site.saved_ns = balance.saved_ns();
        (site.verdict, site.why) = verdict(&sums.effect, &balance);
        if site.verdict == Verdict::Elide {
            prediction.copies += sums.effect.elided;
            prediction.bytes += sums.effect.elided_bytes;
            prediction.copy_ns += balance.copy_ns;
            prediction.cost_ns += balance.track_ns + balance.touch_ns;
        } else {
            site.saved_ns = site.saved_ns.min(0);
            prediction.losers.push(Loser { site: site.id, verdict: site.verdict, why: site.why.clone() });
        }
    }
    judge_inputs_and_outputs(profile);
    // Receiving into a segment has a small cost per call.
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
        // The sum of savings may exceed the CPU time, but some work always remains.
        prediction.cpu_ratio = (1.0 - prediction.ns as f64 / 1e9 / cpu_seconds).clamp(0.02, 10.0);
    } else {
        prediction.cpu_ratio = 1.0;
    }
    prediction.ratio = 1.0 / prediction.cpu_ratio;
    let sites = &profile.sites;
    prediction.losers.sort_by_key(|loser| core::cmp::Reverse(sites[loser.site].bytes));
    profile.prediction = prediction;
}

/// Returns the effect of uncopy on a site's copies, and the reason.
fn verdict(effect: &EffectSums, balance: &Balance) -> (Verdict, String) {
    let unelided_bytes = effect.small_bytes.max(effect.own_bytes).max(effect.shared_bytes);
    if effect.elided_bytes == 0 || effect.elided_bytes < unelided_bytes {
        return if effect.shared_bytes == unelided_bytes && unelided_bytes > 0 {
            let why = "its destination is shared memory or a mapped file, which can hold no views";
            (Verdict::Shared, why.to_owned())
        } else if effect.own_bytes >= effect.small_bytes {
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

/// Marks inputs and outputs whose bytes go to or come from an elided copy.
fn judge_inputs_and_outputs(profile: &mut Profile) {
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

    fn balance(effect: EffectSums) -> Balance {
        Balance::of(&Site::default(), &SiteSums { effect, ..SiteSums::default() }, &Costs::DEFAULT)
    }

    #[test]
    fn lanes_save_on_large_parts_of_local_streams() {
        assert_eq!(predict_lanes([LocalStreams::default()].into_iter()), None);
        let local_streams = |bytes, large_bytes| LocalStreams { bytes, large_bytes };
        let lanes = predict_lanes([local_streams(100, 0), local_streams(1 << 20, 1 << 19)].into_iter())
            .expect("some bytes");
        assert_eq!((lanes.bytes, lanes.of_bytes), (1 << 19, (1 << 20) + 100));
        assert_eq!(lanes.saved_ns, 128 * LANE_PAGE_NS);
    }

    #[test]
    fn stored_bytes_save_only_a_copy_from_the_cache() {
        let fresh = EffectSums {
            elided: 10,
            elided_bytes: 1000 * PAGE_BYTES as u64,
            timed_elided_bytes: 1000 * PAGE_BYTES as u64,
            elided_ns: 1_000_000,
            ..EffectSums::default()
        };
        assert_eq!(balance(fresh).copy_ns, 1_000_000);
        let cached_copy_ns = 1000 * u64::from(Costs::DEFAULT.get(Cost::CopyNear));
        let kept = EffectSums { stored_bytes: fresh.elided_bytes, ..fresh };
        assert_eq!(balance(kept).copy_ns, cached_copy_ns);
        let half = EffectSums { stored_bytes: fresh.elided_bytes / 2, ..fresh };
        assert_eq!(balance(half).copy_ns, 500_000 + cached_copy_ns / 2);
        let fast = EffectSums { elided_ns: cached_copy_ns / 2, ..kept };
        assert_eq!(balance(fast).copy_ns, cached_copy_ns / 2, "never more than it took");
    }
}
