//! Rules about writes that an operator declares, as validators of the engine (§6.7, §6.8).
mod stack;
pub mod sql;
#[cfg(test)]
mod testing;
