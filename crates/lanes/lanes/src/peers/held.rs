//! Bytes of shared memory that a process holds, of its own pool or of a peer.

use super::Peer;
use crate::runs::RunId;
use uncopy_sys::sync::Arc;

/// Owner of the memory of a held run.
pub(super) enum Owner {
    /// This process, which took the run to fill it.
    Filler,
    /// This process, to which a reference came back.
    This,
    /// A peer; with the number by which the range is released.
    Peer(Arc<Peer>, u32),
}

/// Bytes of shared memory that this process holds: they stay mapped and unchanged until it is dropped.
pub struct HeldBytes {
    pub(super) owner: Owner,
    pub(super) id: RunId,
    pub(super) chunk_offset_bytes: u32,
    pub(super) address: usize,
    pub(super) len_bytes: usize,
}

impl HeldBytes {
    /// Makes a hold on a new run of this process, from its first byte on.
    pub(super) const fn to_fill(id: RunId, address: usize, len_bytes: usize) -> Self {
        let chunk_offset_bytes = id.page * uncopy_core::addr::PAGE_BYTES as u32;
        Self { owner: Owner::Filler, id, chunk_offset_bytes, address, len_bytes }
    }

    pub(super) fn owner_id(&self, this: u64) -> u64 {
        match &self.owner {
            Owner::Peer(peer, _) => peer.id,
            Owner::Filler | Owner::This => this,
        }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}
