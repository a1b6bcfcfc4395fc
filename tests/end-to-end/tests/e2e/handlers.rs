//! The program's own signal handlers, while the program copies received data.

uncopy_tests::scenarios! { "handlers":
    actions_as_installed => [ElidedBytes, InputBytes],
    every_signal_arrives_once_in_order => [ElidedBytes, InputBytes],
    a_vfork_child_changes_only_its_own => [ElidedBytes, InputBytes],
    handlers_installed_by_the_system_call => [ElidedBytes, InputBytes],
}
