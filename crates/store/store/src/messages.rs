//! Messages between a program and its keeper: words, some with a descriptor. The program asks, and the keeper
//! answers each question once, in order.

/// Version of the messages and of [`State`](crate::state::State).
pub const PROTOCOL: u64 = 5;

/// `[HELLO, PROTOCOL]`: asks for a log. Answer: [`WELCOME`] or [`WELCOME_MAPPED`], and then [`LOG`]; or
/// [`UNAVAILABLE`].
pub const HELLO: u64 = 1;
/// `[WELCOME, log, epoch, length of the log in bytes, granule in bytes, machine]`, with the state's descriptor.
pub const WELCOME: u64 = 2;
/// `[WELCOME_MAPPED, log, length of the log in bytes, whether its memory is persistent]`, with the state's
/// descriptor: the log is mapped and has the only copy of what is written.
pub const WELCOME_MAPPED: u64 = 15;
/// `[LOG]`, with the log's descriptor.
pub const LOG: u64 = 3;
/// `[UNAVAILABLE, error number]`: there is no log; 0: not yet.
pub const UNAVAILABLE: u64 = 4;
/// `[ADOPT, slot]`, with a file to log; for a mapped log `[ADOPT, slot, entry, incarnation]`, the file's
/// registration there. Answer: `[ADOPTED, error of the sync]` or `[REFUSED, error number]`.
pub const ADOPT: u64 = 5;
/// Answer to [`ADOPT`]: the file is logged.
pub const ADOPTED: u64 = 6;
/// Answer to [`ADOPT`] and other requests: refused.
pub const REFUSED: u64 = 7;
/// `[ADOPT_MEMORY, inode, holder]`: records are to refer to a file of the service with this inode, which the process with
/// this id of lanes holds bytes of. Answer: `[ADOPTED, 0, number]` with the file, or `[REFUSED, error number]`.
pub const ADOPT_MEMORY: u64 = 16;
/// `[DROP, slot, whether no process writes to the file]`: takes the file out of the log. Answer: `[DONE, 0]`
/// once the file has all bytes of its records and no mark; `[REFUSED, error number]` if the sync failed and
/// other writers are possible, so that the program asks again without them; `[DONE, error number]` if the sync
/// failed and the records are kept for a recovery.
pub const DROP: u64 = 8;
/// `[CLOSED, slot]`: the program has closed the file. Answer: [`DONE`] once its locks are released.
pub const CLOSED: u64 = 9;
/// `[MAKE_ROOM]`: the log is full. Answer: [`DONE`] after an attempt to retire records.
pub const MAKE_ROOM: u64 = 10;
/// `[REPAIR, slot]`: retries a file whose sync has failed; no process writes to it, and all writes are in
/// records. Answer: `[DONE, error number]`.
pub const REPAIR: u64 = 13;
/// `[BYE]`: the program ends. The connection closes once the keeper uses neither its files nor its log.
pub const BYE: u64 = 14;
/// Answer to several requests.
pub const DONE: u64 = 11;
/// `[DIGEST]`: so much of the log is in use that it should be digested. There is no answer.
pub const DIGEST: u64 = 12;
