//! Two servers that send by reference what lies in twin memory: examples of what the twin allocator is for, and the
//! subjects of `uncopy bench cache` and `uncopy bench files`.

pub mod cached;
pub mod files;
