//! What happens to the process as a whole: forks, and calls that only a lone thread may make.

pub mod alone;
pub mod fork;
