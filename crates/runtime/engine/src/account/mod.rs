//! Books of calls: accounts of sites, samples, the time of the engine's own work.

pub mod accounts;
pub(crate) mod books;
pub mod plan_result;
pub mod sampling;
pub(crate) mod work;
