//! Comparisons that differ in one parameter only.

use super::point::parameter_text;
use crate::kit::figures::RATE;
use crate::kit::{Comparison, Interval, Side};

/// True if both comparisons have the same values of all parameters but `x`.
fn are_siblings(one: &Comparison, other: &Comparison, x: &str) -> bool {
    let others = |comparison: &Comparison| -> Vec<(&str, f64)> {
        comparison.parameters().iter().copied().filter(|(key, _)| *key != x).collect()
    };
    others(one) == others(other)
}

/// Returns the ratio of `comparison`'s rate to the same side's in the sibling whose `x` is `value`, if `x` is varied.
pub fn ratio_to_sibling(
    all: &[Comparison],
    comparison: &Comparison,
    (x, value): (&str, f64),
    side: Side,
) -> Option<Interval> {
    let siblings: Vec<&Comparison> = all.iter().filter(|other| are_siblings(other, comparison, x)).collect();
    let base = siblings.iter().find(|sibling| sibling.parameter(x) == Some(value));
    comparison.ratio_to(base.filter(|_| siblings.len() > 1)?, side, RATE)
}

/// Comparisons that differ in one parameter, in its ascending order.
pub struct Group<'a> {
    /// Values of the other parameters, in words.
    pub name: String,
    /// Value of the parameter, and comparison.
    pub members: Vec<(f64, &'a Comparison)>,
}

/// Groups the comparisons that have the parameter `x` by their values of all others.
pub fn groups<'a>(comparisons: &'a [Comparison], x: &str) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for comparison in comparisons {
        let Some(value) = comparison.parameter(x) else { continue };
        let of = |group: &&mut Group<'_>| are_siblings(group.members[0].1, comparison, x);
        match groups.iter_mut().find(of) {
            Some(group) => group.members.push((value, comparison)),
            None => {
                let others = comparison.parameters().iter().filter(|(key, _)| *key != x);
                let name = others.map(|other| parameter_text(*other)).collect::<Vec<_>>().join(", ");
                groups.push(Group { name, members: vec![(value, comparison)] });
            }
        }
    }
    for group in &mut groups {
        group.members.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    }
    groups
}
