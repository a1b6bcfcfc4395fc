//! Environment of CMD: the inherited one, byte for byte, with a few variables set or removed.
//! Entries need not be UTF-8, need not contain `=` and may be repeated.

use crate::os;
use std::borrow::Cow;
use std::ffi::{CStr, CString};

/// Environment entries in their order.
pub struct Environment {
    entries: Vec<Cow<'static, CStr>>,
}

/// Splits `NAME=value`; a name has at least one byte.
fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = entry.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some((&entry[..equals], &entry[equals + 1..]))
}

impl Environment {
    /// Returns this process's environment.
    pub fn inherited() -> Self {
        Self { entries: os::environment().into_iter().map(Cow::Borrowed).collect() }
    }

    /// Returns an environment with these entries.
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = &'a CStr>) -> Self {
        Self { entries: entries.into_iter().map(|entry| Cow::Owned(entry.to_owned())).collect() }
    }

    /// Returns every `NAME=value`, in order.
    pub fn variables(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.entries.iter().filter_map(|entry| split(entry.to_bytes()))
    }

    /// Returns the first value of `name`, as getenv(3) does.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.variables().find(|(candidate, _)| *candidate == name).map(|(_, value)| value)
    }

    /// Removes every entry of `name`.
    pub fn remove(&mut self, name: &str) {
        self.entries
            .retain(|entry| split(entry.to_bytes()).is_none_or(|(found, _)| found != name.as_bytes()));
    }

    /// Sets `name`, replacing all earlier entries.
    ///
    /// A value with a zero byte cannot be in an environment: `name` is then only removed.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        let entry = [name.as_bytes(), b"=", value].concat();
        if let Ok(entry) = CString::new(entry) {
            self.entries.push(Cow::Owned(entry));
        }
    }

    /// Returns the entries as execve(2) takes them.
    pub fn entries(&self) -> Vec<&CStr> {
        self.entries.iter().map(AsRef::as_ref).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(entries: &[&'static CStr]) -> Environment {
        Environment::from_entries(entries.iter().copied())
    }

    #[test]
    fn set_replaces_every_entry_of_the_name_and_only_those() {
        let mut subject = environment(&[c"A=1", c"AB=2", c"odd", c"=x", c"A=3", c"B=\xff"]);
        assert_eq!(subject.get(b"A"), Some(b"1".as_slice()));
        subject.set("A", b"new");
        assert_eq!(subject.entries(), [c"AB=2", c"odd", c"=x", c"B=\xff", c"A=new"]);
        subject.remove("AB");
        assert_eq!(subject.get(b"AB"), None);
        assert_eq!(subject.variables().count(), 2);
    }

    #[test]
    fn values_may_be_empty_or_hold_equals_signs() {
        let subject = environment(&[c"A=", c"B=x=y"]);
        assert_eq!(subject.get(b"A"), Some(b"".as_slice()));
        assert_eq!(subject.get(b"B"), Some(b"x=y".as_slice()));
    }
}
