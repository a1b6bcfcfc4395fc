//! Tests with the kernel's own userfaultfd. Fault injection (the feature `inject`) lets single calls fail.

mod descriptors;
