//! What calls are entered into: accounts of sites, samples, the time of our own work.

pub mod accounts;
pub(crate) mod books;
pub mod done;
pub mod sampling;
pub(crate) mod work;
