//! Memory of the program: blocks of the heap and foreign ranges, and the states of their pages.

pub mod apply;
pub mod block;
pub mod constants;
pub mod foreign;
pub mod heap;
