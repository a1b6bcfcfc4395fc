//! `uncopy top`: the processes under uncopy, live.

pub mod line;
mod picture;
mod rates;
mod sites;
mod terminal;

use crate::live::shared_memory;
use crate::os;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Reason};
use crate::processes::Wanted;
use crate::sweep::sweep;
use clap::ArgMatches;
use picture::{Known, Picture};
use ratatui_termion::termion::event::Key;
use rates::{Order, Rates};
use sites::Sites;
use std::io;
use std::time::{Duration, Instant};
use terminal::{Input, Screen};

/// Longest time between looks, seconds.
const MAX_INTERVAL_S: u32 = 3600;

/// Shows them until a key or a signal ends it.
pub fn main(matches: &ArgMatches) -> u8 {
    let wanted = match Wanted::all_of(matches, line::PROCESSES) {
        Ok(wanted) => wanted,
        Err(status) => return status,
    };
    sweep(shared_memory());
    let screen = match Screen::take() {
        Ok(Some(screen)) => screen,
        Ok(None) => {
            output::complain("top needs a terminal; without one: uncopy ps");
            return EXIT_FAILURE;
        }
        Err(error) => return failed(&error),
    };
    let interval_s = matches.get_one::<u32>(line::INTERVAL).copied().unwrap_or(1);
    let mut top = Top {
        screen,
        rates: Rates::new(wanted),
        sites: Sites::new(),
        known: Known::Nothing,
        selected: None,
        order: Order::Elided,
        is_held: false,
        interval_s,
    };
    let done = top.run();
    // The terminal is given back before anything is written to it.
    drop(top);
    match done {
        Ok(()) => EXIT_OK,
        // The terminal is gone.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => EXIT_OK,
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> u8 {
    output::complain(format_args!("cannot use the terminal: {}", Reason(error)));
    EXIT_FAILURE
}

struct Top {
    screen: Screen,
    rates: Rates,
    sites: Sites,
    known: Known,
    /// The process that is selected, by its id: the list changes its order.
    selected: Option<u32>,
    order: Order,
    is_held: bool,
    interval_s: u32,
}

impl Top {
    fn run(&mut self) -> io::Result<()> {
        loop {
            if !self.is_held {
                self.rates.refresh(self.order);
            }
            self.look_at_selected();
            let deadline = Instant::now() + Duration::from_secs(self.interval_s.into());
            self.draw()?;
            while let Some(input) = self.screen.next(deadline)? {
                match input {
                    Input::Key(key) if self.ends(key)? => return Ok(()),
                    Input::Key(_) | Input::Redraw => self.draw()?,
                    Input::End => return Ok(()),
                }
            }
        }
    }

    /// Does what a key says; whether that is to end.
    fn ends(&mut self, key: Key) -> io::Result<bool> {
        match key {
            Key::Char('q') | Key::Esc | Key::Ctrl('c') => return Ok(true),
            Key::Ctrl('z') => self.screen.suspend()?,
            Key::Up | Key::Char('k') => self.select(-1),
            Key::Down | Key::Char('j') => self.select(1),
            Key::Char('<') | Key::Left => self.sort(-1),
            Key::Char('>') | Key::Right => self.sort(1),
            Key::Char(' ') => self.is_held = !self.is_held,
            Key::Char('+') => self.interval_s = self.interval_s.saturating_mul(2).min(MAX_INTERVAL_S),
            Key::Char('-') => self.interval_s = (self.interval_s / 2).max(1),
            _ => {}
        }
        Ok(false)
    }

    fn index(&self) -> usize {
        let is_it = |pid| self.rates.rows.iter().position(|row| row.process.pid == pid);
        self.selected.and_then(is_it).unwrap_or(0)
    }

    fn select(&mut self, steps: isize) {
        let last = self.rates.rows.len().saturating_sub(1);
        let index = self.index().saturating_add_signed(steps).min(last);
        self.selected = self.rates.rows.get(index).map(|row| row.process.pid);
        self.look_at_selected();
    }

    fn sort(&mut self, steps: isize) {
        self.order = self.order.moved(steps);
        self.rates.sort(self.order);
    }

    fn look_at_selected(&mut self) {
        let Some(row) = self.rates.rows.get(self.index()) else { return };
        self.known = if row.process.user != os::effective_user_id() {
            Known::Foreign
        } else {
            self.sites.of(row.process.pid).map_or(Known::Nothing, Known::Sites)
        };
    }

    fn draw(&mut self) -> io::Result<()> {
        let picture = Picture {
            rates: &self.rates,
            selected: self.index(),
            order: self.order,
            is_held: self.is_held,
            interval_s: self.interval_s,
            known: &self.known,
        };
        self.screen.draw(|frame| picture.draw(frame))
    }
}
