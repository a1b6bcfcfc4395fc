//! Reads a profile on standard input and writes its page to standard output, for work on the page.
use std::io::{Read, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    let profile = uncopy_profile::Profile::parse(&bytes)?;
    Ok(std::io::stdout().write_all(uncopy_html::profile_page(&profile).as_bytes())?)
}
