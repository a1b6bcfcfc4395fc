//! A connection that a program has, as the service keeps it.

use crate::stream::Stream;
use uncopy_net::message::Options;
use uncopy_tcp::error::Error;
use uncopy_tcp::stack::ConnectionId;
use uncopy_tcp::wire::Tuple;

/// How far a program's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its program has a stream, which it fills.
    Filling,
    /// Its program has a stream that cannot be written to.
    Opening,
    /// Bytes go both ways.
    Open,
}

/// A connection that a program has.
pub(crate) struct Connection {
    pub stage: Stage,
    pub tuple: Tuple,
    pub options: Options,
    pub id: Option<ConnectionId>,
    pub stream: Option<Stream>,
    /// The peer's stream ends behind what waits.
    pub has_ended: bool,
    /// It fails behind what waits.
    pub failure: Option<Error>,
    /// The program's stream has ended, and TCP knows it.
    pub has_shut_down: bool,
    /// The program does not take anything any more.
    pub is_deaf: bool,
    /// The program has shut its stream for reading: what comes is kept until it asks.
    pub is_kept: bool,
    /// Bytes that the program was given.
    pub received_bytes: u64,
}

impl Connection {
    pub(crate) fn new(stage: Stage, tuple: Tuple, options: Options) -> Self {
        Self {
            stage,
            tuple,
            options,
            id: None,
            stream: None,
            has_ended: false,
            failure: None,
            has_shut_down: false,
            is_deaf: false,
            is_kept: false,
            received_bytes: 0,
        }
    }
}
