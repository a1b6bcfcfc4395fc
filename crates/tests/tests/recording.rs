//! What is recorded of programs of which it is known what they copy.

use std::collections::BTreeSet;
use std::path::Path;

use uncopy_core::recording::{Call, Event, Phase};
use uncopy_tests::artifacts::plain_only;
use uncopy_tests::recordings::{Recorded, Recordings};
use uncopy_tests::{Mode, Program, Scratch};

const CHAINS: &str = env!("CARGO_BIN_EXE_chains");
/// Functions of the program are shorter.
const FUNCTION_MOST_BYTES: u64 = 2048;

/// Skips what needs uncopy at work.
fn skipped() -> bool {
    if plain_only() {
        eprintln!("skipped: nothing runs under uncopy");
    }
    plain_only()
}

/// What the program says that it did.
struct Expected {
    pid: u32,
    /// Each event without the last field, and that: the address of the calling function.
    events: Vec<(String, u64)>,
    callers: BTreeSet<u64>,
}

impl Expected {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("written by the program");
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let pid = lines.next().and_then(|line| line.parse().ok()).expect("a pid");
        let event = |line: &str| {
            let (event, caller) = line.rsplit_once(' ').expect("fields");
            let caller = u64::from_str_radix(caller.trim_start_matches("0x"), 16).expect("an address");
            (event.to_owned(), caller)
        };
        let events: Vec<_> = lines.map(event).collect();
        let callers = events.iter().map(|(_, caller)| *caller).filter(|caller| *caller != 0).collect();
        Self { pid, events, callers }
    }
}

fn shown(event: &Event) -> String {
    let Event { call, function, object, fd, thread, to, from, len_bytes, flags, .. } = event;
    let (call, function, object, flags) = (call.name(), function.name(), object.name(), flags.0);
    format!("{call} {function} {object} {fd} {thread} {to:#x} {from:#x} {len_bytes} {flags}")
}

fn expect_exactly(recorded: &Recorded, expected: &Expected) {
    assert_eq!(recorded.recording.pid, expected.pid);
    assert_eq!((recorded.lost, recorded.recording.dropped), (0, 0));
    for (place, (event, (line, caller))) in recorded.events.iter().zip(&expected.events).enumerate() {
        assert_eq!((event.sequence, &shown(event)), (place as u64, line), "event {place}");
        if *caller != 0 {
            let frames = recorded.recording.stacks.frames(event.stack);
            let innermost = *frames.first().unwrap_or_else(|| panic!("no stack of event {place}: {line}"));
            let function = expected.callers.range(..innermost).next_back();
            assert_eq!(function, Some(caller), "event {place}: {line} from {innermost:#x}");
            assert!(innermost - caller < FUNCTION_MOST_BYTES, "event {place}: {innermost:#x}");
            let (module, _) = recorded.recording.module_at(innermost).expect("a module");
            assert!(module.path.ends_with(b"/chains"), "{}", module.path.escape_ascii());
        }
        assert!(event.start_ns >= recorded.recording.began_ns, "event {place} came before the recording");
    }
    assert_eq!(recorded.events.len(), expected.events.len(), "events");
}

#[test]
fn every_event_of_known_chains_is_recorded_once_in_order_with_its_caller() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("recording");
    let recordings = Recordings::new(&scratch, "recordings");
    let file = scratch.join("expected");
    let program = Program::new(CHAINS).args([&file]).mode(Mode::Auto);
    let program = program.env("UNCOPY_RECORD", recordings.directory());
    let _ = program.run(&scratch, "chains").expect_success();
    let all = recordings.finish();
    for name in ["expected", "expected.child", "expected.again"] {
        let expected = Expected::read(&scratch.join(name));
        let found: Vec<_> = all.iter().filter(|one| one.recording.pid == expected.pid).collect();
        let [recorded] = found.as_slice() else { panic!("{} recordings of {name}", found.len()) };
        expect_exactly(recorded, &expected);
        assert_eq!(recorded.recording.phase, Phase::Exited, "{name}");
        assert_eq!(recorded.recording.name, "chains");
        assert!(recorded.recording.ended_ns.is_some());
    }
    assert_eq!(all.len(), 3, "processes");
    assert!(all.iter().all(|one| one.events.iter().all(|event| event.call != Call::Gap)));
}
