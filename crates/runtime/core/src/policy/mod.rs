//! The policy: whether eliding pays, for the process and for each site.
//!
//! | module | decides |
//! |---|---|
//! | [`costs`] | nothing: the cost of copying, moving, faulting and tracking on this machine |
//! | [`sites`] | whether a call site elides, by an account of time saved and spent |
//! | [`touches`] | which pages of a site's buffers are copied because the program touches them |
//! | [`loans`] | how often bytes are sent as copies before they are lent |
//! | [`sampling`] | which inputs are sampled while a program is recorded |
//! | [`trials`] | whether eliding and lending pay at all, by slices of time with and without |
//! | [`carriers`] | which allocation sites get blocks |
//! | [`placement`] | which kind of block an allocation site gets |

pub mod carriers;
pub mod costs;
pub mod loans;
pub mod placement;
pub mod sampling;
pub mod sites;
pub mod touches;
pub mod trials;

pub use carriers::{Carriers, SiteKey};
pub use costs::{COPY_OVER_PAGES, Costs, SharedCosts};
pub use placement::Placement;
pub use sampling::Sampling;
pub use sites::{SiteKind, Sites};
pub use touches::{Learned, Touches};
pub use trials::Trials;
