//! Verdict on whether uncopy is worth trying for a program, reached before it runs.

use super::binary::Findings;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether uncopy is worth trying.
    pub is_worth_trying: bool,
    /// Reason, as part of a sentence.
    pub why: String,
    /// Command to type next.
    pub next: String,
}

impl Verdict {
    /// Returns the words in the verdict and in JSON.
    pub const fn name(&self) -> &'static str {
        if self.is_worth_trying { "worth trying" } else { "probably not" }
    }

    /// Derives the verdict from the findings. Only a profile shows whether the copies are large.
    pub fn from_findings(findings: Findings, program: &str, command: &str) -> Self {
        let next = format!("uncopy profile -- {command}");
        match findings {
            Findings { blocker: Some(why), .. } => Self { is_worth_trying: false, why, next },
            Findings { blocker: None, caveat } => {
                let but = caveat.map_or_else(String::new, |but| format!(", but {but}"));
                Self {
                    is_worth_trying: true,
                    why: format!(
                        "uncopy reaches what {program} copies{but}; a profile shows how much that is"
                    ),
                    next,
                }
            }
        }
    }
}
