//! A pair of links in memory, connected to each other: for tests.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::packet::{Validity, validate};
use crate::split::{Outgoing, Segments};
use crate::{Counters, Link};

struct Queue {
    packets: Mutex<VecDeque<Vec<u8>>>,
    eventfd: OwnedFd,
}

/// Fate of a packet: pushed to the queue never, once or several times, intact or not.
pub type Fate = Box<dyn FnMut(Vec<u8>, &mut VecDeque<Vec<u8>>) + Send>;

/// One end of a pair of links.
pub struct MemoryLink {
    incoming: Arc<Queue>,
    outgoing: Arc<Queue>,
    mtu_bytes: usize,
    fate: Fate,
    counters: Counters,
}

const MAX_WAITING: usize = 4096;

/// Returns both ends of a link with this MTU; `fates` apply to packets from the first and the second end.
///
/// # Errors
/// The error of eventfd(2).
pub fn pair(mtu_bytes: usize, fates: [Fate; 2]) -> io::Result<[MemoryLink; 2]> {
    let queue = || -> io::Result<Arc<Queue>> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Queue { packets: Mutex::default(), eventfd }))
    };
    let (one, other) = (queue()?, queue()?);
    let [first, second] = fates;
    let end = |incoming: &Arc<Queue>, outgoing: &Arc<Queue>, fate| MemoryLink {
        incoming: Arc::clone(incoming),
        outgoing: Arc::clone(outgoing),
        mtu_bytes,
        fate,
        counters: Counters::default(),
    };
    Ok([end(&one, &other, first), end(&other, &one, second)])
}

/// Returns the fate of packets that arrive intact.
#[must_use]
pub fn lossless() -> Fate {
    Box::new(|packet, queue| queue.push_back(packet))
}

impl Link for MemoryLink {
    fn fd(&self) -> RawFd {
        self.incoming.eventfd.as_raw_fd()
    }

    fn mtu_bytes(&self) -> usize {
        self.mtu_bytes
    }

    fn max_packet_bytes(&self) -> usize {
        self.mtu_bytes
    }

    fn receive(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let mut packets = self.incoming.packets.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(packet) = packets.pop_front() else {
                let mut count = [0; 8];
                let _ = rustix::io::read(&self.incoming.eventfd, &mut count);
                return Ok(None);
            };
            drop(packets);
            match validate(&packet, false) {
                Validity::Valid if packet.len() <= room.len() => {
                    room[..packet.len()].copy_from_slice(&packet);
                    self.counters.received.count(packet.len());
                    return Ok(Some(packet.len()));
                }
                Validity::BadChecksum => self.counters.bad_checksums += 1,
                _ => self.counters.malformed += 1,
            }
        }
    }

    fn send(
        &mut self,
        header: &mut [u8],
        payload: &[IoSlice<'_>],
        max_segment_payload_bytes: usize,
    ) -> io::Result<bool> {
        let outgoing = Outgoing::new(header, payload, max_segment_payload_bytes)?;
        let mut packets = self.outgoing.packets.lock().unwrap_or_else(PoisonError::into_inner);
        if packets.len() >= MAX_WAITING {
            return Ok(outgoing.count(&mut self.counters, false));
        }
        let mut segments = Segments::new(&outgoing, header, payload, max_segment_payload_bytes);
        let mut room = vec![0; segments.max_bytes()];
        while let Some(len) = segments.next_into(&mut room) {
            (self.fate)(room[..len].to_vec(), &mut packets);
        }
        drop(packets);
        let _ = rustix::io::write(&self.outgoing.eventfd, &1u64.to_ne_bytes());
        Ok(outgoing.count(&mut self.counters, true))
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use uncopy_core::random::{STEP, splitmix64};
    use uncopy_tcp::segment::Header;
    use uncopy_tcp::wire::{Tuple, write};

    fn send(link: &mut MemoryLink, payload: &[u8]) {
        let tuple = Tuple { local: "10.0.0.1:80".parse().unwrap(), remote: "10.0.0.2:9".parse().unwrap() };
        let mut header = write(&tuple, &Header::default(), payload.len());
        assert!(link.send(&mut header, &[IoSlice::new(payload)], 1000).unwrap());
    }

    #[test]
    fn a_super_packet_arrives_in_segments() {
        let [mut one, mut other] = pair(1040, [lossless(), lossless()]).unwrap();
        send(&mut one, &[7; 2500]);
        let mut room = vec![0; 2000];
        let mut lens = Vec::new();
        while let Some(len) = other.receive(&mut room).unwrap() {
            assert!(room[40..len].iter().all(|byte| *byte == 7));
            lens.push(len - 40);
        }
        assert_eq!(lens, [1000, 1000, 500]);
        assert_eq!(one.receive(&mut room).unwrap(), None);
        assert_eq!((one.counters().sent_super, other.counters().received.packets), (1, 3));
    }

    #[test]
    fn damaged_packet_is_dropped() {
        let damages: Fate = Box::new(|mut packet, queue| {
            packet[45] ^= 1;
            queue.push_back(packet);
        });
        let [mut one, mut other] = pair(1500, [damages, lossless()]).unwrap();
        send(&mut one, &[7; 100]);
        assert_eq!(other.receive(&mut [0; 2000]).unwrap(), None);
        assert_eq!(other.counters().bad_checksums, 1);
    }

    #[test]
    fn fates_lose_duplicate_and_delay_deterministically() {
        let seeded = |seed: u64| -> Fate {
            let (mut state, mut late) = (seed, None);
            Box::new(move |packet, queue| {
                state = state.wrapping_add(STEP);
                let before: Option<Vec<u8>> = late.take();
                match splitmix64(state) % 8 {
                    0 => {}
                    1 => queue.extend([packet.clone(), packet]),
                    2 => late = Some(packet),
                    _ => queue.push_back(packet),
                }
                queue.extend(before);
            })
        };
        let received_numbers = |seed| {
            let [mut one, mut other] = pair(1040, [seeded(seed), lossless()]).unwrap();
            for number in 0..200 {
                send(&mut one, &[number; 10]);
            }
            let mut room = vec![0; 2000];
            let mut numbers = Vec::new();
            while let Some(len) = other.receive(&mut room).unwrap() {
                numbers.push(room[len - 1]);
            }
            assert_eq!(one.counters().sent.packets, 200);
            numbers
        };
        let numbers = received_numbers(1);
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() < 200 && distinct.len() < numbers.len() && !numbers.is_sorted());
        assert_eq!(numbers, received_numbers(1));
        assert_ne!(numbers, received_numbers(2));
    }

    #[test]
    fn link_is_readable_while_packets_wait_and_bounds_them() {
        let is_readable = |link: &MemoryLink| {
            let mut polled = [PollFd::new(&link.incoming.eventfd, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
        };
        let [mut one, mut other] = pair(1040, [lossless(), lossless()]).unwrap();
        assert!(!is_readable(&other));
        for _ in 0..MAX_WAITING {
            send(&mut one, &[1]);
        }
        assert!(is_readable(&other));
        let tuple = Tuple { local: "10.0.0.1:80".parse().unwrap(), remote: "10.0.0.2:9".parse().unwrap() };
        let mut header = write(&tuple, &Header::default(), 0);
        assert!(!one.send(&mut header, &[], 1000).unwrap());
        assert_eq!(one.counters().refused, 1);
        while other.receive(&mut [0; 2000]).unwrap().is_some() {}
        assert!(!is_readable(&other) && one.send(&mut header, &[], 1000).unwrap());
    }
}
