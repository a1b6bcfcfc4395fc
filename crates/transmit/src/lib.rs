//! The transmit engine: sends the parts of a message, each copied or by reference, by the way that pays on its socket.
