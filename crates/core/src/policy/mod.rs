//! When eliding pays, by call site: what it saves and costs in time, and what is known of each site.
//!
//! | module | what it decides |
//! |---|---|
//! | [`costs`] | what copying, moving, faulting and tracking cost on this machine |
//! | [`sites`] | whether a call site elides: a running account of time saved and spent |
//! | [`touches`] | which pages of a site's buffers the program touches anyway, so that they are copied |
//! | [`loans`] | how often the same bytes are sent as copies before they go by reference |
//! | [`sampling`] | which inputs show what a program touches while it is recorded |
//! | [`trials`] | whether eliding and lending pay at all: slices of time with and without are compared |
//! | [`carriers`] | which allocation sites get blocks at all |
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
pub use sites::{Kind, Sites};
pub use touches::{Learned, Touches};
pub use trials::Trials;
