//! Completion scripts and man pages, made from the command line's definition.

use crate::args;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Quoted, Reason};
use clap::{ArgMatches, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::Path;
use uncopy_core::options::OPTIONS;

/// Prints the completion script of a shell.
pub fn completions(matches: &ArgMatches) -> u8 {
    let Some(shell) = matches.get_one::<Shell>(args::SHELL) else { return EXIT_FAILURE };
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut args::full_command(), "uncopy", &mut script);
    output::print(&script, EXIT_OK)
}

/// Prints the man page, or writes all pages to the directory of `--dir`.
pub fn man(matches: &ArgMatches) -> u8 {
    let Some(directory) = matches.get_one::<std::path::PathBuf>(args::DIRECTORY) else {
        return match render(&args::full_command()) {
            Ok(page) => output::print(&page, EXIT_OK),
            Err(error) => failed(Path::new("the man page"), &error),
        };
    };
    for (name, command) in commands() {
        let path = directory.join(format!("{name}.1"));
        if let Err(error) = render(&command).and_then(|page| std::fs::write(&path, page)) {
            return failed(&path, &error);
        }
    }
    EXIT_OK
}

fn failed(path: &Path, error: &io::Error) -> u8 {
    output::print_message(format_args!("cannot write {}: {}", Quoted(path.as_os_str()), Reason(error)));
    EXIT_FAILURE
}

/// Returns the command and its subcommands, each with the name of its page.
fn commands() -> Vec<(String, Command)> {
    let mut built = args::full_command();
    built.build();
    let mut commands: Vec<(String, Command)> = built
        .get_subcommands()
        .filter(|command| command.get_name() != "help")
        .map(|command| {
            let name = format!("uncopy-{}", command.get_name());
            (name.clone(), command.clone().display_name(name))
        })
        .collect();
    commands.insert(0, ("uncopy".to_string(), args::full_command()));
    commands
}

fn render(command: &Command) -> io::Result<Vec<u8>> {
    // `uncopy help` has no page of its own.
    let command = command.clone().disable_help_subcommand(true);
    let man = Man::new(command.clone())
        .manual("uncopy manual")
        .source(concat!("uncopy ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_name() == "run" {
        environment().to_writer(&mut page)?;
    }
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    sections(&notes).to_writer(&mut page)?;
    Ok(page)
}

/// Returns the section on environment variables.
fn environment() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["ENVIRONMENT"]);
    for option in OPTIONS {
        let values = match option.value {
            Some(value) => format!(" ({value})"),
            None => " (1 or 0)".to_string(),
        };
        page.control("TP", []);
        page.text([bold(option.variable), roman(values)]);
        page.text([roman(format!("The same as --{}, which takes precedence.", option.flag))]);
    }
    page
}

/// Returns the text below the options as sections. Blocks that begin with a title keep their lines.
fn sections(notes: &str) -> Roff {
    let mut page = Roff::new();
    for block in notes.split("\n\n").filter(|block| !block.is_empty()) {
        let (title, body) = match block.split_once(":\n") {
            Some(("Example" | "Examples", body)) => ("EXAMPLES", body),
            Some(("Exit status of run", body)) => ("EXIT STATUS", body),
            _ => ("NOTES", block),
        };
        page.control("SH", [title]);
        let is_preformatted = title != "NOTES";
        if is_preformatted {
            page.control("nf", []);
        }
        page.text([roman(body)]);
        if is_preformatted {
            page.control("fi", []);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subcommand_has_a_page_that_names_its_options() {
        let commands = commands();
        let names: Vec<&str> = commands.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "uncopy",
                "uncopy-run",
                "uncopy-doctor",
                "uncopy-profile",
                "uncopy-report",
                "uncopy-ps",
                "uncopy-top",
                "uncopy-stats",
                "uncopy-metrics",
                "uncopy-release",
                "uncopy-log",
                "uncopy-net",
                "uncopy-service",
                "uncopy-completions",
                "uncopy-man"
            ]
        );
        let run = String::from_utf8(render(&commands[1].1).expect("rendered")).expect("text");
        for option in OPTIONS {
            assert!(run.contains(option.variable), "{}", option.variable);
        }
        for section in ["OPTIONS", "ENVIRONMENT", "EXAMPLES", "NOTES"] {
            assert!(run.contains(&format!(".SH {section}\n")), "{section}");
        }
        assert!(run.contains(".SH \"EXIT STATUS\"\n"), "{run}");
    }
}
