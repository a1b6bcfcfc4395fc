//! Terminal of `uncopy top`: raw mode, screen and keys.

use crate::os::child::{self, BlockedSignals};
use ratatui_core::layout::{Rect, Size};
use ratatui_core::terminal::{Frame, Terminal, TerminalOptions, Viewport};
use ratatui_termion::TermionBackend;
use ratatui_termion::termion::event::{Event, Key, parse_event};
use ratatui_termion::termion::screen::{ToAlternateScreen, ToMainScreen};
use ratatui_termion::termion::{clear, cursor, is_tty};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Stdout, Write as _};
use std::time::{Duration, Instant};

/// Maximum delay until a signal or a resize is noticed.
const TICK: Duration = Duration::from_millis(250);
/// Bytes of keys read at a time.
const KEYS_BYTES: usize = 256;

/// Event for `uncopy top`.
pub enum Input {
    Key(Key),
    /// The screen must be drawn again.
    Redraw,
    /// A signal, or the end of input, ends the command.
    End,
}

/// Size of a terminal that reports none.
const DEFAULT_SIZE: Size = Size::new(80, 24);

/// Terminal in raw mode with the alternate screen, restored when dropped.
pub struct Screen {
    terminal: Terminal<TermionBackend<Stdout>>,
    size: Size,
    original: Termios,
    signals: BlockedSignals,
    keys: Vec<Key>,
}

impl Screen {
    /// Acquires the terminal; `None` if standard input or output is not a terminal.
    pub fn acquire() -> io::Result<Option<Self>> {
        if !is_tty(&io::stdin()) || !is_tty(&io::stdout()) {
            return Ok(None);
        }
        let original = tcgetattr(io::stdin())?;
        let saved = original.clone();
        let default_hook = std::panic::take_hook();
        // A panic aborts without dropping anything.
        std::panic::set_hook(Box::new(move |panic| {
            restore(&saved);
            default_hook(panic);
        }));
        let size = size();
        let mut screen = Self {
            terminal: terminal(size)?,
            size,
            original,
            signals: BlockedSignals::begin(),
            keys: Vec::new(),
        };
        screen.enter()?;
        Ok(Some(screen))
    }

    fn enter(&mut self) -> io::Result<()> {
        let mut raw = self.original.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write!(io::stdout(), "{ToAlternateScreen}{}", cursor::Hide)?;
        self.reset()
    }

    /// Clears the screen and adopts the terminal's size.
    fn reset(&mut self) -> io::Result<()> {
        self.size = size();
        self.terminal = terminal(self.size)?;
        let mut output = io::stdout();
        write!(output, "{}", clear::All)?;
        output.flush()
    }

    pub fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if size() != self.size {
            self.reset()?;
        }
        self.terminal.draw(render)?;
        Ok(())
    }

    /// Restores the terminal, stops this process as the terminal's key would, and acquires the
    /// terminal again on continuation.
    pub fn suspend(&mut self) -> io::Result<()> {
        restore(&self.original);
        child::stop();
        self.enter()
    }

    /// Returns the next event; `None` at `deadline`.
    pub fn next(&mut self, deadline: Instant) -> io::Result<Option<Input>> {
        loop {
            if !self.keys.is_empty() {
                return Ok(Some(Input::Key(self.keys.remove(0))));
            }
            if let Some(signal) = child::next_signal(Some(Duration::ZERO)) {
                match signal.number {
                    libc::SIGTERM | libc::SIGHUP | libc::SIGINT | libc::SIGQUIT => {
                        return Ok(Some(Input::End));
                    }
                    libc::SIGTSTP => self.suspend()?,
                    _ => {}
                }
                return Ok(Some(Input::Redraw));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = rustix::event::Timespec::try_from(left.min(TICK)).ok();
            let stdin = io::stdin();
            let mut poll_fds = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut poll_fds, timeout.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => {
                    // Bypasses std's buffer, which poll does not see.
                    let mut bytes = [0; KEYS_BYTES];
                    match rustix::io::read(&stdin, &mut bytes)? {
                        0 => return Ok(Some(Input::End)),
                        length => self.keys = keys(&bytes[..length]),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore(&self.original);
        self.signals.end();
    }
}

fn size() -> Size {
    let reported = tcgetwinsize(io::stdout()).map(|size| Size::new(size.ws_col, size.ws_row));
    reported.ok().filter(|size| size.width > 0 && size.height > 0).unwrap_or(DEFAULT_SIZE)
}

/// Returns a terminal that never queries the position of the cursor: the answer would arrive among
/// the keys.
fn terminal(size: Size) -> io::Result<Terminal<TermionBackend<Stdout>>> {
    let viewport = Viewport::Fixed(Rect::from(size));
    Terminal::with_options(TermionBackend::new(io::stdout()), TerminalOptions { viewport })
}

fn restore(original: &Termios) {
    let mut output = io::stdout();
    // A failure can be reported nowhere.
    let _ = write!(output, "{}{ToMainScreen}", cursor::Show).and_then(|()| output.flush());
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, original);
}

fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut rest = bytes.iter().map(|byte| Ok(*byte));
    let mut keys = Vec::new();
    while let Some(Ok(first)) = rest.next() {
        // A lone escape byte is a key, too.
        if first == 0x1b && rest.len() == 0 {
            keys.push(Key::Esc);
        } else if let Ok(Event::Key(key)) = parse_event(first, &mut rest) {
            keys.push(key);
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_letters_and_escape_are_told_apart() {
        assert_eq!(keys(b"q\x1b[A\x1b[Bx"), [Key::Char('q'), Key::Up, Key::Down, Key::Char('x')]);
        assert_eq!(keys(b"\x1b"), [Key::Esc]);
        assert_eq!(keys(b"\x03\x1a"), [Key::Ctrl('c'), Key::Ctrl('z')]);
    }
}
