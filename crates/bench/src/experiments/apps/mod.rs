//! Packaged applications under load, plain and under uncopy.

pub mod arguments;
pub mod measure;
