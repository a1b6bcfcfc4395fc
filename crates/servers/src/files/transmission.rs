//! An answer on its way: text (heads, and what stands between the parts of several ranges) and ranges of a
//! file, in turns.
//!
//! ```text
//!   text  │ head │ part head │           │ part head │           │ closing boundary │
//!   file                     │ 100..200  │           │ 0..50     │
//!   steps └──────── 1 ───────────────────┴──────── 2 ────────────┴────── 3 ─────────┘
//! ```

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use crate::files::os;
use crate::files::ways::{Content, Link, Tools};

/// Text up to an offset, then a range of the file.
#[derive(Debug)]
struct Step {
    text_end: usize,
    file: Range<u64>,
}

/// An answer and how much of it was sent.
#[derive(Debug, Default)]
pub struct Transmission {
    text: Vec<u8>,
    text_sent: usize,
    steps: VecDeque<Step>,
    content: Option<Content>,
}

impl Transmission {
    /// Text alone.
    pub fn of_text(text: Vec<u8>) -> Self {
        let mut transmission = Self { text, ..Self::default() };
        transmission.end_step(0..0);
        transmission
    }

    /// Text and ranges of `content`, to be added.
    pub fn of_content(content: Content) -> Self {
        Self { content: Some(content), ..Self::default() }
    }

    /// The text, to be added to.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// After the text so far comes this range of the file.
    pub fn end_step(&mut self, file: Range<u64>) {
        self.steps.push_back(Step { text_end: self.text.len(), file });
    }

    /// Whether all of it was sent.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty()
    }

    /// Sends some of what is left, in one step's calls; returns how many bytes the kernel took. `more`:
    /// another answer follows at once.
    ///
    /// # Errors
    /// As [`Content::send`]. After anything but [`io::ErrorKind::WouldBlock`] the connection is of no use.
    pub fn advance(&mut self, link: &mut Link<'_>, more: bool) -> io::Result<usize> {
        let more = more || self.steps.len() > 1;
        let Some(step) = self.steps.front_mut() else { return Ok(0) };
        let head = &self.text[self.text_sent..step.text_end];
        let sent = match &mut self.content {
            Some(content) if !step.file.is_empty() => {
                content.send(link, head, step.file.start, step.file.end - step.file.start, more)?
            }
            _ => os::send_copied(link.socket, [head], more)?,
        };
        let of_text = sent.min(head.len());
        self.text_sent += of_text;
        step.file.start += (sent - of_text) as u64;
        if self.text_sent == step.text_end && step.file.is_empty() {
            self.steps.pop_front();
        }
        Ok(sent)
    }

    /// Gives back what can be used again.
    pub fn finish(self, tools: &mut Tools) {
        if let Some(content) = self.content {
            content.finish(tools);
        }
    }
}
