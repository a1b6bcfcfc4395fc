use super::*;
use proptest::prelude::*;
use std::ops::Range;
use uncopy_core::policy::Costs;

const KIB: u64 = 1024;

/// Generates events of a single-threaded program.
struct Program {
    flow: Flow,
    now_ns: u64,
    sequence: u64,
}

impl Program {
    fn new() -> Self {
        let flow = Flow::new(16 * KIB, Elision::new(&Costs::DEFAULT));
        Self { flow, now_ns: 1_000, sequence: 0 }
    }

    fn event(&mut self, call: recording::Call, stack: u32, fd: i32, to: u64, from: u64, len: u64) -> Event {
        self.now_ns += 1_000;
        self.sequence += 1;
        Event {
            sequence: self.sequence,
            start_ns: self.now_ns,
            duration_ns: 500,
            call,
            object: match call {
                recording::Call::Input => recording::Object::Socket,
                recording::Call::Output => recording::Object::File,
                _ => recording::Object::None,
            },
            function: Function::None,
            flags: Flags::default(),
            fd,
            thread: 1,
            stack,
            to,
            from,
            len_bytes: len,
        }
    }

    fn replay(&mut self, event: &Event) {
        self.flow.replay(event, &mut |stack| u64::from(stack));
    }

    fn input(&mut self, stack: u32, fd: i32, to: u64, len: u64) {
        let event = self.event(recording::Call::Input, stack, fd, to, 0, len);
        self.replay(&event);
    }

    fn copy(&mut self, stack: u32, to: u64, from: u64, len: u64) {
        let event = self.event(recording::Call::Copy, stack, -1, to, from, len);
        self.replay(&event);
    }

    fn output(&mut self, stack: u32, fd: i32, from: u64, len: u64) {
        let event = self.event(recording::Call::Output, stack, fd, 0, from, len);
        self.replay(&event);
    }

    fn forget(&mut self, stack: u32, from: u64, len: u64) {
        let event = self.event(recording::Call::Forget, stack, -1, 0, from, len);
        self.replay(&event);
    }

    fn relocate(&mut self, stack: u32, to: u64, from: u64, len: u64) {
        let event = self.event(recording::Call::Relocate, stack, -1, to, from, len);
        self.replay(&event);
    }

    /// Ends all operations and returns their classes as `from count: stack(calls x KiB)<after …`.
    fn classes(mut self) -> Vec<String> {
        self.flow.end_all();
        let mut all: Vec<String> = self
            .flow
            .classes
            .all()
            .iter()
            .map(|class| {
                let steps: Vec<String> = class
                    .steps
                    .iter()
                    .map(|step| {
                        let stack = self.flow.sites.stats()[step.site as usize].key.stack;
                        let after: Vec<String> = (0..32)
                            .filter(|bit| step.key.after & 1 << bit != 0)
                            .map(|bit| bit.to_string())
                            .collect();
                        format!("{stack}({}x{})<{}", step.calls, step.bytes / KIB, after.join("+"))
                    })
                    .collect();
                format!("{} {}: {}", class.from.name(), class.count, steps.join(" "))
            })
            .collect();
        all.sort();
        all
    }
}

#[test]
fn the_chain_of_redis_set_is_one_operation() {
    let mut program = Program::new();
    for round in 0..3u64 {
        let (query, first, second) = (0x10_0000, 0x20_0000 + round * 0x100_0000, 0x30_0000);
        program.input(1, 7, query, 111_589);
        program.input(1, 7, query + 111_589, 150_602);
        program.copy(2, query, query + 45, 262_146);
        program.copy(3, first + 70, query, 262_144);
        program.copy(4, second + 5, first, 262_214);
        program.output(5, 9, second + 5, 262_214);
        let last = &program.flow.operation(round).expect("under way").calls;
        let seen: Vec<_> = last.iter().map(|call| (call.bytes, call.own_bytes, call.shift)).collect();
        assert_eq!(
            seen,
            [
                (111_589, 111_589, None),
                (150_602, 150_602, None),
                (262_146, 262_146, Some(-45)),
                (262_144, 262_144, None),
                (262_214, 262_144, None),
                (262_214, 262_144, None),
            ]
        );
    }
    assert_eq!(program.classes(), ["socket 3: 1(6x768)< 2(3x768)<0 3(3x768)<1 4(3x768)<2 5(3x768)<3"]);
}

#[test]
fn copies_by_one_call_in_a_loop_are_as_many_steps() {
    let mut program = Program::new();
    for _ in 0..2 {
        program.input(1, 7, 0x10_0000, 64 * KIB);
        for copy in 1..=5u64 {
            program.copy(
                2,
                copy * 0x100_0000,
                (copy - 1) * 0x100_0000 + if copy == 1 { 0x10_0000 } else { 0 },
                64 * KIB,
            );
        }
        program.output(3, 7, 0x500_0000, 64 * KIB);
    }
    let steps = "1(2x128)< 2(2x128)<0 2(2x128)<1 2(2x128)<2 2(2x128)<3 2(2x128)<4 3(2x128)<5";
    assert_eq!(program.classes(), [format!("socket 2: {steps}")]);
}

#[test]
fn fan_out_is_one_operation_and_fan_in_is_a_step_of_each() {
    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 64 * KIB);
    program.copy(2, 0x20_0000, 0x10_0000, 64 * KIB);
    program.copy(3, 0x30_0000, 0x10_0000, 64 * KIB);
    for fd in 20..24 {
        program.output(4, fd, 0x20_0000, 64 * KIB);
    }
    program.output(5, 9, 0x30_0000, 64 * KIB);
    assert_eq!(program.classes(), ["socket 1: 1(1x64)< 2(1x64)<0 3(1x64)<0 4(4x256)<1 5(1x64)<2"]);

    // Two copies of one message, sent to one descriptor by one call.
    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 64 * KIB);
    for copy in [0x20_0000, 0x30_0000] {
        program.copy(2, copy, 0x10_0000, 64 * KIB);
    }
    for copy in [0x20_0000, 0x30_0000] {
        program.output(4, 9, copy, 64 * KIB);
    }
    assert_eq!(program.classes(), ["socket 1: 1(1x64)< 2(2x128)<0 4(2x128)<1"]);

    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 64 * KIB);
    program.input(1, 8, 0x20_0000, 64 * KIB);
    program.copy(2, 0x30_0000, 0x10_0000, 64 * KIB);
    program.copy(2, 0x30_0000 + 64 * KIB, 0x20_0000, 64 * KIB);
    program.output(3, 9, 0x30_0000, 128 * KIB);
    assert_eq!(program.classes(), ["socket 2: 1(2x128)< 2(2x128)<0 3(2x128)<1"]);
}

#[test]
fn a_reused_buffer_and_a_freed_one_hold_nothing_of_before() {
    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 64 * KIB);
    program.copy(2, 0x20_0000, 0x10_0000, 64 * KIB);
    program.input(1, 7, 0x10_0000, 32 * KIB);
    program.output(3, 9, 0x10_0000, 64 * KIB);
    assert_eq!(
        program.classes(),
        ["socket 1: 1(1x32)< 3(1x32)<0", "socket 1: 1(1x64)< 2(1x64)<0 3(1x32)<0"],
        "half of each message goes out"
    );
    // The copy may lie directly before the buffer that is refilled.
    let mut program = Program::new();
    for copy in [0x10_0000 - 64 * KIB, 0x20_0000] {
        program.input(1, 7, 0x10_0000, 64 * KIB);
        program.copy(2, copy, 0x10_0000, 64 * KIB);
    }
    assert_eq!(program.classes(), ["socket 2: 1(2x128)< 2(2x128)<0"]);
    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 64 * KIB);
    program.forget(0, 0x10_0000, 64 * KIB);
    program.output(3, 9, 0x10_0000, 64 * KIB);
    assert_eq!(program.classes(), ["memory 1: 3(1x64)<", "socket 1: 1(1x64)<"]);
}

#[test]
fn stored_bytes_used_again_are_another_operation() {
    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 256 * KIB);
    for _ in 0..100 {
        program.copy(2, 0x20_0000, 0x10_0000, 256 * KIB);
        program.output(3, 7, 0x20_0000, 256 * KIB);
    }
    assert_eq!(
        program.classes(),
        ["memory 99: 2(99x25344)< 3(99x25344)<0", "socket 1: 1(1x256)< 2(1x256)<0 3(1x256)<1"]
    );
}

#[test]
fn after_a_gap_nothing_is_known() {
    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 64 * KIB);
    let gap = Event::gap(program.sequence + 1, 12);
    program.replay(&gap);
    assert_eq!(program.flow.missing_events, 12);
    program.output(3, 9, 0x10_0000, 64 * KIB);
    assert_eq!(program.classes(), ["memory 1: 3(1x64)<", "socket 1: 1(1x64)<"]);
}

#[test]
fn parts_of_a_call_are_one_message_and_messages_of_a_call_several() {
    for (function, expected) in [
        (Function::Readv, ["socket 1: 1(1x36)< 2(1x36)<0"].as_slice()),
        (Function::Recvmmsg, &["socket 2: 1(2x36)< 2(2x36)<0"]),
    ] {
        let mut program = Program::new();
        for (to, len, flags) in [(0x10_0000, 20, Flags::default()), (0x20_0000, 16, Flags::CONTINUES)] {
            let mut event = program.event(recording::Call::Input, 1, 7, to, 0, len * KIB);
            (event.function, event.flags) = (function, flags);
            program.replay(&event);
        }
        for (from, len, flags) in [(0x10_0000, 20, Flags::default()), (0x20_0000, 16, Flags::CONTINUES)] {
            let mut event = program.event(recording::Call::Output, 2, 7, 0, from, len * KIB);
            event.flags = flags;
            program.replay(&event);
        }
        assert_eq!(program.classes(), expected);
    }
}

#[test]
fn threads_hand_over() {
    let mut program = Program::new();
    program.input(1, 7, 0x10_0000, 64 * KIB);
    let mut event = program.event(recording::Call::Copy, 2, -1, 0x20_0000, 0x10_0000, 64 * KIB);
    event.thread = 2;
    program.replay(&event);
    let mut event = program.event(recording::Call::Output, 3, 9, 0, 0x20_0000, 64 * KIB);
    event.thread = 3;
    program.replay(&event);
    assert_eq!(program.classes(), ["socket 1: 1(1x64)< 2(1x64)<0 3(1x64)<1"]);
}

#[test]
fn sendfile_makes_no_copy_in_memory() {
    let mut program = Program::new();
    for _ in 0..2 {
        let mut input = program.event(recording::Call::Input, 1, 7, 0, 0, 64 * KIB);
        input.flags = Flags::IN_KERNEL;
        program.replay(&input);
        let mut output = program.event(recording::Call::Output, 1, 9, 0, 0, 64 * KIB);
        output.flags = Flags::IN_KERNEL;
        program.replay(&output);
    }
    assert_eq!(program.classes(), ["socket 2: 1(2x128)< 1(2x128)<0"]);
}

#[test]
fn operations_end_when_nothing_happens_and_are_bounded() {
    let mut program = Program::new();
    for index in 0..2 * MAX_OPERATIONS as u64 {
        program.input(1, 7, (index + 1) * 0x10_0000, 64 * KIB);
    }
    assert!(program.flow.operations.len() <= MAX_OPERATIONS);
    program.now_ns += 2 * TIMEOUT_NS;
    program.input(1, 7, 0x1000, 64 * KIB);
    assert_eq!(program.flow.operations.len(), 1);
}

const SPACE_BYTES: u64 = 96;

#[derive(Clone, Debug)]
enum Step {
    Input(u64, u64),
    Copy(u64, u64, u64),
    Output(u64, u64),
    Forget(u64, u64),
    Relocate(u64, u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let len = || 1..40u64;
    prop_oneof![
        2 => (0..SPACE_BYTES, len()).prop_map(|(to, len)| Step::Input(to, len)),
        5 => (0..SPACE_BYTES, 0..SPACE_BYTES, len()).prop_map(|(to, from, len)| Step::Copy(to, from, len)),
        2 => (0..SPACE_BYTES, len()).prop_map(|(from, len)| Step::Output(from, len)),
        1 => (0..SPACE_BYTES, len()).prop_map(|(from, len)| Step::Forget(from, len)),
        1 => (0..SPACE_BYTES, 0..SPACE_BYTES, len()).prop_map(|(to, from, len)| Step::Relocate(to, from, len)),
    ]
}

/// A byte of the model: the input that received it and its position there, if any, and the event that wrote
/// it last.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Byte {
    origin: Option<(usize, u64)>,
    site: u32,
}

/// Moves bytes of the model; those at `from` are gone.
fn relocate<T: Copy>(memory: &mut [Option<T>], to: Range<usize>, from: Range<usize>) {
    let moved = memory[from.clone()].to_vec();
    memory[from].fill(None);
    memory[to].copy_from_slice(&moved);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Here each event is a site of its own, so links show which events' bytes went to which.
    #[test]
    fn bytes_flow_like_in_a_byte_array(steps in prop::collection::vec(step(), 1..40)) {
        let mut program = Program::new();
        let mut memory: Vec<Option<Byte>> = vec![None; 2 * SPACE_BYTES as usize + 16];
        let mut flows: std::collections::BTreeMap<(u32, u32), u64> = Default::default();
        let mut inputs: Vec<u64> = Vec::new();
        let mut site = 0;
        let range = |start: u64, len: u64| start as usize..(start + len) as usize;
        for (number, step) in steps.iter().enumerate() {
            // Late enough to end all earlier operations, so that each input begins a new one.
            program.now_ns += 2 * TIMEOUT_NS;
            let stack = number as u32 + 1;
            let mut take = |memory: &[Option<Byte>], site: u32| {
                for byte in memory {
                    *flows.entry((byte.map_or(u32::MAX, |byte| byte.site), site)).or_default() += 1;
                }
            };
            match *step {
                Step::Input(to, len) => {
                    program.input(stack, number as i32, to, len);
                    for (offset, byte) in memory[range(to, len)].iter_mut().enumerate() {
                        *byte = Some(Byte { origin: Some((inputs.len(), offset as u64)), site });
                    }
                    inputs.push(len);
                    site += 1;
                }
                Step::Copy(to, from, len) => {
                    program.copy(stack, to, from, len);
                    let moved = memory[range(from, len)].to_vec();
                    take(&moved, site);
                    for (byte, old) in memory[range(to, len)].iter_mut().zip(moved) {
                        *byte = Some(Byte { origin: old.and_then(|old| old.origin), site });
                    }
                    site += 1;
                }
                Step::Output(from, len) => {
                    program.output(stack, 9, from, len);
                    take(&memory[range(from, len)], site);
                    site += 1;
                }
                Step::Forget(from, len) => {
                    program.forget(stack, from, len);
                    memory[range(from, len)].fill(None);
                }
                Step::Relocate(to, from, len) => {
                    program.relocate(stack, to, from, len);
                    relocate(&mut memory, range(to, len), range(from, len));
                }
            }
            let mut found = Vec::new();
            program.flow.memory.lookup(0, memory.len() as u64, &mut found);
            let mut seen: Vec<Option<(bool, u32)>> = vec![None; memory.len()];
            for (at, len, content) in &found {
                seen[range(*at, *len)].fill(Some((content.is_received, content.site)));
            }
            let expected: Vec<_> =
                memory.iter().map(|byte| byte.map(|byte| (byte.origin.is_some(), byte.site))).collect();
            prop_assert_eq!(seen, expected, "after {:?}", step);
        }
        let mut counted: std::collections::BTreeMap<(u32, u32), u64> = Default::default();
        for (pair, (bytes, _)) in &program.flow.flows {
            counted.insert(*pair, *bytes);
        }
        prop_assert_eq!(counted, flows);
    }

    /// Here all events are simultaneous, so operations continue, and each byte keeps its position in its
    /// message.
    #[test]
    fn bytes_keep_their_place_in_their_message(steps in prop::collection::vec(step(), 1..40)) {
        let mut program = Program::new();
        let mut memory: Vec<Option<(u64, u64)>> = vec![None; 2 * SPACE_BYTES as usize + 16];
        let range = |start: u64, len: u64| start as usize..(start + len) as usize;
        for (number, step) in steps.iter().enumerate() {
            let stack = number as u32 + 1;
            match *step {
                Step::Input(to, len) => {
                    program.input(stack, number as i32, to, len);
                    let operation = program.flow.first_number + program.flow.operations.len() as u64 - 1;
                    for (offset, byte) in memory[range(to, len)].iter_mut().enumerate() {
                        *byte = Some((operation, offset as u64));
                    }
                }
                Step::Copy(to, from, len) => {
                    let known = memory[range(from, len)].iter().flatten().count();
                    if known == 0 {
                        // Would begin an operation of its own, which the other test covers.
                        continue;
                    }
                    program.copy(stack, to, from, len);
                    let moved = memory[range(from, len)].to_vec();
                    memory[range(to, len)].copy_from_slice(&moved);
                }
                Step::Output(..) => {}
                Step::Forget(from, len) => {
                    program.forget(stack, from, len);
                    memory[range(from, len)].fill(None);
                }
                Step::Relocate(to, from, len) => {
                    program.relocate(stack, to, from, len);
                    relocate(&mut memory, range(to, len), range(from, len));
                }
            }
            let mut found = Vec::new();
            program.flow.memory.lookup(0, memory.len() as u64, &mut found);
            let mut seen = vec![None; memory.len()];
            for (at, len, content) in &found {
                for index in 0..*len {
                    seen[(at + index) as usize] = Some((content.operation, content.offset + index));
                }
            }
            prop_assert_eq!(&seen, &memory, "after {:?}", step);
        }
    }
}
