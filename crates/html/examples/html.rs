//! The page of the profile on standard input, on standard output: to look at while working on it.
use std::io::{Read, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    let profile = uncopy_profile::Profile::parse(&bytes)?;
    Ok(std::io::stdout().write_all(uncopy_html::profile_page(&profile).as_bytes())?)
}
