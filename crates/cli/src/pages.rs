//! Completion scripts and man pages, made from the command line's definition.

use crate::line;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Quoted, Reason};
use clap::builder::StyledStr;
use clap::{ArgMatches, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::Path;
use uncopy_core::options::OPTIONS;

/// `uncopy completions SHELL`.
pub fn completions(matches: &ArgMatches) -> u8 {
    let Some(shell) = matches.get_one::<Shell>(line::SHELL) else { return EXIT_FAILURE };
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut line::whole(), "uncopy", &mut script);
    output::print(&script, EXIT_OK)
}

/// `uncopy man [--dir DIR]`.
pub fn man(matches: &ArgMatches) -> u8 {
    let Some(directory) = matches.get_one::<std::path::PathBuf>(line::DIRECTORY) else {
        return match page(&line::whole()) {
            Ok(page) => output::print(&page, EXIT_OK),
            Err(error) => failed(Path::new("the man page"), &error),
        };
    };
    for (name, command) in commands() {
        let path = directory.join(format!("{name}.1"));
        if let Err(error) = page(&command).and_then(|page| std::fs::write(&path, page)) {
            return failed(&path, &error);
        }
    }
    EXIT_OK
}

fn failed(path: &Path, error: &io::Error) -> u8 {
    output::complain(format_args!("cannot write {}: {}", Quoted(path.as_os_str()), Reason(error)));
    EXIT_FAILURE
}

/// The command and its subcommands, each with its page's name.
fn commands() -> Vec<(String, Command)> {
    let mut built = line::whole();
    built.build();
    let mut commands: Vec<(String, Command)> = built
        .get_subcommands()
        .filter(|command| command.get_name() != "help")
        .map(|command| {
            let name = format!("uncopy-{}", command.get_name());
            (name.clone(), command.clone().display_name(name))
        })
        .collect();
    commands.insert(0, ("uncopy".to_string(), line::whole()));
    commands
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    // `uncopy help` has no page to refer to.
    let command = command.clone().disable_help_subcommand(true);
    let is_bench = command.get_name() == "bench";
    let man = Man::new(command.clone())
        .manual("uncopy manual")
        .source(concat!("uncopy ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if is_bench {
        experiments(&command).to_writer(&mut page)?;
    } else if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_name() == "run" {
        environment().to_writer(&mut page)?;
    }
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    sections(&notes).to_writer(&mut page)?;
    Ok(page)
}

/// The experiments of `bench`, each with its options: they have no pages of their own.
fn experiments(bench: &Command) -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["EXPERIMENTS"]);
    let text = |help: Option<&StyledStr>| help.map(ToString::to_string).unwrap_or_default();
    for experiment in
        bench.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        page.control("SS", [experiment.get_name()]);
        page.text([roman(text(experiment.get_about()))]);
        for option in
            experiment.get_arguments().filter(|option| !option.is_hide_set() && option.get_id() != "help")
        {
            let Some(long) = option.get_long() else { continue };
            let values = option.get_value_names().unwrap_or_default().join(" ");
            let values =
                if option.get_action().takes_values() { format!(" {values}") } else { String::new() };
            page.control("TP", []);
            page.text([bold(format!("--{long}")), roman(&*values)]);
            let defaults: Vec<_> =
                option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            let default = match defaults.as_slice() {
                defaults if values.is_empty() || defaults.is_empty() => String::new(),
                defaults => format!(" (default: {})", defaults.join(",")),
            };
            page.text([roman(text(option.get_help()) + &default)]);
        }
    }
    page
}

/// The variables that carry the options.
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
        page.text([roman(format!("The same as --{}, which wins over it.", option.flag))]);
    }
    page
}

/// The blocks of a help text that follow the options, as sections; lines stay as they are in
/// those that begin with a title.
fn sections(notes: &str) -> Roff {
    let mut page = Roff::new();
    for block in notes.split("\n\n").filter(|block| !block.is_empty()) {
        let (title, body) = match block.split_once(":\n") {
            Some(("Example" | "Examples", body)) => ("EXAMPLES", body),
            Some(("Exit status of run", body)) => ("EXIT STATUS", body),
            _ => ("NOTES", block),
        };
        page.control("SH", [title]);
        let as_it_is = title != "NOTES";
        if as_it_is {
            page.control("nf", []);
        }
        page.text([roman(body)]);
        if as_it_is {
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
                "uncopy-bench",
                "uncopy-completions",
                "uncopy-man"
            ]
        );
        let run = String::from_utf8(page(&commands[1].1).expect("rendered")).expect("text");
        for option in OPTIONS {
            assert!(run.contains(option.variable), "{}", option.variable);
        }
        for section in ["OPTIONS", "ENVIRONMENT", "EXAMPLES", "NOTES"] {
            assert!(run.contains(&format!(".SH {section}\n")), "{section}");
        }
        assert!(run.contains(".SH \"EXIT STATUS\"\n"), "{run}");
    }

    #[test]
    fn the_page_of_bench_names_every_experiment_with_its_options() {
        let commands = commands();
        let (_, bench) = commands.iter().find(|(name, _)| name == "uncopy-bench").expect("a page");
        let text = String::from_utf8(page(bench).expect("rendered")).expect("text");
        for experiment in bench.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = experiment.get_name();
            assert!(name == "help" || text.contains(&format!(".SS {name}\n")), "{name}: {text}");
        }
        assert!(text.contains("\\fB\\-\\-svg\\fR FILE") && text.contains("(default: 0,1,5,12)"), "{text}");
        assert!(!text.contains("memcpy\\-loop"), "what is hidden stays hidden");
    }
}
