//! The command line of `uncopy service`.

use clap::{Arg, ArgAction, Command, ValueHint, value_parser};
use std::ffi::OsString;
use std::path::PathBuf;

// Ids of options and arguments.
pub const NAME: &str = "name";
pub const REMOVE: &str = "remove";
pub const PRINT: &str = "print";
pub const USER: &str = "user";
pub const ROOT_DIRECTORY: &str = "root";
pub const OPTIONS: &str = "options";

const NOTES: &str = "\
Examples:
  sudo uncopy service redis-server && sudo systemctl restart redis-server
      Run Redis under uncopy from now on, also after a reboot.
  sudo uncopy service nginx -- --lanes --min-size 64K
      Run nginx under uncopy with options of 'uncopy run'.
  uncopy service --print memcached
      Print the drop-in without writing it.
  sudo uncopy service --remove redis-server && sudo systemctl restart redis-server
      Run Redis without uncopy again.

Writes a drop-in for the unit (/etc/systemd/system/NAME.service.d/90-uncopy.conf), which starts the same commands \
under 'uncopy run' and grants what the unit lacks for that: the group uncopy if its user is not root, the device if \
it has a private /dev, system calls if it has a filter. No file of a package changes. NAME may be a template \
(name@) or one of its instances. Exit status: 0; 1 if there is no such unit, uncopy cannot reach its program, or the \
file cannot be written; 2 for a wrong command line.";

/// Returns the definition of `uncopy service`.
pub fn command() -> Command {
    let switch =
        |id: &'static str, help: &'static str| Arg::new(id).long(id).help(help).action(ArgAction::SetTrue);
    Command::new("service")
        .about("Make a systemd service run under uncopy")
        .override_usage("uncopy service [--user] [--print | --remove] NAME [-- OPTIONS OF RUN]")
        .arg(Arg::new(NAME).value_name("NAME").help("The service, as for systemctl").required(true))
        .arg(
            Arg::new(OPTIONS)
                .value_name("OPTIONS")
                .help("Options of 'uncopy run', after --")
                .num_args(0..)
                .last(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(switch(PRINT, "Print the drop-in without writing it").conflicts_with(REMOVE))
        .arg(switch(REMOVE, "Remove the drop-in"))
        .arg(switch(USER, "A service of this user's manager (systemctl --user)"))
        .arg(
            Arg::new(ROOT_DIRECTORY)
                .long("root")
                .value_name("DIR")
                .help("Work on the system image below DIR")
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::DirPath),
        )
        .after_help(NOTES)
}
