//! Sessions on a whole engine over the memory store.
