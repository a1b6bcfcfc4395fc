//! Threads that share buffers, and programs that misuse their descriptors.

uncopy_tests::scenarios! { "threads":
    ring => [ElidedBytes, InputBytes, OutputBytes],
    fault_storm => [ElidedBytes, InputBytes, Faults],
    writes_to_the_same_pages => [ElidedBytes, Faults],
    halves_of_one_buffer => [InputBytes],
    closes_every_descriptor => [ElidedBytes, InputBytes],
    takes_any_descriptor_number => [ElidedBytes, InputBytes],
    threads_that_come_and_go => [ElidedBytes, InputBytes],
    threads_that_end_themselves => [ElidedBytes, InputBytes],
    exit_while_others_work => [ElidedBytes, InputBytes],
    cancelled_receives_keep_no_memory => [ElidedBytes],
    coroutines_on_the_heap => [ElidedBytes, InputBytes],
    cancelled_receive => [ElidedBytes, InputBytes],
}
