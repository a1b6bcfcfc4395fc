//! Simulates power loss and kills at every step of a writer, a digester and recoveries: whichever of the stores since
//! the last fence reached the memory, line by line, each file recovers to what the log promises.
//!
//! `UNCOPY_TEST_SIZE`: ten thousands of states to check. `UNCOPY_TEST_SEED`: the first seed.

#![allow(clippy::cast_possible_truncation, reason = "64-bit machines")]

mod files;
mod hostile;
mod memory;
mod program;
mod system;

use std::collections::BTreeSet;

use uncopy_core::random::test_size;

use memory::{Call, Mutation, Site};
use system::{Crashes, Search, live};

fn first_seed() -> u64 {
    std::env::var("UNCOPY_TEST_SEED").map_or(1, |text| text.parse().expect("UNCOPY_TEST_SEED is a number"))
}

/// Checks crash states until there are `wanted`, or one is wrong: then returns why.
fn search(
    mutation: Option<Mutation>,
    crashes: Crashes,
    wanted: usize,
    sites: &mut BTreeSet<Site>,
) -> (usize, Result<(), String>) {
    let (mut states, mut seed) = (0, first_seed());
    while states < wanted {
        let search = Search::new(seed, mutation, crashes);
        let result = live(&search, 4, 40);
        sites.append(&mut search.sites.borrow_mut());
        states += search.states.get();
        if let Err(why) = result {
            return (states, Err(format!("seed {seed}: {why}")));
        }
        seed += 1;
    }
    (states, Ok(()))
}

fn none_is_wrong(crashes: Crashes, wanted: usize) {
    let (states, result) = search(None, crashes, wanted, &mut BTreeSet::new());
    result.unwrap_or_else(|why| panic!("{why}"));
    println!("{states} states");
}

#[test]
fn files_keep_what_was_promised_whatever_is_lost() {
    none_is_wrong(Crashes::All, 10_000 * test_size() as usize);
}

#[test]
fn files_keep_what_was_promised_for_every_subset_of_pending_lines() {
    none_is_wrong(Crashes::Enumerated, 10_000 * test_size() as usize);
}

#[test]
fn a_killed_program_loses_nothing_that_append_returned_for() {
    none_is_wrong(Crashes::Kills, 10_000 * test_size() as usize);
}

/// Returns every mutation that the sites of a run allow.
fn mutations(sites: &BTreeSet<Site>) -> Vec<Mutation> {
    let mutation = |site: &Site| match site.call {
        Call::Flush | Call::Stream | Call::Fence => Some(Mutation::Omit(*site)),
        Call::FenceBeforeWord => Some(Mutation::FenceAfterWord(*site)),
        Call::StoreBeforeWord => Some(Mutation::StoreAfterWord(*site)),
        Call::Store | Call::StoreWord => None,
    };
    sites.iter().filter_map(mutation).chain([Mutation::ReuseChunks]).collect()
}

#[test]
fn every_violation_of_the_ordering_rules_is_found() {
    const MAX_STATES: usize = 200_000;
    let mut sites = BTreeSet::new();
    let (_, result) = search(None, Crashes::All, 20_000, &mut sites);
    result.unwrap_or_else(|why| panic!("{why}"));
    let mut missed = Vec::new();
    let all = mutations(&sites);
    assert!(all.len() > 45, "{} mutations: the run misses parts of the code", all.len());
    for mutation in &all {
        let (states, result) = search(Some(*mutation), Crashes::All, MAX_STATES, &mut BTreeSet::new());
        match result {
            Err(why) => println!("{mutation:?}: after {states} states, {why}"),
            Ok(()) => missed.push(*mutation),
        }
    }
    println!("{} of {} found", all.len() - missed.len(), all.len());
    assert!(missed.is_empty(), "not found: {missed:#?}");
}
