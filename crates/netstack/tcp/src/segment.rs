//! A TCP segment: header, and payload by reference.

use crate::options::Options;
use crate::payload::{self, Payload, Pieces};

/// Control bits in use (RFC 9293, section 3.1). Urgent data is read as ordinary data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// FIN: no more data from the sender.
    pub fin: bool,
    /// SYN: start of the sender's stream.
    pub syn: bool,
    /// RST: the connection is reset.
    pub rst: bool,
    /// PSH: the receiver should deliver the data immediately.
    pub psh: bool,
    /// ACK: the acknowledgement number is valid.
    pub ack: bool,
    /// ECE: the sender of this segment received packets marked CE (RFC 3168, section 6.1).
    pub ece: bool,
    /// CWR: the sender has reduced its congestion window.
    pub cwr: bool,
}

/// The ECN field of the IP header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Codepoint {
    /// Not-ECT: routers drop instead of marking.
    #[default]
    NotCapable = 0,
    /// ECT(1): equivalent to ECT(0).
    Capable1 = 1,
    /// ECT(0): routers may mark the packet.
    Capable0 = 2,
    /// CE: a router marked the packet.
    Congestion = 3,
}

impl Codepoint {
    /// Returns the codepoint in the two low bits of the type of service or traffic class.
    pub fn from_bits(bits: u8) -> Self {
        [Self::NotCapable, Self::Capable1, Self::Capable0, Self::Congestion][usize::from(bits & 3)]
    }
}

/// A TCP header without the ports, which are in [`crate::wire::Tuple`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// SEG.SEQ, the sequence number.
    pub sequence: u32,
    /// SEG.ACK, valid if `flags.ack`.
    pub acknowledgement: u32,
    /// Control bits of the header.
    pub flags: Flags,
    /// The window field of the header, unscaled.
    pub window: u16,
    /// Options of the header.
    pub options: Options,
    /// ECN field of the IP header; the link copies it to every packet that it splits off.
    pub codepoint: Codepoint,
}

/// A header and payload of any length; the link splits it into packets of `max_payload_bytes`.
#[derive(Clone, Debug)]
pub struct Segment<P> {
    /// Header of the segment, without ports.
    pub header: Header,
    /// Payload of the segment, by reference.
    pub payload: Pieces<P>,
    /// Maximum payload per packet ("GSO size"); unused in received segments.
    pub max_payload_bytes: u16,
}

impl<P: Payload> Segment<P> {
    /// Returns a segment without payload.
    pub fn bare(header: Header) -> Self {
        Self { header, payload: Pieces::new(), max_payload_bytes: 0 }
    }

    /// Returns SEG.LEN: the payload's length, plus one each for SYN and FIN (RFC 9293, section 3.4).
    pub fn len(&self) -> u64 {
        payload::len_bytes(&self.payload) as u64
            + u64::from(self.header.flags.syn)
            + u64::from(self.header.flags.fin)
    }

    /// True if the segment occupies no sequence numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the RST for a segment without a connection (RFC 9293, section 3.10.7.1); a RST gets none.
    pub fn reset(&self) -> Option<Header> {
        if self.header.flags.rst {
            return None;
        }
        let mut header = Header { flags: Flags { rst: true, ..Flags::default() }, ..Header::default() };
        if self.header.flags.ack {
            header.sequence = self.header.acknowledgement;
        } else {
            header.flags.ack = true;
            header.acknowledgement = self.header.sequence.wrapping_add(self.len() as u32);
        }
        Some(header)
    }
}
