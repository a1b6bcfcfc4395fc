//! Tests of the whole engine: with the kernel's userfaultfd, where fault injection (the feature `inject`)
//! makes single calls fail, and as models in which loom tries every order of steps.

#[cfg(all(feature = "life", feature = "inject", not(loom)))]
mod kernel;
#[cfg(loom)]
mod models;
