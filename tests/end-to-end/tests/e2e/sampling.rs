//! The accesses that a recording reports are those that the program made.

use uncopy_core::recording::{Call, Recording, SUFFIX, Sample, Sampled};
use uncopy_tests::artifacts::skipped;
use uncopy_tests::launch::{Mode, make_recordings_dir};
use uncopy_tests::{Program, Scratch};

const SAMPLED: &str = env!("CARGO_BIN_EXE_sampled");
const PAGE_BYTES: u64 = uncopy_core::addr::PAGE_BYTES as u64;

/// Runs the program with recording, and returns the recording.
fn record(how: &[&str], variables: &[(&str, &str)]) -> Recording {
    let scratch = Scratch::new("sampling");
    let directory = make_recordings_dir(&scratch);
    let mut program = Program::new(SAMPLED).args(how).mode(Mode::Auto).env("UNCOPY_RECORD", &directory);
    for (name, value) in variables {
        program = program.env(name, value);
    }
    let done = program.run(&scratch, "sampled");
    assert!(done.status.success(), "{}: {}", done.status, done.errors);
    let files: Vec<_> =
        std::fs::read_dir(&directory).expect("read").map(|entry| entry.expect("read")).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert!(file.file_name().to_string_lossy().ends_with(SUFFIX));
    Recording::parse(&std::fs::read(file.path()).expect("read")).expect("a recording")
}

/// Returns the samples of a call, sorted by bytes in descending order.
fn samples(recording: &Recording, call: Call) -> Vec<Sample> {
    let mut found: Vec<_> = recording.samples.iter().copied().filter(|sample| sample.call == call).collect();
    found.sort_by_key(|sample| std::cmp::Reverse(sample.tally.sampled_bytes));
    found
}

/// Expects the recording to show `pages` touched pages per call, give or take one.
fn expect_pages(sample: &Sample, pages: u64) {
    let tally = sample.tally;
    let (events, touched) = (tally.events, tally.touched_pages);
    assert!(events > 0, "{sample:?}");
    assert!(touched.abs_diff(pages * events) <= events, "{pages} pages of each: {sample:?}");
    assert_eq!(tally.touched_bytes, touched * PAGE_BYTES);
    // Everything was sampled, except at the edges.
    assert!(
        tally.sampled_bytes >= events * 58 * PAGE_BYTES && tally.sampled_bytes <= events * 64 * PAGE_BYTES
    );
}

#[test]
fn touched_pages_of_inputs_and_copies_are_sampled() {
    if skipped() {
        return;
    }
    for (of_first, of_last) in [(8, 16), (0, 1), (56, 0), (1, 56)] {
        let how = ["2000".to_owned(), of_first.to_string(), of_last.to_string()];
        let recording = record(&how.each_ref().map(String::as_str), &[]);
        if recording.sampled == Sampled::Impossible {
            eprintln!("skipped: userfaultfd is not to be had");
            return;
        }
        assert_eq!(recording.sampled, Sampled::Yes);
        let inputs = samples(&recording, Call::Input);
        expect_pages(&inputs[0], of_first);
        let copies = samples(&recording, Call::Copy);
        // Copies from the first to the second and on to the third buffer; nothing touches the second.
        let [one, other] = [&copies[0], &copies[1]];
        let (second, third) =
            if one.tally.touched_pages < other.tally.touched_pages { (one, other) } else { (other, one) };
        expect_pages(second, 0);
        expect_pages(third, of_last);
        assert_ne!(second.stack, third.stack);
        assert!(recording.stacks.frames(third.stack).len() > 1);
    }
}

#[test]
fn policy_never_samples_nothing() {
    if skipped() {
        return;
    }
    let recording = record(&["200", "8", "8"], &[("UNCOPY_POLICY", "never")]);
    assert_eq!((recording.sampled, recording.samples.len()), (Sampled::No, 0));
}
