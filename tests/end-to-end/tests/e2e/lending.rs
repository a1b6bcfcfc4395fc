//! Bytes sent by reference: peers get the bytes as they were sent, whatever happens to the memory later.

uncopy_tests::scenarios! { "lending":
    changed_while_in_flight => [LentBytes, DroppedBytes],
    received_on_behind => [LentBytes, DroppedBytes],
    changed_in_parent_and_child => [LentBytes, DroppedBytes],
    changed_by_the_parent_of_a_sender => [LentBytes, DroppedBytes],
    changed_by_threads => [LentBytes, DroppedBytes],
    slow_readers => [LentBytes],
    peers_that_go_away => [LentBytes],
    cancelled_senders => [LentBytes],
    constants_that_are_made_writable => [LentBytes],
    parts_kept_of_what_is_in_flight => [LentBytes, DroppedBytes],
}
