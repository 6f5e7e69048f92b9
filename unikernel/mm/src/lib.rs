//! The memory manager.
