//! What must hold of frames and page tables, on a machine that is an array.

mod addr;
mod frames;
mod heap;
mod machine;
mod ranges;
mod table;
