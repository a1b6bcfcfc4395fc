//! What a program and its keeper say over their link: words, and a descriptor with some of them. The program asks, the keeper
//! answers each question once, in order.

/// Version of these messages and of [`State`](crate::state::State).
pub const PROTOCOL: u64 = 2;

/// `[HELLO, PROTOCOL]`: a program that has a file to log. Answer: [`WELCOME`] and then [`LOG`], or [`NOT_NOW`].
pub const HELLO: u64 = 1;
/// `[WELCOME, log, epoch, length of the log in bytes, granule in bytes, machine]`, with the state.
pub const WELCOME: u64 = 2;
/// `[LOG]`, with the log.
pub const LOG: u64 = 3;
/// `[NOT_NOW, error number]`: there is no log (yet: 0).
pub const NOT_NOW: u64 = 4;
/// `[ADOPT, place]`, with the file, which is to take part. Answer: `[ADOPTED, what the sync said]` or `[REFUSED, error number]`.
pub const ADOPT: u64 = 5;
/// See [`ADOPT`].
pub const ADOPTED: u64 = 6;
/// See [`ADOPT`].
pub const REFUSED: u64 = 7;
/// `[DROP, place, whether nobody writes to it]`: the file is to take part no more. Answer: `[DONE, 0]`, once it has all that its records
/// have and is the file system's; `[REFUSED, error number]`: it could not be synced, and somebody may write to it: the program asks again
/// when nobody does; `[DONE, error number]`: it could not be synced, its records are kept for a recovery.
pub const DROP: u64 = 8;
/// `[CLOSED, place]`: the program has closed the file. Answer: [`DONE`], once no lock of its is left.
pub const CLOSED: u64 = 9;
/// `[ROOM]`: the log is full. Answer: [`DONE`], once some is given back.
pub const ROOM: u64 = 10;
/// `[REPAIR, place]`: nobody writes to a file whose sync has failed, and all that was written to it is in records. Answer: `[DONE, what
/// trying again has said]`.
pub const REPAIR: u64 = 13;
/// `[BYE]`: the program ends, and waits for the end of the link: then neither its files nor its log are in use.
pub const BYE: u64 = 14;
/// See the questions.
pub const DONE: u64 = 11;
/// `[HALF]`: the log is half full. No answer.
pub const HALF: u64 = 12;
