//! The terminal while `uncopy top` has it, and its keys.

use crate::os::child::{self, Watch};
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

/// How long a signal or another size of the terminal may wait.
const TICK: Duration = Duration::from_millis(250);
/// Bytes of keys that are taken at a time.
const KEYS_BYTES: usize = 256;

/// What came.
pub enum Input {
    /// A key.
    Key(Key),
    /// The picture must be drawn again.
    Redraw,
    /// Somebody or something ends it.
    End,
}

/// Of a terminal that does not say.
const USUAL_SIZE: Size = Size::new(80, 24);

/// The terminal, without its line discipline and with a screen of its own until it is dropped.
pub struct Screen {
    terminal: Terminal<TermionBackend<Stdout>>,
    size: Size,
    before: Termios,
    watch: Watch,
    keys: Vec<Key>,
}

impl Screen {
    /// Takes the terminal; `None`: standard input or output is none.
    pub fn take() -> io::Result<Option<Self>> {
        if !is_tty(&io::stdin()) || !is_tty(&io::stdout()) {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let saved = before.clone();
        let usual = std::panic::take_hook();
        // A panic aborts: nothing is dropped.
        std::panic::set_hook(Box::new(move |panic| {
            give_back(&saved);
            usual(panic);
        }));
        let size = size();
        let mut screen =
            Self { terminal: terminal(size)?, size, before, watch: Watch::begin(), keys: Vec::new() };
        screen.enter()?;
        Ok(Some(screen))
    }

    fn enter(&mut self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write!(io::stdout(), "{ToAlternateScreen}{}", cursor::Hide)?;
        self.renew()
    }

    /// Begins with an empty picture, of the size that the terminal has.
    fn renew(&mut self) -> io::Result<()> {
        self.size = size();
        self.terminal = terminal(self.size)?;
        let mut output = io::stdout();
        write!(output, "{}", clear::All)?;
        output.flush()
    }

    /// Draws.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if size() != self.size {
            self.renew()?;
        }
        self.terminal.draw(picture)?;
        Ok(())
    }

    /// Stops this process as the terminal's key would have done, and takes the terminal again when it goes on.
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back(&self.before);
        child::stop();
        self.enter()
    }

    /// The next input until `deadline`.
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
            let mut wanted = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut wanted, timeout.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => {
                    // Not through std's buffer, which poll knows nothing of.
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
        give_back(&self.before);
        self.watch.end();
    }
}

fn size() -> Size {
    let told = tcgetwinsize(io::stdout()).map(|size| Size::new(size.ws_col, size.ws_row));
    told.ok().filter(|size| size.width > 0 && size.height > 0).unwrap_or(USUAL_SIZE)
}

/// One that never asks the terminal where its cursor is: the answer would come among the keys.
fn terminal(size: Size) -> io::Result<Terminal<TermionBackend<Stdout>>> {
    let viewport = Viewport::Fixed(Rect::from(size));
    Terminal::with_options(TermionBackend::new(io::stdout()), TerminalOptions { viewport })
}

fn give_back(before: &Termios) {
    let mut output = io::stdout();
    // There is nobody left to tell.
    let _ = write!(output, "{}{ToMainScreen}", cursor::Show).and_then(|()| output.flush());
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}

fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut rest = bytes.iter().map(|byte| Ok(*byte));
    let mut keys = Vec::new();
    while let Some(Ok(first)) = rest.next() {
        // Escape alone is a key, too.
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
