//! The program's memory: blocks of the heap and foreign ranges, and the states of their pages.

pub mod alteration;
pub mod apply;
pub mod block;
pub mod carriers;
pub mod changes;
pub mod constants;
pub mod directory;
pub mod foreign;
pub mod heap;
pub(crate) mod heap_memory;
pub mod page_in;
pub mod registration;
