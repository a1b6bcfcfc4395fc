//! stub
use crate::state::FileSlot;
use uncopy_mapped::{digest::Digester, mapping::Mapping, table::FileId};
use uncopy_sys::descriptor::Descriptor;
use uncopy_sys::errno::Errno;
pub fn settle(
    _fd: impl Descriptor,
    _slot: &FileSlot,
    _digester: &mut Digester<Mapping>,
    _chunks: &[Mapping],
    _id: FileId,
) -> Result<(), Errno> {
    Ok(())
}
