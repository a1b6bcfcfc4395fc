//! Demangling of C++ and Rust names.

/// Maximum length of a name to demangle, in bytes; for longer ones the time can explode.
const MAX_NAME_BYTES: usize = 4096;

/// Demangles a C++ or Rust name; returns other names unchanged.
#[must_use]
pub fn demangled(name: &str) -> String {
    if name.len() > MAX_NAME_BYTES {
        return name.to_owned();
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    match cpp_demangle::Symbol::new(name) {
        Ok(symbol) if name.starts_with("_Z") => {
            let options = cpp_demangle::DemangleOptions::default().no_return_type();
            symbol.demangle_with_options(&options).unwrap_or_else(|_| name.to_owned())
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_were_written() {
        assert_eq!(demangled("memcpy"), "memcpy");
        assert_eq!(demangled("_ZN4core3ptr4read17h0123456789abcdefE"), "core::ptr::read");
        assert_eq!(
            demangled("_ZNSt6vectorIiSaIiEE4sizeEv"),
            "std::vector<int, std::allocator<int> >::size()"
        );
        assert_eq!(demangled("_Znonsense"), "_Znonsense");
    }
}
