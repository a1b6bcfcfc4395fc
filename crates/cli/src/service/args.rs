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
      From now on Redis runs under uncopy, also when the machine starts again.
  sudo uncopy service nginx -- --lanes --min-size 64K
      With options of uncopy run.
  uncopy service --print memcached
      What would be written, and nothing else.
  sudo uncopy service --remove redis-server && sudo systemctl restart redis-server
      As it was before.

A drop-in beside the unit (/etc/systemd/system/NAME.service.d/90-uncopy.conf) starts the same commands under
uncopy run, and gives them what they lack for that: the group uncopy for another user than root, the device
where the unit has a /dev of its own, the system call where it has a filter. No file of a package is
touched. NAME may be a template (name@) or one of its instances. Exit status: 0, or 1 if there is no such
unit, its program cannot be reached or the file not be written, or 2 if the command line is wrong.";

/// Returns the definition of `uncopy service`.
pub fn command() -> Command {
    let switch =
        |id: &'static str, help: &'static str| Arg::new(id).long(id).help(help).action(ArgAction::SetTrue);
    Command::new("service")
        .about("Let a service of systemd run under uncopy")
        .override_usage("uncopy service [--user] [--print | --remove] NAME [-- OPTIONS OF RUN]")
        .arg(Arg::new(NAME).value_name("NAME").help("The service, as systemctl knows it").required(true))
        .arg(
            Arg::new(OPTIONS)
                .value_name("OPTIONS")
                .help("Options of uncopy run, behind --")
                .num_args(0..)
                .last(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(switch(PRINT, "Print what would be written").conflicts_with(REMOVE))
        .arg(switch(REMOVE, "Take back what was written"))
        .arg(switch(USER, "A service of this user's own service manager"))
        .arg(
            Arg::new(ROOT_DIRECTORY)
                .long("root")
                .value_name("DIR")
                .help("The system below DIR, for images")
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::DirPath),
        )
        .after_help(NOTES)
}
