//! Whether it is worth trying for a program, by what can be seen before it runs.

use super::contents::Findings;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worth {
    /// Whether it is worth trying.
    pub is_worth: bool,
    /// Why, as part of a sentence.
    pub why: String,
    /// What to type next.
    pub next: String,
}

impl Worth {
    /// The words in the verdict and in JSON.
    pub const fn name(&self) -> &'static str {
        if self.is_worth { "worth trying" } else { "probably not" }
    }

    /// What its file and its libraries come to. Whether what it copies is large, a profile says.
    pub fn of(findings: Findings, program: &str, command: &str) -> Self {
        let next = format!("uncopy profile -- {command}");
        match findings {
            Findings { against: Some(why), .. } => Self { is_worth: false, why, next },
            Findings { against: None, but } => {
                let but = but.map_or_else(String::new, |but| format!(", but {but}"));
                Self {
                    is_worth: true,
                    why: format!(
                        "uncopy reaches what {program} copies{but}; whether that is much a profile says"
                    ),
                    next,
                }
            }
        }
    }
}
