use super::*;
use crate::recording::event::WORDS;
use std::vec;

fn put(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
}

fn event(sequence: u64) -> Event {
    Event {
        sequence,
        start_ns: sequence.wrapping_mul(10),
        duration_ns: 7,
        call: Call::Copy,
        object: Object::None,
        function: Function::Memmove,
        flags: Flags::CONTINUES,
        fd: -1,
        thread: 9,
        stack: 1,
        to: 0x2000,
        from: 0x1000,
        len_bytes: 1 << 20,
    }
}

fn publish(bytes: &mut [u8], event: &Event) {
    let slot = event.sequence as usize % SLOTS;
    for (index, word) in event.encode().into_iter().enumerate() {
        put(bytes, RING_OFFSET + slot * EVENT_BYTES + 8 * index, word);
    }
}

/// A recording with one stack, one module, one sample and `events` events.
fn recording(events: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    put(&mut bytes, PID_OFFSET, 77);
    put(&mut bytes, STACK_WORDS_USED_OFFSET, 4);
    put(&mut bytes, STACKS_OFFSET + 8, 2);
    put(&mut bytes, STACKS_OFFSET + 16, 0xA10);
    put(&mut bytes, STACKS_OFFSET + 24, 0xB10);
    put(&mut bytes, MODULES_USED_OFFSET, 1);
    put(&mut bytes, MODULES_OFFSET, 0xA00);
    put(&mut bytes, MODULES_OFFSET + 8, 0xB00);
    put(&mut bytes, MODULES_OFFSET + 16, 0xA00);
    put(&mut bytes, MODULES_OFFSET + 32, 4);
    bytes[MODULES_OFFSET + PATH_OFFSET..MODULES_OFFSET + PATH_OFFSET + 4].copy_from_slice(b"/a/b");
    put(&mut bytes, SAMPLES_OFFSET, sample_key(1, Call::Input));
    put(&mut bytes, SAMPLES_OFFSET + 16, 4096);
    put(&mut bytes, HEAD_OFFSET, events);
    for sequence in 0..events {
        publish(&mut bytes, &event(sequence));
    }
    bytes
}

fn drain(ring: &mut Ring, bytes: &mut Vec<u8>, is_over: bool) -> Vec<Event> {
    let mut all = Vec::new();
    ring.drain(bytes, is_over, |event| all.push(*event)).expect("long enough");
    all
}

#[test]
fn every_event_is_decoded_as_it_was_encoded() {
    for call in Call::ALL {
        for object in Object::ALL {
            for function in Function::ALL {
                let mut event = event(u64::MAX - 1);
                (event.call, event.object, event.function) = (*call, *object, *function);
                (event.flags, event.fd, event.stack) = (Flags(0xFF), i32::MIN, u32::MAX);
                assert_eq!(Event::decode(&event.encode()), Some(event));
            }
        }
    }
    assert_eq!(Event::decode(&[0; WORDS]), None);
}

#[test]
fn a_recording_reads_back() {
    let bytes = recording(0);
    let read = Recording::parse(&bytes[..RING_OFFSET]).expect("well-formed");
    assert_eq!((read.pid, read.phase, read.costs), (77, Phase::Recording, None));
    assert_eq!(read.stacks.frames(1), [0xA10, 0xB10]);
    assert!([0, 2, 3, 4, u32::MAX].iter().all(|id| read.stacks.frames(*id).is_empty()));
    let (module, address) = read.module_at(0xA10).expect("known");
    assert_eq!((module.path.as_slice(), address), (b"/a/b".as_slice(), 0x10));
    assert_eq!(read.module_at(0xB00), None);
    let [sample] = read.samples.as_slice() else { panic!("{:?}", read.samples) };
    assert_eq!((sample.stack, sample.call, sample.tally.sampled_bytes), (1, Call::Input, 4096));
}

#[test]
fn events_are_read_once_in_order_also_around_the_end_of_the_ring() {
    let mut bytes = recording(5);
    let mut ring = Ring::new();
    assert_eq!(drain(&mut ring, &mut bytes, false), (0..5).map(event).collect::<Vec<_>>());
    assert!(drain(&mut ring, &mut bytes, false).is_empty());
    assert_eq!(word(&bytes, TAIL_OFFSET), 5);
    for sequence in 5..SLOTS as u64 + 5 {
        publish(&mut bytes, &event(sequence));
    }
    put(&mut bytes, HEAD_OFFSET, (SLOTS as u64 + 5) | GAP_BIT);
    let all = drain(&mut ring, &mut bytes, false);
    assert_eq!((all.len(), all[SLOTS - 1]), (SLOTS, event(SLOTS as u64 + 4)));
    assert_eq!(ring.lost(), 0);
}

#[test]
fn an_event_that_is_not_complete_is_waited_for_and_given_up_at_last() {
    let mut bytes = recording(3);
    put(&mut bytes, RING_OFFSET + EVENT_BYTES, 0);
    let mut ring = Ring::new();
    assert_eq!(drain(&mut ring, &mut bytes, false), [event(0)]);
    assert!(drain(&mut ring, &mut bytes, false).is_empty());
    publish(&mut bytes, &event(1));
    assert_eq!(drain(&mut ring, &mut bytes, false), [event(1), event(2)]);
    // Event 3 is never completed.
    put(&mut bytes, HEAD_OFFSET, 5);
    publish(&mut bytes, &event(4));
    let tries = (0..100).position(|_| !drain(&mut ring, &mut bytes, false).is_empty());
    assert_eq!((tries.is_some(), ring.lost()), (true, 1));
    // Event 5 is incomplete, and the process has ended.
    put(&mut bytes, HEAD_OFFSET, 7);
    publish(&mut bytes, &event(6));
    assert_eq!(drain(&mut ring, &mut bytes, true), [Event::gap(5, 2), event(6)]);
}

#[test]
fn reading_random_bytes_ends() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = vec![0; FILE_BYTES];
    for round in 0..4 {
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&next().to_ne_bytes());
        }
        assert!(Recording::parse(&bytes).is_err());
        bytes[..8].copy_from_slice(&MAGIC);
        if round > 0 {
            put(&mut bytes, PID_OFFSET, 5);
        }
        if let Ok(read) = Recording::parse(&bytes) {
            for _ in 0..1000 {
                assert!(read.stacks.frames(next() as u32 % (2 * STACK_WORDS as u32)).len() <= MAX_FRAMES);
                let _ = read.module_at(next());
            }
        }
        let mut ring = Ring::new();
        for head in [next(), next() % SLOTS as u64, SLOTS as u64, SLOTS as u64 + 1, 0, u64::MAX] {
            put(&mut bytes, HEAD_OFFSET, head);
            let events = drain(&mut ring, &mut bytes, round % 2 == 0);
            assert!(events.len() <= SLOTS);
        }
    }
    assert!(Recording::parse(&bytes[..RING_OFFSET - 1]).is_err());
    assert!(Ring::new().drain(&mut Vec::new(), true, |_| ()).is_err());
}

#[test]
fn a_file_name_holds_the_pid_and_the_start() {
    assert_eq!(parse_file_name(file_name(77, 123).as_bytes()), Some((77, 123)));
    for other in ["77-.rec", "-1.rec", "77.rec", "77-1.txt", "a-1.rec", "99999999999-1.rec", ""] {
        assert_eq!(parse_file_name(other.as_bytes()), None, "{other}");
    }
}
