//! Functions by their names and places.

/// Maximum bytes of a name; the rest is cut.
const MAX_NAME_BYTES: usize = 512;

/// Function that contains an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Address of the function's start.
    pub start: u64,
}

/// Returns the name of a symbol as its program's author wrote it, without control characters.
pub fn clean(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME_BYTES)]);
    // A version follows in names of symbol tables.
    let text = text.split("@@").next().unwrap_or_default();
    let demangled = uncopy_profile::symbols::demangled(text);
    demangled.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}
