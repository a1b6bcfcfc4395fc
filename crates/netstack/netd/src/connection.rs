//! Connections of programs, as the service keeps them.

use crate::stream::Stream;
use uncopy_net::message::Options;
use uncopy_tcp::error::Error;
use uncopy_tcp::stack::ConnectionId;
use uncopy_tcp::wire::Tuple;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The program has a stream and is filling its send buffer.
    Filling,
    /// TCP connects; the program's stream is full, so that writes block.
    Opening,
    Open,
}

pub(crate) struct Connection {
    pub stage: Stage,
    pub tuple: Tuple,
    pub options: Options,
    pub id: Option<ConnectionId>,
    pub stream: Option<Stream>,
    /// Whether the peer's stream ends after the queued bytes.
    pub has_ended: bool,
    /// Error to report after the queued bytes.
    pub failure: Option<Error>,
    /// Whether the program's stream has ended, and TCP was shut down.
    pub has_shut_down: bool,
    /// Whether the program has stopped receiving.
    pub write_shut: bool,
    /// Whether the program has shut its stream for reading; received bytes are then kept until requested.
    pub keeps_received: bool,
    /// Bytes taken from TCP for the program.
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
            write_shut: false,
            keeps_received: false,
            received_bytes: 0,
        }
    }
}
