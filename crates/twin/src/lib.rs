//! The twin allocator (ZCopy §3.2.1): memory that can be handed to the kernel by reference, because a write to it
//! after it was sent replaces the page instead of changing it.
