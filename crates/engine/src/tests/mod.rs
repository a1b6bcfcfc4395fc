//! Tests of the engine as a whole: with the kernel's own userfaultfd, where fault injection (the feature `inject`) lets
//! single calls fail, and as models in which loom takes every order of steps.

#[cfg(all(feature = "life", feature = "inject", not(loom)))]
mod kernel;
#[cfg(loom)]
mod models;
