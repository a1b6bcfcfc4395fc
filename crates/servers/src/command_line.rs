//! What `main` does in both programs, and their manual pages.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use clap_mangen::Man;
use clap_mangen::roff::Roff;

/// Exit status of a wrong command line.
const STATUS_USAGE: u8 = 2;

/// A program, by its command line.
pub trait Program: Parser {
    /// The program's name.
    const NAME: &'static str;

    /// Whether only the manual page is wanted.
    fn wants_manual(&self) -> bool;

    /// The manual page.
    ///
    /// # Errors
    /// None: it is written into memory.
    fn manual() -> io::Result<Vec<u8>>;

    /// Serves until a signal ends it.
    ///
    /// # Errors
    /// Why it cannot, in words.
    fn run(self) -> Result<(), String>;
}

/// The program: reads the command line and serves.
#[must_use]
pub fn main<P: Program>() -> ExitCode {
    let program = match P::try_parse() {
        Ok(program) => program,
        Err(error) if error.use_stderr() => {
            let message = error.to_string();
            eprint!("{}: {}", P::NAME, message.strip_prefix("error: ").unwrap_or(&message));
            return ExitCode::from(STATUS_USAGE);
        }
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    if program.wants_manual() {
        // A reader that has seen enough is no error.
        let _ = P::manual().and_then(|page| io::stdout().write_all(&page));
        return ExitCode::SUCCESS;
    }
    match program.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{}: {why}", P::NAME);
            ExitCode::FAILURE
        }
    }
}

/// A value's word on the command line.
pub fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A manual page: what clap knows, then `sections`.
///
/// # Errors
/// None: it is written into memory.
pub fn page(man: &Man, sections: impl IntoIterator<Item = Roff>) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    sections.into_iter().try_for_each(|section| section.to_writer(&mut page))?;
    Ok(page)
}
