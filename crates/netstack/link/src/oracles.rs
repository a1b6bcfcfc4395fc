//! Checks for packets of arbitrary bytes; called by fuzzing (`fuzz/`) and by random tests.

use std::io::IoSlice;

use crate::MAX_PACKET_BYTES;
use crate::packet::{Layout, Validity, validate};
use crate::split::{Outgoing, Segments};
use crate::tun::{VNET_BYTES, validate_received};

/// Checks a packet received from a TUN device, virtio header first: a valid packet lies within `data`.
///
/// # Panics
/// If the check fails.
pub fn received(data: &[u8]) {
    let Some((vnet, packet)) = data.split_first_chunk::<VNET_BYTES>() else { return };
    let (trusted, _) = validate_received(*vnet, packet);
    if trusted != Validity::Malformed {
        let layout = Layout::of(packet).expect("it has a header");
        assert!(layout.transport.start <= layout.transport.end && layout.transport.end <= packet.len());
    }
    // Not trusting the device can only add a checksum error.
    let untrusted = validate(packet, false);
    assert!(untrusted == trusted || trusted == Validity::Valid && untrusted == Validity::BadChecksum);
}

/// Checks a packet to send: segment length, offset of the payload, and the packet. If valid, its
/// segments are valid, no longer than requested, and contain the payload.
///
/// # Panics
/// If the check fails.
pub fn sent(data: &[u8]) {
    let Some(([low, high, at], packet)) = data.split_first_chunk() else { return };
    let max_payload_bytes = usize::from(u16::from_le_bytes([*low, *high]));
    let (header, payload) = packet.split_at(usize::from(*at).min(packet.len()));
    let (first, second) = payload.split_at(payload.len() / 3);
    let parts = [IoSlice::new(first), IoSlice::new(second)];
    let Ok(outgoing) = Outgoing::new(header, &parts, max_payload_bytes) else { return };
    assert!(outgoing.packet_bytes <= MAX_PACKET_BYTES);
    let mut segments = Segments::new(&outgoing, header, &parts, max_payload_bytes);
    let mut room = vec![0; segments.max_bytes()];
    let (mut written, mut count) = (Vec::new(), 0);
    while let Some(len) = segments.next_into(&mut room) {
        let segment = &room[..len];
        if outgoing.layout.is_tcp() {
            assert_eq!(validate(segment, false), Validity::Valid);
            assert!(len - header.len() <= max_payload_bytes || payload.is_empty());
        }
        written.extend_from_slice(&segment[header.len()..]);
        count += 1;
    }
    assert_eq!(count, outgoing.segments);
    assert_eq!(written, payload);
}

/// Checks Ethernet frames, each preceded by its length in two bytes and its delay in tenths of a
/// second: the number of neighbours is bounded, and frames to neighbours are valid.
///
/// # Panics
/// If the check fails.
#[cfg(feature = "xdp")]
pub fn frames(mut data: &[u8]) {
    use crate::xdp::frames::ETHERNET_BYTES;
    use crate::xdp::neighbours::{MAX_NEIGHBOURS, Neighbours};
    use std::time::Duration;
    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let own = [([10, 9, 0, 2].into(), 24), ([0xfd00, 9, 0, 0, 0, 0, 0, 2].into(), 64)];
    let mut neighbours = Neighbours::new(OURS, &own, &[[10, 9, 0, 254].into()]);
    let mut now = Duration::ZERO;
    while let Some(([low, high, later], rest)) = data.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([*low, *high]) % 256).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        data = rest;
        now += Duration::from_millis(100) * u32::from(*later);
        let mut out = Vec::new();
        if *later % 4 == 0 {
            let host = *frame.first().unwrap_or(&1);
            let to = if host % 2 == 0 {
                [10, 9, 0, host].into()
            } else {
                [0xfd00, 9, 0, 0, 0, 0, 0, u16::from(host)].into()
            };
            neighbours.route(to, now, &mut out);
        } else if let Some(range) = neighbours.receive(frame, now, &mut out) {
            assert!(range.start == ETHERNET_BYTES && range.start <= range.end && range.end <= frame.len());
        }
        assert!(out.len() <= 2 && neighbours.neighbour_count() <= MAX_NEIGHBOURS);
        for frame in out {
            assert_eq!(frame[6..12], OURS);
            if frame[12..14] == [0x86, 0xdd] {
                assert_eq!(validate(&frame[ETHERNET_BYTES..], false), Validity::Valid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uncopy_core::random::{STEP, splitmix64, test_size};

    fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
        let words = (1..).map(|index: u64| splitmix64(seed.wrapping_add(index.wrapping_mul(STEP))));
        words.flat_map(u64::to_le_bytes).take(len).collect()
    }

    /// Makes `data` resemble a packet; lengths are mostly right.
    fn packet(data: &mut [u8], seed: u64) {
        let len = u16::try_from(data.len()).unwrap();
        if seed & 1 == 0 {
            data[0] = 0x45;
            data[2..4].copy_from_slice(&len.to_be_bytes());
            data[6..8].fill(0);
            data[9] = [6, 1, 17, 6][usize::from(data[9] % 4)];
            data[32] = if seed & 2 == 0 { 0x50 } else { data[32] };
        } else {
            data[0] = 0x60;
            data[4..6].copy_from_slice(&(len - 40).to_be_bytes());
            data[6] = [6, 58, 0, 6][usize::from(data[6] % 4)];
            data[52] = if seed & 2 == 0 { 0x50 } else { data[52] };
        }
    }

    #[test]
    fn random_packets_are_validated_and_split() {
        let mut taken = 0u64;
        for seed in 0..2_000 * test_size() {
            let len = 64 + (splitmix64(seed) % 700) as usize;
            let mut data = random_bytes(seed << 32, 10 + len);
            packet(&mut data[10..], seed);
            super::received(&data);
            data[7] = 1 + data[7] % 100;
            data[8] = 0;
            data[9] = if seed & 1 == 0 { 40 } else { 60 };
            super::sent(&data[7..]);
            taken += u64::from(super::Layout::of(&data[10..]).is_some_and(|layout| layout.is_tcp()));
        }
        assert!(taken > 100 * test_size(), "they are like packets");
    }

    #[cfg(feature = "xdp")]
    #[test]
    fn random_frames_are_handled() {
        for seed in 0..300 * test_size() {
            let mut data = Vec::new();
            for index in 0..40 {
                let bytes = random_bytes(seed << 32 | index << 16, 60);
                let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, bytes[0]];
                if bytes[1] & 1 == 0 {
                    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1 + (bytes[2] & 1), 2, 0, 0, 0, 0, bytes[0]]);
                    frame.extend([10, 9, 0, bytes[3], 0, 0, 0, 0, 0, 0, 10, 9, 0, 2]);
                } else {
                    frame.extend(&bytes[2..]);
                }
                data.extend([u8::try_from(frame.len()).unwrap(), 0, bytes[4]]);
                data.extend(frame);
            }
            super::frames(&data);
        }
    }
}
