//! A TCP segment: header, and payload by reference.

use crate::options::Options;
use crate::payload::{self, Payload, Pieces};

/// The control bits that are used (RFC 9293, section 3.1). URG is read as ordinary data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// No more data from the sender.
    pub fin: bool,
    /// The sender's stream begins.
    pub syn: bool,
    /// The connection is reset.
    pub rst: bool,
    /// The receiver should have the data at once.
    pub psh: bool,
    /// The acknowledgement number counts.
    pub ack: bool,
    /// ECN-Echo: congestion was experienced on the way to the sender of this (RFC 3168, section 6.1).
    pub ece: bool,
    /// Congestion Window Reduced.
    pub cwr: bool,
}

/// The ECN field of the IP header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Codepoint {
    /// Not-ECT: routers drop it where there is congestion.
    #[default]
    NotCapable = 0,
    /// ECT(1).
    Capable1 = 1,
    /// ECT(0): routers may mark it.
    Capable0 = 2,
    /// CE: one has.
    Congestion = 3,
}

impl Codepoint {
    /// From the two low bits of the type of service or traffic class.
    pub fn from_bits(bits: u8) -> Self {
        [Self::NotCapable, Self::Capable1, Self::Capable0, Self::Congestion][usize::from(bits & 3)]
    }
}

/// A header without ports, which [`crate::wire::Tuple`] has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// SEG.SEQ.
    pub sequence: u32,
    /// SEG.ACK; counts if `flags.ack`.
    pub acknowledgement: u32,
    /// The control bits.
    pub flags: Flags,
    /// The window as it stands in the header, not yet shifted.
    pub window: u16,
    /// The options.
    pub options: Options,
    /// The ECN field of its packet; each packet that the link makes of a long segment has it.
    pub codepoint: Codepoint,
}

/// A header and its payload, of any length: the link splits what is longer than one packet (`max_payload_bytes`).
#[derive(Clone, Debug)]
pub struct Segment<P> {
    /// The header.
    pub header: Header,
    /// The payload.
    pub payload: Pieces<P>,
    /// How many bytes of payload each packet may have at most; the link's "GSO size". Not used in what is received.
    pub max_payload_bytes: u16,
}

impl<P: Payload> Segment<P> {
    /// A segment without payload.
    pub fn bare(header: Header) -> Self {
        Self { header, payload: Pieces::new(), max_payload_bytes: 0 }
    }

    /// SEG.LEN: payload, and one each for SYN and FIN (RFC 9293, section 3.4).
    pub fn len(&self) -> u64 {
        payload::len_bytes(&self.payload) as u64
            + u64::from(self.header.flags.syn)
            + u64::from(self.header.flags.fin)
    }

    /// Whether it takes no place in the stream.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The RST that answers a segment for which there is no connection (RFC 9293, section 3.10.7.1). None answers a RST.
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
