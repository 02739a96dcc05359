//! The published client in realtime mode against the server (§8): what one device writes is on
//! the others without anybody asking, whatever happens to the connections.

mod cable;
mod channel;
mod connections;
mod crowd;
mod cuts;
mod edits;
mod presence;
