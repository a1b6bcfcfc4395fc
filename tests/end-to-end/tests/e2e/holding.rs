//! Bytes received and sent by reference: they are right at the peers, and wherever the program looks.

uncopy_tests::scenarios! { "holding":
    relayed_in_any_order => [HeldBytes, HeldSentBytes, ReadOutBytes],
    sent_to_several => [HeldBytes, HeldSentBytes],
    closed_descriptors => [HeldBytes, ReadOutBytes],
    urgent_bytes => [HeldBytes],
    edge_triggered => [HeldBytes],
    blocking_calls => [HeldBytes],
    peers_that_go_away => [HeldBytes],
}
