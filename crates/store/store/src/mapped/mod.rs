//! stub
pub mod digest;
